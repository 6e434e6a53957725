"""What is known at one moment of the demo, and what the tables say of it; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyspark_kafka_meta.metadata.refresh_events import Outcome
from pyspark_kafka_meta.model import NO_LEADER, Positions, TopicPartition, is_other_topic
from pyspark_kafka_meta.tables.caches_from_events import Event, ended_caches
from pyspark_kafka_meta.tables.query_lag import lag_rows
from pyspark_kafka_meta.tables.table_rows import BrokerRow, CacheRow, PartitionRow, by_partition

KEPT_MS = 3_600_000
"""Events older than this are kept only if they say what caches know."""

Place = tuple[str, str]
"""Role of a cache, and what people call the process that it is in."""


@dataclass(frozen=True, slots=True)
class State:
    """One look at the tables and at the query.

    Attributes:
        now_ms: when it was, ms since 1970 UTC.
        brokers, partitions: the live cluster; as of the last look at which a broker answered.
        trouble: why none answered at this look, else None.
        events: all so far, in the order in which they happened.
        caches: what the caches know, folded from `events`.
        positions: where the query reads on, by partition.
        begins: where it began.
        records_per_s: rows that the last micro-batch with rows processed in a second.
    """

    now_ms: int
    brokers: Sequence[BrokerRow]
    partitions: Sequence[PartitionRow]
    trouble: str | None
    events: Sequence[Event]
    caches: Sequence[CacheRow]
    positions: Positions
    begins: Positions
    records_per_s: float

    def live(self) -> dict[TopicPartition, PartitionRow]:
        return by_partition(self.partitions)

    def leader_of(self, partition: TopicPartition) -> int:
        row = self.live().get(partition)
        return NO_LEADER if row is None or row.leader_id is None else row.leader_id

    def epoch_of(self, partition: TopicPartition) -> int:
        row = self.live().get(partition)
        return -1 if row is None or row.leader_epoch is None else row.leader_epoch

    def records_read(self) -> int:
        begins = {one: position.offset for one, position in self.begins.items()}
        return sum(position.offset - begins.get(one, 0) for one, position in self.positions.items())

    def records_behind(self) -> int:
        return sum(row.records_behind or 0 for row in lag_rows(self.positions, self.partitions, {}, 0.0))

    def since(self, time_ms: int, role: str | None = None) -> Iterator[Event]:
        """The events that ended at `time_ms` or later, of one role where that is given."""
        return (one for one in self.events if one["time_ms"] >= time_ms and role in (None, one["role"]))


def executor_name(executor_id: str | None, pid: int | None) -> str:
    """For people. Not every process can find out which executor it works for."""
    return f"executor with pid {pid}" if executor_id is None else f"executor {executor_id}"


def newest_caches(caches: Sequence[CacheRow]) -> dict[Place, dict[TopicPartition, CacheRow]]:
    """What the planner and each executor know now. A restarted process counts, not the one before."""
    latest: dict[Place, CacheRow] = {}
    for row in caches:
        if row.role in ("planner", "reader"):
            place = (row.role, executor_name(row.executor_id, row.pid) if row.role == "reader" else row.role)
            latest[place] = max(latest.get(place, row), row, key=lambda one: one.last_refresh)
    return {
        place: by_partition(row for row in caches if row.cache_id == newest.cache_id)
        for place, newest in sorted(latest.items())
    }


def is_stale(row: CacheRow, live: Mapping[TopicPartition, PartitionRow]) -> bool:
    """Whether the cache holds an older leader epoch than the cluster reports now, or a recreated topic."""
    now = None if row.topic_partition is None else live.get(row.topic_partition)
    if now is None:
        return False
    return is_other_topic(row.topic_id, now.topic_id) or (row.leader_epoch or 0) < (now.leader_epoch or 0)


def kept(events: Sequence[Event], now_ms: int) -> list[Event]:
    """The events that are needed further on: a page may stay open for days."""
    ended = ended_caches(events)
    return [
        one
        for one in events
        if one["time_ms"] >= now_ms - KEPT_MS or (one["outcome"] == Outcome.CHANGED and one["cache_id"] not in ended)
    ]


def told_by_caches(
    events: Iterable[Event], caches: Iterable[CacheRow]
) -> tuple[Sequence[BrokerRow], Sequence[PartitionRow]]:
    """The brokers that were asked by id or lead, and the newest leaders that any cache knows: those of the topic id
    reported last, as the epochs of a recreated topic start again."""
    caches = sorted(caches, key=lambda one: one.last_refresh)
    told_last = {row.topic: row.topic_id for row in caches}
    newest = {
        (row.topic, row.partition): PartitionRow(
            topic=row.topic,
            partition=row.partition,
            topic_id=row.topic_id,
            leader_id=row.leader_id,
            leader_epoch=row.leader_epoch,
        )
        for row in sorted(caches, key=lambda one: one.leader_epoch or 0)
        if row.topic is not None and row.topic_id == told_last[row.topic]
    }
    asked = {one["broker_id"]: (one["broker_host"], one["broker_port"]) for one in events}
    leaders = {row.leader_id: ("", 0) for row in newest.values()}
    brokers = [
        BrokerRow(
            node_id=node_id, host=host, port=port, rack=None, is_controller=False, cluster_id=None, answered_by=""
        )
        for node_id, (host, port) in sorted((leaders | asked).items(), key=lambda one: one[0] or 0)
        if node_id is not None and node_id != NO_LEADER
    ]
    return brokers, [row for _, row in sorted(newest.items())]
