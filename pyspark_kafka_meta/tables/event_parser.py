"""Parses refresh events from JSON lines, and converts rows to Arrow. Invalid lines are skipped and counted.

Fields of newer versions are ignored, missing fields of older versions are null, and nulls in lists are dropped.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import pyarrow as pa

from pyspark_kafka_meta.kafka.records.schema import rows_without_columns

logger = logging.getLogger(__name__)

ROWS_PER_BATCH = 4_096
_REQUIRED = {"cache_id": str, "sequence": int, "time_ms": int}
"""Without these an event cannot be identified."""
_MAX_TIME_MS = 253_402_300_800_000 - 24 * 3_600_000
"""A day before the year 10000, the end of Python's datetime in every time zone; exclusive."""


def parse_events(lines: Iterable[bytes | None]) -> Iterator[dict[str, Any]]:
    """The events in `lines`, with their `time` in microseconds since 1970 UTC. A final warning counts invalid lines."""
    invalid = 0
    for line in lines:
        try:
            event = json.loads(line or b"")
        except (ValueError, RecursionError):
            event = None
        if _is_event(event):
            lists = {
                name: [item for item in value if item is not None]
                for name, value in event.items()
                if isinstance(value, list)
            }
            yield {**event, **lists, "time": event["time_ms"] * 1_000}
        else:
            invalid += 1
    _warn_of_invalid(invalid)


def to_batches(rows: Iterable[Mapping[str, Any]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows as Arrow. Rows with values of other types are skipped; a warning counts them."""
    remaining = iter(rows)
    while chunk := list(islice(remaining, ROWS_PER_BATCH)):
        try:
            yield _to_batch(chunk, schema)
        except (TypeError, ValueError, OverflowError):
            valid = [row for row in chunk if _fits(row, schema)]
            _warn_of_invalid(len(chunk) - len(valid))
            yield _to_batch(valid, schema)


def _to_batch(rows: list[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema) if len(schema) else rows_without_columns(len(rows))


def _is_event(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and all(type(value.get(name)) is kind for name, kind in _REQUIRED.items())
        and 0 <= value["time_ms"] < _MAX_TIME_MS
    )


def _fits(row: Mapping[str, Any], schema: pa.Schema) -> bool:
    try:
        pa.RecordBatch.from_pylist([row], schema)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _warn_of_invalid(count: int) -> None:
    if count:
        logger.warning("skipped lines that are not refresh events: %d", count)
