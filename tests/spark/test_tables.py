"""The side tables through Spark: refresh events and caches of a streaming query, and the live cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import pyspark_kafka_meta as kafkameta
from pyspark_kafka_meta.errors import KafkaMetaError
from pyspark_kafka_meta.testing import MockCluster
from tests.marks import thorough_after
from tests.spark.traces import gapless, keys, wait_until_quiet

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


class Scene:
    """A streaming query with its events in a folder, and the side tables of both."""

    query: StreamingQuery

    def __init__(self, spark: SparkSession, kafka: Any, topic: str, folder: Path) -> None:
        self.spark, self.topic, self.folder = spark, topic, folder
        self.cluster = {"kafka.bootstrap.servers": kafka.bootstrap_servers}
        self.event_options: dict[str, Any] = {"eventsPath": str(folder / "events")}

    def read_all(self, **options: str) -> StreamingQuery:
        """Run the query to the end of its topic. Each run has new caches."""
        options = {
            **self.cluster,
            **self.event_options,
            "subscribe": self.topic,
            "startingOffsets": "earliest",
            **options,
        }
        rows = self.spark.readStream.format("kafkameta").options(**options).load()
        query = self.finish(rows, "records")
        wait_until_quiet(self.folder / "events")
        return query

    def follow(self, name: str = "followed", **options: str) -> list[int]:
        """Stream the events to a folder of rows. Returns the number of events of each micro-batch."""
        events = kafkameta.refresh_events(self.spark, stream=True, **{**self.event_options, **options})
        query = self.finish(events, name)
        return [report["numInputRows"] for report in query.recentProgress if report["numInputRows"]]

    def finish(self, rows: DataFrame, name: str) -> StreamingQuery:
        sink = rows.writeStream.format("parquet").option("path", str(self.folder / name))
        query = sink.option("checkpointLocation", str(self.folder / f"{name}-checkpoint")).trigger(availableNow=True)
        started = query.start()
        assert started.awaitTermination(120), "the query did not end"
        return started

    def rows_of(self, name: str) -> DataFrame:
        return self.spark.read.parquet(str(self.folder / name))

    def files(self) -> list[Path]:
        return list((self.folder / "events").glob("*.jsonl"))

    def events(self) -> DataFrame:
        return kafkameta.refresh_events(self.spark, **self.event_options)


@pytest.fixture
def scene(spark: SparkSession, kafka: Any, topic: str, produce: Any, tmp_path: Path) -> Scene:
    produce(topic, ["a", "b", "c"])
    return Scene(spark, kafka, topic, tmp_path)


@pytest.fixture(scope="module")
def played(
    spark: SparkSession, kafka: Any, make_topic: Any, produce: Any, tmp_path_factory: pytest.TempPathFactory
) -> Scene:
    """A query that has read the first three of five records in two runs. Tests change nothing."""
    scene = Scene(spark, kafka, make_topic(3, {"retention.ms": "-1"}), tmp_path_factory.mktemp("played"))
    for partition, values in enumerate((["a", "b"], ["c"])):
        produce(scene.topic, values, partition)
        scene.query = scene.read_all()
    produce(scene.topic, [{"value": "d", "timestamp": 1_000_000_000_000}, {"value": "e"}], partition=1)
    return scene


def test_events_are_read_back_by_a_batch_and_by_a_stream_that_is_restarted(played: Scene, tmp_path: Path) -> None:
    expected, name = keys(played.events()), tmp_path.name

    assert len(played.follow(name, maxFilesPerTrigger="1")) > 1, "the limit holds"
    assert played.follow(name) == []
    assert keys(played.rows_of(name)) == expected, "each event once"
    assert expected == gapless(expected)
    assert {row.role for row in played.events().select("role").collect()} == {"planner", "reader"}


def test_an_event_row_has_the_change_the_process_and_the_time(played: Scene) -> None:
    learned = (
        played.events()
        .where("role = 'reader' and outcome = 'changed'")
        .selectExpr(
            "kind",
            "topics_added",
            "size(partitions_learned) AS learned",
            "executor_id",
            "unix_millis(time) - time_ms AS off",
        )
    )

    assert {tuple(map(str, row)) for row in learned.collect()} == {
        ("refresh", f"['{played.topic}']", "3", "driver", "0")
    }


def test_caches_of_a_healthy_query_agree_with_the_brokers(played: Scene) -> None:
    cached = kafkameta.caches(played.spark, **played.event_options)
    live = kafkameta.partitions(played.spark, **played.cluster, subscribe=played.topic)
    live = live.withColumnsRenamed({"leader_id": "leader_now", "leader_epoch": "epoch_now"})
    joined = cached.join(live, ["cluster_id", "topic", "partition"])

    assert joined.where("leader_id <> leader_now or leader_epoch <> epoch_now").collect() == []
    assert {row.partition for row in joined.where("role = 'reader'").collect()} == {0, 1, 2}
    assert {row.events_missing for row in cached.collect()} == {0}


def test_live_tables_show_the_cluster(played: Scene, leader_of: Any) -> None:
    brokers = kafkameta.brokers(played.spark, **played.cluster).collect()
    partitions = kafkameta.partitions(
        played.spark, **played.cluster, subscribe=f"{played.topic},no-such-topic"
    ).collect()
    missing, *found = sorted(partitions, key=lambda row: (row.topic == played.topic, row.partition))

    assert {f"{row.host}:{row.port}" for row in brokers} >= set(played.cluster["kafka.bootstrap.servers"].split(","))
    assert [row.is_controller for row in brokers].count(True) == 1
    assert (missing.topic, missing.partition) == ("no-such-topic", None)
    assert "UNKNOWN_TOPIC_OR_PARTITION" in missing.error
    assert [row.leader_id for row in found] == [leader_of(played.topic, number) for number in range(3)]
    assert (sum(row.start_offset for row in found), sum(row.end_offset for row in found)) == (0, 5)
    assert all(set(row.isr) <= set(row.replicas) and row.error is None for row in found)


@pytest.mark.parametrize("of", [lambda query: query, lambda query: query.lastProgress], ids=["query", "progress"])
def test_lag_is_counted_in_records_and_seconds(played: Scene, of: Callable[[StreamingQuery], Any]) -> None:
    rows = {row.partition: row for row in kafkameta.lag(played.spark, of(played.query), **played.cluster).collect()}

    assert [rows[number].records_behind for number in range(3)] == [0, 2, 0]
    assert rows[0].seconds_behind == rows[2].seconds_behind == 0.0
    assert rows[1].seconds_behind > 365 * 24 * 3600, "the age of the older record"


@pytest.mark.parametrize("table", thorough_after(1, ["caches", "brokers", "partitions", "transactions"]))
def test_a_stream_of_a_current_state_table_is_refused(played: Scene, table: str) -> None:
    options = played.event_options if table == "caches" else played.cluster
    rows = played.spark.readStream.format("kafkameta").option("table", table).options(**options)

    with pytest.raises(Exception, match=f"table {table} is not a stream"):
        rows.load().writeStream.format("noop").start().awaitTermination(120)


def test_lag_of_a_query_that_has_not_begun_is_a_clear_error(played: Scene) -> None:
    with pytest.raises(KafkaMetaError, match="no progress yet"):
        kafkameta.lag(played.spark, None, **played.cluster)


@pytest.mark.thorough
def test_a_stream_beside_the_query_loses_and_repeats_nothing(
    spark: SparkSession, mock_cluster: MockCluster, wait_for: Any, tmp_path: Path
) -> None:
    mock_cluster.create_topic("t", partitions=4)
    scene = Scene(spark, mock_cluster, "t", tmp_path)
    often = {**scene.cluster, **scene.event_options, "subscribe": "t", "kafka.metadata.max.age.ms": "500"}
    rows = spark.readStream.format("kafkameta").options(**often).load().writeStream.format("noop")
    query = rows.option("checkpointLocation", str(tmp_path / "records")).trigger(processingTime="1 second").start()
    for round_number in range(3):
        seen = len(scene.files())
        mock_cluster.move_leader("t", round_number, 1 + round_number)
        wait_for(lambda seen=seen: len(scene.files()) > seen or query.exception())
        scene.follow()
    assert query.exception() is None
    query.stop()

    def has_all() -> bool:
        """Threads of the workers may still write."""
        scene.follow()
        return keys(scene.rows_of("followed")) == keys(scene.events())

    wait_for(has_all)
    expected = keys(scene.rows_of("followed"))
    assert expected == gapless(expected)


@pytest.mark.thorough
def test_events_out_of_a_topic_are_those_of_the_files(scene: Scene, make_topic: Any, wait_for: Any) -> None:
    event_options = {"eventsTopic": make_topic()}
    scene.read_all(**event_options)
    source = {**scene.cluster, **event_options}
    expected = keys(scene.events())
    assert expected
    wait_for(lambda: keys(kafkameta.refresh_events(scene.spark, **source)) == expected)
    query = scene.finish(kafkameta.refresh_events(scene.spark, stream=True, **source), "from-topic")
    assert keys(scene.rows_of("from-topic")) == expected
    assert query.exception() is None
    caches = kafkameta.caches(scene.spark, **source)
    assert caches.count() == kafkameta.caches(scene.spark, **scene.event_options).count()


@pytest.mark.thorough
def test_reading_tables_makes_no_events(scene: Scene) -> None:
    scene.read_all()
    before = keys(scene.events())
    query = scene.read_all()
    quiet = keys(scene.events())
    kafkameta.caches(scene.spark, **scene.event_options).collect()
    kafkameta.brokers(scene.spark, **scene.cluster).collect()
    kafkameta.partitions(scene.spark, **scene.cluster).collect()
    kafkameta.lag(scene.spark, query, **scene.cluster).collect()
    scene.follow()

    assert before
    assert keys(scene.events()) == quiet
