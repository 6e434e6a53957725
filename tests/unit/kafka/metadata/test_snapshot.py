"""Merging responses: cases named as in Kafka's MetadataTest and MetadataSnapshotTest if those have them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_kafka_meta.kafka.metadata.snapshot import (
    LeaderChange,
    MetadataSnapshot,
    PartitionLearned,
    SnapshotChanges,
    TopicRecreated,
)
from pyspark_kafka_meta.model import (
    NO_EPOCH,
    NO_LEADER,
    Address,
    Broker,
    LeaderAndEpoch,
    LeaderHint,
    MetadataResponse,
    PartitionMetadata,
    TopicEpoch,
    TopicMetadata,
    TopicPartition,
)
from tests.partitions import T0, T1

ID, OTHER_ID = UUID(int=1), UUID(int=2)


def broker(node_id: int, port: int = 9092) -> Broker:
    return Broker(node_id, Address(f"host-{node_id}", port))


def topic(*partitions: PartitionMetadata, topic_id: UUID | None = ID, name: str = "t", code: int = 0) -> TopicMetadata:
    return TopicMetadata(name, topic_id, partitions, code)


def led(leader_id: int, epoch: int, number: int = 0) -> PartitionMetadata:
    return PartitionMetadata(number, leader_id, epoch)


def response(*topics: TopicMetadata, nodes: tuple[int, ...] = (1, 2, 3)) -> MetadataResponse:
    return MetadataResponse("c", 1, tuple(broker(n) for n in nodes), topics, 12, 7, 40, 400)


def merged(*responses: MetadataResponse) -> tuple[MetadataSnapshot, SnapshotChanges]:
    """The snapshot and the changes after the last of these responses."""
    snapshot, changes = MetadataSnapshot(), SnapshotChanges()
    for now, response in enumerate(responses):
        snapshot, changes = snapshot.merge(response, float(now))
    return snapshot, changes


def test_first_response_adds_everything() -> None:
    snapshot, changes = merged(response(topic(led(1, 0), led(2, 0, number=1))))

    assert snapshot.leader(T0) == LeaderAndEpoch(broker(1), 0)
    assert snapshot.partitions("t") == (T0, TopicPartition("t", 1))
    assert snapshot.topic_id("t") == ID
    assert snapshot.generation == 1
    assert changes == SnapshotChanges(
        brokers_added=(1, 2, 3),
        topics_added=("t",),
        partitions_learned=(PartitionLearned("t", 0, 1, 0, str(ID)), PartitionLearned("t", 1, 2, 0, str(ID))),
    )
    assert changes.gives_leader(T0)
    assert not changes.gives_leader(TopicPartition("u", 0))


def test_unknown_topics_and_partitions_are_none() -> None:
    snapshot = MetadataSnapshot()

    assert snapshot.leader(T0) is None
    assert snapshot.partitions("t") == ()
    assert snapshot.topic_id("t") is None
    assert snapshot.topic_errors.get("t") is None


def test_update_last_epoch() -> None:
    reported = (10, 8, 10, 12, 11, 12, 20, 19, 21)
    taken = (10, 10, 10, 12, 12, 12, 20, 20, 21)
    snapshot = MetadataSnapshot()
    for index, (epoch, expected) in enumerate(zip(reported, taken, strict=True)):
        snapshot, changes = snapshot.merge(response(topic(led(1, epoch))), 0.0)
        leader = snapshot.leader(T0)
        assert leader is not None and leader.leader_epoch == expected, f"response {index}"
        assert changes.stale_ignored == (epoch < expected), f"response {index}"


GONE = topic(code=3, topic_id=None)
MOVED = LeaderChange("t", 0, 1, 2, 5, 6)
LEADERLESS = topic(replace(led(NO_LEADER, NO_EPOCH), error_code=5))
RECREATED = (TopicRecreated("t", str(ID), str(OTHER_ID)),)
LEARNED = (PartitionLearned("t", 0, 2, 9, str(ID)),)
IGNORED = SnapshotChanges(stale_ignored=1)


def moved(*changes: LeaderChange) -> SnapshotChanges:
    return SnapshotChanges(leaders_changed=changes)


MERGES: dict[str, tuple[list[TopicMetadata], tuple[int, int] | None, SnapshotChanges]] = {
    "an equivalent response": ([topic(led(1, 5))] * 2, (1, 5), SnapshotChanges()),
    "an older epoch": ([topic(led(1, 5)), topic(led(2, 4))], (1, 5), IGNORED),
    "a newer epoch": ([topic(led(1, 5)), topic(led(2, 6))], (2, 6), moved(MOVED)),
    # franz-go #1331, #1332: epoch -1 was taken for a rewind.
    "no leader": ([topic(led(1, 5)), LEADERLESS], None, moved(LeaderChange("t", 0, 1, NO_LEADER, 5, NO_EPOCH))),
    "an older epoch after no leader": ([topic(led(1, 5)), LEADERLESS, topic(led(1, 4))], None, IGNORED),
    "a newer epoch after no leader": (
        [topic(led(1, 5)), LEADERLESS, topic(led(3, 6))],
        (3, 6),
        moved(LeaderChange("t", 0, NO_LEADER, 3, NO_EPOCH, 6)),
    ),
    "no epoch of the same leader": ([topic(led(1, 5)), topic(led(1, NO_EPOCH))], (1, 5), SnapshotChanges()),
    "no epoch of another leader": (
        [topic(led(1, 5)), topic(led(2, NO_EPOCH))],
        (2, NO_EPOCH),
        moved(LeaderChange("t", 0, 1, 2, 5, NO_EPOCH)),
    ),
    "an older one after none": ([topic(led(1, 5)), topic(led(2, NO_EPOCH)), topic(led(1, 4))], (2, NO_EPOCH), IGNORED),
    # KAFKA-12257, librdkafka #4898: epoch 0 of the new topic was ignored.
    "a recreated topic": (
        [topic(led(1, 9)), topic(led(2, 0), topic_id=OTHER_ID)],
        (2, 0),
        SnapshotChanges(
            topics_recreated=RECREATED,
            leaders_changed=(LeaderChange("t", 0, 1, 2, 9, 0),),
            partitions_learned=(PartitionLearned("t", 0, 2, 0, str(OTHER_ID)),),
        ),
    ),
    "a recreated topic with fewer partitions": (
        [topic(led(1, 9), led(1, 9, number=1)), topic(led(1, 9), topic_id=OTHER_ID)],
        (1, 9),
        SnapshotChanges(
            topics_recreated=RECREATED,
            partitions_removed=(T1,),
            partitions_learned=(PartitionLearned("t", 0, 1, 9, str(OTHER_ID)),),
        ),
    ),
    "the first topic id": (
        [topic(led(1, 9), topic_id=None), topic(led(1, 3))],
        (1, 3),
        moved(LeaderChange("t", 0, 1, 1, 9, 3)),
    ),
    "no topic id any more": ([topic(led(1, 9)), topic(led(1, 8), topic_id=None)], (1, 9), IGNORED),
    "another topic": (
        [topic(led(1, 5)), topic(led(2, 1), name="u", topic_id=OTHER_ID)],
        (1, 5),
        SnapshotChanges(topics_added=("u",), partitions_learned=(PartitionLearned("u", 0, 2, 1, str(OTHER_ID)),)),
    ),
    "a topic that is deleted and created": (
        [topic(led(1, 9)), GONE, topic(led(1, 0), topic_id=OTHER_ID)],
        (1, 0),
        SnapshotChanges(topics_added=("t",), partitions_learned=(PartitionLearned("t", 0, 1, 0, str(OTHER_ID)),)),
    ),
    # A broker that is starting up does not know the topic yet, and a broker that lags behind names an old leader.
    "a topic that returns": (
        [topic(led(2, 9)), GONE, GONE, topic(led(1, 8))],
        (2, 9),
        SnapshotChanges(topics_added=("t",), partitions_learned=LEARNED, stale_ignored=1),
    ),
    "a topic that returns after another error": (
        [topic(led(2, 9)), GONE, topic(code=5, topic_id=None), topic(led(1, 8))],
        (2, 9),
        SnapshotChanges(topics_added=("t",), partitions_learned=LEARNED, stale_ignored=1),
    ),
    "a topic that returns without an id, and may be a new one": (
        [topic(led(2, 9), topic_id=None), GONE, topic(led(1, 0), topic_id=None)],
        (1, 0),
        SnapshotChanges(topics_added=("t",), partitions_learned=(PartitionLearned("t", 0, 1, 0, None),)),
    ),
    "fewer partitions without topic ids": (
        [topic(led(1, 5), led(2, 0, number=1), topic_id=None), topic(led(1, 5), topic_id=None)],
        (1, 5),
        SnapshotChanges(partitions_removed=(T1,)),
    ),
}
"""Responses, each with one topic; the leader of t-0 after them, and the changes of the last."""


@pytest.mark.parametrize("case", MERGES)
def test_response_is_merged(case: str) -> None:
    topics, leader, expected = MERGES[case]
    snapshot, changes = merged(*map(response, topics))

    assert snapshot.leader(T0) == (leader and LeaderAndEpoch(broker(leader[0]), leader[1]))
    assert changes == expected
    assert bool(changes) == (replace(expected, stale_ignored=0) != SnapshotChanges()), "an ignored response is none"
    assert (snapshot.generation, snapshot.fetched_at) == (len(topics), len(topics) - 1.0)


def test_what_a_response_does_not_name_is_kept_unless_it_is_an_error() -> None:
    with_u, _ = merged(response(topic(led(1, 5))), response(topic(led(2, 1), name="u", topic_id=OTHER_ID)))
    assert with_u.leader(TopicPartition("u", 0)) == LeaderAndEpoch(broker(2), 1)
    assert merged(response(topic(led(1, 9))), response(topic(led(1, 8), topic_id=None)))[0].topic_id("t") == ID
    assert not merged(response(topic(led(2, 9))), response(GONE), response())[0].missing_topics
    assert merged(response(GONE), response(topic(led(1, 5), name="u")))[0].topic_errors == {}


def test_leader_is_none_until_its_broker_is_known() -> None:
    lagging = response(topic(led(3, 5)), nodes=(1, 2))

    assert merged(lagging)[0].leader(T0) is None
    assert merged(lagging, response(topic(led(3, 5))))[0].leader(T0) == LeaderAndEpoch(broker(3), 5)


def test_brokers_come_go_and_move() -> None:
    before = response(nodes=(1, 2))
    after = replace(before, brokers=(broker(2, port=9999), broker(3)))
    snapshot, changes = merged(before, after)

    assert snapshot.brokers == {2: broker(2, port=9999), 3: broker(3)}
    assert changes == SnapshotChanges(brokers_added=(3,), brokers_removed=(1,), brokers_moved=(2,))


@pytest.mark.parametrize("code", [5, 7, -1])
def test_retriable_topic_error_keeps_the_topic(code: int) -> None:
    """librdkafka #4577, #4685: an error of a topic cleared the cache."""
    broken = (response(topic(led(1, 5))), response(topic(code=code, topic_id=None)))
    snapshot, changes = merged(*broken)

    assert snapshot.leader(T0) == LeaderAndEpoch(broker(1), 5)
    assert snapshot.topic_errors.get("t") == code
    assert not changes
    assert merged(*broken, response(topic(led(1, 5))))[0].topic_errors.get("t") is None


