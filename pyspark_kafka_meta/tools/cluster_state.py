"""Cluster, caches and query at one moment, and which cache entries are stale; pure.

An entry is stale if its topic was recreated since, or if its leader epoch is older: than the live cluster's where
brokers are asked, else than the newest that any cache holds. Caches of different clusters do not compare.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import TYPE_CHECKING

from pyspark_kafka_meta.events.event import Role
from pyspark_kafka_meta.model import NO_LEADER, MetadataResponse, Positions, TopicPartition, is_other_topic
from pyspark_kafka_meta.tables.caches_from_events import CacheContents, EventRow, leaders_in, valid_members
from pyspark_kafka_meta.tables.known_leaders import UNKNOWN, known_to_any
from pyspark_kafka_meta.tables.lag import LagSummary, lag_rows
from pyspark_kafka_meta.tables.rows import BrokerRow, CacheRow, PartitionRow, by_partition
from pyspark_kafka_meta.tools.formatting import executor_name

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

EXECUTOR_ROLES = frozenset({Role.READER, Role.WRITER})
Leaders = Mapping[TopicPartition, PartitionRow]
MAX_EVENTS = 10_000
MAX_MEMBERS = 100_000
"""Of the lists of all events that are kept: a list may have each broker or each partition."""
MAX_UNSHOWN = 20
_UNSHOWN = ("partitions_learned", "fetches", "table_changes", "filtered")
"""A list of these is left out if it is longer."""
SILENT_MS = 600_000
"""A cache without an event for this long may have ended: Spark kills Python workers, whose caches report no end."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The tables and the query at one moment.

    Attributes:
        now_ms: ms since 1970 UTC.
        brokers, partitions: of the cluster, as of the last time that a broker responded.
        trouble: why no broker responded this time, else None.
        events: the newest, in `event_order`.
        caches: what the caches know that have not ended; changes with the next state, in the same list if nothing does.
        positions: the query's next offsets, by partition.
        begins: its first offsets.
        records_per_s: of the last micro-batch with records.
        is_reading: whether there are more events to be read, of other caches.
    """

    now_ms: int
    brokers: Sequence[BrokerRow]
    partitions: Sequence[PartitionRow]
    trouble: str | None
    events: Sequence[EventRow]
    caches: Sequence[CacheContents]
    positions: Positions
    begins: Positions
    records_per_s: float
    is_reading: bool = False

    def cache_rows(self) -> list[CacheRow]:
        """By cache and partition."""
        return [row for contents in self.caches for row in contents.rows(self.now_ms)]

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


class NewestEvents:
    """The newest `MAX_EVENTS`, each once, or fewer with `MAX_MEMBERS`, at least one. Without long lists that no tool
    shows, such as the partitions that a new cache learns."""

    def __init__(self) -> None:
        self._events: dict[tuple[str, int], EventRow] = {}
        self._members = 0
        self._oldest: tuple[int, str, int] | None = None  # older events are not kept
        self._in_order: Sequence[EventRow] | None = None

    def add(self, events: Iterable[EventRow]) -> None:
        for event in events:
            if self._oldest is None or event_order(event) > self._oldest:
                kept = {**event, **{name: () for name in _UNSHOWN if len(event[name] or ()) > MAX_UNSHOWN}}
                self._events[event["cache_id"], event["sequence"]] = kept
                self._members += _members(kept)
                self._in_order = None
                if len(self._events) > 2 * MAX_EVENTS or self._members > 2 * MAX_MEMBERS:
                    self.in_order()

    def in_order(self) -> Sequence[EventRow]:
        """The events in `event_order`."""
        if self._in_order is None:
            events = sorted(self._events.values(), key=event_order)
            members = list(accumulate(map(_members, reversed(events))))
            kept = min(len(events), MAX_EVENTS, max(1, bisect_right(members, MAX_MEMBERS)))
            self._in_order = events[len(events) - kept :]
            if kept < len(events):
                self._oldest = event_order(events[len(events) - kept - 1])
            self._events = {(event["cache_id"], event["sequence"]): event for event in self._in_order}
            self._members = members[kept - 1] if kept else 0
        return self._in_order


def _members(event: EventRow) -> int:
    return sum(len(event[name] or ()) for name in ("leaders_changed", "produces", *_UNSHOWN))


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
    """Whether a cache entry is older than its leader among `leaders`; False if these have none of the same cluster."""
    leader = None if row.topic_partition is None else leaders.get(row.topic_partition)
    if leader is None or (None not in (row.cluster_id, leader.cluster_id) and row.cluster_id != leader.cluster_id):
        return False
    return is_other_topic(row.topic_id, leader.topic_id) or (row.leader_epoch or 0) < (leader.leader_epoch or 0)


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


def newest_leaders(caches: Collection[CacheContents]) -> dict[TopicPartition, PartitionRow]:
    """The newest leaders that any cache knows, of the topic id reported last: epochs of a recreated topic start again.
    The caches share their `Partitions`."""
    import numpy as np

    if not caches:
        return {}
    caches = sorted(caches, key=lambda contents: contents.last_response_ms or 0)
    partitions = caches[0].leaders.partitions
    topics, topic_numbers = _topics(partitions.names)
    newest_id: dict[str, str | None] = {}
    known = [contents.leaders.arrays() for contents in caches]
    for contents, (leader_ids, _) in zip(caches, known, strict=True):
        for number in np.unique(topic_numbers[leader_ids != UNKNOWN]).tolist():
            newest_id[topics[number]] = contents.topic_ids.get(topics[number])
    newest_epochs, newest = (np.full(len(partitions.names), UNKNOWN, np.int32) for _ in range(2))
    for number, (contents, (leader_ids, epochs)) in enumerate(zip(caches, known, strict=True)):
        is_newest_id = np.array([contents.topic_ids.get(topic) == newest_id.get(topic) for topic in topics], bool)
        is_newer = (leader_ids != UNKNOWN) & is_newest_id[topic_numbers] & (epochs >= newest_epochs)
        newest_epochs[is_newer], newest[is_newer] = epochs[is_newer], number
    rows = {}
    for number in partitions.in_order().tolist():
        if newest[number] != UNKNOWN:
            partition, cache = partitions.names[number], newest[number]
            rows[partition] = PartitionRow(
                cluster_id=caches[cache].last["cluster_id"],
                topic=partition.topic,
                partition=partition.partition,
                topic_id=newest_id[partition.topic],
                leader_id=int(known[cache][0][number]),
                leader_epoch=int(newest_epochs[number]),
            )
    return rows


def topics_of(caches: Sequence[CacheContents]) -> list[str]:
    """The topics that any of these caches knows. The caches share their `Partitions`."""
    return [topic for topic, _ in partitions_by_topic(caches)]


def partitions_by_topic(caches: Sequence[CacheContents]) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """The topics that any of these caches knows, in order, and the numbers of their partitions, in order. The caches
    share their `Partitions`."""
    import numpy as np

    if caches:
        names = caches[0].leaders.partitions.names
        known = sorted(known_to_any([each.leaders for each in caches]).tolist(), key=names.__getitem__)
        for topic, numbers in groupby(known, key=lambda number: names[number].topic):
            yield topic, np.array(list(numbers), np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class CacheMap:
    """What caches know of partitions, in arrays with a row for each cache and a column for each partition.

    Attributes:
        leaders: those now; a column for each.
        leader_ids, epochs: `UNKNOWN` where a cache does not know the partition.
        stale: which entries are behind the leaders now.
    """

    leaders: Sequence[PartitionRow]
    leader_ids: NDArray[np.int32]
    epochs: NDArray[np.int32]
    stale: NDArray[np.bool_]


def map_caches(caches: Sequence[CacheContents], leaders: Leaders) -> CacheMap:
    """The caches share their `Partitions`. An entry is stale as of `is_stale`, which takes a hundred times as long."""
    import numpy as np

    rows = list(leaders.values())
    leader_ids, epochs = (np.full((len(caches), len(rows)), UNKNOWN, np.int32) for _ in range(2))
    stale = np.zeros((len(caches), len(rows)), bool)
    if not (caches and rows):
        return CacheMap(rows, leader_ids, epochs, stale)
    columns = np.array([caches[0].leaders.partitions.number(partition) for partition in leaders])
    topics, topic_numbers = _topics(list(leaders))
    topic_ids = {row.topic: row.topic_id for row in rows}
    leader_epochs = np.array([row.leader_epoch or 0 for row in rows], np.int64)
    cluster_ids = {row.cluster_id for row in rows}
    of_cluster = {each: np.array([row.cluster_id == each for row in rows]) for each in cluster_ids}
    for number, contents in enumerate(caches):
        leader_ids[number], epochs[number] = (known[columns] for known in contents.leaders.arrays())
        is_other = [is_other_topic(contents.topic_ids.get(topic), topic_ids[topic]) for topic in topics]
        stale[number] = np.array(is_other)[topic_numbers] | (epochs[number] < leader_epochs)
        stale[number] &= leader_ids[number] != UNKNOWN
        for cluster_id, mask in of_cluster.items():
            if None not in (cluster_id, own := contents.last["cluster_id"]) and cluster_id != own:
                stale[number] &= ~mask
    return CacheMap(rows, leader_ids, epochs, stale)


def _topics(partitions: Sequence[TopicPartition]) -> tuple[list[str], NDArray[np.int64]]:
    """The topics, and the number of the topic of each partition."""
    import numpy as np

    numbers: dict[str, int] = {}
    topic_numbers = [numbers.setdefault(partition.topic, len(numbers)) for partition in partitions]
    return list(numbers), np.array(topic_numbers, np.int64)


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
