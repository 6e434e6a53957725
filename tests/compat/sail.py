"""Batches and the side tables in Sail, a Spark Connect server without a JVM, beside the records that confluent-kafka
reads: `make sail`. Sail runs the data source in this process."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pysail.spark import SparkConnectServer
from pyspark.sql import DataFrame, SparkSession

import pyspark_kafka_meta as kafkameta
from pyspark_kafka_meta.testing import LocalKafka
from tests.consumer import consume
from tests.kafka.cluster_tools import poll_until

RECORDS, PARTITIONS = 1_000, 4
FIRST_TIME_MS = 1_700_000_000_000
COLUMNS = "key, value, topic, partition, offset, timestamp, timestampType, headers"
"""Of the rows that `messages` makes."""


def main() -> None:
    with sail() as spark, LocalKafka() as kafka:
        servers = kafka.bootstrap_servers
        fill(servers)
        read_batches(spark, servers)
        write_batches(spark, servers)
        look_at_tables(spark, servers)
        see_errors(spark, servers)
        see_streams_refused(spark, servers)
    print(f"pysail {version('pysail')}: batches are read and written, tables are read, streams are refused")  # noqa: T201


@contextmanager
def sail() -> Iterator[SparkSession]:
    server = SparkConnectServer()
    server.start(background=True)
    try:
        host, port = server.listening_address or ("", 0)
        spark = SparkSession.builder.remote(f"sc://{host}:{port}").getOrCreate()
        spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
        yield spark
        spark.stop()
    finally:
        server.stop()


def fill(servers: str) -> None:
    """Topic t has the records, some without key, value or headers. Topics `by_option` and `by_column` are empty."""
    admin = AdminClient({"bootstrap.servers": servers})
    keep = {"retention.ms": "-1"}  # the records are of 2023
    topics = [NewTopic(name, num_partitions=PARTITIONS, config=keep) for name in ("t", "by_option", "by_column")]
    for created in admin.create_topics(topics).values():
        created.result(30)
    producer = Producer({"bootstrap.servers": servers, "compression.type": "zstd"})
    for number in range(RECORDS):
        producer.produce(
            "t",
            key=None if number % 7 == 0 else f"key-{number}",
            value=None if number % 11 == 0 else f"value-{number}",
            partition=number % PARTITIONS,
            timestamp=FIRST_TIME_MS + number,
            headers=[("a", b"1"), ("a", None)] if number % 3 == 0 else None,
        )
    assert producer.flush(60) == 0


def load(spark: SparkSession, servers: str, topic: str = "t", schema: str = "", **options: str) -> DataFrame:
    reader = spark.read.format("kafkameta").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
    return (reader.schema(schema) if schema else reader).options(**options).load()


def in_order(rows: DataFrame) -> list[tuple[Any, ...]]:
    """Timestamps as milliseconds since 1970, which no time zone changes."""
    times = rows.selectExpr("*", "unix_millis(timestamp) AS ms").drop("timestamp")
    columns = [name if name != "timestamp" else "ms" for name in rows.columns]
    return sorted((tuple(map(plain, row)) for row in times.select(columns).collect()), key=lambda row: row[2:5])


def plain(value: Any) -> Any:
    """Python values without Spark's classes."""
    if isinstance(value, bytearray):
        return bytes(value)
    return [tuple(map(plain, item)) for item in value] if isinstance(value, list) else value


def messages(servers: str, topic: str) -> list[tuple[Any, ...]]:
    """The records as confluent-kafka reads them, in the shape of `in_order`."""

    def row(message: Message) -> tuple[Any, ...]:
        kind, time_ms = message.timestamp()
        place = message.topic(), message.partition(), message.offset()
        return message.key(), message.value(), *place, time_ms, kind - 1, message.headers()

    return sorted(map(row, consume(servers, topic)), key=lambda row: row[2:5])


def read_batches(spark: SparkSession, servers: str) -> None:
    """All columns, ranges of offsets, chosen columns, filters, and an action that ends early."""
    rows, expected = load(spark, servers, includeHeaders="true"), messages(servers, "t")
    assert ", ".join(rows.columns) == COLUMNS
    assert len(expected) == RECORDS
    assert in_order(rows) == expected

    starting, ending = '{"t": {"0": 10, "1": 0, "2": -2, "3": 200}}', '{"t": {"0": 20, "1": 0, "2": 5, "3": -1}}'
    ranges = load(spark, servers, startingOffsets=starting, endingOffsets=ending)
    assert sorted(map(tuple, ranges.groupBy("partition").count().collect())) == [(0, 10), (2, 5), (3, 50)]

    chosen = load(spark, servers, schema="VALUE binary, timestamp timestamp").where("timestamp IS NOT NULL")
    assert chosen.columns == ["VALUE", "timestamp"]
    assert sorted(str(row[0]) for row in chosen.collect()) == sorted(str(row[1]) for row in expected)
    (found,) = load(spark, servers).where("offset = 7 AND partition = 1").select("value").collect()
    assert bytes(found.value) == b"value-29"
    for _ in range(3):
        assert len(load(spark, servers, maxRecordsPerPartition="50").limit(3).collect()) == 3
    assert load(spark, servers, minPartitions="16").count() == RECORDS


