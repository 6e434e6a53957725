"""Staleness: which cache entries are behind the newest known leaders; pure.

An entry is stale if its topic was recreated since, or if its leader epoch is older: than the live cluster's where
brokers are asked, else than the newest that any cache holds. Caches of different clusters do not compare.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from pyspark_kafka_meta.model import MetadataResponse, TopicPartition, is_other_topic
from pyspark_kafka_meta.tables.caches_from_events import Event, valid_changes
from pyspark_kafka_meta.tables.rows import CacheRow, PartitionRow, by_partition
from pyspark_kafka_meta.tools.shared.cluster_state import event_order

Leaders = Mapping[TopicPartition, PartitionRow]
SILENT_MS = 600_000
"""A cache without an event for this long may have ended: Spark kills Python workers, whose caches report no end."""


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


def live_leaders(answer: MetadataResponse) -> dict[TopicPartition, PartitionRow]:
    """The leaders that a broker reports."""
    rows = [
        PartitionRow(
            cluster_id=answer.cluster_id,
            topic=topic.name,
            partition=partition.partition,
            topic_id=None if topic.topic_id is None else str(topic.topic_id),
            leader_id=partition.leader_id,
            leader_epoch=partition.leader_epoch,
        )
        for topic in answer.topics
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
    caches: Iterable[CacheRow], live: Leaders, events: Iterable[Event], now_ms: int
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


def _epochs_seen(events: Iterable[Event]) -> dict[tuple[str | None, TopicPartition], dict[int, int]]:
    """When a cache first had each leader epoch, ms since 1970 UTC, by cluster id and partition."""
    seen: dict[tuple[str | None, TopicPartition], dict[int, int]] = {}
    for event in sorted(events, key=event_order):
        cluster_id = event.get("cluster_id")
        for recreated in valid_changes(event, "topics_recreated"):
            for key in [key for key in seen if (key[0], key[1].topic) == (cluster_id, recreated["topic"])]:
                del seen[key]
        learned = [(change, change["leader_epoch"]) for change in valid_changes(event, "partitions_learned")]
        changed = [(change, change["new_epoch"]) for change in valid_changes(event, "leaders_changed")]
        for change, epoch in learned + changed:
            partition = TopicPartition(change["topic"], change["partition"])
            seen.setdefault((cluster_id, partition), {}).setdefault(epoch, event["time_ms"])
    return seen
