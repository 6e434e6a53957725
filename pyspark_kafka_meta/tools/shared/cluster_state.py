"""Cluster, caches and query at one moment; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from pyspark_kafka_meta.kafka.metadata.refresh_events import Role
from pyspark_kafka_meta.model import NO_LEADER, Positions, TopicPartition
from pyspark_kafka_meta.tables.caches_from_events import Event
from pyspark_kafka_meta.tables.query_lag import LagSummary, lag_rows
from pyspark_kafka_meta.tables.rows import BrokerRow, CacheRow, PartitionRow, by_partition
from pyspark_kafka_meta.tools.shared.formatting import executor_name

EXECUTOR_ROLES = frozenset({Role.READER, Role.WRITER})


@dataclass(frozen=True, slots=True)
class State:
    """The tables and the query at one moment.

    Attributes:
        now_ms: ms since 1970 UTC.
        brokers, partitions: of the cluster, as of the last time that a broker answered.
        trouble: why no broker responded this time, else None.
        events: all that are kept, in `event_order`.
        caches: what the caches know, folded from `events`.
        positions: the query's next offsets, by partition.
        begins: its first offsets.
        records_per_s: of the last micro-batch with records.
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

    def leaders(self) -> dict[TopicPartition, PartitionRow]:
        return by_partition(self.partitions)

    def leader_of(self, partition: TopicPartition) -> int:
        row = self.leaders().get(partition)
        return NO_LEADER if row is None or row.leader_id is None else row.leader_id

    def epoch_of(self, partition: TopicPartition) -> int:
        row = self.leaders().get(partition)
        return -1 if row is None or row.leader_epoch is None else row.leader_epoch

    def end_offset_of(self, partition: TopicPartition) -> int:
        row = self.leaders().get(partition)
        return 0 if row is None or row.end_offset is None else row.end_offset

    def records_read(self) -> int:
        begins = {partition: position.offset for partition, position in self.begins.items()}
        return sum(position.offset - begins.get(partition, 0) for partition, position in self.positions.items())

    def lag(self) -> LagSummary:
        """In records; the ages of the next records are not asked for."""
        return LagSummary.of(lag_rows(self.positions, self.partitions, {}, 0.0))

    def since(self, time_ms: int, role: str | None = None) -> Iterator[Event]:
        """The events that ended at `time_ms` or later, of `role` unless that is None."""
        return (event for event in self.events if event["time_ms"] >= time_ms and role in (None, event["role"]))

    def of_executors(self, time_ms: int) -> Iterator[Event]:
        """The events of readers and writers that ended at `time_ms` or later."""
        return (event for event in self.since(time_ms) if event["role"] in EXECUTOR_ROLES)


def event_order(event: Event) -> tuple[int, str, int]:
    """Sort key of events: by time, and by sequence within a cache."""
    return event["time_ms"], event["cache_id"], event["sequence"]


def requests_by_broker(events: Iterable[Event], name: str) -> Counter[int]:
    """The requests by broker; `name` is the field that counts them, fetches or produces."""
    counts: Counter[int] = Counter()
    for event in events:
        for counted in event[name] or ():
            counts[counted["broker_id"]] += counted["requests"]
    return counts


def caches_by_process(caches: Sequence[CacheRow]) -> dict[str, dict[TopicPartition, CacheRow]]:
    """The cache of the planner and of each executor, by its name; of a restarted process the newest. The worker of an
    executor reads and writes with one cache."""
    newest: dict[tuple[bool, str], CacheRow] = {}
    for row in caches:
        in_executor = row.role in EXECUTOR_ROLES
        if in_executor or row.role == Role.PLANNER:
            process = (in_executor, executor_name(row.executor_id, row.pid) if in_executor else str(row.role))
            newest[process] = max(newest.get(process, row), row, key=lambda row: row.last_refresh)
    return {
        name: by_partition(row for row in caches if row.cache_id == cache.cache_id)
        for (_, name), cache in sorted(newest.items())
    }


def known_brokers(events: Iterable[Event], partitions: Collection[PartitionRow]) -> list[BrokerRow]:
    """The brokers that caches asked by id, and the leaders of `partitions`, whose addresses are empty unless asked."""
    addresses = {row.leader_id: ("", 0) for row in partitions}
    addresses |= {event["broker_id"]: (event["broker_host"], event["broker_port"]) for event in events}
    return [
        BrokerRow(
            node_id=node_id, host=host, port=port, rack=None, is_controller=False, cluster_id=None, answered_by=""
        )
        for node_id, (host, port) in sorted(addresses.items(), key=lambda item: item[0] or 0)
        if node_id is not None and node_id != NO_LEADER
    ]
