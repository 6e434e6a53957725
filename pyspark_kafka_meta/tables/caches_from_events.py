"""From refresh events to what each metadata cache knows; pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from pyspark_kafka_meta.events.event import EventKind, Origin
from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.tables.known_leaders import UNKNOWN, KnownLeaders, Partitions
from pyspark_kafka_meta.tables.rows import CacheRow

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

EventRow = Mapping[str, Any]
"""What `Event.to_dict` returns, after JSON."""
Leader = tuple[int, int]
"""Leader id and leader epoch."""
DEAD_AFTER_MS = 3_600_000
"""A cache is taken for dead so long after its last event: the last killed workers of an application have nobody to
report them. Caches in use refresh every five minutes by default; an idle one is missed by nobody."""
_NULLABLE = {"topic_id"}
"""Old brokers, and earlier versions of this package, report no topic ids."""
_ORIGIN = [field.name for field in fields(Origin) if field.name in CacheRow.__dataclass_fields__]
_LATEST = ["cache_id", *_ORIGIN, "cluster_id", "generation_after", "reason"]
_OF_PARTITION = ("topic", "partition", "leader_id", "leader_epoch", "topic_id")
NEWS = (
    *("topics_removed", "topics_recreated", "partitions_removed", "partitions_learned", "leaders_changed"),
    "died_cache_ids",
)
"""The lists of an event that change what caches know, or end them."""
CONTENTS = (*_LATEST, "sequence", "time_ms", "kind", "generation_before", "lookups", *NEWS)
"""The fields of events that `CacheContents` and `KnownCaches` need."""


def runs(events: Iterable[EventRow]) -> Iterator[Sequence[EventRow]]:
    """Events of one cache that come one after the other, in the order of their sequences."""
    for _, run in groupby(events, itemgetter("cache_id")):
        yield sorted(run, key=itemgetter("sequence"))


def has_news(event: EventRow) -> bool:
    """Whether the event changes what a cache knows, or ends a cache."""
    return event.get("kind") == EventKind.CLOSED or any(map(event.get, NEWS))


def ended_caches(events: Collection[EventRow]) -> set[str]:
    """The ids of caches that were closed, or that other caches reported as dead."""
    closed = {event["cache_id"] for event in events if event.get("kind") == EventKind.CLOSED}
    return closed.union(*(event.get("died_cache_ids") or () for event in events))


def silent_caches(last_ms: Mapping[str, int], now_ms: int) -> set[str]:
    """The caches that were dead, by `DEAD_AFTER_MS`, at the last event of all. An event from the future, by a wrong
    clock, makes no other cache look dead.

    Args:
        last_ms: the time of each cache's last event, by id.
    """
    dead_ms = min(now_ms, max(last_ms.values(), default=0)) - DEAD_AFTER_MS
    return {cache_id for cache_id, time_ms in last_ms.items() if time_ms <= dead_ms}


def valid_members(event: EventRow, name: str) -> list[Mapping[str, Any]]:
    """The members of a list of objects, such as changes, without those of other versions that lack a field."""
    return [
        member
        for member in event.get(name) or ()
        if None not in member.values() or None not in (value for key, value in member.items() if key not in _NULLABLE)
    ]


def leaders_in(event: EventRow) -> Iterator[tuple[TopicPartition, Leader, Leader | None, str | None]]:
    """The leaders that the event has: the partition, its leader, the leader before, None if the cache did not know the
    partition, and then its topic id, if brokers report one."""
    for new in valid_members(event, "partitions_learned"):
        leader = _leader(new["leader_id"], new["leader_epoch"])
        yield _partition(new["topic"], new["partition"]), leader, None, new.get("topic_id")
    recreated = {change["topic"] for change in valid_members(event, "topics_recreated")}
    for moved in valid_members(event, "leaders_changed"):
        if moved["topic"] in recreated:
            continue  # the leader before is of the old topic, and partitions_learned has the new leader
        leader = _leader(moved["new_leader_id"], moved["new_epoch"])
        before = _leader(moved["old_leader_id"], moved["old_epoch"])
        yield _partition(moved["topic"], moved["partition"]), leader, before, None


class CacheContents:
    """What one cache knows, from its events in the order of their sequences, each once.

    Args:
        partitions: shared by caches that are compared.

    Attributes:
        leaders: leader id and epoch of each partition.
        topic_ids: as far as events have them.
        last_response_ms: of the last successful response, ms since 1970 UTC; None without one.
        last: the fields of the latest event that rows contain.
        last_ms: time of the latest event, ms since 1970 UTC.
        sequence: of the latest event.
        events: number of events.
        lookups: of all events.
    """

    def __init__(self, partitions: Partitions | None = None) -> None:
        self.leaders = KnownLeaders(partitions or Partitions())
        self.topic_ids: dict[str, str] = {}
        self.last_response_ms: int | None = None
        self.last: dict[str, Any] = {}
        self.last_ms = 0
        self.sequence = 0
        self.events = 0
        self.lookups = 0

    def apply(self, event: EventRow) -> None:
        self._change(event)
        self.last = {name: event.get(name) for name in _LATEST}
        self.last_ms, self.sequence = event["time_ms"], event["sequence"]
        self.events += 1
        self.lookups += event.get("lookups") or 0
        if (event.get("generation_after") or 0) > (event.get("generation_before") or 0):
            self.last_response_ms = event["time_ms"]

    def events_missing(self) -> int:
        return self.sequence - self.events  # sequences begin at 1

    def age_ms(self, now_ms: int) -> int | None:
        """Since the last successful response; None without one."""
        return None if self.last_response_ms is None else now_ms - self.last_response_ms

    def rows(self, now_ms: int, among: NDArray[np.int64] | None = None) -> Iterator[CacheRow]:
        """The rows of the cache, by partition; one without a partition if it knows none. With `among` only those of
        partitions with these numbers, in their order."""
        common, entries = self.common(now_ms), self.entries(among)
        for entry in zip(*entries.values(), strict=True):
            yield CacheRow(**common, **dict(zip(entries, entry, strict=True)))

    def common(self, now_ms: int) -> dict[str, Any]:
        """The columns that all rows of the cache have in common."""
        return {
            "cache_id": self.last["cache_id"],
            **{name: self.last[name] for name in _ORIGIN},
            "cluster_id": self.last["cluster_id"],
            "generation_at_least": self.last["generation_after"],
            "age_at_most_ms": self.age_ms(now_ms),
            "last_reason": self.last["reason"],
            "last_refresh": datetime.fromtimestamp(self.last_ms / 1000, UTC),
            "lookups": self.lookups,
            "events_missing": self.events_missing(),
        }

    def entries(self, among: NDArray[np.int64] | None = None) -> dict[str, Sequence[Any]]:
        """The other columns, each with a value for each row."""
        leader_ids, epochs = self.leaders.arrays()
        in_order = self.leaders.partitions.in_order() if among is None else among
        numbers = in_order[leader_ids[in_order] != UNKNOWN]
        if not len(numbers):
            return dict.fromkeys(_OF_PARTITION, (None,))
        names = [self.leaders.partitions.names[number] for number in numbers.tolist()]
        topics, partitions = zip(*names, strict=True)
        topic_ids = list(map(self.topic_ids.get, topics))
        columns = topics, partitions, leader_ids[numbers].tolist(), epochs[numbers].tolist(), topic_ids
        return dict(zip(_OF_PARTITION, columns, strict=True))

    def _change(self, event: EventRow) -> None:
        """Apply the changes of an event to `leaders` and `topic_ids`."""
        recreated = {change["topic"]: change["new_id"] for change in valid_members(event, "topics_recreated")}
        removed = {*(event.get("topics_removed") or ()), *recreated}
        if removed:
            for partition in [partition for partition in self.leaders if partition.topic in removed]:
                self.leaders.discard(partition)
        for topic in removed:
            self.topic_ids.pop(topic, None)
        self.topic_ids.update(recreated)
        for change in valid_members(event, "partitions_removed"):
            self.leaders.discard(_partition(change["topic"], change["partition"]))
        learned = valid_members(event, "partitions_learned")
        self.leaders.take(learned, "leader_id", "leader_epoch")
        self.leaders.take(valid_members(event, "leaders_changed"), "new_leader_id", "new_epoch")
        self.topic_ids.update((new["topic"], new["topic_id"]) for new in learned if new.get("topic_id") is not None)


class KnownCaches:
    """What the caches know that have not ended, from events that come in the order of each cache, perhaps repeatedly.
    An event that comes after a later one of its cache is ignored, and counts as missing.

    Attributes:
        partitions: of all caches.
    """

    def __init__(self) -> None:
        self.partitions = Partitions()
        self._contents: dict[str, CacheContents] = {}
        self._ended: set[str] = set()

    @classmethod
    def of(cls, events: Iterable[EventRow]) -> KnownCaches:
        caches = cls()
        for run in runs(events):
            caches.add(run)
        return caches

    def add(self, run: Sequence[EventRow]) -> None:
        """Take events of one cache."""
        for ended in ended_caches(run):
            self._ended.add(ended)
            self._contents.pop(ended, None)
        cache_id = run[0]["cache_id"]
        if cache_id in self._ended:
            return
        contents = self._contents.setdefault(cache_id, CacheContents(self.partitions))
        for event in run:
            if event["sequence"] > contents.sequence:
                contents.apply(event)

    def living(self) -> list[CacheContents]:
        """By cache id."""
        return [self._contents[cache_id] for cache_id in sorted(self._contents)]

    def forget(self, before_ms: int) -> None:
        """Forget the caches without an event since then, ms since 1970 UTC."""
        kept = {cache_id: contents for cache_id, contents in self._contents.items() if contents.last_ms >= before_ms}
        if len(kept) < len(self._contents):
            self._contents = kept
            KnownLeaders.forget_unknown([contents.leaders for contents in kept.values()])


# A thousand caches that know the same ten thousand partitions share their keys and values.
_partition = lru_cache(maxsize=65_536)(TopicPartition)


@lru_cache(maxsize=65_536)
def _leader(leader_id: int, epoch: int) -> Leader:
    return leader_id, epoch
