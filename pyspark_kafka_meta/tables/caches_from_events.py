"""From the JSON lines of refresh events to what each metadata cache knows; pure.

Invalid lines are skipped and counted. Fields of newer versions are ignored, missing fields of older versions are null,
and nulls in lists are dropped.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Any

from pyspark_kafka_meta.events.event import EventKind, Origin
from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.tables.rows import CacheRow, warn_of_invalid

EventRow = Mapping[str, Any]
"""What `Event.to_dict` returns, after JSON."""
Leader = tuple[int, int]
"""Leader id and leader epoch."""
_REQUIRED = {"cache_id": str, "sequence": int, "time_ms": int}
"""Without these an event cannot be identified."""
_AMOUNTS = (
    *("sequence", "generation_before", "generation_after", "age_ms", "idle_ms", "lookups", "latency_ms", "recovery_ms"),
    *("request_bytes", "response_bytes", "throttle_ms", "fetch_throttle_ms", "produce_throttle_ms", "retries"),
    *("transactions_begun", "transactions", "transactions_ms", "copied_records", "malformed_records"),
    *("lost_from_offset", "lost_until_offset", "dropped_before"),
)
"""Counts, sizes and durations. Readers of events add them up."""
_AMOUNTS_IN_LISTS = {
    "fetches": ("requests", "response_bytes"),
    "produces": ("requests", "request_bytes"),
    "table_changes": ("records",),
    "filtered": ("records",),
}
_MAX_AMOUNT = 2**53
"""A double has every integer up to it. A thousand such amounts still fit a column."""
_MAX_TIME_MS = 253_402_300_800_000 - 24 * 3_600_000
"""A day before the year 10000, the end of Python's datetime in every time zone; exclusive."""
_NULLABLE = {"topic_id"}
"""Old brokers, and earlier versions of this package, report no topic ids."""
_ORIGIN = [field.name for field in fields(Origin) if field.name in CacheRow.__dataclass_fields__]
_LATEST = ["cache_id", *_ORIGIN, "cluster_id", "generation_after", "reason"]


def parse_events(lines: Iterable[bytes | None]) -> Iterator[dict[str, Any]]:
    """The events in `lines`, with their `time` in microseconds since 1970 UTC. A final warning counts invalid lines."""
    invalid = 0
    for line in lines:
        try:
            event = json.loads(line or b"")
        except (ValueError, RecursionError):
            event = None
        if _is_event(event):
            lists = {
                name: [item for item in value if item is not None]
                for name, value in event.items()
                if isinstance(value, list)
            }
            yield {**event, **lists, "time": event["time_ms"] * 1_000}
        else:
            invalid += 1
    warn_of_invalid(invalid)


def cache_rows(events: Iterable[EventRow], now_ms: int) -> list[CacheRow]:
    """The rows of every cache that has not ended, by cache and partition. `events` may have any order and duplicates.

    Args:
        now_ms: end of the ages, ms since 1970 UTC.
    """
    return [row for group, has_ended in by_cache(events) if not has_ended for row in _contents(group).rows(now_ms)]


def by_cache(events: Iterable[EventRow]) -> Iterator[tuple[Iterator[EventRow], bool]]:
    """The events of each cache in their order, each once, and whether the cache has ended."""
    distinct = {(event["cache_id"], event["sequence"]): event for event in events}
    ended = ended_caches(distinct.values())
    for cache_id, group in groupby(map(distinct.__getitem__, sorted(distinct)), itemgetter("cache_id")):
        yield group, cache_id in ended


def ended_caches(events: Collection[EventRow]) -> set[str]:
    """The ids of caches that were closed, or that other caches reported as dead."""
    closed = {event["cache_id"] for event in events if event.get("kind") == EventKind.CLOSED}
    return closed.union(*(event.get("died_cache_ids") or () for event in events))


def valid_members(event: EventRow, name: str) -> list[Mapping[str, Any]]:
    """The members of a list of objects, such as changes, without those of other versions that lack a field."""
    members = event.get(name) or ()
    return [
        member for member in members if None not in (value for key, value in member.items() if key not in _NULLABLE)
    ]


def leaders_in(event: EventRow) -> Iterator[tuple[TopicPartition, Leader, Leader | None, str | None]]:
    """The leaders that the event has: the partition, its leader, the leader before, None if the cache did not know the
    partition, and then its topic id, if brokers report one."""
    for new in valid_members(event, "partitions_learned"):
        leader = _leader(new["leader_id"], new["leader_epoch"])
        yield _partition(new["topic"], new["partition"]), leader, None, new.get("topic_id")
    for moved in valid_members(event, "leaders_changed"):
        leader = _leader(moved["new_leader_id"], moved["new_epoch"])
        before = _leader(moved["old_leader_id"], moved["old_epoch"])
        yield _partition(moved["topic"], moved["partition"]), leader, before, None


class CacheContents:
    """What one cache knows, from its events in the order of their sequences, each once.

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

    def __init__(self) -> None:
        self.leaders: dict[TopicPartition, Leader] = {}
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

    def rows(self, now_ms: int) -> Iterator[CacheRow]:
        """The rows of the cache, by partition; one without a partition if it knows none."""
        common: dict[str, Any] = {
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
        if not self.leaders:
            yield CacheRow(**common)
        for partition, (leader_id, epoch) in sorted(self.leaders.items()):
            yield CacheRow(
                topic=partition.topic,
                partition=partition.partition,
                leader_id=leader_id,
                leader_epoch=epoch,
                topic_id=self.topic_ids.get(partition.topic),
                **common,
            )

    def _change(self, event: EventRow) -> None:
        """Apply the changes of an event to `leaders` and `topic_ids`."""
        recreated = {change["topic"]: change["new_id"] for change in valid_members(event, "topics_recreated")}
        removed = {*(event.get("topics_removed") or ()), *recreated}
        for partition in [partition for partition in self.leaders if partition.topic in removed]:
            del self.leaders[partition]
        for topic in removed:
            self.topic_ids.pop(topic, None)
        self.topic_ids.update(recreated)
        for change in valid_members(event, "partitions_removed"):
            self.leaders.pop(_partition(change["topic"], change["partition"]), None)
        for partition, leader, _, topic_id in leaders_in(event):
            self.leaders[partition] = leader
            if topic_id is not None:
                self.topic_ids[partition.topic] = topic_id


def _contents(events: Iterable[EventRow]) -> CacheContents:
    contents = CacheContents()
    for event in events:
        contents.apply(event)
    return contents


# A thousand caches that know the same ten thousand partitions share their keys and values.
_partition = lru_cache(maxsize=65_536)(TopicPartition)


@lru_cache(maxsize=65_536)
def _leader(leader_id: int, epoch: int) -> Leader:
    return leader_id, epoch


def _is_event(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and all(type(value.get(name)) is kind for name, kind in _REQUIRED.items())
        and 0 <= value["time_ms"] < _MAX_TIME_MS
        and all(map(_is_possible, _amounts(value)))
    )


def _amounts(event: EventRow) -> Iterator[Any]:
    yield from (event.get(name) for name in _AMOUNTS)
    for name, members in _AMOUNTS_IN_LISTS.items():
        items = event.get(name)
        for item in items if isinstance(items, list) else ():
            if isinstance(item, dict):
                yield from (item.get(member) for member in members)


def _is_possible(amount: Any) -> bool:
    """False for negative, endless and undefined amounts. What is no number does not fit its column (`to_batches`)."""
    return not isinstance(amount, int | float) or 0 <= amount <= _MAX_AMOUNT