def write_batches(spark: SparkSession, servers: str) -> None:
    """The topic is an option, or a column; rows of parquet files and of another topic."""
    source = load(spark, servers, includeHeaders="true")
    write = {"kafka.bootstrap.servers": servers}
    columns = source.select("key", "value", "headers", "partition", "timestamp")
    columns.write.format("kafkameta").mode("append").options(**write, topic="by_option").save()
    written, read = messages(servers, "by_option"), messages(servers, "t")
    assert sorted(map(without_place, written), key=str) == sorted(map(without_place, read), key=str)

    with tempfile.TemporaryDirectory() as folder:
        rows = spark.range(500).selectExpr("'by_column' AS topic", "concat('key-', id) AS key", "string(id) AS value")
        rows.write.mode("overwrite").parquet(folder)
        spark.read.parquet(folder).write.format("kafkameta").mode("append").options(**write).save()
    pairs = sorted((key, value) for key, value, *_ in messages(servers, "by_column"))
    assert pairs == sorted((f"key-{number}".encode(), f"{number}".encode()) for number in range(500))


def without_place(row: tuple[Any, ...]) -> tuple[Any, ...]:
    key, value, _, partition, _, time_ms, kind, headers = row
    return key, value, partition, time_ms, kind, headers


def look_at_tables(spark: SparkSession, servers: str) -> None:
    where = {"kafka.bootstrap.servers": servers}
    assert kafkameta.brokers(spark, **where).count() == 3
    ends = kafkameta.partitions(spark, **where, subscribe="t").selectExpr("sum(end_offset)", "count(*)").collect()
    assert list(map(tuple, ends)) == [(RECORDS, PARTITIONS)], ends
    assert kafkameta.open_transactions(spark, **where).count() == 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as events:
        load(spark, servers, eventsPath=events).count()

        def roles() -> set[str]:
            return {row.role for row in kafkameta.refresh_events(spark, eventsPath=events).select("role").collect()}

        poll_until(lambda: roles() == {"planner", "reader"})  # threads write events, perhaps later
        assert {row.topic for row in kafkameta.caches(spark, eventsPath=events).collect()} == {"t"}


def see_errors(spark: SparkSession, servers: str) -> None:
    """Each is one sentence at the beginning of Sail's message."""
    rows = spark.createDataFrame([("value", 1)], "value string, number int")

    def write(mode: str = "append", **options: str) -> None:
        writer = rows.write.format("kafkameta").mode(mode).option("kafka.bootstrap.servers", servers)
        writer.options(**{"topic": "by_option", **options}).save()

    transaction = {"kafka.transactional.id": "sail"}
    for action, sentence in (
        (lambda: load(spark, servers, startingOffset="earliest"), "Unknown option 'startingoffset'. Did you mean"),
        (lambda: load(spark, servers, startingOffsets="latest"), "starting offset can't be latest for batch queries"),
        (lambda: load(spark, servers, topic="missing"), "topic missing does not exist"),
        (lambda: load(spark, servers, schema="value string"), "not among them: value:string"),
        (lambda: write("overwrite"), "Save mode Overwrite not allowed"),
        (lambda: write(**{"kafka.linger": "1"}), "Unknown option 'kafka.linger'"),
        (lambda: write(**transaction), "Sail cannot write exactly once"),
    ):
        expect(sentence, lambda action=action: (found := action()) and found.count())
    assert len(consume(servers, "by_option")) == RECORDS


def see_streams_refused(spark: SparkSession, servers: str) -> None:
    """A stream that Sail would run as a batch is refused by Sail, or by the sink."""
    stream = (
        spark.readStream.format("kafkameta").options(**{"kafka.bootstrap.servers": servers, "subscribe": "t"}).load()
    )
    expect("only supports streaming data", lambda: stream.writeStream.format("console").start())
    sink = {"kafka.bootstrap.servers": servers, "topic": "by_option", "checkpointLocation": "/nowhere"}
    expect("Sail cannot write a stream", lambda: stream.writeStream.format("kafkameta").options(**sink).start())
    rate = spark.readStream.format("rate").load().selectExpr("CAST(value AS STRING) AS value")
    expect(
        "unsupported extension node for streaming", lambda: rate.writeStream.format("kafkameta").options(**sink).start()
    )
    assert len(consume(servers, "by_option")) == RECORDS


def expect(sentence: str, action: Any) -> None:
    try:
        action()
    except Exception as error:
        assert sentence in str(error), error
    else:
        sys.exit(f"nothing failed with: {sentence}")


if __name__ == "__main__":
    main()
