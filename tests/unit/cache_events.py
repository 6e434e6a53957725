"""The events of one metadata cache after the other, for tests of what is folded from them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from pyspark_kafka_meta.events.event import EventKind
from pyspark_kafka_meta.kafka.metadata.snapshot import LeaderChange, PartitionLearned, SnapshotChanges
from pyspark_kafka_meta.model import RefreshReason
from tests.unit.written_events import made

IDS = {"t": "00000000-0000-0000-0000-000000000001", "other": "00000000-0000-0000-0000-000000000002"}


@dataclass
class Cache:
    """Makes the events of one cache, of topic t."""

    name: str
    events: list[dict[str, Any]] = field(default_factory=list)

    def event(self, time_ms: int, changes: SnapshotChanges | None = None, **others: Any) -> None:
        changed = {} if changes is None else {"changes": changes}
        given = {"cluster_id": "cluster", **changed, **others}
        event = made(self.name, len(self.events) + 1, time_ms, **given)
        self.events.append(json.loads(event.to_json()))

    def learns(self, time_ms: int, epoch: int, leader: int, partition: int = 0, **others: Any) -> None:
        learned = (PartitionLearned("t", partition, leader, epoch, IDS["t"]),)
        self.event(time_ms, SnapshotChanges(partitions_learned=learned), reason=RefreshReason.BOOTSTRAP, **others)

    def moves(
        self, time_ms: int, old: tuple[int, int], new: tuple[int, int], partition: int = 0, **others: Any
    ) -> None:
        """To another (epoch, leader)."""
        change = LeaderChange("t", partition, old[1], new[1], old[0], new[0])
        self.event(
            time_ms, SnapshotChanges(leaders_changed=(change,)), **{"reason": RefreshReason.NOT_LEADER, **others}
        )

    def closes(self, time_ms: int) -> None:
        self.event(time_ms, kind=EventKind.CLOSED)
