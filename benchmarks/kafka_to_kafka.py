"""Measures the time of a micro-batch that reads one topic and writes another, with this source and sink or Spark's.

    python -m benchmarks.kafka_to_kafka [--rounds 3] [--seconds 20] [--json FILE]

A thousand records a second arrive in 6 partitions. The pipelines take turns, without a trigger interval, from the
latest offsets on; each casts keys and values to strings, and writes to a topic of 6 partitions and 3 replicas with
acks=all. Micro-batches count as in `benchmarks.micro_batches`.
"""

from __future__ import annotations

import statistics
from functools import partial
from itertools import chain
from typing import NamedTuple

from pyspark.sql import SparkSession

from benchmarks import peers, write_peers
from benchmarks.harness import argument_parser, brokers, report, spark_session
from benchmarks.micro_batches import counted_ms
from benchmarks.peers import Reader, take_turns
from benchmarks.topics import new_topic, trickle
from benchmarks.watching import watch
from benchmarks.write_peers import Writer

PARTITIONS = 6
RECORDS_PER_S = 1_000


class Pipeline(NamedTuple):
    """A query from a topic to another."""

    name: str
    reader: Reader
    writer: Writer


OURS = Pipeline("kafkameta", peers.OURS, write_peers.OURS)
JVM = Pipeline("JVM source and sink, defaults", peers.JVM, write_peers.JVM)
TUNED_JVM = Pipeline("JVM source tuned, JVM sink", peers.TUNED_JVM, write_peers.JVM)
"""A sink that lingers only makes a micro-batch longer."""


def turn_ms(
    spark: SparkSession, bootstrap_servers: str, topics: tuple[str, str], seconds: float, pipeline: Pipeline
) -> list[float]:
    """The time of each counted micro-batch in one turn."""
    source, target = topics
    rows = pipeline.reader.read_stream(spark, bootstrap_servers, source)
    rows = rows.selectExpr("CAST(key AS STRING) key", "CAST(value AS STRING) value")
    options = {"kafka.bootstrap.servers": bootstrap_servers, "topic": target, **pipeline.writer.options}
    return counted_ms(watch(rows, sink=pipeline.writer.sink, options=options), seconds)


def main() -> None:
    arguments = argument_parser(__doc__, rounds=3, seconds=20).parse_args()
    with brokers() as bootstrap_servers, spark_session() as spark:
        source, target = (new_topic(bootstrap_servers, purpose, PARTITIONS) for purpose in ("source", "target"))
        turn = partial(turn_ms, spark, bootstrap_servers, (source, target), arguments.seconds)
        with trickle(bootstrap_servers, source, PARTITIONS, RECORDS_PER_S):
            turns = take_turns((OURS, JVM, TUNED_JVM), arguments.rounds, turn, warm_up_rounds=0)
    report("Milliseconds a micro-batch", result_rows(turns), arguments.json)


def result_rows(turns: dict[str, list[list[float]]]) -> list[dict[str, object]]:
    """A row for each pipeline; a ratio is the median of the ratios of turns in the same round."""
    theirs = [statistics.median(turn) for turn in turns[JVM.name]]
    rows: list[dict[str, object]] = []
    for name, taken in turns.items():
        times = list(chain(*taken))
        ratios = [statistics.median(turn) / their for turn, their in zip(taken, theirs, strict=True)]
        rows.append(
            {
                "pipeline": name,
                "batches": len(times),
                "p50_ms": round(statistics.median(times)),
                "p95_ms": round(statistics.quantiles(times, n=20, method="inclusive")[-1]),
                "times_the_JVM's_p50": round(statistics.median(ratios), 2),
                "from": round(min(ratios), 2),
                "to": round(max(ratios), 2),
            }
        )
    return rows


if __name__ == "__main__":
    main()
