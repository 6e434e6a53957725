"""Brokers crash, hang, stop and move under a stream, and leaders, replicas and partitions change: no record is lost or
repeated, and every batch ends in time.

Other tests of `make test` that need the nodes of a cluster are here too: each cluster costs four Java processes."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import pyspark_kafka_meta
from pyspark_kafka_meta.errors import NoLeaderError, UnsupportedBrokerError
from pyspark_kafka_meta.events.event import Origin, Role
from pyspark_kafka_meta.events.publisher import client_without_events
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.read.planning import offset_planner
from pyspark_kafka_meta.testing import ClusterError, LocalKafka
from pyspark_kafka_meta.testing.kafka_config import CONTROLLER_ID, HOST
from tests.kafka.checker import leaders_learned
from tests.kafka.cluster_tools import Cluster, create_topic, elect_leader, in_sync, reassign
from tests.kafka.harness import BATCH_DEADLINE_S, Stage, Stream
from tests.kafka.test_transaction_requests import V1, V2, new_client, opened, partition, soon

pytestmark = pytest.mark.kafka

__all__ = ["partition"]

STARTS = 5
"""Addresses are tried in random order."""


@pytest.fixture
def another_leads(leader_of: Callable[[str, int], int], wait_for: Callable[..., Any]) -> Callable[[str, int], int]:
    """Waits until a broker other than `node_id` leads partition 0, and returns its id."""

    def wait(topic: str, node_id: int) -> int:
        def leader() -> int | None:
            found = leader_of(topic, 0)  # of any broker: the next one asked may still name the old leader
            return None if found in (-1, node_id) else found

        return int(wait_for(leader))

    return wait


def test_r1_a_crashed_leader(breakable_kafka: LocalKafka, stage: Stage, leader_of: Any, another_leads: Any) -> None:
    topic = breakable_kafka.create_topic(partitions=3)
    with stage(topic) as scene:
        victim = leader_of(topic, 0)
        breakable_kafka.kill(victim)
        new_leader = another_leads(topic, victim)
        scene.read_on()
    scene.assert_invariants()
    events = scene.stream.events()
    learned = leaders_learned(events, TopicPartition(topic, 0))
    # By its lost connection, or from a plan of the new leader's log. Another broker that is slow causes a refresh too.
    by = {reason for reason, leader in learned if leader == new_leader}
    assert by & {"connection_lost", "replaced_leader", "request_timeout"}, learned
    assert {event["cause_node_id"] for event in events if event["reason"] == "connection_lost"} <= {victim}


def test_r2_a_hung_leader_is_left_long_before_the_request_timeout(
    breakable_kafka: LocalKafka, stage: Stage, topic: str, leader_of: Any, another_leads: Any
) -> None:
    with stage(topic) as scene:
        victim = leader_of(topic, 0)
        breakable_kafka.pause(victim)
        new_leader = another_leads(topic, victim)
        scene.read_on()
        breakable_kafka.resume(victim)
        scene.read_on()
    scene.assert_invariants()
    learned = leaders_learned(scene.stream.events(), TopicPartition(topic, 0))
    assert {("request_timeout", new_leader), ("replaced_leader", new_leader)} & {*learned}, learned


@pytest.mark.thorough
def test_r3_a_leader_that_shuts_down_in_order_is_nothing_to_report(
    breakable_kafka: LocalKafka,
    stage: Stage,
    topic: str,
    leader_of: Any,
    another_leads: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with stage(topic) as scene:
        victim = leader_of(topic, 0)
        breakable_kafka.stop(victim)
        another_leads(topic, victim)
        scene.read_on()
    scene.assert_invariants()
    records = [record for record in caplog.records if record.name.startswith(pyspark_kafka_meta.__name__)]
    assert [record.getMessage() for record in records if record.levelno >= logging.WARNING] == []


@pytest.mark.thorough
def test_r5_a_crashed_controller_is_not_noticed(breakable_kafka: LocalKafka, stage: Stage, topic: str) -> None:
    with stage(topic) as scene:
        breakable_kafka.kill(CONTROLLER_ID)
        planned, read = len(scene.stream.events("planner")), len(scene.stream.events())
        scene.wait_for(lambda: len(scene.stream.events("planner")) > planned)
        scene.read_on()
        # Events before the restart: the restarted controller may miss a heartbeat and elect other leaders.
        of_planner, of_reader = scene.stream.events("planner")[planned:], scene.stream.events()[read:]
        breakable_kafka.start(CONTROLLER_ID)
    scene.assert_invariants()
    # A slow broker causes a refresh although nothing has changed.
    assert {event["reason"] for event in of_planner} <= {"max_age", "request_timeout"}
    assert {event["reason"] for event in of_reader} <= {"request_timeout"}
    assert not any(event["leaders_changed"] or event["brokers_removed"] for event in of_planner + of_reader)


@pytest.mark.thorough
def test_r4_a_rolling_restart(breakable_kafka: LocalKafka, stage: Stage, topic: str) -> None:
    with stage(topic) as scene:
        for node_id in breakable_kafka.broker_ids:
            breakable_kafka.stop(node_id)
            scene.read_on()
            breakable_kafka.start(node_id)
            breakable_kafka.wait_until_up()
            scene.wait_for(lambda: in_sync(breakable_kafka, topic, 3))
            scene.read_on()
    scene.assert_invariants()


@pytest.mark.thorough
def test_r15_a_broker_that_comes_back_on_another_port(
    breakable_kafka: LocalKafka, stage: Stage, topic: str, leader_of: Any, another_leads: Any
) -> None:
    with stage(topic) as scene:
        mover = leader_of(topic, 0)
        old_address = breakable_kafka.address(mover)
        breakable_kafka.stop(mover)
        breakable_kafka.start(mover, port=0)
        breakable_kafka.wait_until_up()
        scene.wait_for(lambda: in_sync(breakable_kafka, topic, 3))
        elect_leader(breakable_kafka, topic, 0, mover)
        scene.read_on()
    scene.assert_invariants()
    known = scene.stream.reader_client.cache.snapshot.brokers[mover].address
    assert known == breakable_kafka.address(mover) != old_address


@pytest.mark.thorough
def test_r13_without_its_only_replica_a_batch_fails_in_time_or_waits_for_it(
    breakable_kafka: LocalKafka, stage: Stage, wait_for: Any, tmp_path: Path
) -> None:
    topic, home = f"r13-{uuid.uuid4().hex}", breakable_kafka.broker_ids[-1]
    create_topic(breakable_kafka, topic, [[home]], {"min.insync.replicas": "1"})
    short_timeouts = {"kafka.default.api.timeout.ms": "6000", "kafkaConsumer.pollTimeoutMs": "6000"}
    impatient = Stream(breakable_kafka.bootstrap_servers, [topic], tmp_path / "impatient", **short_timeouts)
    with stage(topic, partitions=1) as scene:
        breakable_kafka.kill(home)
        with pytest.raises(NoLeaderError, match=f"{topic}-0"):
            impatient.run_batch()
        assert impatient.batch_seconds[-1] < BATCH_DEADLINE_S
        impatient.close()
        breakable_kafka.start(home)
        scene.read_on()
    scene.assert_invariants(batch_deadline_s=60)  # a batch waits for the broker that starts


def test_coordinator_that_dies_is_replaced(breakable_kafka: LocalKafka, partition: TopicPartition) -> None:
    with closing(new_client(breakable_kafka.bootstrap_servers)) as client:
        begun = {
            version: opened(client, partition, version, *(f"{partition.topic}/{version}/{n}" for n in range(12)))
            for version in (V1, V2)
        }
        victim, *_ = coordinators(client, begun[V1]) & coordinators(client, begun[V2])
        breakable_kafka.kill(victim)
        for version, producers in begun.items():
            ended = client.coordinators.end_transactions(producers, True, version, soon(client))
            assert {each.error_code for each in ended.values()} == {0}
            assert victim not in coordinators(client, producers)


def coordinators(client: KafkaClient, transactional_ids: Iterable[str]) -> set[int]:
    """The node ids that the client knows."""
    return {client.coordinators._known[each].node_id for each in transactional_ids}


def test_a_topic_that_exists_or_is_refused_is_an_error(breakable_kafka: LocalKafka) -> None:
    topic = breakable_kafka.create_topic()
    with pytest.raises(ClusterError, match=f"Topic {topic} exists: choose another name"):
        breakable_kafka.create_topic(topic)
    with pytest.raises(ClusterError, match=r"could not be created: INVALID_CONFIG.* x "):
        breakable_kafka.create_topic(config={"retention.ms": "x"})


def known_brokers(servers: str) -> set[int]:
    client = client_without_events(ClientOptions.parse({"kafka.bootstrap.servers": servers}), Origin(role=Role.PLANNER))
    with closing(client):
        client.partitions([], client.api_deadline())
        return set(client.cache.snapshot.brokers)


def test_a_controller_as_bootstrap_server_is_passed_over_and_alone_is_named(breakable_kafka: LocalKafka) -> None:
    controller = f"{HOST}:{breakable_kafka._layout.controller_port}"
    for _ in range(STARTS):
        known = known_brokers(f"{controller},{breakable_kafka.bootstrap_servers}")
        assert known and known <= set(breakable_kafka.broker_ids), "without one that has missed its heartbeats"
    began = time.monotonic()
    with pytest.raises(UnsupportedBrokerError, match=f"{controller} offers no Metadata, as a KRaft controller"):
        known_brokers(controller)
    assert time.monotonic() - began < 30, "the API timeout is 60 s"


BY_ERROR_OR_PLAN = {"leader_hint", "fenced_epoch", "not_leader", "replaced_leader"}


def assert_learned(turns: Sequence[int], changes: Sequence[tuple[str, int]]) -> None:
    """The leaders were learned in this order, by errors of old leaders, or from plans of the new leaders' logs. A
    broker that misses a heartbeat loses its leaderships, so other changes may come in between. A slow broker causes a
    refresh by request_timeout before its error comes."""
    learned = iter([leader for _, leader in changes])
    assert all(leader in learned for leader in turns), changes
    found = {leader for reason, leader in changes if reason in {*BY_ERROR_OR_PLAN, "request_timeout"}}
    assert set(turns) <= found, changes


def test_r6_preferred_elections_one_after_the_other(kafka: Cluster, stage: Stage, wait_for: Any) -> None:
    topic, (first, *others) = f"r6-{uuid.uuid4().hex}", kafka.broker_ids
    create_topic(kafka, topic, [[first, *others]])
    wait_for(lambda: in_sync(kafka, topic, 3))
    turns = [*others, first]
    with stage(topic, partitions=1) as scene:
        for leader in turns:
            reassign(kafka, topic, 0, [leader, *(broker for broker in (first, *others) if broker != leader)])
            elect_leader(kafka, topic, 0, leader)
            scene.read_on()
    scene.assert_invariants()
    assert_learned(turns, leaders_learned(scene.stream.events(), TopicPartition(topic, 0)))


@pytest.mark.thorough
def test_r7_replicas_move_to_brokers_that_had_none(kafka: Cluster, stage: Stage, leader_of: Any, wait_for: Any) -> None:
    topic, (first, second, third) = f"r7-{uuid.uuid4().hex}", kafka.broker_ids
    create_topic(kafka, topic, [[first]], {"min.insync.replicas": "1"})
    moves = [second, third, first]
    with stage(topic, partitions=1) as scene:
        for home in moves:
            reassign(kafka, topic, 0, [home])
            wait_for(lambda home=home: leader_of(topic, 0) == home)
            scene.read_on()
    scene.assert_invariants()
    assert_learned(moves, leaders_learned(scene.stream.events(), TopicPartition(topic, 0)))


@pytest.mark.thorough
def test_r8_new_partitions_are_read_from_their_start(
    stage: Stage,
    make_topic: Callable[..., str],
    add_partitions: Callable[[str, int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(offset_planner, "PLANNER_MAX_AGE_MS", 1_000)  # how soon planners learn of new partitions
    topic = make_topic(partitions=1)
    with stage(topic, partitions=1) as scene:
        for partitions in (2, 6):
            add_partitions(topic, partitions)
            scene.producer.grow(partitions)
            scene.read_on()
    scene.assert_invariants()
    first_read = {row.log: row.offset for row in reversed(scene.stream.rows)}
    assert first_read == {TopicPartition(topic, number): 0 for number in range(6)}
