"""Measures the time of a write whose rows choose among many topics, with this sink and Spark's.

    python -m benchmarks.many_topics [--rounds 5] [--rows 10] [--tasks 2] [--json FILE] [TOPICS ...]

Each topic has one partition and gets as many rows, with keys, in each write. The rows are cached. In a turn a writer
with a client id of its own, so that its clients are new, writes all rows twice: the first write learns the topics, the
second knows them. Writers take turns; a figure is the median of the turns. A Python sink that drops its rows shows what
Spark needs for any Python sink.
"""

from __future__ import annotations

import statistics
import time
import uuid
from functools import partial
from typing import NamedTuple

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from benchmarks.harness import argument_parser, brokers, report, spark_session
from benchmarks.peers import take_turns
from benchmarks.topics import delete, new_topics, record_count
from benchmarks.write_peers import DROP, JVM, OURS, DropSink, Writer

TOPICS = (300, 3_000)
WRITERS = (OURS, JVM, DROP)


class Turn(NamedTuple):
    """Seconds of the two writes."""

    first_s: float
    second_s: float


def cached_rows(spark: SparkSession, topics: list[str], per_topic: int, tasks: int) -> DataFrame:
    """Rows in the memory of Spark, for each topic in turn."""
    names = spark.createDataFrame(list(enumerate(topics)), "number int, topic string")
    numbers = spark.range(0, len(topics) * per_topic, 1, tasks).selectExpr("id", f"id % {len(topics)} AS number")
    rows = numbers.join(names.hint("broadcast"), "number").selectExpr(
        "topic", "CAST(id AS STRING) AS key", "concat(md5(CAST(id AS STRING)), repeat('x', 68)) AS value"
    )
    rows.persist(StorageLevel.MEMORY_ONLY).count()
    return rows


def write_twice(rows: DataFrame, bootstrap_servers: str, writer: Writer) -> Turn:
    options = {"kafka.bootstrap.servers": bootstrap_servers, "kafka.client.id": f"many-topics-{uuid.uuid4().hex[:8]}"}
    started = time.perf_counter()
    write = rows.write.format(writer.sink).options(**options).mode("append")
    write.save()
    between = time.perf_counter()
    write.save()
    return Turn(between - started, time.perf_counter() - between)


def result_rows(topics: int, played: dict[str, list[Turn]]) -> list[dict[str, object]]:
    medians = {name: Turn(*map(statistics.median, zip(*turns, strict=True))) for name, turns in played.items()}
    theirs = medians[JVM.name]
    return [
        {
            "topics": topics,
            "writer": name,
            "first_write_ms": round(ours.first_s * 1000),
            "second_write_ms": round(ours.second_s * 1000),
            "first_times_the_JVM_sink's": round(ours.first_s / theirs.first_s, 2),
            "second_times_the_JVM_sink's": round(ours.second_s / theirs.second_s, 2),
        }
        for name, ours in medians.items()
    ]


def main() -> None:
    parser = argument_parser(__doc__, rounds=5, rows=10, tasks=2)
    parser.add_argument("topics", nargs="*", type=int, default=TOPICS, help=f"default: {', '.join(map(str, TOPICS))}")
    arguments = parser.parse_args()
    results: list[dict[str, object]] = []
    with brokers() as bootstrap_servers, spark_session() as spark:
        spark.dataSource.register(DropSink)
        for count in arguments.topics:
            topics = new_topics(bootstrap_servers, "many", count)
            rows = cached_rows(spark, topics, arguments.rows, arguments.tasks)
            played = take_turns(WRITERS, arguments.rounds, partial(write_twice, rows, bootstrap_servers))
            turns = 2 * (arguments.rounds + 1)  # of the two that write, with a warm-up round
            expected = turns * 2 * count * arguments.rows
            written = record_count(bootstrap_servers, *topics)
            if written != expected:
                raise RuntimeError(f"the writers wrote {written} of {expected} records")
            delete(bootstrap_servers, *topics)
            results += result_rows(count, played)
    report(f"Milliseconds a write, {arguments.rounds} turns each", results, arguments.json)


if __name__ == "__main__":
    main()
