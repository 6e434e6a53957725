"""The ranges of a batch query, and the errors if it cannot be planned."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from pyspark_kafka_meta.errors import DataLossError, OptionError, UnknownTopicError
from pyspark_kafka_meta.model import Position, TopicPartition
from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.options.offsets import GroupSpec, LastDurationSpec
from pyspark_kafka_meta.read.planning import batch_plan
from pyspark_kafka_meta.read.planning.data_loss import LossReporter
from pyspark_kafka_meta.read.planning.offset_resolver import OffsetResolver
from tests.partitions import T0, T1, T2, T3
from tests.unit.logs import WRITTEN
from tests.unit.read.planning.changes import HOW_TO_GO_ON, before_offsets_are_asked
from tests.unit.read.planning.queries import GO_ON, Query, add_partition, batch_planner, offsets_json, spans
from tests.unit.scene import HELD_BACK, Scene


def test_batch_reads_all_that_is_there_now(scene: Scene) -> None:
    del scene.cluster.logs[T1][0]
    planner = batch_planner(scene)
    found = planner.batch_ranges()

    assert spans(found) == {T0: (0, 12), T1: (3, 12), T2: (0, 12)}
    assert {planned.topic_id for planned in found} == {scene.cluster.topics["t"].topic_id}


def test_batch_of_a_topic_that_is_recreated_while_its_offsets_are_listed_reads_the_new_one(scene: Scene) -> None:
    def happens(scene: Scene) -> None:
        scene.cluster.create_topic("t", 3)
        scene.cluster.move_leader(T0, 2)  # an error of the old leader tells the planner
        scene.write(T0, "new")

    planner = batch_planner(scene)
    before_offsets_are_asked(scene, 1, happens)

    found = planner.batch_ranges()
    assert spans(found) == {T0: (0, 1), T1: (0, 0), T2: (0, 0)}
    assert {planned.topic_id for planned in found} == {scene.cluster.topics["t"].topic_id}


def test_batch_between_offsets_by_partition(scene: Scene) -> None:
    options = {"startingOffsets": offsets_json(p0=3, p1=0, p2=12), "endingOffsets": offsets_json(p0=7, p1=-1, p2=12)}
    planner = batch_planner(scene, **options)
    found = planner.batch_ranges()

    assert spans(found) == {T0: (3, 7), T1: (0, 12), T2: (12, 12)}
    assert spans([planned for task in planner.tasks(found) for planned in task]) == {T0: (3, 7), T1: (0, 12)}


def test_assigned_partitions_alone_are_read(scene: Scene) -> None:
    assert spans(batch_planner(scene, assign='{"t":[2,0]}').batch_ranges()) == {T0: (0, 12), T2: (0, 12)}


BAD_BATCHES: dict[str, tuple[dict[str, str], type[Exception], str]] = {
    "unknown topic": ({"assign": '{"nope":[0]}'}, UnknownTopicError, "topic nope does not exist"),
    "unknown partition": ({"assign": '{"t":[0,7]}'}, UnknownTopicError, "assign names t-7, and t has 3 partitions"),
    "partition missing": (
        {"startingOffsets": offsets_json(p0=1, p1=1)},
        OptionError,
        "startingOffsets must name exactly .* Missing: t-2. Not read: none",
    ),
    "partition too many": (
        {"endingOffsets": offsets_json(p0=1, p1=1, p2=1, p3=1)},
        OptionError,
        "endingOffsets must name exactly .* Missing: none. Not read: t-3",
    ),
    "start after the log": (
        {"startingOffsets": offsets_json(p0=13, p1=-2, p2=-2)},
        OptionError,
        "startingOffsets names offset 13 of t-0, and its log ends at 12: correct it",
    ),
    "end after the log": (
        {"endingOffsets": offsets_json(p0=13, p1=-1, p2=-1)},
        OptionError,
        "endingOffsets names offset 13 of t-0, and its log ends at 12: correct it",
    ),
    "start before the log": (
        {"startingOffsets": offsets_json(p0=-2, p1=2, p2=-2)},
        DataLossError,
        f"startingOffsets names offset 2 of t-1, and its log starts at 3: .* {HOW_TO_GO_ON}",
    ),
}


@pytest.mark.parametrize(("options", "error", "error_text"), BAD_BATCHES.values(), ids=BAD_BATCHES.keys())
def test_batch_says_why_not(scene: Scene, options: dict[str, str], error: type[Exception], error_text: str) -> None:
    del scene.cluster.logs[T1][0]
    with pytest.raises(error, match=error_text):
        batch_planner(scene, **options).batch_ranges()


def test_batch_begins_at_the_log_start_if_loss_is_allowed(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    del scene.cluster.logs[T1][0]
    planner = batch_planner(scene, startingOffsets=offsets_json(p0=5, p1=2, p2=-2), **GO_ON)

    assert spans(planner.batch_ranges()) == {T0: (5, 12), T1: (3, 12), T2: (0, 12)}
    assert "names offset 2 of t-1, and its log starts at 3" in caplog.text


def third(partition: TopicPartition, number: int) -> dict[TopicPartition, tuple[int, int]]:
    return {partition: (4 * number, 4 * number + 4)}


TASKS: dict[str, tuple[dict[str, str], list[dict[TopicPartition, tuple[int, int]]]]] = {
    "a bundle": ({}, [{T0: (0, 12), T1: (0, 12), T2: (0, 12)}]),
    "those of one leader together": ({"minPartitions": "2"}, [{T0: (0, 12), T2: (0, 12)}, {T1: (0, 12)}]),
    "so many": ({"minPartitions": "3"}, [{T0: (0, 12)}, {T2: (0, 12)}, {T1: (0, 12)}]),
    "small ones": (
        {"maxRecordsPerPartition": "5"},
        [third(partition, number) for partition in (T0, T2, T1) for number in range(3)],
    ),
}


@pytest.mark.parametrize(("options", "expected"), TASKS.values(), ids=TASKS.keys())
def test_options_say_how_many_tasks_and_leaders_who_shares_one(
    scene: Scene, options: dict[str, str], expected: list[dict[TopicPartition, tuple[int, int]]]
) -> None:
    scene.cluster.move_leader(T2, 1)
    planner = batch_planner(scene, **options)

    found = [spans(list(task)) for task in planner.tasks(planner.batch_ranges())]
    assert sorted(found, key=str) == sorted(expected, key=str)


def test_there_are_no_more_tasks_than_the_option_says(scene: Scene) -> None:
    scene.monkeypatch.setattr(batch_plan, "SPLIT_OFFSETS", 4)
    for options, expected in (({}, 9), ({"maxTasks": "2"}, 2)):
        planner = batch_planner(scene, **options)
        assert len(planner.tasks(planner.batch_ranges())) == expected


# --- times and relative starts ----------------------------------------------------------------------------------------

WRITTEN_MS = int(WRITTEN.timestamp() * 1000)


@pytest.fixture
def later(scene: Scene) -> Scene:
    """A minute after the twelve records, two more in t-0 and two in t-1."""
    for partition in (T0, T1):
        scene.write(partition, "a", "b", written=WRITTEN + timedelta(minutes=1))
    return scene


def times_json(*milliseconds: int) -> str:
    return json.dumps({"t": dict(enumerate(milliseconds))})


AFTER, NEVER = WRITTEN_MS + 1, WRITTEN_MS + 60_001
BY_PARTITION = "startingOffsetsByTimestamp"
BY_TIME: dict[str, tuple[dict[str, str], dict[TopicPartition, tuple[int, int]]]] = {
    "start": ({"startingTimestamp": str(WRITTEN_MS)}, {T0: (0, 14), T1: (0, 14), T2: (0, 12)}),
    "start, latest where there is none": (
        {"startingTimestamp": str(AFTER), "startingOffsetsByTimestampStrategy": "latest"},
        {T0: (12, 14), T1: (12, 14), T2: (12, 12)},
    ),
    "start by partition": ({BY_PARTITION: times_json(AFTER, 0, WRITTEN_MS)}, {T0: (12, 14), T1: (0, 14), T2: (0, 12)}),
    "end": ({"endingTimestamp": str(AFTER)}, {T0: (0, 12), T1: (0, 12), T2: (0, 12)}),
    "end by partition": (
        {"endingOffsetsByTimestamp": times_json(AFTER, NEVER, 0), "startingOffsets": "earliest"},
        {T0: (0, 12), T1: (0, 14), T2: (0, 0)},
    ),
    "start by time, end by offset": (
        {"startingOffsetsByTimestamp": times_json(AFTER, AFTER, 0), "endingOffsets": offsets_json(p0=13, p1=-1, p2=5)},
        {T0: (12, 13), T1: (12, 14), T2: (0, 5)},
    ),
    "by topic": ({"startingOffsets": '{"t":"earliest"}', "endingOffsets": '{"t":"latest"}'}, {T2: (0, 12)}),
    "the last five offsets": ({"startingOffsets": "-5"}, {T0: (9, 14), T1: (9, 14), T2: (7, 12)}),
    "more than there are": ({"startingOffsets": "-13"}, {T0: (1, 14), T1: (1, 14), T2: (0, 12)}),
}


@pytest.mark.parametrize(("options", "expected"), BY_TIME.values(), ids=BY_TIME.keys())
def test_batch_between_times(
    later: Scene, options: dict[str, str], expected: dict[TopicPartition, tuple[int, int]]
) -> None:
    found = spans(batch_planner(later, **options).batch_ranges())

    assert {partition: found[partition] for partition in expected} == expected


OR_LATEST = {"startingOffsetsByTimestampStrategy": "latest"}


@pytest.mark.parametrize("nth", range(4))
def test_records_written_while_a_start_by_time_is_asked_for_are_read(later: Scene, nth: int) -> None:
    before_offsets_are_asked(later, nth, lambda scene: scene.write(T2, "late", written=WRITTEN + timedelta(hours=1)))
    query = Query(later, startingTimestamp=str(AFTER), **OR_LATEST)

    first = query.step()
    assert {**first, **query.step()}[T2] == (12, 13)


@pytest.mark.parametrize("nth", range(4))
def test_transaction_that_commits_while_a_start_by_time_is_asked_for_is_read(later: Scene, nth: int) -> None:
    later.hold_back(T2, *"abcde", written=WRITTEN + timedelta(hours=1))
    before_offsets_are_asked(later, nth, lambda scene: scene.network.open_transactions.clear())
    query = Query(later, startingTimestamp=str(AFTER), **OR_LATEST, **HELD_BACK)

    first = query.step()
    assert {**first, **query.step()}[T2] == (12, 17)


@pytest.mark.parametrize("nth", range(6))
def test_adjoining_batches_by_time_read_each_record_once(later: Scene, nth: int) -> None:
    before_offsets_are_asked(later, nth, lambda scene: scene.write(T2, "late", written=WRITTEN + timedelta(hours=1)))
    first = spans(batch_planner(later, endingTimestamp=str(AFTER)).batch_ranges())[T2]
    second = spans(batch_planner(later, startingTimestamp=str(AFTER), **OR_LATEST).batch_ranges())[T2]

    assert (first, second[0]) == ((0, 12), 12)


BAD_TIMES = {
    "no record as late": ({"startingTimestamp": str(AFTER)}, f"No offset matched .* t-2 and timestamp {AFTER}"),
    "not all partitions": (
        {"startingOffsetsByTimestamp": times_json(1, 2)},
        "startingOffsetsByTimestamp must name exactly the partitions .* Missing: t-2",
    ),
    "start after end": (
        {"startingTimestamp": str(AFTER), "startingOffsetsByTimestampStrategy": "latest", "endingTimestamp": "0"},
        "the starting offset 12 of t-0 is greater than its ending offset 0",
    ),
    "topic that is not read": ({"startingOffsets": '{"t":"earliest","u":"earliest"}'}, "names topic u, which is not"),
}


@pytest.mark.parametrize(("options", "error_text"), BAD_TIMES.values(), ids=BAD_TIMES.keys())
def test_times_that_mean_nothing_are_refused(later: Scene, options: dict[str, str], error_text: str) -> None:
    with pytest.raises(OptionError, match=error_text):
        batch_planner(later, **options).batch_ranges()


def new_resolver(scene: Scene, options: SourceOptions, **sources: Any) -> OffsetResolver:
    client = scene.warm_client()
    return OffsetResolver(client, options, LossReporter(options, client.report), **sources)


def test_a_start_so_long_ago_is_counted_from_planning(later: Scene) -> None:
    ninety_seconds_later = WRITTEN.timestamp() + 90
    resolver = new_resolver(later, later.options().for_batch(), wall_clock=lambda: ninety_seconds_later)
    found = resolver.resolve(LastDurationSpec(40_000), (T0, T2), "startingOffsets")
    assert found == {T0: Position(12, reported_epoch=0), T2: Position(12, 0)}
    assert resolver.resolve(LastDurationSpec(10**15), (T0,), "startingOffsets") == {T0: Position(0, reported_epoch=0)}


def test_a_start_is_where_a_group_would_read_on(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    del scene.cluster.logs[T0][0]

    def resolve(committed: dict[TopicPartition, int], **options: str) -> dict[TopicPartition, Position]:
        query = scene.options(**options).for_batch()
        scene.network.groups["g"] = committed
        resolver = new_resolver(scene, query)
        return resolver.resolve(GroupSpec("g"), (T0, T1), "startingOffsets")

    assert resolve({T0: 5, T1: 12}) == {T0: Position(5, reported_epoch=0), T1: Position(12, reported_epoch=0)}
    assert resolve({T1: 7}) == {T0: Position(3), T1: Position(7, reported_epoch=0)}
    assert "consumer group g has committed no offset of t-0: beginning at their start" in caplog.text
    with pytest.raises(DataLossError, match="offset 2 of t-0, and its log starts at 3"):
        resolve({T0: 2, T1: 7})
    assert resolve({T0: 2, T1: 7}, **GO_ON)[T0] == Position(3, reported_epoch=0)
    reason = "the commit of consumer group g names offset 13 of t-1, and its log ends at 12"
    with pytest.raises(DataLossError, match=f"{reason}: .*set the option failOnDataLoss to false"):
        resolve({T0: 5, T1: 13})
    scene.events.clear()
    assert resolve({T0: 5, T1: 13}, **GO_ON) == {T0: Position(5, reported_epoch=0), T1: Position(0)}
    assert scene.losses() == [(T1, 12, 13)]


def test_stream_begins_at_a_time_and_reads_later_partitions_from_their_start(later: Scene) -> None:
    query = Query(later, startingTimestamp=str(AFTER), startingOffsetsByTimestampStrategy="latest")

    assert query.step() == {T0: (12, 14), T1: (12, 14)}
    add_partition(later, T3, "new")
    later.clock.sleep(300)
    assert query.step() == {T3: (0, 1)}
