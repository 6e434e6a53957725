"""Measures the planning of a micro-batch by the number of partitions, for this source and Spark's JVM source.

    python -m benchmarks.planning [--rounds 3] [--json FILE] [PARTITIONS ...]

A stream reads a topic without new records. The measure is Spark's own `latestOffset` of the triggers without a
micro-batch: the planner requests the end offsets of all partitions, as before every micro-batch. The first trigger,
which learns the partitions, is listed separately. A warm-up round comes first: brokers are busy for seconds with
thousands of new partitions.
"""

from __future__ import annotations

import statistics
from contextlib import closing
from functools import partial

from pyspark.sql import SparkSession

from benchmarks.harness import argument_parser, brokers, report, spark_session
from benchmarks.peers import JVM, OURS, Reader, take_turns
from benchmarks.topics import new_topic
from benchmarks.watching import watch

PARTITIONS = (100, 1_000, 10_000)
TRIGGERS = 10


def turn_ms(spark: SparkSession, bootstrap_servers: str, topic: str, reader: Reader) -> list[float]:
    """The time of `latestOffset` at each trigger of one stream."""
    with closing(watch(reader.read_stream(spark, bootstrap_servers, topic), "1 second")) as looks:
        reports = next(reports for _, reports in looks if len(reports) >= TRIGGERS)
    return [float(progress.durationMs["latestOffset"]) for progress in reports]


def main() -> None:
    parser = argument_parser(__doc__, rounds=3)
    parser.add_argument("partitions", nargs="*", type=int, default=PARTITIONS)
    arguments = parser.parse_args()
    rows: list[dict[str, object]] = []
    with brokers() as bootstrap_servers, spark_session() as spark:
        spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "0")  # a report of every trigger
        for partitions in arguments.partitions:
            topic = new_topic(bootstrap_servers, "planning", partitions, replicas=1)
            turns = take_turns((OURS, JVM), arguments.rounds, partial(turn_ms, spark, bootstrap_servers, topic))
            for name, looks in turns.items():
                later = [ms for _, *after in looks for ms in after]
                rows.append(
                    {
                        "partitions": partitions,
                        "reader": name,
                        "first_ms": round(statistics.median(first for first, *_ in looks)),
                        "later_p50_ms": round(statistics.median(later)),
                        "later_worst_ms": round(max(later)),
                    }
                )
    report("Milliseconds to plan", rows, arguments.json)


if __name__ == "__main__":
    main()
