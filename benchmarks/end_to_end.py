"""Measures the delay of records in Spark: from the send time to the end of the micro-batch's collection.

    python -m benchmarks.end_to_end [--rounds 3] [--seconds 20] [--json FILE]

2,000 records per second arrive in 6 partitions. Streams of this source and of Spark's JVM source take turns, without a
trigger interval. The value of a record is its send time, by the clock of its arrival time. All records sent in the
`--seconds` after a turn's warm-up count: a turn ends when the last of these records has arrived.
"""

from __future__ import annotations

import math
import tempfile
import time
from functools import partial

import numpy as np
from pyspark.sql import DataFrame, SparkSession

from benchmarks.harness import argument_parser, brokers, report, spark_session
from benchmarks.peers import JVM, OURS, TUNED_JVM, Reader, take_turns
from benchmarks.topics import new_topic, trickle

PARTITIONS = 6
RECORDS_PER_S = 2_000
WARM_UP_S = 8.0
ARRIVAL_TIMEOUT_S = 60.0


def turn_s(spark: SparkSession, bootstrap_servers: str, topic: str, seconds: float, reader: Reader) -> list[float]:
    """The delay of each record that was sent in one turn after its warm-up.

    Raises:
        TimeoutError: not all records arrived.
    """
    late: list[float] = []
    ended: set[int] = set()  # partitions with a later record: a partition keeps the send order
    begin = end = math.inf  # while the stream starts

    def arrive(batch: DataFrame, _: int) -> None:
        table = batch.selectExpr("partition", "CAST(CAST(value AS STRING) AS DOUBLE) AS sent").toArrow()
        arrived, sent = time.time(), table["sent"].to_numpy()
        late.extend(arrived - sent[(sent >= begin) & (sent < end)])
        ended.update(table["partition"].to_numpy()[sent >= end])

    rows = reader.read_stream(spark, bootstrap_servers, topic)
    with tempfile.TemporaryDirectory() as checkpoint:
        query = rows.writeStream.foreachBatch(arrive).option("checkpointLocation", checkpoint).start()
        begin = time.time() + WARM_UP_S
        end = begin + seconds
        while len(ended) < PARTITIONS:
            if query.awaitTermination(1) or time.time() > end + ARRIVAL_TIMEOUT_S:
                raise TimeoutError(f"{len(ended)} of {PARTITIONS} partitions were read to the end")
        query.stop()
    return late


def main() -> None:
    arguments = argument_parser(__doc__, rounds=3, seconds=20).parse_args()
    with brokers() as bootstrap_servers, spark_session() as spark:
        topic = new_topic(bootstrap_servers, "end-to-end", PARTITIONS)
        with trickle(bootstrap_servers, topic, PARTITIONS, RECORDS_PER_S):
            turn = partial(turn_s, spark, bootstrap_servers, topic, arguments.seconds)
            turns = take_turns((OURS, JVM, TUNED_JVM), arguments.rounds, turn)
    late = {name: np.concatenate(taken) for name, taken in turns.items()}
    medians = {name: float(np.median(delays)) for name, delays in late.items()}
    rows: list[dict[str, object]] = [
        {
            "reader": name,
            "records": len(delays),
            "p50_ms": round(1000 * medians[name]),
            "p99_ms": round(1000 * float(np.quantile(delays, 0.99))),
            "times_the_JVM_source's": round(medians[name] / medians[JVM.name], 2),
        }
        for name, delays in late.items()
    ]
    report(f"From sending to arrival, {RECORDS_PER_S:,} records a second", rows, arguments.json)


if __name__ == "__main__":
    main()
