"""The leader changes table: who learned of each election, when and why, and who has not."""

from __future__ import annotations

import random
import tracemalloc
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from statistics import median_low
from typing import Any

import pytest

from pyspark_kafka_meta.events.event import EventKind
from pyspark_kafka_meta.kafka.metadata.snapshot import LeaderChange, PartitionLearned, SnapshotChanges, TopicRecreated
from pyspark_kafka_meta.model import RefreshReason
from pyspark_kafka_meta.tables.caches_from_events import DEAD_AFTER_MS
from pyspark_kafka_meta.tables.leader_changes import leader_change_rows
from pyspark_kafka_meta.tables.rows import LeaderChangeRow
from tests.budget import cases
from tests.unit.cache_events import IDS, Cache


def at(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms / 1000, UTC)


NOW_MS = 10**12


def rows(*caches: Cache, now_ms: int = NOW_MS) -> list[LeaderChangeRow]:
    return leader_change_rows((event for cache in caches for event in cache.events), now_ms)


def test_a_change_is_one_row_whoever_learned_it_and_however() -> None:
    first, second, idle = Cache("first"), Cache("second"), Cache("idle")
    for cache in (first, second, idle):
        cache.learns(1_000, 4, 1)
    second.moves(5_400, (4, 1), (5, 2), recovery_ms=350.0, retries=3)
    first.moves(5_000, (4, 1), (5, 2), kind=EventKind.HINT, reason=RefreshReason.LEADER_HINT, recovery_ms=0.0)

    assert rows(first, second, idle) == [
        LeaderChangeRow(
            cluster_id="cluster",
            topic="t",
            topic_id=IDS["t"],
            partition=0,
            from_leader_id=1,
            to_leader_id=2,
            leader_epoch=5,
            first_seen=at(5_000),
            first_cache_id="first",
            first_reason="leader_hint",
            caches=2,
            median_ms=0,
            last_seen=at(5_400),
            longest_recovery_ms=350.0,
            retries=3,
            stale_caches=1,
            stale_cache_ids=("idle",),
        )
    ]


def test_a_cache_that_is_born_after_an_election_may_be_the_first_that_knows() -> None:
    older, born = Cache("older"), Cache("born")
    older.learns(1_000, 4, 1)
    born.learns(2_000, 5, 2)
    older.moves(3_000, (4, 1), (5, 2))

    (row,) = rows(older, born)

    assert (row.first_seen, row.first_cache_id, row.first_reason) == (at(2_000), "born", "bootstrap")
    assert (row.caches, row.median_ms, row.last_seen) == (1, 1_000, at(3_000))


def test_a_cache_that_was_away_learned_the_last_change_alone() -> None:
    fast, slow = Cache("fast"), Cache("slow")
    for cache in (fast, slow):
        cache.learns(1_000, 4, 1)
    fast.moves(2_000, (4, 1), (5, -1))
    fast.moves(3_000, (5, -1), (6, 3))
    slow.moves(4_000, (4, 1), (6, 3))

    assert [(row.leader_epoch, row.from_leader_id, row.to_leader_id, row.caches) for row in rows(slow, fast)] == [
        (5, 1, -1, 1),
        (6, -1, 3, 2),
    ]


@pytest.mark.parametrize("ended", [True, False], ids=["closed", "reported dead"])
def test_ended_caches_are_not_stale(ended: bool) -> None:
    known, gone = Cache("known"), Cache("gone")
    for cache in (known, gone):
        cache.learns(1_000, 4, 1)
    if ended:
        gone.closes(2_000)
    known.moves(3_000, (4, 1), (5, 2), died_cache_ids=() if ended else ("gone",))

    assert [row.stale_caches for row in rows(known, gone)] == [0]


def test_a_cache_without_events_for_an_hour_is_not_stale_but_one_without_news_is() -> None:
    known, killed, idle = Cache("known"), Cache("killed"), Cache("idle")
    for cache in (known, killed, idle):
        cache.learns(1_000, 4, 1)
    known.moves(3_000, (4, 1), (5, 2))
    assert [row.stale_cache_ids for row in rows(known, killed, idle)] == [("idle", "killed")]

    idle.event(1_000 + DEAD_AFTER_MS)
    assert [row.stale_cache_ids for row in rows(known, killed, idle)] == [("idle",)]


