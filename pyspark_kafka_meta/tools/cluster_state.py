"""Cluster, caches and query at one moment, and which cache entries are stale; pure.

An entry is stale if its topic was recreated since, or if its leader epoch is older: than the live cluster's where
brokers are asked, else than the newest that any cache holds. Caches of different clusters do not compare.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyspark_kafka_meta.events.event import Role
from pyspark_kafka_meta.model import NO_LEADER, MetadataResponse, Positions, TopicPartition, is_other_topic
from pyspark_kafka_meta.tables.caches_from_events import EventRow, leaders_in, valid_members
from pyspark_kafka_meta.tables.lag import LagSummary, lag_rows
from pyspark_kafka_meta.tables.rows import BrokerRow, CacheRow, PartitionRow, by_partition
from pyspark_kafka_meta.tools.formatting import executor_name

EXECUTOR_ROLES = frozenset({Role.READER, Role.WRITER})
Leaders = Mapping[TopicPartition, PartitionRow]
SILENT_MS = 600_000
"""A cache without an event for this long may have ended: Spark kills Python workers, whose caches report no end."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The tables and the query at one moment.

    Attributes:
        now_ms: ms since 1970 UTC.
        brokers, partitions: of the cluster, as of the last time that a broker responded.
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
    events: Sequence[EventRow]
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

    def since(self, time_ms: int, role: str | None = None) -> Iterator[EventRow]:
        """The events that ended at `time_ms` or later, of `role` unless that is None."""
        return (event for event in self.events if event["time_ms"] >= time_ms and role in (None, event["role"]))

    def of_executors(self, time_ms: int) -> Iterator[EventRow]:
        """The events of readers and writers that ended at `time_ms` or later."""
        return (event for event in self.since(time_ms) if event["role"] in EXECUTOR_ROLES)


def event_order(event: EventRow) -> tuple[int, str, int]:
    """Sort key of events: by time, and by sequence within a cache."""
    return event["time_ms"], event["cache_id"], event["sequence"]


def requests_by_broker(events: Iterable[EventRow], name: str) -> Counter[int]:
    """The requests by broker; `name` is the field that counts them, fetches or produces."""
    counts: Counter[int] = Counter()
    for event in events:
        for counted in valid_members(event, name):
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


def known_brokers(events: Iterable[EventRow], partitions: Collection[PartitionRow]) -> list[BrokerRow]:
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


@dataclass(frozen=True, slots=True)
class StaleEntry:
    """A partition in a cache that is behind the live cluster.

    Attributes:
        is_recreated: whether the topic was recreated, whose epochs start again.
        behind_ms: since another cache had a newer epoch, so the entry is stale at least this long; None if no other
            cache had one, and for a recreated topic.
    """

    row: CacheRow
    live: PartitionRow
    is_recreated: bool
    behind_ms: int | None


def is_stale(row: CacheRow, leaders: Leaders) -> bool:
    """Whether a cache entry is behind `leaders`; False where these do not have its partition."""
    leader = None if row.topic_partition is None else leaders.get(row.topic_partition)
    return leader is not None and is_behind(row.cluster_id, row.topic_id, row.leader_epoch, leader)


def is_behind(cluster_id: str | None, topic_id: str | None, leader_epoch: int | None, leader: PartitionRow) -> bool:
    """Whether what a cache knows of a partition is older than its `leader`; False if that is of another cluster."""
    if None not in (cluster_id, leader.cluster_id) and cluster_id != leader.cluster_id:
        return False
    return is_other_topic(topic_id, leader.topic_id) or (leader_epoch or 0) < (leader.leader_epoch or 0)


def live_leaders(response: MetadataResponse) -> dict[TopicPartition, PartitionRow]:
    """The leaders that brokers report."""
    rows = [
        PartitionRow(
            cluster_id=response.cluster_id,
            topic=topic.name,
            partition=partition.partition,
            topic_id=None if topic.topic_id is None else str(topic.topic_id),
            leader_id=partition.leader_id,
            leader_epoch=partition.leader_epoch,
        )
        for topic in response.topics
        for partition in topic.partitions
    ]
    return by_partition(rows)


def newest_leaders(caches: Iterable[CacheRow]) -> dict[TopicPartition, PartitionRow]:
    """The newest leaders that any cache holds, of the topic id reported last: epochs of a recreated topic start
    again."""
    caches = sorted(caches, key=lambda row: row.last_refresh)
    topic_ids = {row.topic: row.topic_id for row in caches}
    newest = [
        PartitionRow(
            cluster_id=row.cluster_id,
            topic=row.topic,
            partition=row.partition,
            topic_id=row.topic_id,
            leader_id=row.leader_id,
            leader_epoch=row.leader_epoch,
        )
        for row in sorted(caches, key=lambda row: row.leader_epoch or 0)
        if row.topic is not None and row.topic_id == topic_ids[row.topic]
    ]
    return dict(sorted(by_partition(newest).items()))


def stale_entries(
    caches: Iterable[CacheRow], live: Leaders, events: Iterable[EventRow], now_ms: int
) -> Iterator[StaleEntry]:
    """The entries that are behind the live cluster, with how long `events` show that they are."""
    seen_ms = _epochs_seen(events)
    for row in caches:
        if (partition := row.topic_partition) is None or not is_stale(row, live):
            continue
        leader = live[partition]
        is_recreated = is_other_topic(row.topic_id, leader.topic_id)
        epochs = {} if is_recreated else seen_ms.get((row.cluster_id, partition), {})
        newer = [time_ms for epoch, time_ms in epochs.items() if epoch > (row.leader_epoch or 0)]
        yield StaleEntry(row, leader, is_recreated, now_ms - min(newer) if newer else None)


def _epochs_seen(events: Iterable[EventRow]) -> dict[tuple[str | None, TopicPartition], dict[int, int]]:
    """When a cache first had each leader epoch, ms since 1970 UTC, by cluster id and partition."""
    seen: dict[tuple[str | None, TopicPartition], dict[int, int]] = {}
    for event in sorted(events, key=event_order):
        cluster_id = event.get("cluster_id")
        for recreated in valid_members(event, "topics_recreated"):
            for key in [key for key in seen if (key[0], key[1].topic) == (cluster_id, recreated["topic"])]:
                del seen[key]
        for partition, (_, epoch), *_ in leaders_in(event):
            seen.setdefault((cluster_id, partition), {}).setdefault(epoch, event["time_ms"])
    return seen