@pytest.mark.parametrize("code", [3, 17, 29, 100])
def test_missing_or_forbidden_topic_is_removed(code: int) -> None:
    snapshot, changes = merged(response(topic(led(1, 5))), response(topic(code=code, topic_id=None)))

    assert snapshot.partitions("t") == ()
    assert snapshot.leader(T0) is None
    assert snapshot.topic_errors.get("t") == code
    assert changes == SnapshotChanges(topics_removed=("t",))


def test_added_partition_stays_if_a_broker_misses_it() -> None:
    smaller, larger = response(topic(led(1, 5))), response(topic(led(1, 5), led(2, 0, number=1)))
    grown, growth = merged(smaller, larger)
    lagging, changes = merged(smaller, larger, smaller)

    learned = (PartitionLearned("t", 1, 2, 0, str(ID)),)
    assert growth == SnapshotChanges(partitions_added=(TopicPartition("t", 1),), partitions_learned=learned)
    assert lagging.topics == grown.topics
    assert changes == SnapshotChanges(stale_ignored=1)


def test_sum_of_all_changes_equals_the_known_leaders() -> None:
    first = response(topic(led(1, 5)), topic(led(2, 3), name="u", topic_id=None))
    grown = response(topic(led(-1, 6), led(2, 0, number=1)))
    recreated = response(topic(led(3, 0), led(3, 1, number=2), topic_id=OTHER_ID), topic(name="u", code=3))
    moved_on = response(topic(led(2, 7), topic_id=OTHER_ID))
    recreated_with_the_same_leader = response(topic(led(2, 7)))
    snapshot, leaders = MetadataSnapshot(), dict[TopicPartition, tuple[int, int]]()
    for step in (first, grown, recreated, moved_on, recreated_with_the_same_leader):
        snapshot, changes = snapshot.merge(step, 0.0)
        gone = {*changes.topics_removed, *(recreated.topic for recreated in changes.topics_recreated)}
        leaders = {known: leader for known, leader in leaders.items() if known.topic not in gone}
        for learned in changes.partitions_learned:
            leaders[TopicPartition(learned.topic, learned.partition)] = (learned.leader_id, learned.leader_epoch)
        for moved in changes.leaders_changed:
            leaders[TopicPartition(moved.topic, moved.partition)] = (moved.new_leader_id, moved.new_epoch)

        assert leaders == {
            TopicPartition(name, number): (known.leader_id, known.leader_epoch)
            for name, view in snapshot.topics.items()
            for number, known in view.partitions.items()
        }