def test_a_clock_that_is_ahead_makes_no_other_cache_look_dead() -> None:
    known, idle = Cache("known"), Cache("idle")
    for cache in (known, idle):
        cache.learns(1_000, 4, 1)
    known.moves(3_000 + DEAD_AFTER_MS, (4, 1), (5, 2))

    assert [row.stale_cache_ids for row in rows(known, idle, now_ms=4_000)] == [("idle",)]


def test_what_dead_caches_knew_takes_no_memory() -> None:
    new = Cache("new")
    learned = tuple(PartitionLearned("t", partition, 1, 4, IDS["t"]) for partition in range(500))
    new.event(1_000, SnapshotChanges(partitions_learned=learned))

    def peak_bytes(is_reported: bool) -> int:
        events = [
            {**new.events[0], "cache_id": str(number), "died_cache_ids": [str(number - 1)] * is_reported}
            for number in range(20)
        ]
        tracemalloc.start()
        leader_change_rows(events, NOW_MS)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return peak

    reported, unreported = (min(peak_bytes(is_reported) for _ in range(2)) for is_reported in (True, False))
    assert unreported - reported > 15 * 8 * len(learned)


def test_a_change_that_a_cache_learned_takes_a_few_bytes() -> None:
    one, partitions = Cache("one"), range(100)
    learned = tuple(PartitionLearned("t", partition, 1, 4, IDS["t"]) for partition in partitions)
    one.event(1_000, SnapshotChanges(partitions_learned=learned))
    moved = tuple(LeaderChange("t", partition, 1, 2, 4, 5) for partition in partitions)
    one.event(2_000, SnapshotChanges(leaders_changed=moved))

    def peak_bytes(caches: int) -> int:
        events = [{**event, "cache_id": str(number)} for number in range(caches) for event in one.events]
        tracemalloc.start()
        leader_change_rows(events, NOW_MS)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return peak

    peak_bytes(1)
    assert peak_bytes(50) - peak_bytes(10) < 60 * 40 * len(partitions)


def test_the_first_leaders_of_a_recreated_topic_are_no_changes() -> None:
    cache = Cache("c")
    cache.learns(1_000, 5, 1)
    recreated = SnapshotChanges(
        topics_recreated=(TopicRecreated("t", IDS["t"], IDS["other"]),),
        partitions_learned=(PartitionLearned("t", 0, 2, 0, IDS["other"]),),
        leaders_changed=(LeaderChange("t", 0, 1, 2, 5, 0),),
    )
    cache.event(2_000, recreated)

    assert rows(cache) == []


def test_logs_of_other_topics_ids_and_clusters_are_told_apart() -> None:
    cache, other_cluster = Cache("c"), Cache("d")
    cache.learns(1_000, 0, 1)
    cache.moves(2_000, (0, 1), (1, 2))
    recreated = SnapshotChanges(
        topics_recreated=(TopicRecreated("t", IDS["t"], IDS["other"]),),
        partitions_learned=(PartitionLearned("t", 0, 1, 0, IDS["other"]),),
    )
    cache.event(3_000, recreated)
    cache.moves(4_000, (0, 1), (1, 2))
    other_cluster.learns(1_000, 0, 1, cluster_id="elsewhere")
    other_cluster.moves(5_000, (0, 1), (1, 2), cluster_id="elsewhere")

    assert [(row.cluster_id, row.topic_id, row.caches) for row in rows(cache, other_cluster)] == [
        ("cluster", IDS["t"], 1),
        ("cluster", IDS["other"], 1),
        ("elsewhere", IDS["t"], 1),
    ]


def test_brokers_without_epochs_have_a_row_for_each_new_leader_and_no_stale_caches() -> None:
    cache, idle = Cache("c"), Cache("idle")
    for each in (cache, idle):
        each.learns(1_000, -1, 1)
    cache.moves(2_000, (-1, 1), (-1, 2))
    cache.moves(3_000, (-1, 2), (-1, 3))

    assert [(row.to_leader_id, row.stale_caches) for row in rows(cache, idle)] == [(2, 0), (3, 0)]


def test_of_many_stale_caches_ten_are_named() -> None:
    caches = [Cache(f"{number:02}") for number in range(30)]
    for cache in caches:
        cache.learns(1_000, 4, 1)
    caches[0].moves(2_000, (4, 1), (5, 2))

    (row,) = rows(*caches)

    assert (row.stale_caches, row.stale_cache_ids) == (29, tuple(f"{number:02}" for number in range(1, 11)))


