"""The past is told as it was: leaders, stale caches and lives of caches at each moment of random histories."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pkgutil import resolve_name
from typing import Any, NamedTuple

import pytest

from pyspark_kafka_meta.events.event import Outcome
from pyspark_kafka_meta.kafka.metadata.snapshot import PartitionLearned, SnapshotChanges, TopicRecreated
from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.tables.caches_from_events import DEAD_AFTER_MS
from pyspark_kafka_meta.tools.page.history import GOING_ON, History, Past, during, past_of
from tests.budget import cases
from tests.partitions import T0
from tests.unit.cache_events import IDS, Cache

NOW_MS = 10**12
OLD = PartitionLearned("t", 0, 1, 4, IDS["t"])
RECREATED = SnapshotChanges(
    topics_recreated=(TopicRecreated("t", IDS["t"], IDS["other"]),),
    partitions_learned=(PartitionLearned("t", 0, 2, 0, IDS["other"]),),
)


def past(*caches: Cache) -> Past:
    return past_of("/data/events", (event for cache in caches for event in cache.events), NOW_MS)


def history(*caches: Cache) -> History:
    (found,) = past(*caches).histories.values()
    return found


def test_a_leader_leads_from_when_the_first_cache_knew_it_until_the_first_knew_the_next() -> None:
    first, second = Cache("first"), Cache("second")
    first.learns(1_000, 4, 1)
    second.learns(2_000, 4, 1)
    second.moves(3_000, (4, 1), (5, 2))
    first.moves(3_700, (4, 1), (5, 2))

    found = history(first, second)

    assert [tuple(span) for span in found.led] == [(1_000, 3_000, T0, (1, 4), None), (3_000, GOING_ON, T0, (2, 5), 1)]
    assert [tuple(span) for span in found.stale] == [(3_000, 3_700, "first", T0, (1, 4))]


def test_a_cache_that_is_born_with_an_old_epoch_is_stale_and_no_leader_comes_back() -> None:
    known, late = Cache("known"), Cache("late")
    known.learns(1_000, 5, 2)
    late.learns(2_000, 4, 1)
    late.moves(2_500, (4, 1), (5, 2))

    found = history(known, late)

    assert [span.leader for span in found.led] == [(2, 5)]
    assert [tuple(span) for span in found.stale] == [(2_000, 2_500, "late", T0, (1, 4))]


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "reported dead"])
def test_an_ended_cache_is_stale_and_alive_up_to_its_last_event(closed: bool) -> None:
    known, gone = Cache("known"), Cache("gone")
    for cache in (known, gone):
        cache.learns(1_000, 4, 1)
    known.moves(2_000, (4, 1), (5, 2))
    if closed:
        gone.closes(3_000)
    else:
        gone.event(3_000)
        known.event(9_000, died_cache_ids=("gone",))

    found = history(known, gone)

    assert [span.until_ms for span in found.stale] == [3_000]
    assert found.lives["gone"].until_ms == 3_000
    assert found.lives["known"].until_ms > 9_000


def test_a_cache_that_nobody_reported_dead_is_not_stale_for_ever() -> None:
    killed, slow, fast = Cache("killed"), Cache("slow"), Cache("fast")
    for cache in (killed, slow, fast):
        cache.learns(1_000, 4, 1)
    fast.moves(2_000, (4, 1), (5, 2))
    slow.moves(3 * DEAD_AFTER_MS, (4, 1), (5, 2))

    found = history(killed, slow, fast)

    assert [(span.cache_id, span.until_ms) for span in found.stale] == [
        ("killed", 1_000 + DEAD_AFTER_MS),
        ("slow", 3 * DEAD_AFTER_MS),
    ]
    assert [life.cache_id for life in during(found.lives.values(), 2 * DEAD_AFTER_MS, 2 * DEAD_AFTER_MS)] == ["slow"]


def test_a_recreated_topic_begins_again_and_caches_of_the_old_one_are_stale() -> None:
    fast, slow = Cache("fast"), Cache("slow")
    for cache in (fast, slow):
        cache.learns(1_000, 4, 1)
    fast.event(2_000, RECREATED)
    slow.moves(2_500, (4, 1), (5, 3))
    slow.event(3_000, RECREATED)

    found = history(fast, slow)

    assert [span.leader for span in found.led] == [(1, 4), (2, 0)], "the old topic's epoch 5 is no leader of the new"
    assert [tuple(span)[:2] for span in found.stale] == [(2_000, 2_500), (2_500, 3_000)]


def test_a_recreated_topic_leads_though_a_later_event_had_the_old_one() -> None:
    ahead, behind = Cache("ahead"), Cache("behind")
    behind.event(1_000, SnapshotChanges(partitions_learned=RECREATED.partitions_learned))
    ahead.learns(2_000, 4, 1)
    ahead.event(3_000, RECREATED)
    for cache in (ahead, behind):
        cache.moves(4_000, (0, 2), (1, 3))

    found = history(ahead, behind)

    assert [span.leader for span in found.led] == [(2, 0), (1, 4), (2, 0), (3, 1)]
    assert max(span.until_ms for span in found.stale) == 3_000


def test_a_lagging_broker_does_not_bring_a_recreated_topic_back() -> None:
    steady, lagging = Cache("steady"), Cache("lagging")
    for cache in (steady, lagging):
        cache.learns(1_000, 4, 1)
        cache.event(2_000, RECREATED)
    back = TopicRecreated("t", IDS["other"], IDS["t"])
    lagging.event(3_000, SnapshotChanges(topics_recreated=(back,), partitions_learned=(OLD,)))

    found = history(steady, lagging)

    assert [span.leader for span in found.led] == [(1, 4), (2, 0)]
    assert [span.cache_id for span in during(found.stale, 3_000, 3_000)] == ["lagging"]


def test_a_partition_that_no_cache_knows_any_more_has_no_leader() -> None:
    first, second = Cache("first"), Cache("second")
    for cache in (first, second):
        cache.learns(1_000, 4, 1)
    first.event(2_000, SnapshotChanges(topics_removed=("t",)))
    second.event(3_000, SnapshotChanges(topics_removed=("t",)))

    assert [(span.from_ms, span.until_ms) for span in history(first, second).led] == [(1_000, 3_000)]


def test_a_clock_that_goes_back_does_not_change_the_order_of_a_caches_events() -> None:
    cache = Cache("c")
    cache.learns(5_000, 4, 1)
    cache.moves(1_000, (4, 1), (5, 2))
    cache.moves(6_000, (5, 2), (6, 3))

    assert [(span.from_ms, span.leader) for span in history(cache).led] == [(5_000, (2, 5)), (6_000, (3, 6))]


def test_refreshes_are_counted_once_by_reason_and_outcome_and_hints_are_none() -> None:
    cache = Cache("c")
    cache.learns(1_000, 4, 1)
    cache.event(2_000)
    cache.event(3_000, outcome=Outcome.FAILED)
    cache.closes(3_000)
    found = history(cache, cache)

    assert found.refreshes_between(0, 3_000) == {("bootstrap", False): 1, ("max_age", False): 1, ("max_age", True): 1}
    assert found.refreshes_between(1_000, 2_000) == {("max_age", False): 1}


def test_clusters_are_told_apart_and_a_cache_without_one_belongs_to_the_only_one() -> None:
    here, lost, there = Cache("here"), Cache("lost"), Cache("there")
    here.learns(1_000, 4, 1)
    lost.event(1_000, cluster_id=None)
    assert {name: list(found.lives) for name, found in past(here, lost).histories.items()} == {
        "cluster": ["here", "lost"]
    }

    there.learns(2_000, 9, 3, cluster_id="elsewhere")
    assert {name: list(found.lives) for name, found in past(here, lost, there).histories.items()} == {
        "cluster": ["here"],
        None: ["lost"],
        "elsewhere": ["there"],
    }
    assert past(here, there).histories["cluster"].stale == []


def test_missing_events_are_counted() -> None:
    cache = Cache("c")
    cache.learns(1_000, 4, 1)
    cache.event(2_000)
    cache.event(3_000)
    found = past_of("", [cache.events[0], cache.events[2]], NOW_MS)

    assert (found.events, found.events_missing) == (2, 1)


# --- random histories -------------------------------------------------------------------------------------------------


class At(NamedTuple):
    """What held at a moment."""

    leaders: dict[TopicPartition, tuple[int, int]]
    stale: set[tuple[str, TopicPartition, tuple[int, int]]]
    caches: set[str]


def elections(rng: random.Random) -> list[Cache]:
    """Caches each of which learns some epochs of two partitions, late or early, in their order."""
    leaders = {(partition, epoch): rng.randrange(3) for partition in (0, 1) for epoch in range(6)}
    caches = []
    for number in range(5):
        cache = Cache(f"cache-{number}")
        known: dict[int, int] = {}
        for time_ms in sorted(rng.sample(range(1_000, 9_000, 100), 8)):
            partition = rng.randrange(2)
            newer = [epoch for epoch in range(6) if epoch > known.get(partition, -1)]
            if not newer or rng.random() < 0.2:
                cache.event(time_ms)
                continue
            epoch = rng.choice(newer[:3])
            new = epoch, leaders[partition, epoch]
            if partition in known:
                cache.moves(time_ms, (known[partition], leaders[partition, known[partition]]), new, partition)
            else:
                cache.learns(time_ms, *new, partition=partition)
            known[partition] = epoch
        if rng.random() < 0.4:
            cache.closes(9_000 + number)
        caches.append(cache)
    return caches


def expected(caches: Iterable[Cache], at_ms: int) -> At:
    """By applying everything up to this moment, in the simplest way."""
    known: dict[tuple[str, TopicPartition], tuple[int, int]] = {}
    leaders: dict[TopicPartition, tuple[int, int]] = {}
    alive = set()
    for cache in caches:
        for event in cache.events:
            if event["time_ms"] > at_ms:
                break
            alive.add(cache.name)
            learned = [(new["partition"], new["leader_id"], new["leader_epoch"]) for new in event["partitions_learned"]]
            moved = [(new["partition"], new["new_leader_id"], new["new_epoch"]) for new in event["leaders_changed"]]
            for number, *leader_and_epoch in learned + moved:
                partition, leader = TopicPartition("t", number), tuple(leader_and_epoch)
                known[cache.name, partition] = leader
                leaders[partition] = max(leaders.get(partition, leader), leader, key=lambda leader: leader[1])
            if event["kind"] == "closed":
                alive.discard(cache.name)
    stale = {
        (name, partition, leader)
        for (name, partition), leader in known.items()
        if name in alive and leader[1] < leaders[partition][1]
    }
    return At(leaders, stale, alive)


def told(found: History, at_ms: int) -> At:
    return At(
        {span.partition: span.leader for span in during(found.led, at_ms, at_ms)},
        {(span.cache_id, span.partition, span.leader) for span in during(found.stale, at_ms, at_ms)},
        {life.cache_id for life in during(found.lives.values(), at_ms, at_ms)},
    )


def differences(seeds: int) -> Iterator[tuple[int, At, At]]:
    """Moments of random histories that are told otherwise than they were."""
    for seed in range(seeds):
        rng = random.Random(seed)
        caches = elections(rng)
        events: list[dict[str, Any]] = [event for cache in caches for event in cache.events]
        events += rng.sample(events, 5)
        rng.shuffle(events)
        (found,) = past_of("", events, NOW_MS).histories.values()
        for at_ms in sorted({event["time_ms"] for event in events} | {900, 5_050, 10_000}):
            if (right := expected(caches, at_ms)) != (seen := told(found, at_ms)):
                yield at_ms, right, seen


@pytest.mark.budget
def test_every_moment_of_a_random_history_is_told_as_it_was() -> None:
    assert list(differences(cases(40, 200, 5_000))) == []


def lose_last(steps: Any) -> Any:
    return lambda self: iter([*steps(self)][:-1])


def mix_caches(steps: Any) -> Any:
    return lambda self: ((time_ms, "cache-0", *step) for time_ms, _, *step in steps(self))


def go_back(_: Any) -> Any:
    return lambda self, partition, leader, topic_id: True


@pytest.mark.parametrize(
    ("name", "mutant"), [("_OneCache.steps", lose_last), ("_OneCache.steps", mix_caches), ("_Fold._is_newer", go_back)]
)
def test_a_wrong_fold_is_noticed(name: str, mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An event is lost, two caches are mixed, or an epoch goes back."""
    path = f"pyspark_kafka_meta.tools.page.history.{name}"
    monkeypatch.setattr(path, mutant(resolve_name(path)))

    assert next(differences(5), None) is not None