def test_merge_does_not_change_the_old_snapshot() -> None:
    before, _ = merged(response(topic(led(1, 5))))
    before.merge(response(topic(led(2, 6), led(2, 6, number=1)), nodes=(2,)), 9.0)
    before.with_leader_hint(T0, LeaderHint(2, 6, None))

    assert before == merged(response(topic(led(1, 5))))[0]


HINTS = {
    "newer epoch at a known broker": (2, 6, None, LeaderAndEpoch(broker(2), 6)),
    "newer epoch with its endpoint": (4, 6, broker(4), LeaderAndEpoch(broker(4), 6)),
    "newer epoch at a new endpoint of a known broker": (2, 6, broker(2, 9999), LeaderAndEpoch(broker(2, 9999), 6)),
    "same epoch": (2, 5, None, None),
    "older epoch": (2, 4, None, None),
    "no epoch": (2, NO_EPOCH, None, None),
    "unknown broker without endpoint": (4, 6, None, None),
}


@pytest.mark.parametrize("case", HINTS)
def test_leader_hint_must_be_strictly_newer_and_reachable(case: str) -> None:
    leader_id, epoch, endpoint, expected = HINTS[case]
    snapshot, _ = merged(response(topic(led(1, 5))))
    hinted = snapshot.with_leader_hint(T0, LeaderHint(leader_id, epoch, endpoint))

    if expected is None:
        assert hinted is None
    else:
        assert hinted is not None
        assert hinted[0].leader(T0) == expected
        assert hinted[0].generation == snapshot.generation
        assert hinted[1].leaders_changed == (LeaderChange("t", 0, 1, leader_id, 5, 6),)
        after, changes = hinted[0].merge(response(topic(led(1, 5)), nodes=(1, 2, 3, 4)), 0.0)
        assert after.topics["t"].partitions[0].leader_id == leader_id, "an older response is ignored"
        assert changes.stale_ignored == 1
    for unknown in (T1, TopicPartition("u", 0)):
        assert snapshot.with_leader_hint(unknown, LeaderHint(2, 6, None)) is None


