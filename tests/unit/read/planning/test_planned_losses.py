"""Planning after data loss: the error, and where a query continues if the loss is allowed."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, NoReturn

import pytest

from pyspark_kafka_meta.errors import DataLossError, UnsupportedBrokerError
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.model import NO_EPOCH, TopicPartition
from tests.checkpoints import text
from tests.partitions import T0, T1, T2, T3, U0
from tests.unit.read.planning.changes import (
    HOW_TO_FOLLOW,
    HOW_TO_GO_ON,
    PATTERN,
    before_offsets_are_asked,
    delete,
    lose,
    recreate,
    recreate_smaller,
    truncate,
)
from tests.unit.read.planning.queries import GO_ON, Query, ends_now, positions
from tests.unit.scene import HELD_BACK, Scene

LOSSES: dict[str, tuple[Any, str, dict[TopicPartition, tuple[int, int]]]] = {
    "truncated": (
        truncate,
        r"the log of t-0 was truncated to offset 6 \(leader epoch 0, now 1\): records planned or read at offsets 6 to "
        "11 are gone, and reading can continue only at offset 6",
        {T0: (6, 7)},
    ),
    "truncated, written on": (
        lambda scene: (truncate(scene), scene.write(T0, *"abc")),
        "the log of t-0 was truncated to offset 6 .* can continue only at offset 6",
        {T0: (6, 10)},
    ),
    "truncated, grown": (
        lambda scene: (truncate(scene), scene.write(T0, *map(str, range(30)))),
        "the log of t-0 was truncated to offset 6 .* can continue only at offset 6",
        {T0: (6, 37)},
    ),
    "recreated": (
        recreate,
        r"topic t was deleted and recreated \(topic id {old}, now {new}\)",
        {T0: (0, 31), T1: (0, 30), T2: (0, 30)},
    ),
    "recreated, smaller": (
        recreate_smaller,
        r"topic t was deleted and recreated \(topic id {old}, now {new}\): t-0 was read up to offset 12, and its new "
        "log ends at 16",
        {T0: (0, 17)},
    ),
    "deleted": (delete, "a topic or partition that was being read is gone: topic t does not exist", {}),
}


@pytest.mark.parametrize(("happens", "error_text"), [case[:2] for case in LOSSES.values()], ids=LOSSES.keys())
def test_loss_ends_the_query_and_the_error_says_what_is_lost(scene: Scene, happens: Any, error_text: str) -> None:
    query = Query.started(scene)
    old_id = scene.cluster.topics["t"].topic_id
    lose(scene, happens)
    topic = scene.cluster.topics.get("t")
    how_to = HOW_TO_FOLLOW if "recreated" in error_text else HOW_TO_GO_ON
    expected = error_text.replace("{old}", str(old_id)).replace("{new}", str(topic and topic.topic_id))

    with pytest.raises(DataLossError, match=f"{expected}.*{how_to}"):
        query.step()


TOLD_BY_EVENTS = {
    loss: [(T0, 6, 12)] if "truncated" in loss else [(each, 12, None) for each in (T0, T1, T2)] for loss in LOSSES
}


@pytest.mark.parametrize("loss", LOSSES)
def test_query_goes_on_after_an_allowed_loss(scene: Scene, caplog: pytest.LogCaptureFixture, loss: str) -> None:
    happens, _, expected = LOSSES[loss]
    query = Query.started(scene, **GO_ON)
    lose(scene, happens)
    caplog.clear()
    first = query.step()
    if "t" in scene.cluster.topics:
        scene.write(T0, "after the loss")
    second = query.step()

    assert {
        partition: (min(start for start, _ in found), max(end for _, end in found))
        for partition in first.keys() | second.keys()
        if (found := [step[partition] for step in (first, second) if partition in step])
    } == expected
    assert query.step() == {}
    assert [
        record.levelno for record in caplog.records if "continuing because failOnDataLoss is false" in record.message
    ]
    assert scene.losses() == TOLD_BY_EVENTS[loss]
    assert caplog.records[0].levelno == logging.WARNING


RECREATED = {
    "earliest, whatever else": ({"onTopicRecreated": "earliest"}, {T0: (0, 30), T1: (0, 30), T2: (0, 30)}),
    "latest": ({"onTopicRecreated": "latest"}, {}),
    "latest, losses allowed": ({"onTopicRecreated": "latest", **GO_ON}, {}),
}


@pytest.mark.parametrize(("options", "expected"), RECREATED.values(), ids=RECREATED.keys())
def test_policy_says_where_to_go_on_in_a_topic_that_was_recreated(
    scene: Scene, options: dict[str, str], expected: dict[TopicPartition, tuple[int, int]]
) -> None:
    query = Query.started(scene, **options)
    lose(scene, recreate)

    assert query.step() == expected
    scene.write(T0, "after")
    assert query.step() == {T0: (30, 31)}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"onTopicRecreated": "latest"}, {}),
        ({"onTopicRecreated": "earliest", "newPartitions": "latest"}, {T0: (0, 1), T1: (0, 1), T2: (0, 1), T3: (0, 1)}),
        ({"newPartitions": "latest", **GO_ON}, {T0: (0, 1), T1: (0, 1), T2: (0, 1), T3: (0, 1)}),
    ],
)
def test_policy_covers_partitions_that_only_the_new_topic_has(
    scene: Scene, options: dict[str, str], expected: dict[TopicPartition, tuple[int, int]]
) -> None:
    query = Query.started(scene, **options)
    scene.cluster.create_topic("t", 4)
    for partition in (T0, T1, T2, T3):
        scene.write(partition, "again")

    assert query.step() == expected


def query_whose_topic_was_away_before_it_was_recreated(scene: Scene, **options: str) -> Query:
    """It is u, which has one record again."""
    scene.cluster.create_topic("u", 1)
    query = Query.started(scene, **PATTERN, **options, **GO_ON)
    del scene.cluster.topics["u"]
    scene.clock.sleep(300)
    query.step()
    scene.cluster.create_topic("u", 1)
    scene.write(U0, "again")
    scene.clock.sleep(300)
    return query


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, (0, 1)), ({"onTopicRecreated": "earliest"}, (0, 1)), ({"onTopicRecreated": "latest"}, None)],
)
def test_policy_covers_what_was_away(scene: Scene, options: dict[str, str], expected: tuple[int, int] | None) -> None:
    assert query_whose_topic_was_away_before_it_was_recreated(scene, **options).step().get(U0) == expected


def test_a_narrower_query_that_lost_records_too_says_each_once(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.cluster.create_topic("u", 1)
    query = Query.started(scene, subscribe="t,u", startingOffsets="earliest").restarted(subscribe="t", **GO_ON)
    truncate(scene)
    query.step()

    assert caplog.text.count("which the query asks for no more") == 1
    assert caplog.text.count("was truncated to offset 6") == 1


def test_policy_to_fail_covers_a_topic_that_was_away_before_it_was_recreated(scene: Scene) -> None:
    query = query_whose_topic_was_away_before_it_was_recreated(scene, onTopicRecreated="fail")

    for _ in range(2):
        with pytest.raises(DataLossError, match=f"topic u was deleted and recreated .*{HOW_TO_FOLLOW}"):
            query.step()


NARROWER = {
    "subscribe": ({"subscribe": "t,u"}, {"subscribe": "t"}),
    "pattern": ({"subscribePattern": "^[tu]$"}, {"subscribePattern": "^t$"}),
    "assign": ({"assign": '{"t":[0,1,2],"u":[0]}'}, {"assign": '{"t":[0,1,2]}'}),
}


@pytest.mark.parametrize(("before", "now"), NARROWER.values(), ids=NARROWER.keys())
def test_query_that_asks_for_less_is_told_so(scene: Scene, before: dict[str, str], now: dict[str, str]) -> None:
    scene.cluster.create_topic("u", 1)
    first = Query.started(scene, **before, startingOffsets="earliest")
    strict, lenient = first.restarted(**now), first.restarted(**now, **GO_ON)
    scene.write(T0, "later")

    with pytest.raises(
        DataLossError, match=f"the checkpoint has u-0, which the query asks for no more.*{HOW_TO_GO_ON}"
    ):
        strict.step()
    assert lenient.step() == {T0: (12, 13)}
    assert lenient.step() == {}


def test_policy_covers_partitions_that_the_new_topic_lacks(scene: Scene) -> None:
    query = Query.started(scene, onTopicRecreated="earliest")
    lose(scene, recreate_smaller)

    assert query.step() == {T0: (0, 16)}


def test_policy_covers_the_target_of_a_query_that_ends_after_the_new_log(scene: Scene) -> None:
    query = Query(
        scene, ends_now(scene), startingOffsets="earliest", maxOffsetsPerTrigger="3", onTopicRecreated="earliest"
    )
    query.step()
    scene.cluster.create_topic("t", 3)
    scene.fill(batches=1)
    scene.clock.sleep(300)
    while query.step():
        pass

    assert positions(query.offset) == {T0: 3, T1: 3, T2: 3}


def test_policy_may_fail_where_other_losses_are_allowed(scene: Scene) -> None:
    query = Query.started(scene, onTopicRecreated="fail", **GO_ON)
    lose(scene, recreate)

    with pytest.raises(DataLossError, match=HOW_TO_FOLLOW):
        query.step()


def test_policy_for_topics_that_were_recreated_excuses_no_other_loss(scene: Scene) -> None:
    query = Query.started(scene, onTopicRecreated="earliest")
    lose(scene, truncate)

    with pytest.raises(DataLossError, match="was truncated to offset 6"):
        query.step()


def test_topic_that_was_deleted_and_comes_back_is_read_from_its_start(scene: Scene) -> None:
    query = Query.started(scene, **GO_ON)
    lose(scene, delete)
    query.step()
    lose(scene, recreate)

    assert query.step() == {T0: (0, 30), T1: (0, 30), T2: (0, 30)}


def test_leader_is_asked_once_in_its_epoch_whether_it_has_what_was_read(scene: Scene) -> None:
    query = Query.started(scene)
    for _ in range(2):
        scene.cluster.move_leader(T0, 2)
        for _ in range(5):
            scene.clock.sleep(10)
            assert query.step() == {}

    assert scene.sent("OffsetForLeaderEpoch") == [2, 2]


def test_clean_election_before_the_new_leader_writes_loses_nothing(scene: Scene) -> None:
    query = Query.started(scene, **GO_ON)
    for node_id in (2, 3, 1):
        scene.cluster.move_leader(T0, node_id)
    scene.write(T0, "after")
    scene.clock.sleep(300)

    assert query.step() == {T0: (12, 13)}
    assert scene.losses() == []


def test_truncated_log_whose_epochs_are_unknown_is_read_from_its_end(scene: Scene) -> None:
    query = Query.started(scene, **GO_ON)
    unknown = {
        partition: position._replace(leader_epoch=NO_EPOCH) for partition, position in query.offset.positions.items()
    }
    query.offset = replace(query.offset, positions=unknown)
    lose(scene, truncate)
    scene.write(T0, "a", "b")

    query.step()
    assert positions(query.offset)[T0] == 8
    scene.write(T0, "c")
    assert query.step() == {T0: (8, 9)}


# --- brokers without topic ids ----------------------------------------------------------------------------------------


@pytest.fixture
def without_ids(scene: Scene) -> Scene:
    """Brokers before Kafka 2.8."""
    forget_ids(scene)
    return scene


def forget_ids(scene: Scene) -> None:
    scene.cluster.topics["t"] = replace(scene.cluster.topics["t"], topic_id=None)


def recreate_without_ids(scene: Scene, batches: int) -> None:
    scene.cluster.create_topic("t", 3)
    forget_ids(scene)
    scene.fill(batches)


WITHOUT_IDS = {
    "leader epochs went back": (lambda scene: recreate_without_ids(scene, 10), (0, 30)),
    "leader epochs went back, and so did the end": (lambda scene: recreate_without_ids(scene, 1), (0, 3)),
}


@pytest.mark.parametrize(("happens", "expected"), WITHOUT_IDS.values(), ids=WITHOUT_IDS.keys())
def test_recreated_topic_is_noticed_by_its_epochs(without_ids: Scene, happens: Any, expected: tuple[int, int]) -> None:
    for partition in (T0, T1, T2):
        without_ids.cluster.move_leader(partition, 2)
    strict, lenient = Query(without_ids), Query(without_ids, onTopicRecreated="earliest")
    for query in (strict, lenient):
        query.step()
    lose(without_ids, happens)

    with pytest.raises(DataLossError, match=f"topic t was deleted and recreated .*no topic ids.*{HOW_TO_FOLLOW}"):
        strict.step()
    assert lenient.step() == dict.fromkeys((T0, T1, T2), expected)


def test_shorter_log_of_the_same_leader_epoch_is_a_recreated_topic(without_ids: Scene) -> None:
    query = Query.started(without_ids)
    lose(without_ids, lambda scene: recreate_without_ids(scene, 2))

    with pytest.raises(DataLossError, match=r"topic t was deleted and recreated .*no topic ids"):
        query.step()


def test_recreated_topic_that_grew_after_an_election_is_noticed_without_an_id(without_ids: Scene) -> None:
    query = Query.started(without_ids)

    def happens(scene: Scene) -> None:
        recreate_without_ids(scene, 2)
        for partition in (T0, T1, T2):
            scene.cluster.move_leader(partition, 3)
        scene.fill(10)

    lose(without_ids, happens)

    with pytest.raises(DataLossError, match="the log of t-0 was truncated to offset 6"):
        query.step()


def test_open_transaction_without_topic_ids_is_no_recreated_topic(without_ids: Scene) -> None:
    first = Query.started(without_ids)
    without_ids.network.open_transactions[T0] = 6

    assert first.restarted(**HELD_BACK).step() == {}


def test_missing_topic_ids_are_reported_once_at_start(without_ids: Scene, caplog: pytest.LogCaptureFixture) -> None:
    query = Query(without_ids)
    for _ in range(3):
        query.step()
        without_ids.write(T0, "more")

    assert caplog.text.count("the brokers report no ids of t ") == 1


def test_topic_id_and_epoch_that_become_known_are_recorded_without_new_records(scene: Scene) -> None:
    query = Query.started(scene)
    topic_id = scene.cluster.topics["t"].topic_id
    unknown = {
        partition: position._replace(leader_epoch=NO_EPOCH) for partition, position in query.offset.positions.items()
    }
    query.offset = replace(query.offset, positions=unknown, topic_ids={"t": None})

    assert query.step() == {}
    assert query.offset.topic_ids == {"t": topic_id}
    assert {partition.leader_epoch for partition in query.offset.positions.values()} == {0}
    recorded = text(query.offset)
    assert query.step() == {}
    assert text(query.offset) == recorded, "or each trigger would start an empty micro-batch"
    lose(scene, recreate)
    with pytest.raises(DataLossError, match="topic t was deleted and recreated"):
        query.step()


# --- losses that have several signs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["earliest", "latest"])
def test_topic_seen_between_deletion_and_recreation_is_one_loss_for_each_partition(scene: Scene, policy: str) -> None:
    query = Query.started(scene, onTopicRecreated=policy, **GO_ON)
    lose(scene, delete)
    query.step()
    lose(scene, recreate)
    query.step()

    assert [lost[:2] for lost in scene.losses()] == [(T0, 12), (T1, 12), (T2, 12)]


def test_advice_for_a_missing_topic_covers_its_recreation(scene: Scene) -> None:
    query = Query.started(scene, onTopicRecreated="fail")
    lose(scene, delete)

    with pytest.raises(DataLossError, match=f"{HOW_TO_GO_ON}, and onTopicRecreated, which is fail, to earliest or"):
        query.step()


def test_advice_for_options_that_ask_for_less_says_nothing_of_recreation(scene: Scene) -> None:
    scene.cluster.create_topic("u", 1)
    first = Query.started(scene, subscribe="t,u", startingOffsets="earliest")
    query = first.restarted(subscribe="t", onTopicRecreated="fail")

    with pytest.raises(DataLossError, match=f"{HOW_TO_GO_ON}$"):
        query.step()


def test_topic_that_was_away_and_is_recreated_later_is_another_loss(scene: Scene) -> None:
    query = Query.started(scene, onTopicRecreated="latest", **GO_ON)
    topic = scene.cluster.topics["t"]
    lose(scene, delete)
    query.step()
    scene.cluster.topics["t"] = topic
    for _ in range(2):
        scene.clock.sleep(300)
        query.step()
    lose(scene, recreate)
    query.step()

    assert [lost for lost, *_ in scene.losses()] == [T0, T1, T2] * 2


# --- truncated logs and where a query ends ----------------------------------------------------------------------------


def truncate_and_grow(scene: Scene) -> None:
    truncate(scene)
    scene.write(T0, *map(str, range(30)))


def test_available_now_reads_a_truncated_log_up_to_its_target(scene: Scene) -> None:
    limited = {"assign": '{"t":[0]}', "startingOffsets": "earliest", "maxOffsetsPerTrigger": "3"}
    query = Query(scene, {T0: ends_now(scene)[T0]}, **limited, **GO_ON)
    assert [query.step()[T0] for _ in range(3)] == [(0, 3), (3, 6), (6, 9)]
    lose(scene, truncate_and_grow)

    assert [query.step().get(T0) for _ in range(3)] == [(6, 9), (9, 12), None]
    assert [lost[:2] for lost in scene.losses()] == [(T0, 6)]


def test_query_after_available_now_does_not_repeat_a_truncated_log(scene: Scene) -> None:
    only_t0 = {"assign": '{"t":[0]}'}
    query = Query(scene, {T0: ends_now(scene)[T0]}, **only_t0, startingOffsets="earliest", **GO_ON)
    truncate_and_grow(scene)
    assert query.step() == {T0: (0, 12)}
    scene.clock.sleep(300)

    assert query.restarted(**only_t0, **GO_ON).step() == {T0: (12, 36)}


def test_truncated_log_with_an_open_transaction_is_read_once_it_is_committed(scene: Scene) -> None:
    query = Query.started(scene, **HELD_BACK, **GO_ON)
    truncate(scene)
    scene.hold_back(T0, *map(str, range(30)))
    scene.clock.sleep(300)
    assert query.step() == {}
    scene.network.open_transactions.clear()

    assert query.step() == {T0: (6, 36)}
    assert len(scene.losses()) == 1


def test_log_truncated_while_a_new_query_is_planned_is_no_loss(scene: Scene) -> None:
    before_offsets_are_asked(scene, 1, truncate)
    query = Query(scene)

    query.step()
    assert positions(query.offset)[T0] == 6


def test_leaders_without_epochs_are_believed_by_their_ends(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    query = Query.started(scene)

    def refuse(*_: object) -> NoReturn:
        raise UnsupportedBrokerError("broker-2:9092 offers OffsetForLeaderEpoch v0 to v-1")

    scene.monkeypatch.setattr(KafkaClient, "epoch_end_offsets", refuse)
    scene.cluster.move_leader(T0, 2)
    scene.write(T0, "after")
    scene.clock.sleep(300)

    assert query.step() == {T0: (12, 13)}
    assert "a truncated log is only noticed by its end" in caplog.text
