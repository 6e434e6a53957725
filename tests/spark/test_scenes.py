"""The metadata scenes of tests/scenes.toml, each observed in the side tables.

Most scenes have mock brokers, where the test moves leaders. The others need real brokers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import Row, SparkSession

import pyspark_kafka_meta as kafkameta
from pyspark_kafka_meta.events.event import Origin, Role
from pyspark_kafka_meta.events.publisher import new_publisher
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.model import RefreshReason
from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.testing import LocalKafka, MockCluster
from tests.kafka.cluster_tools import create_topic, elect_leader

pytestmark = [pytest.mark.kafka, pytest.mark.spark]
PARTITIONS = 4
TIMEOUT_S = 120


class Stage:
    """A streaming query over `topic`, and the side tables of the cluster and of the query's events."""

    def __init__(self, spark: SparkSession, servers: str, topic: str, folder: Path, **options: str) -> None:
        self.spark, self.servers, self.topic, self.folder = spark, servers, topic, folder
        self.cluster = {"kafka.bootstrap.servers": servers}
        self.event_options: dict[str, Any] = {"eventsPath": str(folder / "events")}
        source = {**self.cluster, "subscribe": topic, "startingOffsets": "earliest"}
        self.options = {**source, **self.event_options, **options}
        self.written: list[str] = []
        self._known_partitions = 0
        self._producer = Producer({"bootstrap.servers": servers, "linger.ms": 0, "log_level": 0})

    def start(self) -> None:
        rows = self.spark.readStream.format("kafkameta").options(**self.options).load()
        sink = rows.selectExpr("CAST(value AS STRING) AS value", "partition", "offset").writeStream.format("parquet")
        sink = sink.option("path", str(self.folder / "rows"))
        sink = sink.option("checkpointLocation", str(self.folder / "checkpoint"))
        self.query = sink.trigger(processingTime="200 milliseconds").start()

    def write(self, partitions: int) -> None:
        """Write a record to each partition."""
        if partitions > self._known_partitions:
            self._producer.list_topics(self.topic, timeout=30)  # the producer learns new partitions
            self._known_partitions = partitions
        for partition in range(partitions):
            self.written.append(str(len(self.written)))
            self._producer.produce(self.topic, self.written[-1], partition=partition)
        assert self._producer.flush(30) == 0

    def play(self, partitions: int = PARTITIONS) -> None:
        """Write to each partition, and wait until the query has read it."""
        self.write(partitions)
        self.query.processAllAvailable()

    def play_until(
        self, condition: Callable[[], object], wait_for: Callable[..., Any], partitions: int = PARTITIONS
    ) -> None:
        """`play` until the condition on the tables holds."""

        def play_and_check() -> object:
            self.play(partitions)
            return condition()

        wait_for(play_and_check, timeout_s=TIMEOUT_S)

    def read(self) -> list[Row]:
        return self.spark.read.parquet(str(self.folder / "rows")).collect()

    def events(self, where: str = "true") -> list[Row]:
        """Events that match the SQL condition, in the order of time."""
        return (
            kafkameta.refresh_events(self.spark, **self.event_options)
            .where(where)
            .orderBy("time_ms", "sequence")
            .collect()
        )

    def caches(self) -> list[Row]:
        return kafkameta.caches(self.spark, **self.event_options).collect()

    def live(self) -> dict[int, Row]:
        rows = kafkameta.partitions(self.spark, **self.cluster, subscribe=self.topic).collect()
        return {row.partition: row for row in rows}


@contextmanager
def four_partitions() -> Iterator[MockCluster]:
    with MockCluster() as cluster:
        cluster.create_topic("t", PARTITIONS)
        for partition in range(PARTITIONS):
            cluster.move_leader("t", partition, 1 + partition % 3)
        yield cluster


@pytest.fixture
def brokers() -> Iterator[MockCluster]:
    with four_partitions() as cluster:
        yield cluster


