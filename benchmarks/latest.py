"""Measures a batch query of the latest value of each key, beside Spark's ways over its own source.

    python -m benchmarks.latest [--rounds 5] [--records 3000000] [--keys 300000] [--json FILE]

A topic of 6 partitions has values of 200 bytes, each 50th of them null, under random keys of 20 bytes. This source
reads the table `latest`; after Spark's source, `row_number()` over each key by offset, as most tutorials have it, or
`max_by` leaves the last record, unless its value is null. Before the turns, all of these must have read the same rows.

Turns, figures, ratios and CPU seconds are those of `benchmarks.throughput`: records are those of the topic.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from benchmarks.harness import argument_parser, brokers, report, spark_session
from benchmarks.peers import JVM, OURS, TUNED_JVM, Reader, take_turns
from benchmarks.throughput import PARTITIONS, VALUE_BYTES, measured, result_rows
from benchmarks.topics import fill_with, new_topic

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
NULL_EACH = 50


def by_row_number(rows: DataFrame) -> DataFrame:
    newest = Window.partitionBy("key").orderBy(F.desc("offset"))
    return (
        rows.withColumn("number", F.row_number().over(newest)).where("number = 1 AND value IS NOT NULL").drop("number")
    )


def by_max(rows: DataFrame) -> DataFrame:
    newest = rows.groupBy("key").agg(F.max_by(F.struct(*COLUMNS), "offset").alias("newest"))
    return newest.select("newest.*").where("value IS NOT NULL")


class Way(NamedTuple):
    """A way to the latest values: a reader, and what follows it."""

    name: str
    reader: Reader
    latest: Callable[[DataFrame], DataFrame]

    def rows(self, spark: SparkSession, bootstrap_servers: str, topic: str) -> DataFrame:
        return self.latest(self.reader.read(spark, bootstrap_servers, topic)).select(*COLUMNS)


WAYS = (
    Way("kafkameta, table latest", OURS._replace(options={"table": "latest"}), lambda rows: rows),
    *(
        Way(f"{jvm.name}, {name}", jvm, latest)
        for jvm in (JVM, TUNED_JVM)
        for name, latest in {"row_number()": by_row_number, "max_by()": by_max}.items()
    ),
)


def check(spark: SparkSession, bootstrap_servers: str, topic: str) -> int:
    """The number of latest rows. Raises RuntimeError: the ways do not have the same."""
    digest = F.sum(F.xxhash64("key", "value", "partition", "offset").cast("decimal(38)"))
    found = {way.name: way.rows(spark, bootstrap_servers, topic).agg(F.count("*"), digest).first() for way in WAYS}
    if len(set(found.values())) != 1:
        raise RuntimeError(f"not the same rows: {found}")
    (rows, _), *_ = filter(None, found.values())
    return int(rows)


def main() -> None:
    arguments = argument_parser(__doc__, rounds=5, records=3_000_000, keys=300_000).parse_args()
    rng, records = random.Random(1), arguments.records
    stock = [rng.randbytes(VALUE_BYTES) if number % NULL_EACH else None for number in range(10_007)]
    per_partition = arguments.keys // PARTITIONS
    keys = [b"%020d" % (rng.randrange(per_partition) * PARTITIONS + at % PARTITIONS) for at in range(records)]
    with brokers() as bootstrap_servers, spark_session() as spark:
        topic = new_topic(bootstrap_servers, "latest", PARTITIONS)
        fill_with(stock, bootstrap_servers, topic, PARTITIONS, records, keys=keys)
        case = {"keys": arguments.keys, "rows": check(spark, bootstrap_servers, topic)}
        turns = take_turns(
            WAYS, arguments.rounds, lambda way: measured(partial(way.rows, spark, bootstrap_servers, topic))
        )
    title = f"Thousands of records of the topic a second, {arguments.rounds} turns each"
    report(title, result_rows(case, "reader", records, turns), arguments.json)


if __name__ == "__main__":
    main()
