"""Caches that are compared in arrays are those that are compared row by row."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from pyspark_kafka_meta.events.event import EventKind
from pyspark_kafka_meta.kafka.metadata.snapshot import PartitionLearned, SnapshotChanges
from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.tables.caches_from_events import CacheContents, KnownCaches
from pyspark_kafka_meta.tables.known_leaders import UNKNOWN
from pyspark_kafka_meta.tables.rows import CacheRow, PartitionRow, by_partition
from pyspark_kafka_meta.tools.cluster_state import is_stale, map_caches, newest_leaders, topics_of
from tests.budget import cases
from tests.unit.written_events import made

NOW_MS = 1_800_000_000_000
TOPICS, CLUSTERS, IDS = ("t", "u", "v"), ("east", "west", None), ("old", "new", None)


def some_caches(rng: random.Random) -> list[CacheContents]:
    """Several clusters, topics that were recreated, and caches without a partition."""
    events = []
    for number in range(rng.randrange(8)):
        learned = tuple(
            PartitionLearned(topic, partition, rng.randrange(-1, 4), rng.randrange(-1, 4), topic_id)
            for topic in rng.sample(TOPICS, rng.randrange(4))
            for topic_id in [rng.choice(IDS)]
            for partition in rng.sample(range(4), 2)
        )
        about = {"cluster_id": rng.choice(CLUSTERS), "changes": SnapshotChanges(partitions_learned=learned)}
        events.append(made(f"cache-{number}", 1, NOW_MS + rng.randrange(1_000_000), **about).to_dict())
    return KnownCaches.of(events).living()


def newest_row_by_row(caches: Iterable[CacheContents]) -> dict[TopicPartition, CacheRow]:
    in_order = sorted(caches, key=lambda contents: contents.last_ms)
    rows = [row for contents in in_order for row in contents.rows(NOW_MS)]
    topic_ids = {row.topic: row.topic_id for row in rows}
    by_epoch = sorted(rows, key=lambda row: row.leader_epoch or 0)
    return dict(sorted(by_partition(row for row in by_epoch if row.topic_id == topic_ids[row.topic]).items()))


@pytest.mark.budget
def test_the_newest_leaders_are_those_of_the_rows() -> None:
    for seed in range(cases(50, 500, 10_000)):
        caches = some_caches(random.Random(seed))
        found = [
            (partition, row.cluster_id, row.topic_id, row.leader_id, row.leader_epoch)
            for partition, row in newest_leaders(caches).items()
        ]

        assert found == [
            (partition, row.cluster_id, row.topic_id, row.leader_id, row.leader_epoch)
            for partition, row in newest_row_by_row(caches).items()
        ], seed


def test_a_cache_that_had_no_newer_response_does_not_bring_an_old_topic_back() -> None:
    old, new = (SnapshotChanges(partitions_learned=(PartitionLearned("t", 0, 1, 0, name),)) for name in ("old", "new"))
    events = [
        made("unaware", 1, NOW_MS - 9_000, changes=old),
        made("unaware", 2, NOW_MS - 7_000, kind=EventKind.DATA_LOSS, generation_before=1, generation_after=1),
        made("aware", 1, NOW_MS - 8_000, changes=new),
    ]
    leaders = newest_leaders(KnownCaches.of(event.to_dict() for event in events).living())

    assert [row.topic_id for row in leaders.values()] == ["new"]


@pytest.mark.budget
def test_entries_in_a_map_are_those_of_the_rows_and_as_stale() -> None:
    """Beside leaders of any cluster, of topics that no cache knows, too."""
    for seed in range(cases(50, 500, 10_000)):
        rng = random.Random(seed)
        caches, cluster_id = some_caches(rng), rng.choice(CLUSTERS)
        leaders = by_partition(
            PartitionRow(
                cluster_id=cluster_id,
                topic=topic,
                partition=number,
                topic_id=topic_id,
                leader_id=1,
                leader_epoch=rng.choice([None, *range(-1, 4)]),
            )
            for topic in (*TOPICS, "w")
            for topic_id in [rng.choice(IDS)]
            for number in range(3)
        )
        found = map_caches(caches, leaders)
        entries = {
            (cache, column): (row.leader_id, row.leader_epoch, is_stale(row, leaders))
            for cache, contents in enumerate(caches)
            for row in contents.rows(NOW_MS)
            for column, partition in enumerate(leaders)
            if row.topic_partition == partition
        }

        assert entries == {
            (cache, column): (int(leader_id), int(found.epochs[cache, column]), bool(found.stale[cache, column]))
            for cache, leader_ids in enumerate(found.leader_ids)
            for column, leader_id in enumerate(leader_ids)
            if leader_id != UNKNOWN
        }, seed
        assert int(found.stale.sum()) == sum(stale for _, _, stale in entries.values()), seed


def test_topics_are_those_that_a_cache_knows() -> None:
    for seed in range(20):
        caches = some_caches(random.Random(seed))

        assert topics_of(caches) == sorted({each.topic for contents in caches for each in contents.leaders}), seed
