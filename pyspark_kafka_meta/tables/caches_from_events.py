"""Computes what each metadata cache knows from its refresh events; pure."""

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
"""A `RefreshEvent.to_dict` after JSON."""
_NULLABLE = {"topic_id"}
"""Old brokers, and earlier versions of this package, report no topic ids."""
_ORIGIN = [field.name for field in fields(Origin) if field.name in CacheRow.__dataclass_fields__]


def cache_rows(events: Iterable[Event], now_ms: int) -> list[CacheRow]:
    """The rows of every cache that has not ended, by cache and partition. `events` may have any order and duplicates.

    Args:
        now_ms: end of the ages, ms since 1970 UTC.
    """
    distinct = {(event["cache_id"], event["sequence"]): event for event in events}
    ended = ended_caches(distinct.values())
    in_order = [distinct[key] for key in sorted(distinct) if key[0] not in ended]
    return [row for _, group in groupby(in_order, itemgetter("cache_id")) for row in _rows(list(group), now_ms)]


def ended_caches(events: Collection[Event]) -> set[str]:
    """The ids of caches that were closed, or that other caches reported as dead."""
    closed = {event["cache_id"] for event in events if event.get("kind") == EventKind.CLOSED}
    return closed.union(*(event.get("died_cache_ids") or () for event in events))


def valid_changes(event: Event, name: str) -> list[Mapping[str, Any]]:
    """The changes of this name, without changes of other versions that lack a field."""
    changes = event.get(name) or ()
    return [
        change for change in changes if None not in (value for key, value in change.items() if key not in _NULLABLE)
    ]


def _rows(events: list[Event], now_ms: int) -> Iterator[CacheRow]:
    """The rows of one cache, from its events in order."""
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
    for partition, (leader_id, epoch) in sorted(leaders.items()):
        yield CacheRow(
            topic=partition.topic,
            partition=partition.partition,
            leader_id=leader_id,
            leader_epoch=epoch,
            topic_id=topic_ids.get(partition.topic),
            **common,
        )


def _apply(event: Event, leaders: dict[TopicPartition, tuple[int, int]], topic_ids: dict[str, str]) -> None:
    """Apply the changes of one event to `leaders` and `topic_ids`."""
    recreated = {change["topic"]: change["new_id"] for change in valid_changes(event, "topics_recreated")}
    removed = {*(event.get("topics_removed") or ()), *recreated}
    for partition in [partition for partition in leaders if partition.topic in removed]:
        del leaders[partition]
    for topic in removed:
        topic_ids.pop(topic, None)
    topic_ids.update(recreated)
    for change in valid_changes(event, "partitions_removed"):
        leaders.pop(_partition(change), None)
    for change in valid_changes(event, "partitions_learned"):
        leaders[_partition(change)] = (change["leader_id"], change["leader_epoch"])
        if (topic_id := change.get("topic_id")) is not None:
            topic_ids[change["topic"]] = topic_id
    for change in valid_changes(event, "leaders_changed"):
        leaders[_partition(change)] = (change["new_leader_id"], change["new_epoch"])


def _partition(change: Mapping[str, Any]) -> TopicPartition:
    return TopicPartition(change["topic"], change["partition"])


def _is_good_answer(event: Event) -> bool:
    return (event.get("generation_after") or 0) > (event.get("generation_before") or 0)
