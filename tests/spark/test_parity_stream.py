"""Streams compared with Spark's own Kafka source: the cases of KafkaMicroBatchSourceSuite without another test."""

from __future__ import annotations

import json
import random
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.checkpoints import offsets_in
from tests.marks import thorough_after
from tests.spark.traces import Query

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.fixture
def query(spark: SparkSession, kafka: Any, tmp_path: Path) -> Query:
    return Query(spark, tmp_path, kafka.bootstrap_servers)


def delete(kafka: Any, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.delete_topics([topic])[topic].result(60)


@pytest.mark.parametrize("how", thorough_after(1, ["subscribe", "assign"]))
def test_mb2_latest_begins_after_what_is_there_and_goes_on_after_a_stop(
    how: str, query: Query, topic: str, produce: Any, add_partitions: Any
) -> None:
    options = {how: topic if how == "subscribe" else {topic: [0, 1, 2]}, "startingOffsets": "latest"}
    produce(topic, ["old"], partition=0)
    query.run(**options)
    produce(topic, ["new"], partition=0)
    query.run(**options)
    add_partitions(topic, 5)
    produce(topic, ["added"], partition=4)
    produce(topic, ["newer"], partition=1)
    query.run(**options)
    assert query.values() == (["added", "new", "newer"] if how == "subscribe" else ["new", "newer"])


@pytest.mark.thorough
def test_mb4_specific_offsets_are_honoured_each(query: Query, make_topic: Any, produce: Any) -> None:
    topic = make_topic(5)
    for partition in range(5):
        produce(topic, [f"{partition}-{offset}" for offset in range(3)], partition)
    query.run(subscribe=topic, startingOffsets={topic: {"0": -2, "1": -1, "2": 0, "3": 1, "4": 2}})
    expected = ["0-0", "0-1", "0-2", "2-0", "2-1", "2-2", "3-1", "3-2", "4-2"]
    assert query.values() == expected
    query.run(subscribe=topic, startingOffsets={topic: {"0": 0, "1": 0, "2": 0, "3": 0, "4": 0}})
    assert query.values() == expected, "a query with a checkpoint ignores startingOffsets"


@pytest.mark.thorough
def test_mb7_mb8_topics_have_starts_of_their_own_and_a_later_one_is_read_whole(
    query: Query, make_topic: Any, produce: Any
) -> None:
    name = f"mb8-{uuid.uuid4().hex}"
    old, new = make_topic(2, name=f"{name}-a"), make_topic(2, name=f"{name}-b")
    options = {"subscribePattern": f"{name}-.*", "startingOffsets": {old: "earliest", new: "latest"}}
    for topic in (old, new):
        produce(topic, [f"before {topic}"])
    query.run(**options)
    later = make_topic(1, name=f"{name}-c")
    for topic in (new, later):
        produce(topic, [f"after {topic}"])
    query.run(**options)
    assert query.values() == [f"after {new}", f"after {later}", f"before {old}"]


@pytest.mark.thorough
def test_mb9_initial_offsets_are_kept_though_nothing_came_until_a_stop(query: Query, topic: str, produce: Any) -> None:
    produce(topic, ["old"])
    for _ in range(2):
        query.run(subscribe=topic, startingOffsets="latest")
    produce(topic, ["while it was down"])
    query.run(subscribe=topic, startingOffsets="earliest")
    assert query.values() == ["while it was down"]


@pytest.mark.thorough
def test_mb11_batches_are_limited_as_sparks_own_source_limits_them(
    spark: SparkSession, jvm_source: str, kafka: Any, topic: str, produce: Any, tmp_path: Path
) -> None:
    """A limit of 40 over partitions of 101, 11 and 1 records."""
    batches = {}
    for partition, count in enumerate((101, 11, 1)):
        produce(topic, map(str, range(count)), partition)
    for source in (jvm_source, "kafkameta"):
        query = Query(spark, tmp_path / source, kafka.bootstrap_servers, source)
        query.run_rows(query.frame(subscribe=topic, maxOffsetsPerTrigger="40").select("partition", "offset"))
        batches[source] = [ends_of(log.splitlines()[2], topic) for log in query.offset_log()]
    ours = batches["kafkameta"]
    assert ours == batches[jvm_source]
    assert ours[0] == [35, 3, 1], "in proportion, and one at least"
    assert ours[-1] == [101, 11, 1]


def ends_of(stored: str, topic: str) -> list[int]:
    """The offsets in a line of either source's offset log."""
    if '"version"' in stored:
        return offsets_in(stored, topic)
    return [end for _, end in sorted(json.loads(stored)[topic].items())]


@pytest.mark.thorough
def test_mb17_a_batch_that_failed_is_planned_again_after_partitions_were_added(
    query: Query, topic: str, produce: Any, add_partitions: Any
) -> None:
    """SPARK-53560: no crash loop."""
    produce(topic, ["a", "b"], partition=0)

    def fail(batch: DataFrame, _: int) -> None:
        raise RuntimeError("the user's own")

    failing = query.frame(subscribe=topic).writeStream.foreachBatch(fail)
    failing = failing.option("checkpointLocation", str(query.folder / "checkpoint")).trigger(availableNow=True)
    with pytest.raises(StreamingQueryException, match="the user's own"):
        failing.start().awaitTermination(120)
    add_partitions(topic, 6)
    produce(topic, ["c"], partition=5)
    query.run(subscribe=topic)
    assert query.values() == ["a", "b", "c"]


@pytest.mark.thorough
def test_mb18_an_idle_source_beside_a_busy_one_neither_stalls_nor_rewinds(
    query: Query, make_topic: Any, produce: Any
) -> None:
    """SPARK-22956."""
    busy, idle = make_topic(1), make_topic(1)
    produce(idle, ["idle"])
    for turn in range(3):
        produce(busy, [f"busy-{turn}"])
        both = (
            query.frame(subscribe=busy).union(query.frame(subscribe=idle)).selectExpr("CAST(value AS STRING) AS value")
        )
        query.run_rows(both)
    assert query.values() == ["busy-0", "busy-1", "busy-2", "idle"]


@pytest.mark.thorough
def test_mb20_mb21_deleted_topics_are_passed_over_and_no_empty_offset_is_logged(
    query: Query, make_topic: Any, produce: Any, kafka: Any
) -> None:
    """SPARK-41375: an offset of no partitions would read all of them again."""
    topics = [make_topic(1), make_topic(1)]
    for topic in topics:
        produce(topic, [topic])
    options = {"subscribe": ",".join(topics), "failOnDataLoss": "false"}
    query.run(**options)
    for topic in topics:
        delete(kafka, topic)
        query.run(**options)
    assert query.values() == sorted(topics)
    assert [log for log in query.offset_log() if '"topics":{}' in log.replace(" ", "")] == []


@pytest.mark.thorough
def test_mb25_a_stream_joined_with_itself_reads_each_record_on_both_sides(
    query: Query, topic: str, produce: Any
) -> None:
    produce(topic, map(str, range(4)), partition=0)
    rows = query.frame(subscribe=topic).selectExpr("CAST(value AS STRING) AS value")
    joined = rows.alias("a").join(rows.alias("b"), on="value").select("value")
    query.run_rows(joined)
    assert query.values() == ["0", "1", "2", "3"]


@pytest.mark.thorough
def test_d2_topics_that_come_and_go_under_a_pattern_never_fail_a_query_that_allows_loss(
    query: Query, make_topic: Any, produce: Any, kafka: Any
) -> None:
    chance, name = random.Random(2), f"d2-{uuid.uuid4().hex}"
    options = {"subscribePattern": f"{name}-.*", "failOnDataLoss": "false", "maxOffsetsPerTrigger": "20"}
    alive, lasting = dict[str, int](), make_topic(1, name=f"{name}-lasting")
    for turn in range(6):
        produce(lasting, [f"kept-{turn}-{number}" for number in range(10)])
        for topic in [topic for topic in alive if chance.random() < 0.5]:
            delete(kafka, topic)
            del alive[topic]
        fresh = make_topic(chance.randrange(1, 4), name=f"{name}-{turn}")
        alive[fresh] = turn
        for topic in alive:
            produce(topic, [f"{topic}-{turn}-{number}" for number in range(chance.randrange(20))])
        query.run(**options)
    values = query.values()
    kept = [value for value in values if value.startswith("kept")]
    assert kept == sorted(f"kept-{turn}-{number}" for turn in range(6) for number in range(10)), "no record is lost"
    assert max(Counter(values).values()) == 1, "no record is repeated"
