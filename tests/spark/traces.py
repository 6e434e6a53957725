"""Reads the traces of streams: batches in checkpoints and in progress reports, and the events of caches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_kafka_meta.spark.stream_api import PASSES_START
from tests.kafka.cluster_tools import poll_until

Key = tuple[str, int]
QUIET_LOOKS = 20


def logged(checkpoint: Path, log: str) -> int:
    """Number of micro-batches in a log of the checkpoint: `offsets` has the planned, `commits` the completed ones."""
    return sum(file.name.isdecimal() for file in (checkpoint / log).glob("*"))


def run_to_the_end(start: Callable[[], StreamingQuery], checkpoint: Path) -> StreamingQuery:
    """Start a query with Trigger.AvailableNow until nothing is new, and return its last run: before pyspark 4.2 a run
    ends after one micro-batch."""
    while True:
        before = logged(checkpoint, "commits")
        query = start()
        assert query.awaitTermination(120), "the query did not end"
        if PASSES_START or logged(checkpoint, "commits") == before:
            return query


def rows_by_batch(query: StreamingQuery) -> list[int]:
    """Row counts of the batches that have rows."""
    return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]


def keys(events: DataFrame) -> list[Key]:
    return sorted((row.cache_id, row.sequence) for row in events.select("cache_id", "sequence").collect())


def gapless(found: list[Key]) -> list[Key]:
    """The same number of events of each cache, with sequences from 1 on and no gap."""
    counts = Counter(cache_id for cache_id, _ in found)
    return sorted((cache_id, number) for cache_id, count in counts.items() for number in range(1, count + 1))


def wait_until_quiet(folder: Path) -> None:
    """Wait until there are files of events, and they have not grown for two seconds: on a busy machine tasks end before
    a thread of their worker has written their events. Where a test knows which events must come, it waits for these."""
    looks: list[dict[str, int]] = []

    def is_quiet() -> bool:
        looks.append({path.name: path.stat().st_size for path in folder.glob("*.jsonl")})
        return bool(looks[-1]) and looks[-QUIET_LOOKS:] == [looks[-1]] * QUIET_LOOKS

    poll_until(is_quiet)
