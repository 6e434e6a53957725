"""What each metadata cache knows now, folded from its refresh events; pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from typing import Any

from pyspark_kafka_meta.metadata.refresh_events import EventKind, Origin
from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.tables.table_rows import CacheRow

Event = Mapping[str, Any]
"""As `RefreshEvent.to_dict` makes it, once it has been through JSON."""
_NULLABLE = {"topic_id"}
"""What a change may lack: old brokers, and earlier versions of this package, report no ids."""
_ORIGIN = [one.name for one in fields(Origin) if one.name in CacheRow.__dataclass_fields__]


def fold(events: Iterable[Event], now_ms: int) -> list[CacheRow]:
    """The latest state of every cache that has not ended, by cache and partition. The order of `events` does not
    matter, nor does one that comes twice.

    Args:
        now_ms: what ages are counted to, ms since 1970 UTC.
    """
    once = {(event["cache_id"], event["sequence"]): event for event in events}
    ended = ended_caches(once.values())
    in_order = [once[key] for key in sorted(once) if key[0] not in ended]
    return [row for _, of_cache in groupby(in_order, itemgetter("cache_id")) for row in _rows(list(of_cache), now_ms)]


def ended_caches(events: Collection[Event]) -> set[str]:
    """The ids of those that closed, and of those that others found dead."""
    closed = {one["cache_id"] for one in events if one.get("kind") == EventKind.CLOSED}
    return closed.union(*(one.get("died_cache_ids") or () for one in events))


def complete(event: Event, name: str) -> list[Mapping[str, Any]]:
    """The changes of this name; what another version wrote may lack parts, and says nothing then."""
    changes = event.get(name) or ()
    return [each for each in changes if None not in (value for part, value in each.items() if part not in _NULLABLE)]


def _rows(events: list[Event], now_ms: int) -> Iterator[CacheRow]:
    """The rows of one cache, from all of its events in order."""
    leaders: dict[TopicPartition, tuple[int, int]] = {}
    topic_ids: dict[str, str] = {}
    for event in events:
        _apply(event, leaders, topic_ids)
    last = events[-1]
    answered_at = [event["time_ms"] for event in events if _is_good_answer(event)]
    common: dict[str, Any] = {
        "cache_id": last["cache_id"],
        **{name: last.get(name) for name in _ORIGIN},
        "cluster_id": last.get("cluster_id"),
        "generation_at_least": last.get("generation_after"),
        "age_at_most_ms": now_ms - answered_at[-1] if answered_at else None,
        "last_reason": last.get("reason"),
        "last_refresh": datetime.fromtimestamp(last["time_ms"] / 1000, UTC),
        "lookups": sum(event.get("lookups") or 0 for event in events),
        "events_missing": last["sequence"] - len(events),  # sequences begin at 1
    }
    if not leaders:
        yield CacheRow(**common)
    for one, (leader_id, epoch) in sorted(leaders.items()):
        yield CacheRow(
            topic=one.topic,
            partition=one.partition,
            leader_id=leader_id,
            leader_epoch=epoch,
            topic_id=topic_ids.get(one.topic),
            **common,
        )


def _apply(event: Event, leaders: dict[TopicPartition, tuple[int, int]], topic_ids: dict[str, str]) -> None:
    """Bring what is known up to date with the changes of one event."""
    recreated = {each["topic"]: each["new_id"] for each in complete(event, "topics_recreated")}
    gone = {*(event.get("topics_removed") or ()), *recreated}
    for one in [one for one in leaders if one.topic in gone]:
        del leaders[one]
    for topic in gone:
        topic_ids.pop(topic, None)
    topic_ids.update(recreated)
    for each in complete(event, "partitions_removed"):
        leaders.pop(_partition(each), None)
    for each in complete(event, "partitions_learned"):
        leaders[_partition(each)] = (each["leader_id"], each["leader_epoch"])
        if (topic_id := each.get("topic_id")) is not None:
            topic_ids[each["topic"]] = topic_id
    for each in complete(event, "leaders_changed"):
        leaders[_partition(each)] = (each["new_leader_id"], each["new_epoch"])


def _partition(change: Mapping[str, Any]) -> TopicPartition:
    return TopicPartition(change["topic"], change["partition"])


def _is_good_answer(event: Event) -> bool:
    return (event.get("generation_after") or 0) > (event.get("generation_before") or 0)