NEWS_OF_LEADERS = {
    "new leader": (response(topic(led(2, 6))), {0}),
    "no leader": (response(topic(led(NO_LEADER, 6))), set()),
    "new partition": (response(topic(led(1, 5), led(1, 0, number=1))), {1}),
    "new partition without a leader": (response(topic(led(1, 5), led(NO_LEADER, 0, number=1))), set()),
    "recreated topic": (response(topic(led(1, 5), topic_id=OTHER_ID)), {0}),
    "recreated topic without a leader": (response(topic(led(NO_LEADER, 0), topic_id=OTHER_ID)), set()),
    "nothing new": (response(topic(led(1, 5))), set()),
}


@pytest.mark.parametrize("case", NEWS_OF_LEADERS)
def test_changes_give_leaders_of_partitions(case: str) -> None:
    later, expected = NEWS_OF_LEADERS[case]
    _, changes = merged(response(topic(led(1, 5))), later)

    assert {number for number in (0, 1) if changes.gives_leader(TopicPartition("t", number))} == expected


PARTITIONS = st.builds(
    PartitionMetadata,
    partition=st.integers(0, 2),
    leader_id=st.integers(NO_LEADER, 4),
    leader_epoch=st.integers(NO_EPOCH, 6),
)
TOPICS = st.builds(
    TopicMetadata,
    name=st.just("t"),
    topic_id=st.sampled_from([ID, OTHER_ID, None]),
    partitions=st.lists(PARTITIONS, max_size=3, unique_by=lambda partition: partition.partition).map(tuple),
    error_code=st.sampled_from([0, 0, 0, 3, 5]),
)
RESPONSES = st.builds(lambda topic, nodes: response(topic, nodes=tuple(nodes)), TOPICS, st.sets(st.integers(1, 3)))


