"""A scene with one worker, whose tasks share a client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from pyspark_kafka_meta.model import OffsetRange, RefreshReason, TopicPartition
from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.read.fetching.task_reader import TaskReader
from tests.partitions import T0
from tests.unit.scene import Scene

MAX_AGE_S = 300
FIVE = [0, 1, 2, 3, 4]
"""The offsets of one `ReaderScene.append`."""


class ReaderScene(Scene):
    """Three brokers, topic t with two partitions led by brokers 1 and 2, and a worker's client; its rack is `here`.

    Attributes:
        events: events of the client's cache after the first one.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: str) -> None:
        super().__init__(monkeypatch, partitions=2)
        given = {"kafka.client.rack": "here", **options}
        self.settings = self.options(**given)
        self.worker = self.client(**given)
        self.events.clear()

    def append(self, partition: TopicPartition, count: int = 5) -> None:
        """Append this many records, with their offsets as values."""
        end = self.cluster.bounds(partition)[1]
        self.write(partition, *map(str, range(end, end + count)))

    def set_leader(self, partition: TopicPartition, leader_id: int, epoch: int) -> None:
        """Set leader and epoch, whatever they were."""
        topic = self.cluster.topics[partition.topic]
        members = [
            replace(member, leader_id=leader_id, leader_epoch=epoch)
            if member.partition == partition.partition
            else member
            for member in topic.partitions
        ]
        self.cluster.topics[partition.topic] = replace(topic, partitions=tuple(members))

    def leader_id(self, partition: TopicPartition) -> int | None:
        """The leader in the cache."""
        leader = self.worker.cache.leader(partition)
        return None if leader is None else leader.broker.node_id

    def report(self, partition: TopicPartition, reason: RefreshReason = RefreshReason.NOT_LEADER) -> None:
        self.worker.cache.request_update(reason, self.worker.cache.snapshot.generation, partition, 6)

    def refresh_when_due(self) -> Any:
        self.clock.sleep(self.worker.cache.time_to_next_update_ms() / 1000)
        self.worker.cache.refresh_if_due(self.clock() + 60)
        return self.events[-1]

    def read(self, *partitions: TopicPartition, start: int = 0) -> list[int]:
        """Read each log from `start` to its end. Returns the offsets in the order of reading."""
        return self.read_ranges([self.range(partition, start) for partition in partitions])

    def read_ranges(self, ranges: Sequence[OffsetRange], settings: SourceOptions | None = None) -> list[int]:
        """A task of the worker, by default with the options of the scene."""
        batches = TaskReader(self.worker, settings or self.settings, ["offset"]).read(ranges)
        return [offset for batch in batches for offset in batch["offset"].to_pylist()]

    def fetched_from(self) -> list[int]:
        """Node ids of the Fetches that reached a broker since the last call."""
        node_ids = [node_id for node_id, _ in self.network.fetches]
        self.network.fetches.clear()
        return node_ids


def ten_records(monkeypatch: pytest.MonkeyPatch, **options: str) -> ReaderScene:
    """Ten records in t-0, led by broker 1."""
    scene = ReaderScene(monkeypatch, **options)
    scene.append(T0)
    scene.append(T0)
    return scene
