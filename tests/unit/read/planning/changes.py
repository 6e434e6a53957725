"""Changes to the cluster of a scene while a query is planned, and the remedies in their errors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import uuid4

from pyspark_kafka_meta.errors import UnknownTopicError
from pyspark_kafka_meta.kafka.client.leader_requests import LeaderOffsets
from pyspark_kafka_meta.read.planning.leader_epochs import LeaderEpochs
from tests.partitions import T0
from tests.unit.scene import Scene

HOW_TO_GO_ON = "set the option failOnDataLoss to false"
HOW_TO_FOLLOW = "set the option onTopicRecreated to earliest or latest"
HOW_TO = f"({HOW_TO_GO_ON}|{HOW_TO_FOLLOW})"
PATTERN = {"subscribePattern": "^[tu]$", "startingOffsets": "earliest"}


def lose_the_end(scene: Scene) -> None:
    del scene.cluster.logs[T0][2:]


def truncate(scene: Scene) -> None:
    """By an unclean election: the new leader has half of the log."""
    lose_the_end(scene)
    scene.cluster.move_leader(T0, 2)


def lose_partitions(scene: Scene) -> None:
    topic = scene.cluster.topics["t"]
    scene.cluster.topics["t"] = replace(topic, topic_id=uuid4(), partitions=topic.partitions[:1])


def recreate(scene: Scene) -> None:
    """With more records than before, so that offsets alone do not tell."""
    scene.cluster.create_topic("t", 3)
    scene.fill(batches=10)


def recreate_smaller(scene: Scene) -> None:
    scene.cluster.create_topic("t", 1)
    scene.write(T0, *"0123456789abcdef")


def delete(scene: Scene) -> None:
    del scene.cluster.topics["t"]


def lose(scene: Scene, happens: Any) -> None:
    happens(scene)
    scene.clock.sleep(300)


def before_offsets_are_asked(scene: Scene, nth: int, happens: Any) -> None:
    """Let it happen just before the nth time from now, from 0."""
    real, left = LeaderOffsets.ask, iter(range(nth, -1, -1))

    def ask(*arguments: Any) -> Any:
        if next(left, -1) == 0:
            happens(scene)
        return real(*arguments)

    scene.monkeypatch.setattr(LeaderOffsets, "ask", ask)


def plan_again(scene: Scene) -> None:
    """The next plan finds at its end, once it has reported its losses, that a topic went away."""
    real, left = LeaderEpochs.with_epoch_starts, iter([True])

    def interrupted(*arguments: Any) -> Any:
        if next(left, False):
            raise UnknownTopicError("a topic was deleted while its offsets were listed")
        return real(*arguments)

    scene.monkeypatch.setattr(LeaderEpochs, "with_epoch_starts", interrupted)


def delete_u(scene: Scene) -> None:
    del scene.cluster.topics["u"]
