"""The refresh events of many caches in a quiet week that ends in a rolling restart, in files as caches write them.

Each cache learns all partitions when it begins, and asks again at its max age. Of the partitions that it reads it gets
the new leader as a hint, which a refresh confirms; the others it learns with its next refresh. In the end the last
broker has just gone: what caches have not asked for since then is stale.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np

from benchmarks.simulation.cluster import Cluster, Scenario
from pyspark_kafka_meta.client_facts import Opened
from pyspark_kafka_meta.events.event import Event, Origin, Role, head_of, outcome_of
from pyspark_kafka_meta.events.sinks import LocalFolder, writer_prefix
from pyspark_kafka_meta.kafka.metadata.cache_state import LeaderHinted, Refreshed
from pyspark_kafka_meta.kafka.metadata.refresh_policy import RefreshCause
from pyspark_kafka_meta.kafka.metadata.snapshot import LeaderChange, PartitionLearned, SnapshotChanges
from pyspark_kafka_meta.kafka.protocol.error_codes import NOT_LEADER_OR_FOLLOWER
from pyspark_kafka_meta.model import RefreshReason, TopicPartition

MAX_AGE_S = 300.0
RESTARTS = 20
EVENTS_PER_FILE = 20
NEWS_S = 20.0
"""Before the last broker is back."""


@dataclass(frozen=True, slots=True)
class Scale:
    """
    Attributes:
        events: of all caches, about.
    """

    caches: int = 500
    topics: int = 100
    partitions: int = 10_000
    brokers: int = 50
    events: int = 1_000_000

    def scenario(self) -> Scenario:
        """A refresh comes after nine tenths of the max age, on average."""
        return Scenario(
            executors=self.caches,
            workers_per_executor=1,
            brokers=self.brokers,
            topics=self.topics,
            partitions=self.partitions,
            restarts=min(RESTARTS, self.brokers),
            calm_s=self.events / self.caches * MAX_AGE_S * 0.9,
        )

    def names(self) -> list[TopicPartition]:
        per_topic = self.partitions // self.topics
        return [TopicPartition(f"topic-{one // per_topic:03}", one % per_topic) for one in range(self.partitions)]


def write_events(folder: Path, scale: Scale, now_ms: int, seed: int = 0) -> int:
    """Write the files, and return the number of events. The same arguments make the same files.

    Args:
        now_ms: when the last events end, ms since 1970 UTC.
    """
    scenario, names = scale.scenario(), scale.names()
    cluster, end_s = Cluster(scenario, np.random.default_rng(seed)), scenario.end_s - NEWS_S
    count = 0
    for number in range(scale.caches):
        cache = SimulatedCache(number, scale, cluster, names, seed)
        events = [cache.event(at_s, fact, int(now_ms - (end_s - at_s) * 1000)) for at_s, fact in cache.facts(end_s)]
        for file, start in enumerate(range(0, len(events), EVENTS_PER_FILE)):
            _write(folder, f"{writer_prefix(cache.cache_id)}{seed:016x}", file, events[start : start + EVENTS_PER_FILE])
        count += len(events)
    return count


def _write(folder: Path, writer_id: str, number: int, events: Sequence[Event]) -> None:
    name = f"events-{writer_id}-{number:08d}.jsonl"
    LocalFolder(folder).write(name, "".join(event.to_json() + "\n" for event in events).encode())
    os.utime(folder / name, (events[-1].time_ms / 1000,) * 2)


class SimulatedCache:
    def __init__(self, number: int, scale: Scale, cluster: Cluster, names: Sequence[TopicPartition], seed: int) -> None:
        self._rng = np.random.default_rng((seed, number))
        self._number, self._scale, self._cluster, self._names = number, scale, cluster, names
        self._epochs = np.zeros(scale.partitions, np.int64)
        self._version = self._sequence = self._generation = 0
        self.cache_id = self._rng.bytes(16).hex()
        self._origin = Origin(
            role=Role.READER,
            application_id="app-simulated",
            executor_id=str(number + 1),
            host=f"worker-{number // 4:03}",
            pid=1_000 + number,
        )

    def facts(self, end_s: float) -> Iterator[tuple[float, Opened | Refreshed | LeaderHinted]]:
        """Each with its time, in order."""
        now_s = float(self._rng.random()) * 60
        yield now_s, Opened()
        yield now_s, self._bootstrap(now_s)
        for moved_s, partition in [*self._moves(end_s), (end_s, None)]:
            while (due_s := now_s + MAX_AGE_S * (0.8 + 0.2 * float(self._rng.random()))) < moved_s:
                now_s = due_s
                yield now_s, self._refresh(now_s, RefreshReason.MAX_AGE)
            if partition is not None:
                yield moved_s, self._hint(moved_s, partition)
                now_s = moved_s + 0.2
                yield now_s, self._refresh(now_s, RefreshReason.LEADER_HINT)

    def event(self, at_s: float, fact: Opened | Refreshed | LeaderHinted, time_ms: int) -> Event:
        self._sequence += 1
        kind, cause = head_of(fact)
        before, self._generation = self._generation, self._generation + isinstance(fact, Refreshed)
        return Event(
            cache_id=self.cache_id,
            sequence=self._sequence,
            cluster_id="simulated",
            time_ms=time_ms,
            kind=kind,
            reason=cause.reason,
            cause_error_code=cause.error_code,
            cause_topic=None if cause.partition is None else cause.partition.topic,
            cause_partition=None if cause.partition is None else cause.partition.partition,
            outcome=outcome_of(fact),
            generation_before=before,
            generation_after=self._generation,
            age_ms=250_000.0,
            idle_ms=12.5,
            lookups=40,
            retries=int(isinstance(fact, LeaderHinted)),
            details=fact,
            origin=self._origin,
        )

    def _moves(self, end_s: float) -> list[tuple[float, int]]:
        """When it meets the moves of the partitions that it reads, one after the other."""
        own = [
            (time_s + 0.1, partition)
            for time_s, partition in self._cluster.moves
            if partition % self._scale.caches == self._number
        ]
        return [(time_s, partition) for time_s, partition in own if time_s + 0.2 < end_s]

    def _bootstrap(self, now_s: float) -> Refreshed:
        self._version = self._cluster.version(now_s)
        self._epochs[:] = self._cluster.epochs(now_s)
        ids = {
            topic: str(UUID(int=number + 1)) for number, topic in enumerate(dict.fromkeys(n.topic for n in self._names))
        }
        learned = tuple(
            PartitionLearned(*name, self._leader(one), int(self._epochs[one]), ids[name.topic])
            for one, name in enumerate(self._names)
        )
        changes = SnapshotChanges(topics_added=tuple(ids), partitions_learned=learned)
        return self._response(RefreshReason.BOOTSTRAP, changes)

    def _refresh(self, now_s: float, reason: RefreshReason) -> Refreshed:
        before, self._version = self._version, self._cluster.version(now_s)
        moved, epochs = self._cluster.changes(before, self._version)
        return self._response(reason, self._changes(dict(zip(moved.tolist(), epochs.tolist(), strict=True))))

    def _hint(self, now_s: float, partition: int) -> LeaderHinted:
        cause = RefreshCause(RefreshReason.LEADER_HINT, NOT_LEADER_OR_FOLLOWER, self._names[partition])
        return LeaderHinted(cause, 0.0, self._changes({partition: self._cluster.epoch(partition, now_s)}))

    def _response(self, reason: RefreshReason, changes: SnapshotChanges) -> Refreshed:
        broker = int(self._rng.integers(self._scale.brokers))
        about: dict[str, Any] = {"api_version": 12, "request_bytes": 2_100, "response_bytes": 420_000, "throttle_ms": 0}
        return Refreshed(
            RefreshCause(reason),
            began=0.0,
            generation_before=0,
            fetched_before=0.0,
            broker_id=broker,
            broker_host=self._cluster.addresses[broker].host,
            broker_port=9092,
            latency_ms=float(self._rng.integers(2, 40)),
            attempt=1,
            changes=changes,
            **about,
        )

    def _changes(self, epochs: dict[int, int]) -> SnapshotChanges:
        """Of the partitions whose epoch is newer than the one that is known."""
        changes = []
        for partition, epoch in epochs.items():
            if epoch > (known := int(self._epochs[partition])):
                leaders = self._cluster.leader(partition, known), self._cluster.leader(partition, epoch)
                changes.append(LeaderChange(*self._names[partition], *leaders, known, epoch))
                self._epochs[partition] = epoch
        return SnapshotChanges(leaders_changed=tuple(changes))

    def _leader(self, partition: int) -> int:
        return self._cluster.leader(partition, int(self._epochs[partition]))
