"""`WrittenRange`: offsets that a task has written, for its commit message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from pyspark_kafka_meta.model import TopicPartition

UNKNOWN_OFFSET = -1
"""Base offset of records that the log held already, when the broker does not say where."""


class WrittenRange(NamedTuple):
    """Acknowledged records with adjacent offsets [from_offset, until_offset), or with unknown offsets: both are then
    `UNKNOWN_OFFSET`."""

    from_offset: int
    until_offset: int
    records: int


Written: TypeAlias = Mapping[TopicPartition, list[WrittenRange]]
"""What a task wrote, by partition in the order of writing."""


def add_range(ranges: list[WrittenRange], base_offset: int, records: int) -> None:
    """Add a batch to the ranges of its partition, as a part of the last range if it follows it."""
    until_offset = UNKNOWN_OFFSET if base_offset == UNKNOWN_OFFSET else base_offset + records
    last = ranges[-1] if ranges else None
    if last is not None and last.until_offset == base_offset:
        ranges[-1] = WrittenRange(last.from_offset, until_offset, last.records + records)
    else:
        ranges.append(WrittenRange(base_offset, until_offset, records))
