"""The past of a cluster, folded from refresh events into spans of time: leaders, stale entries and lives of caches;
pure.

What held at a moment is what had begun and not ended: a jump in time repeats no fold. Memory grows with what caches
learned. Of events without news, such as most refreshes, only the time and the reason are kept. Times are of the clocks
of the caches' machines; within a cache they do not go back.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

from pyspark_kafka_meta.events.event import EventKind, Outcome
from pyspark_kafka_meta.model import TopicPartition, is_other_topic
from pyspark_kafka_meta.tables.caches_from_events import (
    DEAD_AFTER_MS,
    NEWS,
    CacheContents,
    EventRow,
    Leader,
    ended_caches,
    has_news,
    leaders_in,
    valid_members,
)
from pyspark_kafka_meta.tables.known_leaders import Partitions
from pyspark_kafka_meta.tables.leader_changes import leader_change_rows
from pyspark_kafka_meta.tables.rows import LeaderChangeRow
from pyspark_kafka_meta.tools.formatting import UNKNOWN, joined, process_name
from pyspark_kafka_meta.tools.incidents import Incident, find_incidents
from pyspark_kafka_meta.value_checks import INT64_MAX

GOING_ON = INT64_MAX
"""The end of what has not ended."""
_REMOVING = ("topics_removed", "topics_recreated", "partitions_removed")
_KEPT = ("cache_id", "sequence", "time_ms", "cluster_id", "kind", "reason", "recovery_ms", "retries", *NEWS)


class Life(NamedTuple):
    """A cache from its first event to its last if it was closed or reported as dead, else `DEAD_AFTER_MS` longer.

    Attributes:
        name: role and executor.
        process: host and pid.
    """

    from_ms: int
    until_ms: int
    cache_id: str
    name: str
    process: str


class Led(NamedTuple):
    """A leader, from when the first cache knew it until the first knew the next.

    Attributes:
        old_leader_id: the leader before; None for the first that is known.
    """

    from_ms: int
    until_ms: int
    partition: TopicPartition
    leader: Leader
    old_leader_id: int | None


class Stale(NamedTuple):
    """What a cache knew of a partition while another knew a newer leader epoch, or another topic id."""

    from_ms: int
    until_ms: int
    cache_id: str
    partition: TopicPartition
    leader: Leader


Span = TypeVar("Span", Life, Led, Stale)


def during(spans: Iterable[Span], from_ms: int, until_ms: int) -> list[Span]:
    """The spans that have a moment in common with this time, both ends included."""
    return [span for span in spans if span.from_ms <= until_ms and span.until_ms > from_ms]


class History(NamedTuple):
    """The past of one cluster.

    Attributes:
        lives: of the caches, by id.
        refreshes: when Metadata requests ended, in order, by their reason and whether they failed.
        addresses: of brokers, host:port, as far as events have them.
    """

    lives: Mapping[str, Life]
    led: Sequence[Led]
    stale: Sequence[Stale]
    refreshes: Mapping[tuple[str, bool], Sequence[int]]
    addresses: Mapping[int, str]

    def refreshes_between(self, from_ms: int, until_ms: int) -> dict[tuple[str, bool], int]:
        """How many refreshes ended after `from_ms` and up to `until_ms`, if any, by reason and whether they failed."""
        counts = {
            key: bisect_right(times, until_ms) - bisect_right(times, from_ms) for key, times in self.refreshes.items()
        }
        return {key: count for key, count in counts.items() if count}


class Past(NamedTuple):
    """
    Attributes:
        place: of the events, for people.
        histories: by cluster id; None for caches that reached no broker, if there are several clusters.
        incidents: with their changes, latest last.
        events: how many there are.
        events_missing: gaps in the sequences of caches.
    """

    place: str
    histories: Mapping[str | None, History]
    incidents: Sequence[tuple[Incident, Sequence[LeaderChangeRow]]]
    events: int
    events_missing: int


def past_of(place: str, events: Iterable[EventRow], now_ms: int, since_ms: int = 0) -> Past:
    """The past that events tell of; they may have any order and duplicates.

    Args:
        since_ms: incidents that ended before are left out; ms since 1970 UTC.
    """
    caches: dict[str, _OneCache] = {}
    shared: dict[Any, Any] = {}
    for event in events:
        cache_id = event["cache_id"]
        if cache_id not in caches:
            caches[cache_id] = _OneCache(cache_id, shared)
        caches[cache_id].add(event)
    clusters = {cache.cluster_id for cache in caches.values()} - {None}
    alone = next(iter(clusters)) if len(clusters) == 1 else None
    by_cluster: dict[str | None, list[_OneCache]] = defaultdict(list)
    for cache in caches.values():
        by_cluster[cache.cluster_id or alone].append(cache)
    news = [event for cache in caches.values() for *_, event in cache.steps()]
    ended = ended_caches(news)
    lived = [{"cache_id": cache.cache_id, "sequence": 0, "time_ms": cache.last_ms} for cache in caches.values()]
    found = find_incidents(leader_change_rows([*news, *lived], now_ms))
    return Past(
        place,
        {cluster_id: _history(of_cluster, ended) for cluster_id, of_cluster in by_cluster.items()},
        [pair for pair in found if pair[0].ended.timestamp() * 1000 >= since_ms],
        sum(len(cache.sequences) for cache in caches.values()),
        sum(max(cache.sequences) - len(cache.sequences) for cache in caches.values()),
    )


class _OneCache:
    """What is kept of the events of one cache.

    Args:
        shared: the members of lists: a thousand caches learn the same changes.

    Attributes:
        news: the events that change what is known, in no order, without fields that are not needed.
        refreshes, addresses: as of `History`, in no order.
    """

    def __init__(self, cache_id: str, shared: dict[Any, Any]) -> None:
        self.cache_id = cache_id
        self._shared = shared
        self.sequences: set[int] = set()
        self.news: list[EventRow] = []
        self.refreshes: dict[tuple[str, bool], array[int]] = defaultdict(lambda: array("q"))
        self.addresses: dict[int, str] = {}
        self.cluster_id: str | None = None
        self.first_ms, self.last_ms = GOING_ON, 0
        self.name = self.process = UNKNOWN

    def add(self, event: EventRow) -> None:
        if event["sequence"] in self.sequences:
            return
        time_ms = event["time_ms"]
        self.sequences.add(event["sequence"])
        self.first_ms, self.last_ms = min(self.first_ms, time_ms), max(self.last_ms, time_ms)
        self.cluster_id = event.get("cluster_id") or self.cluster_id
        self.name = joined(event.get("role"), event.get("executor_id")) or UNKNOWN
        self.process = process_name(event.get("host"), event.get("pid")) or UNKNOWN
        if event.get("kind") == EventKind.REFRESH:
            self.refreshes[event.get("reason") or UNKNOWN, event.get("outcome") == Outcome.FAILED].append(time_ms)
        if (broker_id := event.get("broker_id")) is not None:
            self.addresses[broker_id] = f"{event.get('broker_host')}:{event.get('broker_port')}"
        if has_news(event):
            self.news.append({name: self._kept(event.get(name)) for name in _KEPT})

    def _kept(self, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        return [
            self._shared.setdefault(tuple(each.items()), each) if isinstance(each, dict) else each for each in value
        ]

    def life(self, ended: Collection[str]) -> Life:
        until_ms = self.last_ms if self.cache_id in ended else self.last_ms + DEAD_AFTER_MS
        return Life(self.first_ms, until_ms, self.cache_id, self.name, self.process)

    def steps(self) -> Iterator[tuple[int, str, int, EventRow]]:
        """The time, cache id, sequence and fields of its news, in their order."""
        time_ms = 0
        for event in sorted(self.news, key=itemgetter("sequence")):
            time_ms = max(time_ms, event["time_ms"])
            yield time_ms, self.cache_id, event["sequence"], event


def _history(caches: Sequence[_OneCache], ended: Collection[str]) -> History:
    lives = {cache.cache_id: cache.life(ended) for cache in caches}
    steps: list[tuple[int, str, int, EventRow | None]] = [step for cache in caches for step in cache.steps()]
    steps += [(life.until_ms, life.cache_id, INT64_MAX, None) for life in lives.values()]
    fold = _Fold()
    for time_ms, cache_id, _, event in sorted(steps, key=itemgetter(0, 1, 2)):
        if event is None:
            fold.end_cache(time_ms, cache_id)
        else:
            fold.apply(time_ms, cache_id, event)
    times: dict[tuple[str, bool], list[int]] = defaultdict(list)
    for cache in caches:
        for key, of_cache in cache.refreshes.items():
            times[key] += of_cache
    refreshes = {key: array("q", sorted(of_all)) for key, of_all in times.items()}
    addresses = {broker_id: address for cache in caches for broker_id, address in cache.addresses.items()}
    return History(lives, *fold.spans(), refreshes, addresses)


class _Newest(NamedTuple):
    """The newest leader of a partition that any cache knew, and since when."""

    from_ms: int
    leader: Leader
    old_leader_id: int | None
    topic_id: str | None


class _Fold:
    """Applies the events of one cluster in the order of time, those of a cache in the order of their sequences."""

    def __init__(self) -> None:
        self._led: list[Led] = []
        self._stale: list[Stale] = []
        self._caches: dict[str, CacheContents] = {}
        self._partitions = Partitions()
        self._newest: dict[TopicPartition, _Newest] = {}
        self._replaced_ids: set[str | None] = set()
        self._recreated_ids: set[str] = set()
        self._stale_since: dict[tuple[str, TopicPartition], tuple[int, Leader]] = {}

    def apply(self, time_ms: int, cache_id: str, event: EventRow) -> None:
        cache = self._caches.setdefault(cache_id, CacheContents(self._partitions))
        before = set(cache.leaders) if any(map(event.get, _REMOVING)) else set()
        cache.apply(event)
        for change in valid_members(event, "topics_recreated"):
            if change["new_id"] not in self._recreated_ids:  # else a lagging broker still has the old topic
                self._recreated_ids.add(change["old_id"])
                self._replaced_ids.discard(change["new_id"])  # another clock is behind, or a broker lagged before
        for partition, leader, *_ in leaders_in(event):
            topic_id = cache.topic_ids.get(partition.topic)
            if self._is_newer(partition, leader, topic_id):
                self._lead(time_ms, partition, leader, topic_id)
            else:
                self._judge(time_ms, cache_id, partition, leader, topic_id)
        for partition in before - set(cache.leaders):
            self._judge(time_ms, cache_id, partition, None, None)
            if not any(partition in other.leaders for other in self._caches.values()):
                self._end_led(time_ms, partition)

    def end_cache(self, time_ms: int, cache_id: str) -> None:
        for partition in self._caches.pop(cache_id, CacheContents()).leaders:
            self._judge(time_ms, cache_id, partition, None, None)

    def spans(self) -> tuple[Sequence[Led], Sequence[Stale]]:
        """All spans; those that have not ended are `GOING_ON`. Called once, at the end."""
        for partition in list(self._newest):
            self._end_led(GOING_ON, partition)
        for (cache_id, partition), (from_ms, leader) in self._stale_since.items():
            self._stale.append(Stale(from_ms, GOING_ON, cache_id, partition, leader))
        return self._led, self._stale

    def _is_newer(self, partition: TopicPartition, leader: Leader, topic_id: str | None) -> bool:
        newest = self._newest.get(partition)
        if newest is None or is_other_topic(newest.topic_id, topic_id):
            return topic_id not in self._replaced_ids
        return leader != newest.leader and leader[1] >= newest.leader[1]

    def _lead(self, time_ms: int, partition: TopicPartition, leader: Leader, topic_id: str | None) -> None:
        """From now on this leader is the newest: judge every cache."""
        before = self._end_led(time_ms, partition)
        if before is not None and is_other_topic(before.topic_id, topic_id):
            self._replaced_ids.add(before.topic_id)
        old_leader_id = None if before is None else before.leader[0]
        self._newest[partition] = _Newest(time_ms, leader, old_leader_id, topic_id)
        for cache_id, cache in self._caches.items():
            self._judge(
                time_ms, cache_id, partition, cache.leaders.get(partition), cache.topic_ids.get(partition.topic)
            )

    def _end_led(self, time_ms: int, partition: TopicPartition) -> _Newest | None:
        newest = self._newest.pop(partition, None)
        if newest is not None and newest.from_ms < time_ms:
            self._led.append(Led(newest.from_ms, time_ms, partition, newest.leader, newest.old_leader_id))
        return newest

    def _judge(
        self, time_ms: int, cache_id: str, partition: TopicPartition, known: Leader | None, topic_id: str | None
    ) -> None:
        """Begin or end a stale span, now that the cache knows this leader, or there is a newer one."""
        newest = self._newest.get(partition)
        if known is None or newest is None:
            stale = None
        else:
            is_other = is_other_topic(topic_id, newest.topic_id)
            stale = known if is_other or known[1] < newest.leader[1] else None
        since_ms, before = self._stale_since.get((cache_id, partition), (time_ms, None))
        if before == stale:
            return
        if before is not None:
            del self._stale_since[cache_id, partition]
            if since_ms < time_ms:
                self._stale.append(Stale(since_ms, time_ms, cache_id, partition, before))
        if stale is not None:
            self._stale_since[cache_id, partition] = time_ms, stale
