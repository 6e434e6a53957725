"""Planning while the cluster changes, or its brokers disagree: nothing lost, nothing repeated."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pyspark_kafka_meta.errors import ConnectError, DataLossError, NoLeaderError
from pyspark_kafka_meta.model import TopicMetadata, TopicPartition
from pyspark_kafka_meta.read.planning.checkpoint_offsets import BEGINNING, SourceOffset
from pyspark_kafka_meta.read.planning.subscription import Subscription
from tests.checkpoints import restored, text
from tests.partitions import T0, T1, T2, T3, U0
from tests.unit.fake_network import about_s
from tests.unit.read.planning.changes import (
    PATTERN,
    before_offsets_are_asked,
    delete_u,
    lose,
    lose_the_end,
    plan_again,
    recreate,
    recreate_smaller,
)
from tests.unit.read.planning.queries import (
    GO_ON,
    Query,
    add_partition,
    batch_planner,
    begins,
    offsets_json,
    positions,
    spans,
)
from tests.unit.scene import Scene


@pytest.mark.parametrize("nth", [0, 1], ids=["before its end is asked for", "before its start is"])
def test_new_topic_that_is_deleted_while_it_is_planned_fails_no_query_that_allows_loss(scene: Scene, nth: int) -> None:
    query = Query.started(scene, **PATTERN, **GO_ON)
    scene.cluster.create_topic("u", 1)
    scene.write(T0, "new")
    scene.clock.sleep(300)
    before_offsets_are_asked(scene, nth, delete_u)

    assert query.step() == {T0: (12, 13)}


def test_topic_recreated_and_deleted_while_it_is_planned_is_told_once_as_lost(scene: Scene) -> None:
    scene.cluster.create_topic("u", 1)
    scene.write(U0, "old")
    query = Query.started(scene, **PATTERN, **GO_ON)
    scene.cluster.create_topic("u", 1)
    scene.clock.sleep(300)
    scene.events.clear()
    retries = 3
    before_offsets_are_asked(scene, 1 + retries, delete_u)

    assert query.step() == {}
    assert [lost[:2] for lost in scene.losses()] == [(U0, 1)]


def test_topic_that_is_deleted_while_a_query_begins_is_left_out_under_a_pattern(scene: Scene) -> None:
    scene.cluster.create_topic("u", 1)
    planner = scene.planner(**PATTERN, **GO_ON)
    before_offsets_are_asked(scene, 0, delete_u)
    assert sorted(planner.available_now()) == [T0, T1, T2]

    scene.cluster.create_topic("u", 1)
    scene.clock.sleep(300)
    before_offsets_are_asked(scene, 0, delete_u)
    assert sorted(begins(planner)) == [T0, T1, T2]


def hide_t_for_a_moment(scene: Scene) -> None:
    """The brokers that are asked who leads u now do not know t."""
    scene.network.metadata_errors["t"] = 3
    scene.clock.at(1, scene.network.metadata_errors.clear)
    scene.cluster.move_leader(U0, 3)


BOTH = {"subscribe": "t,u", "startingOffsets": "earliest"}
NOTHING_READ = SourceOffset({}, {})
PLANS: dict[str, Any] = {
    "new query": (0, lambda scene: scene.planner(**BOTH).next_offset(BEGINNING, None, False).topic_ids),
    "micro-batch": (0, lambda scene: scene.planner(**BOTH).next_offset(NOTHING_READ, None, False).topic_ids),
    "batch, asked for ends": (
        1,
        lambda scene: {
            planned.partition.topic: planned.topic_id for planned in batch_planner(scene, **BOTH).batch_ranges()
        },
    ),
}


@pytest.mark.parametrize(("nth", "plan"), PLANS.values(), ids=PLANS.keys())
def test_topic_that_is_unknown_for_a_moment_leaves_no_plan_without_its_id(scene: Scene, nth: int, plan: Any) -> None:
    scene.cluster.create_topic("u", 1)
    scene.write(U0, "one")
    before_offsets_are_asked(scene, nth, hide_t_for_a_moment)

    assert plan(scene) == {topic: scene.cluster.topics[topic].topic_id for topic in ("t", "u")}


def test_aged_out_start_is_told_once_however_often_planned(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.cluster.create_topic("u", 1)
    del scene.cluster.logs[T0][0]
    starts = json.dumps({"t": {"0": 1, "1": 0, "2": 0}, "u": {"0": 0}})
    before_offsets_are_asked(scene, 2, hide_t_for_a_moment)
    planner = scene.planner(subscribe="t,u", startingOffsets=starts, **GO_ON)

    assert begins(planner)[T0] == 3
    assert len(scene.sent("ListOffsets")) > 3 * 4, "it was planned more than once"
    assert len(scene.losses()) == 1
    assert caplog.text.count("names offset 1 of t-0, and its log starts at 3") == 1


def test_end_that_has_aged_out_tells_of_no_loss_after_it(scene: Scene) -> None:
    del scene.cluster.logs[T0][:2]
    options = {"startingOffsets": "earliest", "endingOffsets": offsets_json(p0=4, p1=-1, p2=-1)}
    found = batch_planner(scene, **options, **GO_ON).batch_ranges()

    assert spans(found)[T0] == (6, 6)
    assert scene.losses() == []


def lag(scene: Scene, node_id: int, topic: TopicMetadata) -> None:
    """This broker tells the topic as it was."""
    now, scene.cluster.topics["t"] = scene.cluster.topics["t"], topic
    scene.network.cut_off(node_id)
    scene.cluster.topics["t"] = now


@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize(
    "options", [{}, GO_ON, {"onTopicRecreated": "earliest"}, {"fetchOffset.numRetries": "0", **GO_ON}], ids=str
)
def test_broker_that_still_tells_the_old_id_neither_fails_the_query_nor_repeats_rows(
    scene: Scene, caplog: pytest.LogCaptureFixture, options: dict[str, str], restarted: bool
) -> None:
    old = scene.cluster.topics["t"]
    recreate(scene)
    query = Query.started(scene, startingOffsets="earliest", **options)
    if restarted:
        query.planner = scene.planner(**options)
    lag(scene, 1 if restarted else scene.sent("Metadata")[-1], old)
    scene.write(T0, "new")
    scene.clock.sleep(300)

    assert query.step() == {T0: (30, 31)}
    assert caplog.records == []


def test_new_query_whose_topic_is_recreated_while_it_is_planned_begins_in_the_new_one(
    scene: Scene, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, happens = Subscription.existing_partitions, iter([recreate_smaller])

    def existing_partitions(*arguments: Any) -> list[TopicPartition]:
        for happen in happens:
            lose(scene, happen)
        return real(*arguments)

    monkeypatch.setattr(Subscription, "existing_partitions", existing_partitions)
    query = Query(scene, startingOffsets="earliest")

    assert query.step() == {T0: (0, 16)}
    assert query.offset.topic_ids == {"t": scene.cluster.topics["t"].topic_id}
    assert caplog.records == []
    assert scene.losses() == []


def test_assigned_partition_that_is_gone_is_waited_for_once(scene: Scene) -> None:
    query = Query.started(scene, assign='{"t":[0,1,2]}', **GO_ON)
    lose(scene, lambda scene: scene.cluster.create_topic("t", 2))
    query.step()
    scene.clock.sleep(10)
    began, asked = scene.clock(), len(scene.sent("Metadata"))

    query.step()
    assert (scene.clock() - began, len(scene.sent("Metadata")) - asked) == (about_s(0), 0)


def test_topic_that_is_not_seen_for_a_while_is_not_read_again(scene: Scene) -> None:
    query = Query.started(scene, **GO_ON)
    before = text(query.offset)
    hidden = scene.cluster.topics.pop("t")
    scene.clock.sleep(300)
    assert query.step() == {}
    assert text(query.offset) == before

    scene.cluster.topics["t"] = hidden
    scene.write(T0, "new")
    scene.clock.sleep(300)
    assert query.step() == {T0: (12, 13)}


@pytest.mark.parametrize("options", [{}, {"newPartitions": "latest"}], ids=str)
def test_topic_not_seen_for_a_while_beside_others_is_read_on_where_left(scene: Scene, options: dict[str, str]) -> None:
    scene.cluster.create_topic("u", 1)
    scene.write(U0, "0", "1")
    query = Query.started(scene, **PATTERN, **GO_ON, **options)
    for seen in (2, 3):
        hidden = scene.cluster.topics.pop("u")
        lose(scene, lambda scene: scene.write(T0, "new"))
        assert query.step().keys() == {T0}

        scene.cluster.topics["u"] = hidden
        lose(scene, lambda scene: scene.write(U0, "while it was not seen"))
        assert query.step() == {U0: (seen, seen + 1)}
    assert [lost[:2] for lost in scene.losses()] == [(U0, 2), (U0, 3)]


def test_topic_that_is_not_seen_twice_in_a_row_is_told_twice(scene: Scene) -> None:
    scene.cluster.create_topic("u", 1)
    scene.write(U0, "0", "1")
    query = Query.started(scene, **PATTERN, **GO_ON)
    for _ in range(2):
        hidden = scene.cluster.topics.pop("u")
        scene.clock.sleep(300)
        query.step()
        scene.cluster.topics["u"] = hidden
        scene.clock.sleep(300)
        query.step()

    assert [lost for lost, *_ in scene.losses()] == [U0, U0]


def test_topic_that_comes_back_is_read_on_though_the_plan_is_made_again(scene: Scene) -> None:
    scene.cluster.create_topic("u", 1)
    scene.write(U0, "0", "1")
    query = Query.started(scene, **PATTERN, **GO_ON)
    hidden = scene.cluster.topics.pop("u")
    lose(scene, lambda scene: scene.write(T0, "new"))
    query.step()
    scene.cluster.topics["u"] = hidden
    lose(scene, lambda scene: scene.write(U0, "while it was not seen"))
    plan_again(scene)

    assert query.step() == {U0: (2, 3)}


def test_topic_that_comes_back_with_an_earlier_end_for_a_moment_is_not_read_twice(scene: Scene) -> None:
    scene.cluster.create_topic("u", 1)
    scene.write(U0, "0")
    scene.write(U0, "1")
    query = Query.started(scene, **PATTERN, **GO_ON)
    hidden = scene.cluster.topics.pop("u")
    lose(scene, lambda scene: scene.write(T0, "new"))
    query.step()
    full = list(scene.cluster.logs[U0])
    scene.cluster.topics["u"] = hidden
    lose(scene, lambda scene: scene.cluster.logs.update({U0: full[:1]}))
    assert query.step() == {}

    scene.cluster.logs[U0] = full
    scene.write(U0, "while it was not seen")
    assert query.step() == {U0: (2, 3)}


@pytest.mark.parametrize("options", [{}, GO_ON], ids=["fail", "go on"])
def test_kafka_7703_smaller_latest_for_a_moment_is_asked_again_and_is_no_loss(
    scene: Scene, options: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    query = Query.started(scene, **options)
    full = list(scene.cluster.logs[T0])
    lose_the_end(scene)
    asked = len(scene.sent("ListOffsets"))
    scene.clock.at(2.5, lambda: scene.cluster.logs.update({T0: [*full]}))

    assert query.step() == {}
    assert len(scene.sent("ListOffsets")) == asked + 3 * (1 + 3)
    assert positions(query.offset)[T0] == 12
    assert caplog.records == []


def test_new_leader_whose_high_watermark_lags_loses_nothing(scene: Scene) -> None:
    """It has all records, and does not know for ten seconds that followers have them (KIP-207)."""
    query = Query.started(scene)
    scene.network.replica_ends[2, T0] = positions(query.offset)[T0] - 1
    scene.cluster.move_leader(T0, 2)
    scene.write(T0, "later")
    scene.clock.at(10, scene.network.replica_ends.clear)
    began = scene.clock()

    assert query.step() == {T0: (12, 13)}
    assert scene.clock() - began == pytest.approx(10, abs=0.5)


def test_a_loss_is_called_one_after_as_many_retries_as_are_allowed(scene: Scene) -> None:
    query = Query.started(scene, **{"fetchOffset.numRetries": "1", "fetchOffset.retryIntervalMs": "7000"})
    lose_the_end(scene)
    asked, began = len(scene.sent("ListOffsets")), scene.clock()

    with pytest.raises(DataLossError):
        query.step()
    assert len(scene.sent("ListOffsets")) == asked + 2 * 3
    assert scene.clock() - began == pytest.approx(7, abs=0.5)


# --- open transactions ------------------------------------------------------------------------------------------------


def test_query_that_becomes_read_committed_waits_for_the_transaction_and_repeats_nothing(scene: Scene) -> None:
    """Its checkpoint lies after the last stable offset, and that is no truncation."""
    start = scene.planner(startingOffsets="latest").next_offset(BEGINNING, None, limited=False)
    scene.network.open_transactions[T0] = positions(start)[T0] - 2
    planner = scene.planner(kafka_isolation_level="read_committed")

    assert positions(planner.next_offset(restored(start), None, limited=False)) == positions(start)
    del scene.network.open_transactions[T0]
    scene.write(T0, "later")
    later = planner.next_offset(restored(start), None, limited=False)
    assert positions(later)[T0] == positions(start)[T0] + 1


def test_starting_offset_after_an_open_transaction_is_no_mistake(scene: Scene) -> None:
    end = scene.cluster.bounds(T0)[1]
    scene.network.open_transactions[T0] = end - 2
    named = json.dumps({"t": {"0": end - 1, "1": -2, "2": -2}})
    planner = scene.planner(kafka_isolation_level="read_committed", startingOffsets=named)

    assert begins(planner)[T0] == end - 1


CUT_OFF: dict[str, Any] = {
    "of a partition that it does not know": lambda scene: add_partition(scene, T3, "first"),
    "of a topic that it does not know": lambda scene: scene.cluster.create_topic("u", 1),
    "of a topic that it knows by its old id": lambda scene: recreate(scene),
}


@pytest.mark.parametrize("case", CUT_OFF)
def test_word_of_one_broker_is_no_loss(scene: Scene, case: str) -> None:
    """A restarted query finds only the broker that was cut off before."""
    scene.network.cut_off(1)
    CUT_OFF[case](scene)
    query = Query.started(scene, **PATTERN, **GO_ON)
    assert query.offset.topic_ids == {name: topic.topic_id for name, topic in scene.cluster.topics.items()}
    scene.network.down = {2, 3}
    again = scene.planner(**PATTERN)
    with pytest.raises((ConnectError, NoLeaderError)):
        again.next_offset(restored(query.offset), None, False)

    scene.network.down.clear()
    assert again.next_offset(restored(query.offset), None, False) == query.offset
    assert scene.losses() == []
