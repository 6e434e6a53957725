"""Options that select records, through Spark on real Kafka: columns, topic patterns, limits and groups."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import StructType

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


class Source:
    """Batches and streams over a topic with options, and the values that they read."""

    def __init__(self, spark: SparkSession, servers: str, folder: Path, **options: str) -> None:
        self.spark, self.folder = spark, folder
        self.options = {"kafka.bootstrap.servers": servers, **options}

    def batch(self, **options: str) -> list[str]:
        rows = self.spark.read.format("kafkameta").options(**self.options, **options).load()
        return sorted(row.value.decode() for row in rows.collect())

    def start(self, sink: str, trigger: dict[str, Any] | None = None, **options: str) -> StreamingQuery:
        rows = self.spark.readStream.format("kafkameta").options(**self.options, **options).load()
        writer = rows.writeStream.format("memory").queryName(sink)
        writer = writer.option("checkpointLocation", str(self.folder / sink))
        return writer.trigger(**trigger or {"processingTime": "0 seconds"}).start()

    def values(self, sink: str) -> list[str]:
        return sorted(row.value.decode() for row in self.spark.table(sink).collect())


@pytest.fixture
def source(spark: SparkSession, kafka: Any, topic: str, produce: Any, tmp_path: Path) -> Iterator[Source]:
    """A topic with records in the partitions 0 and 1 of three."""
    produce(topic, ["a", "b"], 0)
    produce(topic, ["c"], 1)
    yield Source(spark, kafka.bootstrap_servers, tmp_path, subscribe=topic)
    for query in spark.streams.active:
        query.stop()


@pytest.fixture
def sink() -> str:
    return f"rows_{uuid.uuid4().hex}"


def test_columns_may_be_spelt_in_any_case(source: Source) -> None:
    reader = source.spark.read.format("kafkameta").schema("VALUE binary, Offset bigint").options(**source.options)
    frame: DataFrame = reader.load()

    assert frame.columns == ["VALUE", "Offset"]
    assert sorted((row.VALUE.decode(), row.Offset) for row in frame.collect()) == [("a", 0), ("b", 1), ("c", 0)]


def test_rows_are_counted_without_columns(source: Source, sink: str) -> None:
    reader = source.spark.read.format("kafkameta").schema(StructType([])).options(**source.options)
    rows = (
        source.spark.readStream.format("kafkameta")
        .schema(StructType([]))
        .options(**source.options, startingOffsets="earliest")
    )
    constants = rows.load().select(lit(1)).writeStream.format("memory").queryName(sink)
    constants.option("checkpointLocation", str(source.folder / sink)).trigger(
        availableNow=True
    ).start().awaitTermination()

    assert reader.load().count() == 3
    assert len(reader.load().select(lit(1)).collect()) == 3
    assert source.spark.table(sink).count() == 3


@pytest.mark.thorough
def test_small_batches_wait_until_there_is_enough_to_read(
    source: Source, topic: str, produce: Any, wait_for: Any, sink: str
) -> None:
    query = source.start(sink, startingOffsets="earliest", minOffsetsPerTrigger="3", maxOffsetsPerTrigger="4")
    query.processAllAvailable()
    assert len(source.values(sink)) == 3, "the first micro-batch does not wait"

    produce(topic, ["1", "2"], 2)
    query.processAllAvailable()
    assert len(source.values(sink)) == 3
    produce(topic, ["3"], 2)
    wait_for(lambda: len(source.values(sink)) == 6)
    assert max(progress["numInputRows"] for progress in query.recentProgress) == 3


@pytest.mark.thorough
def test_trigger_once_has_no_limits(source: Source, sink: str) -> None:
    query = source.start(sink, {"once": True}, startingOffsets="earliest", maxOffsetsPerTrigger="1")

    assert query.awaitTermination(120)
    assert source.values(sink) == ["a", "b", "c"]
    assert [progress["numInputRows"] for progress in query.recentProgress] == [3]


def test_a_sink_creates_its_topic_and_headers_are_maps(spark: SparkSession, kafka: Any) -> None:
    cluster, topic = {"kafka.bootstrap.servers": kafka.bootstrap_servers}, f"created-{uuid.uuid4().hex}"
    rows = spark.sql("SELECT 'a' AS value, map('trace-id', CAST('1' AS BINARY)) AS headers")
    for _ in range(2):
        sink = rows.write.format("kafkameta").mode("append").options(**cluster, topic=topic, createTopics="true")
        sink.options(newTopicPartitions="2", newTopicConfig='{"retention.ms": -1}').save()

    source = spark.read.format("kafkameta").options(**cluster, subscribe=topic)
    found = source.options(includeHeaders="true", headersAsMap="true").load()
    assert [(row.value, row.headers) for row in found.collect()] == [(b"a", {"trace-id": b"1"})] * 2
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    assert len(admin.list_topics(topic).topics[topic].partitions) == 2


@pytest.mark.thorough
def test_available_now_ends_in_micro_batches_of_about_the_byte_limit(
    source: Source, topic: str, produce: Any, sink: str
) -> None:
    produce(topic, ["x" * 10_000] * 300, 2, **{"batch.size": "50000"})
    query = source.start(sink, {"availableNow": True}, startingOffsets="earliest", maxBytesPerTrigger="1000000")

    assert query.awaitTermination(120)
    rows = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
    assert sum(rows) == 303
    assert len(rows) >= 3 and max(rows) < 200


def test_stream_commits_to_a_group_and_a_batch_starts_there(
    source: Source, kafka: Any, topic: str, produce: Any, wait_for: Any, sink: str
) -> None:
    group = f"group-{uuid.uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})

    def committed() -> dict[int, int]:
        request = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, number) for number in range(3)])
        with suppress(KafkaException):  # the group coordinator is loading
            response = admin.list_consumer_group_offsets([request])[group].result(30)
            return {partition.partition: partition.offset for partition in response.topic_partitions}
        return {}

    wait_for(committed)  # the first group of a new cluster: a commit waits five seconds for a coordinator
    options = {"startingOffsets": "earliest", "commitOffsetsToGroup": group}
    assert source.start(sink, {"availableNow": True}, **options).awaitTermination(120)
    produce(topic, ["later"], 2)

    wait_for(lambda: committed() == {0: 2, 1: 1, 2: 0})
    assert source.batch(startingOffsets=f"group:{group}") == ["later"]
