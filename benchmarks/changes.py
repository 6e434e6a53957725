"""Measures the rows of a table from Debezium's changes, beside Spark's source with the envelope taken apart by hand.

    python -m benchmarks.changes [--rounds 5] [--records 300000] [--json FILE]

A topic of 6 partitions has the changes of `benchmarks.envelopes` in JSON with the schema in each message, as Kafka
Connect writes them by default. By hand, `from_json` reads the whole envelope, and SQL makes the same rows of it: before
the turns, all columns of all rows must be equal, but for tombstones without a delete, which SQL drops. The shortest SQL
leaves decimals in Base64, reads four fields of the source, and has op, deleted, source and offset alone in `_change`.

Turns, figures, ratios and CPU seconds are those of `benchmarks.throughput`.
"""

from __future__ import annotations

import base64
import statistics
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from benchmarks.envelopes import COLUMNS, OTHERS, SOURCE, TRANSACTION, UNAVAILABLE, Field, changes, connect_json
from benchmarks.harness import argument_parser, brokers, report, spark_session
from benchmarks.peers import JVM, OURS, TUNED_JVM, Reader, take_turns
from benchmarks.throughput import PARTITIONS, measured, result_rows
from benchmarks.topics import fill_with, new_topic

DIFFERENT_VALUES = 60_000
DEBEZIUM = {"changes": "debezium", "valueFormat": "connect-json"}
SPARK_TYPES = {pa.int64(): "BIGINT", pa.int32(): "INT", pa.bool_(): "BOOLEAN", pa.list_(pa.string()): "ARRAY<STRING>"}
UNAVAILABLE_DATA = base64.b64encode(UNAVAILABLE.encode()).decode()
IS_UNAVAILABLE = {
    "name": f"row.name = '{UNAVAILABLE}'",
    "data": f"row.data = '{UNAVAILABLE_DATA}'",
    "tags": f"row.tags = array('{UNAVAILABLE}')",
}
UNAVAILABLE_NAMES = ", ".join(f"IF({test}, '{name}', NULL)" for name, test in IS_UNAVAILABLE.items())
PRICE = "hex(unbase64(row.price))"


def members(fields: Mapping[str, Field], names: Iterable[str] | None = None) -> str:
    """The members of an object with their types; decimals and bytes are texts."""
    return ", ".join(f"{name}: {SPARK_TYPES.get(fields[name].kind, 'STRING')}" for name in names or fields)


class ByHand(NamedTuple):
    """A query of envelopes.

    Attributes:
        beside_the_rows: members of the envelope.
        columns: of `payload` and of `row`, the row after a change, or before a delete.
    """

    name: str
    beside_the_rows: str
    columns: Sequence[str]

    @property
    def envelope(self) -> str:
        row = f"STRUCT<{members(COLUMNS)}>"
        return f"payload STRUCT<before: {row}, after: {row}, {self.beside_the_rows}>"


SAME_ROWS = ByHand(
    "from_json",
    f"source: STRUCT<{members(SOURCE)}>, transaction: STRUCT<{members(TRANSACTION)}>, {members(OTHERS)}",
    (
        "row.id",
        f"IF({IS_UNAVAILABLE['name']}, NULL, row.name) AS name",
        f"CAST(CAST(conv(lpad({PRICE}, 16, IF({PRICE} >= '8', 'F', '0')), 16, -10) AS BIGINT) * 0.01BD "
        "AS DECIMAL(10, 2)) AS price",
        "date_add(DATE'1970-01-01', row.day) AS day",
        "CAST(timestamp_micros(row.at) AS TIMESTAMP_NTZ) AS at",
        "CAST(row.seen AS TIMESTAMP) AS seen",
        f"unbase64(IF({IS_UNAVAILABLE['data']}, NULL, row.data)) AS data",
        f"IF({IS_UNAVAILABLE['tags']}, NULL, row.tags) AS tags",
        "row.paid",
        "struct(payload.op, payload.op = 'd' AS deleted, offset AS sequence, "
        "nullif(payload.source.snapshot, 'false') AS snapshot, "
        f"array_compact(array({UNAVAILABLE_NAMES})) AS unavailable, "
        "timestamp_micros(payload.source.ts_us) AS changed_at, timestamp_micros(payload.ts_us) AS captured_at, "
        "payload.source, payload.transaction, topic, partition, offset) AS _change",
    ),
)
SHORTEST = ByHand(
    "from_json, shortest SQL",
    f"source: STRUCT<{members(SOURCE, ('ts_ms', 'snapshot', 'sequence', 'lsn'))}>, op: STRING",
    (
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
    ),
)


class Way(NamedTuple):
    """How the rows are read: without `by_hand` by this source's option `changes`."""

    reader: Reader
    by_hand: ByHand | None

    @property
    def name(self) -> str:
        return "kafkameta, changes" if self.by_hand is None else f"{self.reader.name}, {self.by_hand.name}"

    def rows(self, spark: SparkSession, bootstrap_servers: str, topic: str) -> DataFrame:
        read = self.reader.read(spark, bootstrap_servers, topic)
        if self.by_hand is None:
            return read
        payload = F.from_json(F.col("value").cast("string"), self.by_hand.envelope)["payload"].alias("payload")
        rows = read.select("topic", "partition", "offset", payload).where("payload.op IN ('c', 'u', 'r', 'd')")
        rows = rows.selectExpr("*", "IF(payload.op = 'd', payload.before, payload.after) AS row")
        return rows.selectExpr(*self.by_hand.columns)


WAYS = [
    Way(OURS._replace(options=DEBEZIUM), None),
    *(Way(jvm, by_hand) for by_hand in (SAME_ROWS, SHORTEST) for jvm in (JVM, TUNED_JVM)),
]


def check(spark: SparkSession, bootstrap_servers: str, topic: str) -> None:
    """Raises RuntimeError: the rows are not the same."""
    found = set()
    for way in WAYS[:2]:
        rows = way.rows(spark, bootstrap_servers, topic).where("_change.op <> 'tombstone'")
        found.add(rows.agg(F.count("*"), F.sum(F.xxhash64(*rows.columns).cast("decimal(38)"))).first())
    if len(found) != 1:
        raise RuntimeError(f"not the same rows: {found}")


def main() -> None:
    arguments = argument_parser(__doc__, rounds=5, records=300_000).parse_args()
    encoding, in_partition = connect_json(), DIFFERENT_VALUES // PARTITIONS
    stocks = [encoding.encode(list(changes(seed, 2 * in_partition))[:in_partition]) for seed in range(PARTITIONS)]
    keys, values = (list(chain(*zip(*stock, strict=True))) for stock in zip(*stocks, strict=True))
    with brokers() as bootstrap_servers, spark_session() as spark:
        topic = new_topic(bootstrap_servers, "changes", PARTITIONS)
        fill_with(values, bootstrap_servers, topic, PARTITIONS, arguments.records, keys=keys)
        check(spark, bootstrap_servers, topic)
        turns = take_turns(
            WAYS, arguments.rounds, lambda way: measured(partial(way.rows, spark, bootstrap_servers, topic))
        )
    case = {"value_bytes": round(statistics.fmean(len(value or b"") for value in values))}
    title = f"Thousands of records a second, {arguments.rounds} turns each"
    report(title, result_rows(case, "reader", arguments.records, turns), arguments.json)


if __name__ == "__main__":
    main()
