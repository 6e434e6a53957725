"""Queries as Spark drives them, against the cluster of a scene, and their ranges."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Self

from pyspark_kafka_meta.model import OffsetRange, Position, TopicPartition
from pyspark_kafka_meta.read.planning.checkpoint_offsets import BEGINNING, SourceOffset, ranges
from pyspark_kafka_meta.read.planning.offset_planner import OffsetPlanner
from tests.checkpoints import restored
from tests.unit.scene import Scene

GO_ON = {"failOnDataLoss": "false"}


def batch_planner(scene: Scene, **options: str) -> OffsetPlanner:
    return OffsetPlanner(scene.client(**options), scene.options(**options).for_batch())


def offsets_json(**partitions: int) -> str:
    """`p0=3` is offset 3 of t-0."""
    return json.dumps({"t": {name[1:]: offset for name, offset in partitions.items()}})


def spans(found: list[OffsetRange]) -> dict[TopicPartition, tuple[int, int]]:
    return {planned.partition: (planned.from_offset, planned.until_offset) for planned in found}


def positions(offset: SourceOffset) -> dict[TopicPartition, int]:
    return {partition: position.offset for partition, position in offset.positions.items()}


def begins(planner: OffsetPlanner) -> dict[TopicPartition, int]:
    """Where a new query begins, as the end of its first micro-batch says."""
    return {partition: at.offset for partition, at in planner.next_offset(BEGINNING, None, limited=True).start.items()}


class Query:
    """A streaming query as Spark drives it: each offset goes through JSON, each batch is what lies between two."""

    def __init__(
        self, scene: Scene, target: Mapping[TopicPartition, Position] | None = None, /, **options: str
    ) -> None:
        self._scene = scene
        self.planner = scene.planner(**options)
        self.target = target
        self.offset = BEGINNING

    def step(self, limited: bool = True) -> dict[TopicPartition, tuple[int, int]]:
        """Plan the next micro-batch. Returns the offsets that it reads."""
        end = restored(self.planner.next_offset(self.offset, self.target, limited))
        found = spans(ranges(self.offset, end))
        self.offset = end
        return found

    @classmethod
    def started(cls, scene: Scene, **options: str) -> Self:
        """It has planned its first micro-batch."""
        query = cls(scene, **options)
        query.step()
        return query

    def restarted(self, **options: str) -> Query:
        """From the same checkpoint, with these options."""
        query = Query(self._scene, **options)
        query.offset = self.offset
        return query


def ends_now(scene: Scene) -> dict[TopicPartition, Position]:
    """As Trigger.AvailableNow asks for them when the query starts."""
    return scene.planner().available_now()


def add_partition(scene: Scene, partition: TopicPartition, *values: str) -> None:
    topic = scene.cluster.topics[partition.topic]
    added = replace(topic.partitions[0], partition=partition.partition)
    scene.cluster.topics[partition.topic] = replace(topic, partitions=(*topic.partitions, added))
    scene.cluster.logs[partition] = []
    if values:
        scene.write(partition, *values)
