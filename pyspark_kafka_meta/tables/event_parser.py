"""Refresh events out of JSON lines, and rows into Arrow: what cannot be an event is left out and counted, never fatal.

Fields that a newer version added are ignored, fields that an older one lacks are null; nulls in lists are left out.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import pyarrow as pa

logger = logging.getLogger(__name__)

ROWS_A_BATCH = 4_096
_NEEDED = {"cache_id": str, "sequence": int, "time_ms": int}
"""Without these an event cannot be identified."""
_TOO_LATE_MS = 253_402_300_800_000 - 24 * 3_600_000
"""A day before the year 10000, of which Python knows nothing in any time zone."""


def parse_events(lines: Iterable[bytes | None]) -> Iterator[dict[str, Any]]:
    """The events among `lines`, each with its `time` in microseconds since 1970 UTC. In the end, a warning counts the
    lines that hold none."""
    bad = 0
    for line in lines:
        try:
            event = json.loads(line or b"")
        except (ValueError, RecursionError):
            event = None
        if _is_event(event):
            lists = {
                name: [one for one in value if one is not None]
                for name, value in event.items()
                if isinstance(value, list)
            }
            yield {**event, **lists, "time": event["time_ms"] * 1_000}
        else:
            bad += 1
    _warn_of(bad)


def to_batches(rows: Iterable[Mapping[str, Any]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows as Arrow, without those that have values of another type; a warning counts these."""
    remaining = iter(rows)
    while chunk := list(islice(remaining, ROWS_A_BATCH)):
        try:
            yield pa.RecordBatch.from_pylist(chunk, schema)
        except (TypeError, ValueError, OverflowError):
            good = [row for row in chunk if _fits(row, schema)]
            _warn_of(len(chunk) - len(good))
            yield pa.RecordBatch.from_pylist(good, schema)


def _is_event(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and all(type(value.get(name)) is kind for name, kind in _NEEDED.items())
        and 0 <= value["time_ms"] < _TOO_LATE_MS
    )


def _fits(row: Mapping[str, Any], schema: pa.Schema) -> bool:
    try:
        pa.RecordBatch.from_pylist([row], schema)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _warn_of(bad: int) -> None:
    if bad:
        logger.warning("lines left out, as they are no refresh events: %d", bad)
