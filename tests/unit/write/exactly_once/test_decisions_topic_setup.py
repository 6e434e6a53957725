"""What a driver finds out about its decisions topic before the first batch: replicas, and rights to know more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.errors import BrokerError
from pyspark_kafka_meta.kafka.client.cluster_admin import ClusterAdmin
from tests.unit.write.exactly_once.commit_scene import DECISIONS, CommitScene

COMPACTED = {"cleanup.policy": "compact"}


class Admin:
    """Of the fake cluster. A new topic is on the brokers that are up."""

    def __init__(self, scene: CommitScene, config: Mapping[str, str] = COMPACTED) -> None:
        self._scene, self._config = scene, config
        self.created: list[int] = []

    def create_topic(self, name: str, partitions: int, replicas: int, config: Mapping[str, str]) -> None:
        self.created.append(replicas)
        self.config = config
        self._scene.cluster.create_topic(name, partitions)

    def topic_config(self, topic: str) -> Mapping[str, str]:
        return self._config


def ensure(scene: CommitScene, admin: Any) -> None:
    scene.committer().decisions.ensure(admin)


def keep_replicas(scene: CommitScene, number: int) -> None:
    topic = scene.cluster.topics[DECISIONS.topic]
    (partition,) = topic.partitions
    fewer = replace(partition, replicas=partition.replicas[:number])
    scene.cluster.topics[DECISIONS.topic] = replace(topic, partitions=(fewer,))


FEW = (
    "topic kafkameta-decisions has {} of 3 replicas: give it the others (kafka-reassign-partitions) once the cluster "
    "has 3 brokers, or the loss of the brokers with its replicas is the loss of all decisions"
)


@pytest.mark.parametrize(("replicas", "expected"), [(1, [FEW.format(1)]), (2, [FEW.format(2)]), (3, [])])
def test_existing_topic_with_few_replicas_warns(
    replicas: int, expected: list[str], scene: CommitScene, caplog: pytest.LogCaptureFixture
) -> None:
    keep_replicas(scene, replicas)
    ensure(scene, Admin(scene))
    assert caplog.messages == expected


def test_existing_topic_has_as_many_replicas_as_a_small_cluster_has_brokers(
    scene: CommitScene, caplog: pytest.LogCaptureFixture
) -> None:
    del scene.cluster.brokers[3]
    keep_replicas(scene, 2)
    ensure(scene, Admin(scene))
    assert caplog.messages == []


@pytest.mark.parametrize(("down", "expected"), [((2, 3), [FEW.format(1)]), ((3,), [FEW.format(2)]), ((), [])])
def test_topic_that_is_created_while_brokers_are_down_warns(
    down: tuple[int, ...], expected: list[str], scene: CommitScene, caplog: pytest.LogCaptureFixture
) -> None:
    del scene.cluster.topics[DECISIONS.topic]
    for node_id in down:
        del scene.cluster.brokers[node_id]
    admin = Admin(scene)
    ensure(scene, admin)
    assert (admin.created, caplog.messages) == ([3 - len(down)], expected)


def test_topic_that_may_not_be_created_says_how_to_create_it(scene: CommitScene) -> None:
    del scene.cluster.topics[DECISIONS.topic]
    scene.network.admin_errors["CreateTopics"].append(ErrorCode.topic_authorization_failed)
    with pytest.raises(BrokerError, match=r"AUTHORIZATION_FAILED.* Create it with one partition and .* CREATE on it"):
        ensure(scene, ClusterAdmin(scene.client()))


@pytest.mark.parametrize(("retention_ms", "warns"), [("3600000", False), ("86400000", False), ("3599999", True)])
def test_topic_that_forgets_markers_soon_warns(
    retention_ms: str, warns: bool, scene: CommitScene, caplog: pytest.LogCaptureFixture
) -> None:
    ensure(scene, Admin(scene, COMPACTED | {"delete.retention.ms": retention_ms}))
    assert caplog.messages == warns * [
        f"topic kafkameta-decisions has delete.retention.ms={retention_ms}: raise it to 3600000 or more, or a driver "
        "that stands still for longer may take an aborted decision for a committed one"
    ]


def test_new_topic_keeps_markers_for_a_day_whatever_the_cluster_does(scene: CommitScene) -> None:
    del scene.cluster.topics[DECISIONS.topic]
    admin = Admin(scene)
    ensure(scene, admin)
    assert admin.config["delete.retention.ms"] == "86400000"


def test_topic_whose_configuration_is_not_told_warns(scene: CommitScene, caplog: pytest.LogCaptureFixture) -> None:
    ensure(scene, Admin(scene, {}))
    assert caplog.messages == [
        "this user may not describe the configuration of topic kafkameta-decisions, or no broker responded: see to it "
        "that it has cleanup.policy=compact, or decisions are lost"
    ]