# --- random histories -------------------------------------------------------------------------------------------------


@dataclass
class History:
    """Elections of one partition, and caches each of which learns some of them, in their order, at times of its own."""

    rng: random.Random

    def __post_init__(self) -> None:
        self.leaders = {epoch: self.rng.randrange(3) for epoch in range(8)}
        self.moved: Mapping[int, list[tuple[int, str, int]]] = defaultdict(list)
        self.seen: Mapping[int, list[tuple[int, str]]] = defaultdict(list)
        self.alive: dict[str, int] = {}
        self.caches = [self._cache(f"cache-{number}") for number in range(6)]

    def _cache(self, name: str) -> Cache:
        cache, rng = Cache(name), self.rng
        epochs = sorted(rng.sample(sorted(self.leaders), rng.randrange(1, 6)))
        times_ms = sorted(rng.sample(range(1_000, 100_000), len(epochs) + 1))
        cache.learns(times_ms[0], epochs[0], self.leaders[epochs[0]])
        self.seen[epochs[0]].append((times_ms[0], name))
        for (old, new), time_ms in zip(pairwise(epochs), times_ms[1:], strict=False):
            cache.moves(time_ms, (old, self.leaders[old]), (new, self.leaders[new]))
            if rng.random() < 0.3:
                cache.event(time_ms)  # a response without news
            self.moved[new].append((time_ms, name, old))
            self.seen[new].append((time_ms, name))
        if rng.random() < 0.3:
            cache.closes(times_ms[-1])
        else:
            self.alive[name] = epochs[-1]
        return cache

    def expected(self) -> dict[int, tuple[Any, ...]]:
        found = {}
        for epoch, moved in self.moved.items():
            first_ms, first = min(self.seen[epoch])
            times_ms = [time_ms for time_ms, _, _ in moved]
            found[epoch] = (
                (self.leaders[max(old for _, _, old in moved)], self.leaders[epoch]),
                (at(first_ms), first, median_low(times_ms) - first_ms, at(max(times_ms))),
                len(moved),
                tuple(sorted(name for name, known in self.alive.items() if known < epoch)),
            )
        return found

    def events(self) -> Iterable[dict[str, Any]]:
        """Those of each cache in their order, those of several caches mixed, and some twice."""
        events = [event for cache in self.caches for event in cache.events]
        events += self.rng.sample(events, 5)
        self.rng.shuffle(events)
        return sorted(events, key=lambda event: event["sequence"])


@pytest.mark.budget
def test_random_histories_are_told_as_they_were() -> None:
    for seed in range(cases(50, 200, 5_000)):
        history = History(random.Random(seed))
        found = {
            row.leader_epoch: (
                (row.from_leader_id, row.to_leader_id),
                (row.first_seen, row.first_cache_id, row.median_ms, row.last_seen),
                row.caches,
                row.stale_cache_ids,
            )
            for row in leader_change_rows(history.events(), NOW_MS)
        }
        assert found == history.expected(), seed


@pytest.mark.parametrize("mutant", ["lost", "mixed", "back"])
def test_a_wrong_fold_of_random_histories_is_noticed(mutant: str) -> None:
    noticed = 0
    for seed in range(20):
        history = History(random.Random(seed))
        right, wrong = (
            leader_change_rows(history.events(), NOW_MS),
            leader_change_rows(mutated(history, mutant), NOW_MS),
        )
        noticed += right != wrong
    assert noticed == 20


def mutated(history: History, mutant: str) -> list[dict[str, Any]]:
    """The events with one mistake: the last change of a cache is lost, two caches are one, or a cache goes back."""
    cache = next(cache for cache in history.caches if any(event["leaders_changed"] for event in cache.events))
    moved = [event for event in cache.events if event["leaders_changed"]][-1]
    others = [event for each in history.caches for event in each.events if event is not moved]
    if mutant == "lost":
        return others
    if mutant == "mixed":
        other = next(each.name for each in history.caches if each is not cache)
        return [*others, {**moved, "cache_id": other, "sequence": 99}]
    change = moved["leaders_changed"][0]
    return [*others, {**moved, "leaders_changed": [{**change, "new_epoch": -1}]}]
