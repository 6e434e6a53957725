"""Leaders, replicas and partition counts change under a stream: no record is lost or repeated."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.read.planning import offset_planner
from tests.kafka.checker import leaders_learned
from tests.kafka.cluster_tools import Cluster, create_topic, elect_leader, in_sync, reassign
from tests.kafka.harness import Stage

pytestmark = pytest.mark.kafka

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
