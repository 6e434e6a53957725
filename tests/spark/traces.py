"""A stream that tests restart, and the traces of streams: batches in checkpoints and progress reports, and events of
caches."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
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


class Query:
    """A stream from a topic to a Parquet folder."""

    def __init__(self, spark: SparkSession, folder: Path, bootstrap_servers: str, source: str = "kafkameta") -> None:
        self.spark, self.folder, self.source = spark, folder, source
        self.checkpoint = folder / "checkpoint"
        self.options: dict[str, Any] = {"kafka.bootstrap.servers": bootstrap_servers, "startingOffsets": "earliest"}

    def frame(self, **options: Any) -> DataFrame:
        """What is read. Dictionaries in `options` become JSON."""
        given = {**self.options, **options}
        texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in given.items()}
        return self.spark.readStream.format(self.source).options(**texts).load()

    def start(self, rows: DataFrame | None = None, **trigger: Any) -> StreamingQuery:
        """Without `rows` the values are written."""
        if rows is None:
            rows = self.frame().selectExpr("CAST(value AS STRING) AS value")
        sink = rows.writeStream.format("parquet").option("path", str(self.folder / "rows"))
        return sink.option("checkpointLocation", str(self.checkpoint)).trigger(**trigger).start()

    def run_rows(self, rows: DataFrame) -> StreamingQuery:
        """Until it has read all records."""
        return run_to_the_end(lambda: self.start(rows, availableNow=True), self.checkpoint)

    def run(self, **options: Any) -> StreamingQuery:
        return self.run_rows(self.frame(**options).selectExpr("CAST(value AS STRING) AS value"))

    def values(self) -> list[str]:
        return sorted(row.value for row in self.spark.read.parquet(str(self.folder / "rows")).collect())

    def offset_log(self) -> list[str]:
        files = (self.checkpoint / "offsets").glob("[0-9]*")
        return [file.read_text() for file in sorted(files, key=lambda file: int(file.name))]


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
