"""`WrittenRange`: offsets that a task has written, for its commit message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from pyspark_kafka_meta.model import TopicPartition, WrittenOffsets

UNKNOWN_OFFSET = -1
"""Base offset of records that the log held already, when the broker does not say where."""
MAX_RANGES = 16
"""Of a partition. Where other producers write between the batches, each batch would be a range of its own."""


class WrittenRange(NamedTuple):
    """Acknowledged records with offsets in [from_offset, until_offset): adjacent, but in the last of `MAX_RANGES`
    ranges. Both are `UNKNOWN_OFFSET` if no offset is known."""

    from_offset: int
    until_offset: int
    records: int


Written: TypeAlias = Mapping[TopicPartition, list[WrittenRange]]
"""What a task wrote, by partition in the order of writing."""


def add_range(ranges: list[WrittenRange], base_offset: int, records: int) -> None:
    """Add a batch to the ranges of its partition, as a part of the last range if it follows it."""
    until_offset = UNKNOWN_OFFSET if base_offset == UNKNOWN_OFFSET else base_offset + records
    last = ranges[-1] if ranges else None
    if last is not None and (last.until_offset == base_offset or len(ranges) == MAX_RANGES):
        from_offset = base_offset if last.from_offset == UNKNOWN_OFFSET else last.from_offset
        ranges[-1] = WrittenRange(from_offset, max(last.until_offset, until_offset), last.records + records)
    else:
        ranges.append(WrittenRange(base_offset, until_offset, records))


def spans(written: Written) -> tuple[WrittenOffsets, ...]:
    """One span of offsets for each partition, which may hold records of others too."""
    return tuple(
        WrittenOffsets(*partition, ranges[0].from_offset, ranges[-1].until_offset, sum(each.records for each in ranges))
        for partition, ranges in sorted(written.items())
    )
