"""The demo's embedded brokers: who leads after any order of kills, restores and moves."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pyspark_kafka_meta.cli.demo.clusters import TOPIC, Embedded
from pyspark_kafka_meta.metadata.model import NO_LEADER, TopicPartition
from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.tables.live import ask_cluster
from pyspark_kafka_meta.testing import ClusterError, MockCluster

FIRST = TopicPartition(TOPIC, 0)


@pytest.fixture
def cluster(mock_cluster: MockCluster) -> Embedded:
    return Embedded(mock_cluster)


def leaders(cluster: Embedded) -> list[int]:
    """Of all partitions, by topic and number."""
    topics = ask_cluster(ClientOptions.parse(cluster.options), cluster.topics).answer.topics
    return [
        one.leader_id
        for topic in sorted(topics, key=lambda topic: topic.name)
        for one in sorted(topic.partitions, key=lambda one: one.partition)
    ]


@pytest.mark.parametrize(
    ("acts", "expected"),
    [
        ([], [1, 2, 3, 1]),
        ([lambda one: one.move_leader(FIRST, 1)], [2, 2, 3, 1]),
        ([lambda one: one.move_leader(FIRST, 1), lambda one: one.kill(2)], [3, 3, 3, 1]),
        ([lambda one: one.kill(2), lambda one: one.kill(3)], [1, 1, 1, 1]),
        ([lambda one: one.kill(2), lambda one: one.kill(3), lambda one: one.revive(2)], [1, 2, 1, 1]),
        ([lambda one: one.kill(2), lambda one: one.revive(2)], [1, 2, 3, 1]),
        ([lambda one: one.kill(3), lambda one: one.move_leader(FIRST, 2)], [1, 2, 1, 1]),
        ([lambda one: one.grow(), lambda one: one.grow(), lambda one: one.kill(3)], [1, 2, 1, 1, 1, 1]),
    ],
    ids=range(8),
)
def test_a_broker_that_runs_leads(
    cluster: Embedded, acts: list[Callable[[Embedded], None]], expected: list[int]
) -> None:
    for act in acts:
        act(cluster)

    assert leaders(cluster) == expected


def test_nobody_leads_while_all_are_dead_and_who_comes_back_leads_all(cluster: Embedded) -> None:
    for broker_id in (1, 2, 3):
        cluster.kill(broker_id)
    with pytest.raises(ClusterError, match="restore one first"):
        cluster.move_leader(FIRST, NO_LEADER)
    cluster.revive(2)

    assert leaders(cluster) == [2, 2, 2, 2]
