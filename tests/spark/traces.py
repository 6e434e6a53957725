"""What tests of streams look at: batches in a checkpoint and in progress reports, and the events of caches."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

Key = tuple[str, int]


def logged(checkpoint: Path, log: str) -> int:
    """Micro-batches in one of the checkpoint's logs: offsets, once planned; commits, once done."""
    return sum(file.name.isdecimal() for file in (checkpoint / log).glob("*"))


def rows_by_batch(query: StreamingQuery) -> list[int]:
    """Of the batches that had any."""
    return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]


def keys(events: DataFrame) -> list[Key]:
    return sorted((row.cache_id, row.sequence) for row in events.select("cache_id", "sequence").collect())


def gapless(found: list[Key]) -> list[Key]:
    """What there would be of these caches, each from its first event on."""
    counts = {cache_id: sum(one == cache_id for one, _ in found) for cache_id, _ in found}
    return sorted((cache_id, number) for cache_id, count in counts.items() for number in range(1, count + 1))
