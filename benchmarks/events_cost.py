"""What the refresh events cost a read: throughput with events, beside the same source without any.

    python -m benchmarks.events_cost [--records 3000000] [--rounds 9] [--json FILE]

All readers take turns in one Spark session, as in `benchmarks.throughput`. "Often" is a cache that refreshes ten times
a second, far more than any real trouble makes it. Figures are medians of the turns, and of the ratios of neighbours in
time, which the noise of a machine spoils least.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import uuid
from collections.abc import MutableMapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from benchmarks.throughput import Reader, fill, read_seconds, spark_session
from pyspark_kafka_meta import KafkaMetaDataSource
from pyspark_kafka_meta.testing import LocalKafka

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
    """One row a reader. Each of its turns is compared with the turn without events right before it."""
    for reader in [SILENT_READER, *compared]:
        read_seconds(spark, reader, bootstrap_servers, topic)
    turns: dict[str, list[tuple[float, float]]] = {reader.name: [] for reader in compared}
    for _ in range(rounds):
        for reader in compared:
            without = read_seconds(spark, SILENT_READER, bootstrap_servers, topic)
            turns[reader.name].append((read_seconds(spark, reader, bootstrap_servers, topic), without))
    return [
        {
            "reader": name,
            "seconds": round(statistics.median(seconds for seconds, _ in pairs), 3),
            "seconds_without_events": round(statistics.median(without for _, without in pairs), 3),
            "median_ratio": round(statistics.median(seconds / without for seconds, without in pairs), 3),
            "best_ratio": round(min(seconds for seconds, _ in pairs) / min(without for _, without in pairs), 3),
        }
        for name, pairs in turns.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=3_000_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()

    given = os.environ.get("KAFKAMETA_BOOTSTRAP_SERVERS")
    with nullcontext() if given else LocalKafka() as kafka, tempfile.TemporaryDirectory() as folder:
        bootstrap_servers = given or kafka.bootstrap_servers
        topic, metrics_topic = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("events-cost", "events"))
        admin = AdminClient({"bootstrap.servers": bootstrap_servers})
        admin.create_topics([NewTopic(metrics_topic, 1, 3)])[metrics_topic].result(30)
        fill(bootstrap_servers, topic, "lz4", arguments.records)
        spark = spark_session()
        spark.dataSource.register(SilentSource)
        rows = measure(spark, bootstrap_servers, topic, arguments.rounds, readers(folder, metrics_topic))
        spark.stop()
        files = list(Path(folder).glob("*.jsonl"))
        written = sum(len(file.read_text().splitlines()) for file in files)

    title = (
        f"{arguments.records:,} records of 200 B, {arguments.rounds} turns each; {written} events in {len(files)} files"
    )
    table = Table("reader", "seconds", "without events", "median ratio", "ratio of the best", title=title)
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console().print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
