"""What the refresh events cost a read: throughput with events, beside the same source without any.

    python -m benchmarks.events_cost [--records 10000000] [--rounds 10] [--json FILE]

All readers take turns in one Spark session, as in `benchmarks.throughput`. "Often" is a cache that refreshes ten times
a second, far more than any real trouble makes it. Figures are medians of the turns, and of the ratios of neighbours in
time, which the noise of a machine spoils least.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import MutableMapping
from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.harness import argument_parser, brokers, report, spark_session
from benchmarks.peers import Reader
from benchmarks.throughput import PARTITIONS, VALUE_BYTES, read_seconds
from benchmarks.topics import fill, new_topic
from pyspark_kafka_meta import KafkaMetaDataSource

SILENT = "kafkameta_silent"
SILENT_READER = Reader("no events", SILENT, {})


class SilentSource(KafkaMetaDataSource):
    """The same source, whose events go nowhere but to the log."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = replace(self._options, metrics=None)  # type: ignore[arg-type]

    @classmethod
    def name(cls) -> str:
        return SILENT


def readers(folder: str, metrics_topic: str) -> list[Reader]:
    often = {"kafka.metadata.max.age.ms": "100"}
    return [
        Reader("events to a folder", "kafkameta", {"metricsPath": folder}),
        Reader("events to a topic", "kafkameta", {"metricsTopic": metrics_topic}),
        Reader("events to a folder, often", "kafkameta", {"metricsPath": folder, **often}),
    ]


def measure(
    spark: SparkSession, bootstrap_servers: str, topic: str, rounds: int, compared: list[Reader]
) -> list[dict[str, object]]:
    """One row a reader. Each of its turns is compared with a turn without events right before or after it, in turn, so
    that a machine that becomes slower or faster favours neither."""
    for reader in [SILENT_READER, *compared]:
        read_seconds(spark, reader, bootstrap_servers, topic)
    turns: dict[str, list[tuple[float, float]]] = {reader.name: [] for reader in compared}
    for number in range(rounds):
        for reader in compared:
            pair = [SILENT_READER, reader]
            in_order = pair if number % 2 else pair[::-1]
            seconds = {one.name: read_seconds(spark, one, bootstrap_servers, topic) for one in in_order}
            turns[reader.name].append((seconds[reader.name], seconds[SILENT_READER.name]))
    return [result_row(name, pairs) for name, pairs in turns.items()]


def result_row(name: str, pairs: list[tuple[float, float]]) -> dict[str, object]:
    """Of pairs of seconds with events and without."""
    ratios = sorted(seconds / without for seconds, without in pairs)
    return {
        "reader": name,
        "seconds": round(statistics.median(seconds for seconds, _ in pairs), 3),
        "seconds_without_events": round(statistics.median(without for _, without in pairs), 3),
        "median_ratio": round(statistics.median(ratios), 3),
        "least_ratio": round(ratios[0], 3),
        "greatest_ratio": round(ratios[-1], 3),
        "ratio_of_the_best": round(min(seconds for seconds, _ in pairs) / min(without for _, without in pairs), 3),
    }


def main() -> None:
    arguments = argument_parser(__doc__, records=10_000_000, rounds=10).parse_args()
    with brokers() as bootstrap_servers, spark_session() as spark, tempfile.TemporaryDirectory() as folder:
        topic = new_topic(bootstrap_servers, "cost", PARTITIONS)
        metrics_topic = new_topic(bootstrap_servers, "events", 1)
        fill(bootstrap_servers, topic, PARTITIONS, arguments.records, VALUE_BYTES, "lz4")
        spark.dataSource.register(SilentSource)
        rows = measure(spark, bootstrap_servers, topic, arguments.rounds, readers(folder, metrics_topic))
        files = list(Path(folder).glob("*.jsonl"))
        written = sum(len(file.read_text().splitlines()) for file in files)
    records, rounds = arguments.records, arguments.rounds
    title = f"{records:,} records of {VALUE_BYTES} B, {rounds} turns each; {written} events in {len(files)} files"
    report(title, rows, arguments.json)


if __name__ == "__main__":
    main()
