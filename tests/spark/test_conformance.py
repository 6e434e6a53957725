"""Batches and streams read the same rows as a librdkafka consumer, in every column, on real Kafka."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from operator import itemgetter
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaException, Message, Producer
from pyspark.sql import DataFrame, SparkSession

from tests.consumer import consume
from tests.kafka.cluster_tools import is_readable

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
LARGE = os.urandom(100_000) * 2
FLUSH_TIMEOUT_S = 120
KEYS, IN_LAST_SEGMENT = 10, 500
"""Of the compacted topic, whose last segment is not compacted."""
HEADERS: tuple[list[tuple[str, bytes | None]] | None, ...] = (
    None,
    [("one", b"1")],
    [("null", None), ("empty", b"")],
    [("twice", b"a"), ("twice", b"b"), ("other", b"c")],
)


def send(producer: Producer, topic: str, *records: dict[str, Any]) -> None:
    for record in records:
        producer.produce(topic, **record)
    left = producer.flush(FLUSH_TIMEOUT_S)
    assert left == 0, f"{left} records of {topic} were not acknowledged in {FLUSH_TIMEOUT_S} s"


@pytest.fixture(scope="module")
def plain_topic(make_topic: Any, kafka: Any) -> str:
    """Three partitions with every codec and all kinds of keys, values and headers."""
    # Its records are years old: with the default of a week brokers would delete some while they are read.
    topic: str = make_topic(partitions=3, config={"retention.ms": "-1"})
    for codec in CODECS:
        settings = {"compression.type": codec, "linger.ms": 20}
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, **settings})
        pairs = [(key, value) for key in (None, b"", b"k", LARGE) for value in (None, b"", b"v" * 300)]
        for number, (key, value) in enumerate([*pairs, (b"large", LARGE)]):
            for headers in HEADERS[-1:] if LARGE in (key, value) else HEADERS:
                timestamp = 1_600_000_000_000 + number
                record: dict[str, Any] = {"key": key, "value": value, "headers": headers, "timestamp": timestamp}
                producer.produce(topic, **record, partition=number % 3)
        send(producer, topic, *({"value": b"%d" % number, "partition": number % 3} for number in range(500)))
    return topic


@pytest.fixture(scope="module")
def transactional_topic(make_topic: Any, kafka: Any, wait_for: Any) -> Iterator[str]:
    """Committed, aborted and interleaved transactions in two partitions, and an open transaction."""
    topic: str = make_topic(partitions=2)

    def transactional(name: str) -> Producer:
        settings = {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": f"{topic}-{name}"}
        producer = Producer({**settings, "transaction.timeout.ms": 900_000})  # one stays open until the last test
        producer.init_transactions(30)
        producer.begin_transaction()
        return producer

    first, second = transactional("first"), transactional("second")
    for number in range(50):
        send(first, topic, {"value": b"committed %d" % number, "partition": number % 2})
        send(second, topic, {"value": b"aborted %d" % number, "partition": number % 2})
    second.abort_transaction(30)
    first.commit_transaction(30)
    second.begin_transaction()
    send(second, topic, *({"value": b"second try", "partition": partition} for partition in (0, 1)))
    second.commit_transaction(30)
    plain = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    send(plain, topic, {"value": b"no transaction", "partition": 0})
    wait_for(lambda: is_readable(kafka.bootstrap_servers, topic))  # the markers may come after the acknowledgements
    dangling = transactional("open")
    send(dangling, topic, {"value": b"open", "partition": 1})
    yield topic
    with suppress(KafkaException):  # a broker has ended it if all tests took longer than its timeout
        dangling.abort_transaction(30)


@pytest.fixture(scope="module")
def compacted_topic(make_topic: Any, kafka: Any, wait_for: Any) -> str:
    """One partition with ten keys, whose older records compaction has removed in part."""
    config = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
    topic: str = make_topic(partitions=1, config=config)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 60_000})  # a flush is one batch

    def write_until_compacted() -> bool:
        records = ({"key": b"%d" % (number % KEYS), "value": os.urandom(100)} for number in range(IN_LAST_SEGMENT))
        send(producer, topic, *records)
        messages = consume(kafka.bootstrap_servers, topic)
        return len(messages) < messages[-1].offset() + 1  # type: ignore[operator]

    wait_for(write_until_compacted)
    # Then compaction is over: two reads find the same records.
    wait_for(lambda: len(consume(kafka.bootstrap_servers, topic)) <= KEYS + IN_LAST_SEGMENT)
    return topic


@pytest.fixture(scope="module")
def log_append_time_topic(make_topic: Any, kafka: Any) -> str:
    """The broker's clock instead of the producer's, plain and compressed."""
    topic: str = make_topic(partitions=2, config={"message.timestamp.type": "LogAppendTime"})
    for codec in ("none", "zstd"):
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "compression.type": codec})
        send(producer, topic, *({"value": b"%d" % number, "timestamp": 1} for number in range(100)))
    return topic


def row_of(message: Message) -> tuple[Any, ...]:
    """The row of a message, in the order of `COLUMNS`."""
    kind, timestamp_ms = message.timestamp()
    kind = -1 if kind == TIMESTAMP_NOT_AVAILABLE else kind - 1
    place = message.topic(), message.partition(), message.offset()
    return (*place, message.key(), message.value(), timestamp_ms, kind, message.headers())


COLUMNS = ["topic", "partition", "offset", "key", "value", "unix_millis(timestamp)", "timestampType", "headers"]


def read_batch(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    return spark.read.format("kafkameta").options(**options).load()


def available_now(spark: SparkSession, options: dict[str, str], folder: Any) -> DataFrame:
    stream = spark.readStream.format("kafkameta").options(**options).option("startingOffsets", "earliest").load()
    sink = stream.writeStream.format("parquet").option("path", str(folder / "rows"))
    query = sink.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(120), "the query did not end"
    return spark.read.parquet(str(folder / "rows"))


@pytest.mark.parametrize("how", ["batch", pytest.param("available_now", marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    "isolation_level", ["read_committed", pytest.param("read_uncommitted", marks=pytest.mark.thorough)]
)
def test_rows_equal_those_of_a_confluent_consumer(
    isolation_level: str,
    how: str,
    spark: SparkSession,
    kafka: Any,
    plain_topic: str,
    transactional_topic: str,
    compacted_topic: str,
    log_append_time_topic: str,
    tmp_path: Any,
) -> None:
    topics = (plain_topic, transactional_topic, compacted_topic, log_append_time_topic)
    options = {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "subscribe": ",".join(topics),
        "includeHeaders": "true",
        "kafka.isolation.level": isolation_level,
    }
    rows = read_batch(spark, options) if how == "batch" else available_now(spark, options, tmp_path)
    messages = [consume(kafka.bootstrap_servers, topic, isolation_level) for topic in topics]
    expected = sorted((row_of(message) for each in messages for message in each), key=itemgetter(0, 1, 2))
    found = sorted(map(tuple, rows.selectExpr(*COLUMNS).collect()), key=itemgetter(0, 1, 2))
    assert all(messages)
    assert [row[:3] for row in found] == [row[:3] for row in expected]
    assert [row[:3] for row, other in zip(found, expected, strict=True) if row != other] == []  # the rows are large


def test_a_view_in_sql_reads_a_topic(spark: SparkSession, kafka: Any, topic: str) -> None:
    send(Producer({"bootstrap.servers": kafka.bootstrap_servers}), topic, {"value": b"one"}, {"value": b"two"})
    options = f"`kafka.bootstrap.servers` '{kafka.bootstrap_servers}', subscribe '{topic}'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW clicks USING kafkameta OPTIONS ({options})")

    assert {row.text for row in spark.sql("SELECT CAST(value AS STRING) AS text FROM clicks").collect()} == {
        "one",
        "two",
    }
    spark.catalog.dropTempView("clicks")
