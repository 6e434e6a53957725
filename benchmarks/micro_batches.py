"""How long a micro-batch takes by the number of partitions, all of which get a record now and then.

    python -m benchmarks.micro_batches [--rounds 3] [--seconds 15] [--json FILE] [PARTITIONS ...]

Streams of this source and of Spark's JVM source take turns on one topic, without a trigger interval, from the latest
offsets on. What counts is Spark's own `triggerExecution` of micro-batches with rows that began after a turn's first
seconds, which are for warmth: the first that ends after them began before, and never counts. A turn lasts until two
micro-batches count, however long these take.
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
from benchmarks.watching import watch

PARTITIONS = (1, 6, 100, 500)
RECORDS_PER_S = 1_000
LEAST_BATCHES = 3
WARM_UP_S = 8.0


def turn_ms(spark: SparkSession, bootstrap_servers: str, topic: str, seconds: float, reader: Reader) -> list[float]:
    """The time of each micro-batch with rows in one turn."""
    seen: dict[int, float] = {}
    early: set[int] = set()
    with closing(watch(reader.read_stream(spark, bootstrap_servers, topic))) as looks:
        for passed_s, reports in looks:
            if passed_s < WARM_UP_S:
                early = {one.batchId for one in reports}
                continue
            late = [one for one in reports if one.numInputRows > 0 and one.batchId not in early]
            seen |= {one.batchId: float(one.durationMs["triggerExecution"]) for one in late}
            if passed_s > WARM_UP_S + seconds and len(seen) >= LEAST_BATCHES:
                break
    return [seen[batch_id] for batch_id in sorted(seen)[1:]]  # the first began during the warm-up


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
