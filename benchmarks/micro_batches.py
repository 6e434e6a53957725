"""Measures the time of a micro-batch by the number of partitions, which all get records.

    python -m benchmarks.micro_batches [--rounds 3] [--seconds 15] [--json FILE] [PARTITIONS ...]

Streams of this source and of Spark's JVM source take turns on one topic, without a trigger interval, from the latest
offsets on. The measure is Spark's `triggerExecution` of micro-batches with rows that started after a turn's warm-up:
the first micro-batch that ends after the warm-up started before, and does not count. A turn lasts until at least two
micro-batches count.
"""

from __future__ import annotations

import statistics
from contextlib import closing
from functools import partial
from itertools import chain

from pyspark.sql import SparkSession

from benchmarks.harness import argument_parser, brokers, report, spark_session
from benchmarks.peers import JVM, OURS, TUNED_JVM, Reader, take_turns
from benchmarks.topics import new_topic, trickle
from benchmarks.watching import Looks, watch

PARTITIONS = (1, 6, 100, 500)
RECORDS_PER_S = 1_000
LEAST_BATCHES = 3
WARM_UP_S = 8.0


def turn_ms(spark: SparkSession, bootstrap_servers: str, topic: str, seconds: float, reader: Reader) -> list[float]:
    """The time of each counted micro-batch in one turn."""
    return counted_ms(watch(reader.read_stream(spark, bootstrap_servers, topic)), seconds)


def counted_ms(stream: Looks, seconds: float) -> list[float]:
    """The time of each micro-batch after the warm-up. Stops the stream."""
    times: dict[int, float] = {}
    early: set[int] = set()
    with closing(stream) as looks:
        for passed_s, reports in looks:
            if passed_s < WARM_UP_S:
                early = {progress.batchId for progress in reports}
                continue
            late = [progress for progress in reports if progress.numInputRows > 0 and progress.batchId not in early]
            times |= {progress.batchId: float(progress.durationMs["triggerExecution"]) for progress in late}
            if passed_s > WARM_UP_S + seconds and len(times) >= LEAST_BATCHES:
                break
    return [times[batch_id] for batch_id in sorted(times)[1:]]  # the first started during the warm-up


def main() -> None:
    parser = argument_parser(__doc__, rounds=3, seconds=15)
    parser.add_argument("partitions", nargs="*", type=int, default=PARTITIONS)
    arguments = parser.parse_args()
    rows: list[dict[str, object]] = []
    with brokers() as bootstrap_servers, spark_session() as spark:
        for partitions in arguments.partitions:
            topic = new_topic(bootstrap_servers, "micro-batches", partitions, replicas=1)
            turn = partial(turn_ms, spark, bootstrap_servers, topic, arguments.seconds)
            with trickle(bootstrap_servers, topic, partitions, RECORDS_PER_S):
                turns = take_turns((OURS, JVM, TUNED_JVM), arguments.rounds, turn, warm_up_rounds=0)
            rows += result_rows(partitions, {name: list(chain(*taken)) for name, taken in turns.items()})
    report("Milliseconds a micro-batch", rows, arguments.json)


def result_rows(partitions: int, times: dict[str, list[float]]) -> list[dict[str, object]]:
    theirs = statistics.median(times[JVM.name])
    return [
        {
            "partitions": partitions,
            "reader": name,
            "batches": len(taken),
            "p50_ms": round(statistics.median(taken)),
            "p90_ms": round(statistics.quantiles(taken, n=10, method="inclusive")[-1]),
            "times_the_JVM_source's": round(statistics.median(taken) / theirs, 2),
        }
        for name, taken in times.items()
    ]


if __name__ == "__main__":
    main()