@settings(deadline=None)
@given(st.lists(RESPONSES, max_size=12))
def test_epoch_never_decreases_for_the_same_topic_id(responses: list[MetadataResponse]) -> None:
    snapshots = [MetadataSnapshot()]
    for merged_response in responses:
        snapshots.append(snapshots[-1].merge(merged_response, 0.0)[0])
    for before, after in pairwise(snapshots):
        old, new = before.topics.get("t"), after.topics.get("t")
        if old is not None and new is not None and old.topic_id is not None and old.topic_id == new.topic_id:
            assert all(new.epochs[number] >= epoch for number, epoch in old.epochs.items())
        for partition in after.partitions("t"):
            leader = after.leader(partition)
            assert leader is None or leader.leader_epoch in (NO_EPOCH, after.topics["t"].epochs[partition.partition])


def rewinds(*broker_ids: int | None, epoch: int = 2, nodes: tuple[int, ...] = (1, 2, 3)) -> list[bool]:
    """Whether the lower epoch was accepted after the response of each of these brokers. The known epoch is 5."""
    snapshot, _ = merged(response(topic(led(1, 5)), nodes=nodes))
    believed = []
    for broker_id in broker_ids:
        snapshot, changes = snapshot.merge(response(topic(led(2, epoch)), nodes=nodes), 0.0, broker_id)
        believed.append(snapshot.leader(T0) == LeaderAndEpoch(broker(2), epoch))
        assert changes.stale_ignored == (not believed[-1])
    return believed


def test_rewind_is_confirmed_after_five_responses_by_three_brokers() -> None:
    assert rewinds(1, 1, 1, 2, 3, 1) == [False] * 5 + [True]
    assert rewinds(1, 3, 1, 3, 1, 2) == [False] * 5 + [True]


def test_two_stale_brokers_never_confirm_a_rewind() -> None:
    """franz-go #119, the other side."""
    assert rewinds(*[1, 3] * 50) == [False] * 100
    assert rewinds(*[1, 3] * 50, 2)[-1], "the response of a third broker suffices then"


def test_unknown_broker_does_not_confirm_a_rewind() -> None:
    assert not any(rewinds(*[1, None] * 20))


def test_only_broker_confirms_a_rewind_alone() -> None:
    assert rewinds(*[2] * 6, nodes=(2,)) == [False] * 5 + [True]


INTERRUPTIONS: dict[str, MetadataResponse | LeaderHint] = {
    "the known epoch": response(topic(led(1, 5))),
    "a newer epoch": response(topic(led(1, 6))),
    "another lower epoch": response(topic(led(2, 3))),
    "no epoch": response(topic(led(NO_LEADER, NO_EPOCH))),
    "no such partition": response(topic(led(1, 0, number=1))),
    "a newer hint": LeaderHint(3, 6, None),
}


