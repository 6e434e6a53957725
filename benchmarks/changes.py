"""Measures the rows of a table from Debezium's changes, beside Spark's source with the envelope taken apart by hand.

    python -m benchmarks.changes [--rounds 5] [--records 300000] [--json FILE]

A topic of 6 partitions has the changes of `benchmarks.envelopes` in JSON with the schema in each message, as Kafka
Connect writes them by default. By hand, `from_json` reads the payload, of which fields become columns with the simplest
functions: decimals stay as base64, and `_change` has op, deleted and offset alone. Before the turns, both must have
read the same keys, ops, dates and flags.

Turns, figures, ratios and CPU seconds are those of `benchmarks.throughput`.
"""

from __future__ import annotations

import statistics
from functools import partial
from itertools import chain

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from benchmarks.envelopes import changes, connect_json
from benchmarks.harness import argument_parser, brokers, report, spark_session
from benchmarks.peers import JVM, OURS, TUNED_JVM, Reader, take_turns
from benchmarks.throughput import PARTITIONS, measured, result_rows
from benchmarks.topics import fill_with, new_topic

DIFFERENT_VALUES = 60_000
ROW = (
    "STRUCT<name: STRING, id: BIGINT, price: STRING, day: INT, at: BIGINT, seen: STRING, data: STRING, "
    "tags: ARRAY<STRING>, paid: BOOLEAN>"
)
SOURCE = "STRUCT<ts_ms: BIGINT, snapshot: STRING, sequence: STRING, lsn: BIGINT>"
ENVELOPE = f"payload STRUCT<before: {ROW}, after: {ROW}, source: {SOURCE}, op: STRING, ts_ms: BIGINT>"
BY_HAND = (
    "row.id",
    "row.name",
    "row.price",
    "date_add(DATE'1970-01-01', row.day) AS day",
    "timestamp_micros(row.at) AS at",
    "CAST(row.seen AS TIMESTAMP) AS seen",
    "unbase64(row.data) AS data",
    "row.tags",
    "row.paid",
    "struct(payload.op, payload.op = 'd' AS deleted, payload.source, offset) AS _change",
)
DEBEZIUM = {"changes": "debezium", "valueFormat": "connect-json"}


def rows_of(reader: Reader, spark: SparkSession, bootstrap_servers: str, topic: str) -> DataFrame:
    read = reader.read(spark, bootstrap_servers, topic)
    if reader.source == OURS.source:
        return read
    payload = read.select("offset", F.from_json(F.col("value").cast("string"), ENVELOPE)["payload"].alias("payload"))
    rows = payload.where("payload.op IN ('c', 'u', 'r', 'd')")
    return rows.selectExpr("*", "IF(payload.op = 'd', payload.before, payload.after) AS row").selectExpr(*BY_HAND)


def check(spark: SparkSession, bootstrap_servers: str, topic: str, readers: list[Reader]) -> None:
    """Raises RuntimeError: the readers do not have the same rows."""
    digest = F.sum(F.xxhash64("id", "day", "paid", "_change.op", "_change.offset").cast("decimal(38)"))
    found = set()
    for reader in readers:
        rows = rows_of(reader, spark, bootstrap_servers, topic).where("_change.op <> 'tombstone'")
        found.add(rows.agg(F.count("*"), digest).first())
    if len(found) != 1:
        raise RuntimeError(f"not the same rows: {found}")


def main() -> None:
    arguments = argument_parser(__doc__, rounds=5, records=300_000).parse_args()
    encoding, in_partition = connect_json(), DIFFERENT_VALUES // PARTITIONS
    stocks = [encoding.encode(list(changes(seed, 2 * in_partition))[:in_partition]) for seed in range(PARTITIONS)]
    keys, values = (list(chain(*zip(*stock, strict=True))) for stock in zip(*stocks, strict=True))
    ours = Reader("kafkameta, changes", OURS.source, DEBEZIUM)
    readers = [ours, *(jvm._replace(name=f"{jvm.name}, from_json") for jvm in (JVM, TUNED_JVM))]
    with brokers() as bootstrap_servers, spark_session() as spark:
        topic = new_topic(bootstrap_servers, "changes", PARTITIONS)
        fill_with(values, bootstrap_servers, topic, PARTITIONS, arguments.records, keys=keys)
        check(spark, bootstrap_servers, topic, readers)
        turns = take_turns(
            readers, arguments.rounds, lambda way: measured(partial(rows_of, way, spark, bootstrap_servers, topic))
        )
    case = {"value_bytes": round(statistics.fmean(len(value or b"") for value in values))}
    title = f"Thousands of records a second, {arguments.rounds} turns each"
    report(title, result_rows(case, "reader", arguments.records, turns), arguments.json)


if __name__ == "__main__":
    main()
