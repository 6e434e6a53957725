"""Options that select records, through Spark on real Kafka: topic patterns, times, limits and groups."""

from __future__ import annotations

import time
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

NOON_MS = int(time.time() * 1000) - 3_600_000
"""An hour ago: retention removes much older records."""


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
    """A topic with records at noon, a second later and a minute later, in partitions 0, 0 and 1 of three."""
    for value, partition, later_ms in (("noon", 0, 0), ("second", 0, 1000), ("minute", 1, 60_000)):
        produce(topic, [{"value": value, "timestamp": NOON_MS + later_ms}], partition)
    yield Source(spark, kafka.bootstrap_servers, tmp_path, subscribe=topic)
    for query in spark.streams.active:
        query.stop()


@pytest.fixture
def sink() -> str:
    return f"rows_{uuid.uuid4().hex}"


IN_BATCHES: dict[str, tuple[dict[str, str], list[str]]] = {
    "all": ({}, ["minute", "noon", "second"]),
    "from a time": (
        {"startingTimestamp": str(NOON_MS + 1), "startingOffsetsByTimestampStrategy": "latest"},
        ["minute", "second"],
    ),
    "up to a time": ({"endingTimestamp": str(NOON_MS + 1000)}, ["noon"]),
    "of the last ten minutes": ({"startingOffsets": "-10m"}, []),
    "of the last two hours": ({"startingOffsets": "-2h"}, ["minute", "noon", "second"]),
}


@pytest.mark.parametrize(("options", "expected"), IN_BATCHES.values(), ids=IN_BATCHES.keys())
def test_batch_reads_what_the_options_choose(source: Source, options: dict[str, str], expected: list[str]) -> None:
    assert source.batch(**options) == expected


def test_topic_without_a_record_as_late_is_an_error_that_names_the_option(source: Source) -> None:
    with pytest.raises(Exception, match=r"No offset matched from request of topic-partition .*ByTimestampStrategy"):
        source.batch(startingTimestamp=str(NOON_MS))


def test_columns_may_be_spelt_in_any_case(source: Source) -> None:
    reader = source.spark.read.format("kafkameta").schema("VALUE binary, Offset bigint").options(**source.options)
    frame: DataFrame = reader.load()

    assert frame.columns == ["VALUE", "Offset"]
    assert sorted((row.VALUE.decode(), row.Offset) for row in frame.collect()) == [
        ("minute", 0),
        ("noon", 0),
        ("second", 1),
    ]


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
def test_stream_reads_topics_that_come_to_match_the_pattern(
    source: Source, make_topic: Any, produce: Any, wait_for: Any, sink: str
) -> None:
    prefix = f"pattern-{uuid.uuid4().hex}"
    produce(make_topic(partitions=1, name=f"{prefix}-a"), ["a"])
    produce(make_topic(partitions=1, name=f"not-{prefix}-c"), ["c"])
    del source.options["subscribe"]
    source.options |= {"subscribePattern": f"{prefix}-[ab]", "startingOffsets": "earliest"}
    query = source.start(sink)
    query.processAllAvailable()
    assert source.values(sink) == ["a"]

    produce(make_topic(partitions=1, name=f"{prefix}-b"), ["b"])
    wait_for(lambda: source.values(sink) == ["a", "b"])


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
    assert source.values(sink) == ["minute", "noon", "second"]
    assert [progress["numInputRows"] for progress in query.recentProgress] == [3]


def test_stream_commits_to_a_group_and_another_starts_there(
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
    query = source.start(sink, startingOffsets="earliest", commitOffsetsToGroup=group)
    wait_for(lambda: committed() == {0: 2, 1: 1, 2: 0})  # though no other micro-batch follows
    query.stop()
    produce(topic, ["later"], 2)
    options = {"startingOffsets": f"group:{group}", "commitOffsetsToGroup": group}
    assert source.start(f"{sink}_2", {"availableNow": True}, **options).awaitTermination(120)
    produce(topic, ["after"], 0)

    assert source.values(f"{sink}_2") == ["later"]
    wait_for(lambda: committed() == {0: 2, 1: 1, 2: 1})
    assert source.batch(startingOffsets=f"group:{group}") == ["after"]