@pytest.mark.parametrize("case", INTERRUPTIONS)
def test_rewind_needs_consecutive_responses(case: str) -> None:
    snapshot, _ = merged(response(topic(led(1, 5))))
    rewound = response(topic(led(2, 2)))
    for broker_id in (1, 2, 3, 1, 2):
        snapshot, _ = snapshot.merge(rewound, 0.0, broker_id)
    interruption = INTERRUPTIONS[case]
    if isinstance(interruption, LeaderHint):
        hinted = snapshot.with_leader_hint(T0, interruption)
        assert hinted is not None
        snapshot = hinted[0]
    else:
        snapshot, _ = snapshot.merge(interruption, 0.0, 3)
    assert snapshot.topics["t"].epochs[0] >= 5, "no lower epoch counts yet"
    for broker_id in (1, 2, 3, 1, 2):
        snapshot, changes = snapshot.merge(rewound, 0.0, broker_id)
        assert changes.stale_ignored >= 1
    assert snapshot.merge(rewound, 0.0, 3)[0].leader(T0) == LeaderAndEpoch(broker(2), 2)


RAISED = {"seen": (True, ID), "of another topic": (False, OTHER_ID)}


@pytest.mark.parametrize("case", RAISED)
def test_leader_below_a_raised_epoch_was_replaced(case: str) -> None:
    is_replaced, topic_id = RAISED[case]
    before, _ = merged(response(topic(led(1, 5))))
    snapshot = before.with_epochs({T0: TopicEpoch(topic_id, 6)})

    assert (snapshot.leader(T0) is None) == is_replaced
    assert (snapshot.replaced_leader(T0) is not None) == is_replaced
    assert snapshot.generation == before.generation
    again, _ = snapshot.merge(response(topic(led(1, 5))), 0.0, 1)
    assert (again.leader(T0) is None) == is_replaced, "the broker itself goes on responding"
    newer, changes = again.merge(response(topic(led(2, 6))), 0.0, 2)
    assert newer.leader(T0) == LeaderAndEpoch(broker(2), 6)
    assert changes.gives_leader(T0)
    assert before.with_epochs({T0: TopicEpoch(topic_id, 5), T1: TopicEpoch(topic_id, 7)}) is before, "nothing newer"
    without_epoch = merged(response(topic(led(1, NO_EPOCH))))[0].with_epochs({T0: TopicEpoch(topic_id, 6)})
    assert without_epoch.leader(T0) == LeaderAndEpoch(broker(1), NO_EPOCH), "not known to be replaced"


def test_hint_names_the_leader_of_a_raised_epoch() -> None:
    snapshot = merged(response(topic(led(1, 5))))[0].with_epochs({T0: TopicEpoch(ID, 6)})

    assert snapshot.with_leader_hint(T0, LeaderHint(2, 5, broker(2))) is None
    hinted = snapshot.with_leader_hint(T0, LeaderHint(2, 6, broker(2)))
    assert hinted is not None
    assert hinted[0].leader(T0) == LeaderAndEpoch(broker(2), 6)


CONFIRMATIONS = {
    "another broker": (2, 5, (1, 2, 3), True),
    "the leader itself": (1, 5, (1, 2, 3), False),
    "an unknown broker": (None, 5, (1, 2, 3), False),
    "another broker that lags behind": (2, 4, (1, 2, 3), False),
    "the only broker": (1, 5, (1,), True),
    "the only other broker, which lags behind": (2, 4, (1, 2), True),
}


@pytest.mark.parametrize("case", CONFIRMATIONS)
def test_leader_is_confirmed_by_another_broker(case: str) -> None:
    broker_id, epoch, nodes, is_confirmed = CONFIRMATIONS[case]
    snapshot, _ = merged(response(topic(led(1, 5)), nodes=nodes))
    snapshot, _ = snapshot.merge(response(topic(led(1, epoch)), nodes=nodes), 0.0, broker_id)

    assert snapshot.is_leader_confirmed(T0) is is_confirmed


def test_epochs_order_responses_after_a_rewind() -> None:
    snapshot, _ = merged(response(topic(led(1, 5))))
    for broker_id in (1, 2, 3, 1, 2, 3):
        snapshot, changes = snapshot.merge(response(topic(led(2, 2))), 0.0, broker_id)
    assert changes.leaders_changed == (LeaderChange("t", 0, 1, 2, 5, 2),)

    assert snapshot.merge(response(topic(led(3, 1))), 0.0, 1)[0].leader(T0) == LeaderAndEpoch(broker(2), 2)
    assert snapshot.merge(response(topic(led(3, 3))), 0.0, 1)[0].leader(T0) == LeaderAndEpoch(broker(3), 3)