def playing(spark: SparkSession, brokers: MockCluster, folder: Path) -> Stage:
    """A stream of all partitions, which has read a record of each. The max age of its caches is two seconds."""
    age = {"kafka.metadata.max.age.ms": "2000"}
    # The brokers advertise 127.0.0.1, so the bootstrap addresses differ from theirs.
    servers = brokers.bootstrap_servers.replace("127.0.0.1", "localhost")
    stage = Stage(spark, servers, "t", folder, **age)
    stage.start()
    stage.play()
    return stage


@pytest.fixture
def stage(spark: SparkSession, brokers: MockCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    stage = playing(spark, brokers, tmp_path_factory.mktemp("scenes"))
    yield stage
    stage.query.stop()


@pytest.fixture(scope="module")
def played(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A stage whose query has ended, and whose brokers are left as they are."""
    with four_partitions() as brokers:
        stage = playing(spark, brokers, tmp_path_factory.mktemp("scenes"))
        stage.query.stop()
        yield stage


def led_by(changes: Sequence[Row], partition: int) -> list[tuple[int, int]]:
    """Old and new leader of each leader change of the partition."""
    return [(change.old_leader_id, change.new_leader_id) for change in changes if change.partition == partition]


def test_scene_01_ask_one_broker_learn_them_all(
    played: Stage, kafka: Any, topic: str, leader_of: Any, wait_for: Callable[..., Any]
) -> None:
    servers = kafka.bootstrap_servers.split(",")
    first_broker = {"kafka.bootstrap.servers": servers[0]}
    found = kafkameta.brokers(played.spark, **first_broker).collect()
    partitions = kafkameta.partitions(played.spark, **first_broker, subscribe=topic).collect()
    responded = "reason = 'bootstrap' AND kind = 'refresh' AND outcome <> 'failed'"
    learned = {tuple(row.brokers_added) for row in wait_for(lambda: played.events(responded))}

    assert {f"{row.host}:{row.port}" for row in found} == set(servers)
    assert {row.answered_by for row in found} == {servers[0]}
    assert [row.is_controller for row in found].count(True) == 1
    assert len({row.cluster_id for row in found} - {None}) == 1
    assert [row.leader_id for row in partitions] == [leader_of(topic, number) for number in range(3)]
    assert {row.leader_id for row in partitions} <= {row.node_id for row in found}
    assert learned == {(1, 2, 3)}, "by the first response to each cache"


def test_scene_06_refresh_on_error(
    spark: SparkSession, brokers: MockCluster, tmp_path: Path, wait_for: Callable[..., Any]
) -> None:
    """With caches that keep metadata for minutes: those of `stage` may learn by age if micro-batches take seconds. A
    planner or a new worker may learn a move before a fetch gets the error. Then the leader moves again."""
    brokers.create_topic("moves", 1)
    brokers.move_leader("moves", 0, 1)
    other = Stage(spark, brokers.bootstrap_servers, "moves", tmp_path)
    other.start()
    other.play(1)
    leaders = itertools.cycle((2, 1))
    by_error = "reason IN ('not_leader', 'leader_hint', 'fenced_epoch')"
    moved = "exists(leaders_changed, change -> change.old_leader_id <> change.new_leader_id)"

    def learned_by_error() -> list[Row]:
        brokers.move_leader("moves", 0, next(leaders))
        other.play(1)
        return other.events(f"{by_error} AND {moved}")

    found = wait_for(learned_by_error, timeout_s=TIMEOUT_S)
    other.query.processAllAvailable()
    other.query.stop()

    [change] = found[0].leaders_changed
    assert {change.old_leader_id, change.new_leader_id} == {1, 2}
    assert change.new_epoch > change.old_epoch
    assert found[0].recovery_ms >= 0, "0 if a hint came with the error"
    changes = kafkameta.leader_changes(spark, **other.event_options).collect()
    known = [(row.from_leader_id, row.to_leader_id, row.leader_epoch) for row in changes]
    assert (change.old_leader_id, change.new_leader_id, change.new_epoch) in known
    assert sorted(row.value for row in other.read()) == sorted(other.written), "no record lost or repeated"


def test_scene_07_refresh_on_demand(played: Stage, wait_for: Callable[..., Any]) -> None:
    options = SourceOptions.parse(played.options)
    client = KafkaClient(options.client, new_publisher(options.events, Origin(role=Role.CLI)))
    with closing(client):
        client.partitions(["t"], client.api_deadline())
        client.cache.refresh(RefreshReason.ON_DEMAND, client.api_deadline())

    row, *_ = wait_for(lambda: played.events("reason = 'on_demand' AND role = 'cli'"))
    assert (row.kind, row.outcome) == ("refresh", "unchanged")
    assert row.generation_after == row.generation_before + 1 > 1


@pytest.mark.thorough
def test_scene_08_every_client_has_a_cache_of_its_own(
    stage: Stage, brokers: MockCluster, wait_for: Callable[..., Any]
) -> None:
    def stale(cache_ids: set[str]) -> set[str]:
        live = stage.live()
        rows = [row for row in stage.caches() if row.cache_id in cache_ids and row.partition is not None]
        return {row.cache_id for row in rows if row.leader_epoch < live[row.partition].leader_epoch}

    def of_both_roles() -> list[Row]:
        """Once their events have come."""
        rows = [row for row in stage.caches() if row.topic == "t"]
        return rows if {row.role for row in rows} >= {"planner", "reader"} else []

    caches = wait_for(of_both_roles)
    readers = {row.cache_id for row in caches if row.role == "reader"}
    assert len({row.pid for row in caches}) > 1
    stage.query.stop()
    brokers.move_leader("t", 1, 3)
    assert stale(readers) == readers, "no reader runs, so no cache learns"

    stage.start()
    stage.play_until(lambda: stale(readers) < readers, wait_for)
    learned = stage.events("exists(leaders_changed, change -> change.partition = 1 AND change.new_leader_id = 3)")
    assert {row.cache_id for row in learned} & readers, "each cache learns by its own event"


def test_scene_13_the_request_itself(played: Stage) -> None:
    responded = played.events("kind = 'refresh' AND outcome <> 'failed'")
    failed = played.events("kind = 'refresh' AND outcome = 'failed'")

    assert responded
    for row in responded:
        assert row.api_version >= 9 and row.correlation_id >= 0 and row.attempt >= 1
        assert 0 < row.request_bytes < row.response_bytes and row.latency_ms > 0
        assert row.broker_id in (1, 2, 3) or row.broker_host == "localhost", "a bootstrap address has no broker id"
    assert all(row.error and row.latency_ms is not None and row.correlation_id is None for row in failed)


@pytest.mark.thorough
def test_scene_09_kill_a_broker_and_watch_the_leaders_move(
    spark: SparkSession, breakable_kafka: LocalKafka, tmp_path: Path, wait_for: Callable[..., Any]
) -> None:
    victim, *others = breakable_kafka.broker_ids
    topic = f"scene-9-{tmp_path.name}"
    create_topic(breakable_kafka, topic, [[victim, *others]])
    scene = Stage(spark, breakable_kafka.bootstrap_servers, topic, tmp_path, **{"kafka.metadata.max.age.ms": "1000"})
    scene.start()
    scene.play(1)

    breakable_kafka.kill(victim)

    def moved_to() -> int | None:
        """Brokers hear of the change one after the other."""
        live = scene.live()[0]
        brokers = {row.node_id for row in kafkameta.brokers(spark, **scene.cluster).collect()}
        return live.leader_id if live.leader_id in others and victim not in {*live.isr, *brokers} else None

    new_leader = wait_for(moved_to, timeout_s=TIMEOUT_S)
    scene.play(1)

    breakable_kafka.start(victim)
    breakable_kafka.wait_until_up()
    wait_for(lambda: victim in scene.live()[0].isr, timeout_s=TIMEOUT_S)
    elect_leader(breakable_kafka, topic, 0, victim)
    scene.play_until(lambda: (new_leader, victim) in moves_of(scene), wait_for, partitions=1)
    scene.query.stop()
    assert (victim, new_leader) in moves_of(scene)
    assert sorted(row.value for row in scene.read()) == sorted(scene.written)


def moves_of(scene: Stage) -> list[tuple[int, int]]:
    """Old and new leader of partition 0 in each event."""
    return [pair for row in scene.events("size(leaders_changed) > 0") for pair in led_by(row.leaders_changed, 0)]
