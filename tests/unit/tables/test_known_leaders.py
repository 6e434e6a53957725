"""Leaders in arrays are those of a dict, and a fold over them is a fold over dicts."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest

from pyspark_kafka_meta.kafka.metadata.snapshot import LeaderChange, PartitionLearned, SnapshotChanges, TopicRecreated
from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.tables.caches_from_events import KnownCaches
from pyspark_kafka_meta.tables.known_leaders import UNKNOWN, KnownLeaders, Partitions
from tests.budget import cases
from tests.partitions import T0, T1
from tests.unit.written_events import made

PARTITIONS = [TopicPartition(topic, number) for topic in ("t", "u") for number in range(4)]


def know(leaders: KnownLeaders, partition: TopicPartition, leader_id: int, epoch: int) -> None:
    leaders.take([{**partition._asdict(), "id": leader_id, "epoch": epoch}], "id", "epoch")


@pytest.mark.budget
def test_leaders_in_arrays_are_those_of_a_dict() -> None:
    for seed in range(cases(20, 100, 2_000)):
        rng, partitions = random.Random(seed), Partitions()
        both = [(KnownLeaders(partitions), dict[TopicPartition, tuple[int, int]]()) for _ in range(2)]
        for _ in range(60):
            leaders, expected = rng.choice(both)
            partition, leader = rng.choice(PARTITIONS), (rng.randrange(-1, 3), rng.randrange(-1, 9))
            if rng.random() < 0.6:
                know(leaders, partition, *leader)
                expected[partition] = leader
            else:
                leaders.discard(partition)
                expected.pop(partition, None)
            if rng.random() < 0.02:
                leaders.clear()
                expected.clear()
            if rng.random() < 0.1:
                KnownLeaders.forget_unknown([each for each, _ in both])
            assert (leaders == expected, len(leaders)) == (True, len(expected)), seed
            assert [each in leaders for each in PARTITIONS] == [each in expected for each in PARTITIONS], seed


def test_arrays_have_the_leaders_of_all_partitions_by_number() -> None:
    partitions = Partitions()
    first, second = KnownLeaders(partitions), KnownLeaders(partitions)
    know(second, T1, 3, 7)
    know(first, T0, 1, 4)

    assert [[each.tolist() for each in leaders.arrays()] for leaders in (first, second)] == [
        [[UNKNOWN, 1], [UNKNOWN, 4]],
        [[3, UNKNOWN], [7, UNKNOWN]],
    ]
    assert [partitions.names[number] for number in partitions.in_order().tolist()] == [T0, T1]


def test_an_event_that_comes_late_is_ignored_and_missing() -> None:
    late = made("a", 2, changes=SnapshotChanges(leaders_changed=(LeaderChange("t", 0, 1, 2, 1, 2),)))
    newest = made("a", 3, changes=SnapshotChanges(partitions_learned=(PartitionLearned("t", 0, 3, 3),)))
    events = [event.to_dict() for event in (made("a", 1), newest, made("b", 1), late)]
    contents, _ = KnownCaches.of(events).living()

    assert (dict(contents.leaders), contents.events_missing()) == ({T0: (3, 3)}, 1)


class Expected:
    """Applies changes one after the other to a dict of its own."""

    def __init__(self) -> None:
        self.leaders: dict[TopicPartition, tuple[int, int]] = {}
        self.ids: dict[str, str] = {}

    def apply(self, changes: SnapshotChanges) -> None:
        for topic in (*changes.topics_removed, *(each.topic for each in changes.topics_recreated)):
            self.leaders = {each: leader for each, leader in self.leaders.items() if each.topic != topic}
            self.ids.pop(topic, None)
        self.ids.update((each.topic, each.new_id) for each in changes.topics_recreated)
        for removed in changes.partitions_removed:
            self.leaders.pop(removed, None)
        for new in changes.partitions_learned:
            self.leaders[TopicPartition(new.topic, new.partition)] = new.leader_id, new.leader_epoch
            if new.topic_id is not None:
                self.ids[new.topic] = new.topic_id
        for moved in changes.leaders_changed:
            self.leaders[TopicPartition(moved.topic, moved.partition)] = moved.new_leader_id, moved.new_epoch


def any_changes(rng: random.Random) -> SnapshotChanges:
    topic, number, leader, epoch = rng.choice("tu"), rng.randrange(4), rng.randrange(-1, 4), rng.randrange(9)
    match rng.randrange(6):
        case 0:
            return SnapshotChanges(topics_removed=(topic,))
        case 1:
            recreated = TopicRecreated(topic, "old", f"id-{rng.randrange(99)}")
            learned = PartitionLearned(topic, number, leader, epoch, recreated.new_id)
            return SnapshotChanges(topics_recreated=(recreated,), partitions_learned=(learned,))
        case 2:
            return SnapshotChanges(partitions_removed=(TopicPartition(topic, number),))
        case 3:
            return SnapshotChanges(
                partitions_learned=(PartitionLearned(topic, number, leader, epoch, rng.choice([None, "id"])),)
            )
        case 4:
            return SnapshotChanges()
    return SnapshotChanges(leaders_changed=(LeaderChange(topic, number, 0, leader, 0, epoch),))


def test_partitions_of_forgotten_caches_are_forgotten() -> None:
    """Each day a new cache learns a new topic, beside one that lives for long."""
    caches, day_ms = KnownCaches(), 24 * 3_600_000
    for day in range(1, 100):
        for cache_id, topic in (("long", "t"), (f"cache-{day}", f"topic-{day}")):
            learned = tuple(PartitionLearned(topic, number, 1, day, None) for number in range(4))
            changes = SnapshotChanges(partitions_learned=learned)
            caches.add([made(cache_id, day, day * day_ms, changes=changes).to_dict()])
        caches.forget((day - 1) * day_ms)

    assert len(caches.partitions.names) < 40
    assert [sorted({topic for topic, _ in each.leaders}) for each in caches.living()] == [
        ["topic-98"],
        ["topic-99"],
        ["t"],
    ]
    assert {each.leaders[T0][1] for each in caches.living() if T0 in each.leaders} == {99}


@pytest.mark.budget
def test_random_histories_of_caches_are_folded_each_by_itself() -> None:
    """Events of caches are mixed, and some come twice."""
    for seed in range(cases(30, 200, 5_000)):
        rng, events = random.Random(seed), list[Mapping[str, Any]]()
        expected = {name: Expected() for name in ("a", "b", "c")}
        sequences = dict.fromkeys(expected, 0)
        for _ in range(60):
            name, changes = rng.choice(list(expected)), any_changes(rng)
            sequences[name] += 1
            expected[name].apply(changes)
            events.append(made(name, sequences[name], changes=changes).to_dict())
            if rng.random() < 0.1:
                events.append(rng.choice(events))
        found = {contents.last["cache_id"]: contents for contents in KnownCaches.of(events).living()}

        assert {name: dict(each.leaders) for name, each in found.items()} == {
            name: each.leaders for name, each in expected.items() if sequences[name]
        }, seed
        assert {name: each.topic_ids for name, each in found.items()} == {
            name: each.ids for name, each in expected.items() if sequences[name]
        }, seed
        assert [each.events_missing() for each in found.values()] == [0] * len(found), seed
