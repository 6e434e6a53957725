"""From refresh events to the leader changes of partitions: which caches learned each, when and why, and which have not;
pure.

In one topic id, a leader epoch has one leader (KIP-320, KIP-516): what caches learned of the same epoch is one change,
however each of them learned it. A cache that was away may learn several changes as one.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median_low
from typing import Any, NamedTuple

from pyspark_kafka_meta.model import NO_LEADER, TopicPartition
from pyspark_kafka_meta.tables.caches_from_events import (
    CacheContents,
    EventRow,
    Leader,
    ended_caches,
    has_news,
    leaders_in,
    runs,
    silent_caches,
)
from pyspark_kafka_meta.tables.known_leaders import Partitions
from pyspark_kafka_meta.tables.rows import LeaderChangeRow

MAX_STALE_IDS = 10


class Log(NamedTuple):
    """A partition of one topic id."""

    cluster_id: str | None
    topic: str
    topic_id: str | None
    partition: int


class Change(NamedTuple):
    """What began with an epoch. The leader tells changes apart where brokers report no epochs."""

    log: Log
    leader_epoch: int
    leader_id: int


class Seen(NamedTuple):
    """When a cache knew, and the reason of its event."""

    time_ms: int
    cache_id: str
    reason: str


class Learned:
    """How caches learned of a change: a million times in a night, so in arrays.

    Attributes:
        first: of all caches. The others are of those that knew another leader.
        before: leader epoch and leader of the latest of these others.
        times_ms: when they knew.
        caches: the numbers of the caches.
        recovery_ms, retries: the longest, and the sum.
    """

    def __init__(self) -> None:
        self.first: Seen | None = None
        self.before = (-2, NO_LEADER)
        self.times_ms, self.caches = array("q"), array("i")
        self.recovery_ms: float | None = None
        self.retries = 0

    def add(self, before: Leader, time_ms: int, cache: int, event: EventRow) -> None:
        self.before = max(self.before, before[::-1])
        self.times_ms.append(time_ms)
        self.caches.append(cache)
        if (recovery_ms := event.get("recovery_ms")) is not None:
            self.recovery_ms = max(recovery_ms, self.recovery_ms or 0.0)
        self.retries += event.get("retries") or 0


@dataclass(slots=True)
class _Cache:
    cache_id: str
    number: int
    contents: CacheContents
    cluster_id: str | None = None

    def epoch_of(self, log: Log) -> int | None:
        """The leader epoch that it knows; None if it does not know the partition of this topic id."""
        if (log.cluster_id, log.topic_id) != (self.cluster_id, self.contents.topic_ids.get(log.topic)):
            return None
        leader = self.contents.leaders.get(TopicPartition(log.topic, log.partition))
        return None if leader is None else leader[1]


def leader_change_rows(events: Iterable[EventRow], now_ms: int) -> list[LeaderChangeRow]:
    """The changes of all caches, in the order in which the first cache knew. Events of a cache come in their order,
    perhaps repeatedly: an event that comes after a later one is ignored. One without news shows its cache alive."""
    changes: dict[tuple[Any, ...], Learned] = defaultdict(Learned)  # by the fields of `Log` and `Change`
    partitions, caches, ended, last_ms = Partitions(), dict[str, _Cache](), set[str](), dict[str, int]()
    for run in runs(_with_news(events, last_ms)):
        ended |= (found := ended_caches(run))
        cache_id = run[0]["cache_id"]
        cache = caches.setdefault(cache_id, _Cache(cache_id, len(caches), CacheContents(partitions)))
        contents = cache.contents
        for event in (event for event in run if event["sequence"] > contents.sequence):
            contents.apply(event)
            cache.cluster_id = event.get("cluster_id") or cache.cluster_id
            seen = Seen(event["time_ms"], cache_id, event.get("reason") or "")
            for (topic, partition), (leader_id, epoch), before, _ in leaders_in(event):
                log = cache.cluster_id, topic, contents.topic_ids.get(topic), partition
                learned = changes[*log, epoch, leader_id]
                if learned.first is None or seen < learned.first:
                    learned.first = seen
                if before is not None:
                    learned.add(before, seen.time_ms, cache.number, event)
        for dead in {cache_id, *found} & ended:
            if dead in caches:
                caches[dead].contents.leaders.clear()  # a month has a hundred thousand workers
    ended |= silent_caches(last_ms, now_ms)
    living = [cache for cache_id, cache in sorted(caches.items()) if cache_id not in ended]
    rows = _rows(changes, living)
    return sorted(rows, key=lambda row: (row.first_seen, row.topic, row.partition, row.leader_epoch))


def _with_news(events: Iterable[EventRow], last_ms: dict[str, int]) -> Iterator[EventRow]:
    """The events with news. Notes the time of the last event of each cache."""
    for event in events:
        cache_id, time_ms = event["cache_id"], event["time_ms"]
        last_ms[cache_id] = max(time_ms, last_ms.get(cache_id, 0))
        if has_news(event):
            yield event


def _rows(changes: Mapping[tuple[Any, ...], Learned], living: Sequence[_Cache]) -> Iterator[LeaderChangeRow]:
    moved: dict[Log, list[tuple[Change, Learned]]] = defaultdict(list)
    for key, learned in changes.items():
        if learned.times_ms:
            moved[log := Log(*key[:4])].append((Change(log, *key[4:]), learned))
    for log, of_log in moved.items():  # one at a time: thousands of caches know each of thousands
        known = [(epoch, cache.cache_id) for cache in living if (epoch := cache.epoch_of(log)) is not None]
        for change, learned in of_log:
            yield _row(change, learned, known)


def _row(change: Change, learned: Learned, known: Sequence[tuple[int, str]]) -> LeaderChangeRow:
    """
    Args:
        known: the leader epochs that caches know that have not ended, with their ids, in the order of these.
    """
    first, stale = learned.first, [cache_id for epoch, cache_id in known if epoch < change.leader_epoch]
    assert first is not None
    return LeaderChangeRow(
        **change.log._asdict(),
        from_leader_id=learned.before[1],
        to_leader_id=change.leader_id,
        leader_epoch=change.leader_epoch,
        first_seen=_time(first.time_ms),
        first_cache_id=first.cache_id,
        first_reason=first.reason,
        caches=len(set(learned.caches)),
        median_ms=median_low(learned.times_ms) - first.time_ms,
        last_seen=_time(max(learned.times_ms)),
        longest_recovery_ms=learned.recovery_ms,
        retries=learned.retries,
        stale_caches=len(stale),
        stale_cache_ids=tuple(stale[:MAX_STALE_IDS]),
    )


def _time(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms / 1000, UTC)
