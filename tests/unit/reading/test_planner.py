"""Planning against a cluster: what a batch or micro-batch is to read, and what is said when it cannot be read."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from pyspark_kafka_meta.errors import DataLossError, OptionError, UnknownTopicError
from pyspark_kafka_meta.metadata.events import EventKind
from pyspark_kafka_meta.metadata.model import TopicMetadata, TopicPartition
from pyspark_kafka_meta.options.specs import AgoSpec, GroupSpec
from pyspark_kafka_meta.reading.ends import LogEnds
from pyspark_kafka_meta.reading.leader_offsets import LeaderOffsets
from pyspark_kafka_meta.reading.offsets import BEGINNING, OffsetRange, Position, SourceOffset, ranges
from pyspark_kafka_meta.reading.planner import OffsetPlanner
from pyspark_kafka_meta.reading.resolver import OffsetResolver
from tests.unit.logs import WRITTEN
from tests.unit.scene import T0, T1, T2, Scene

T3 = TopicPartition("t", 3)
U0 = TopicPartition("u", 0)
GO_ON = {"failOnDataLoss": "false"}
HOW_TO_GO_ON = "set the option failOnDataLoss to false"
HOW_TO_FOLLOW = "set the option onTopicRecreated to earliest or latest"
HOW_TO = f"({HOW_TO_GO_ON}|{HOW_TO_FOLLOW})"


def batch_planner(scene: Scene, **options: str) -> OffsetPlanner:
    return OffsetPlanner(scene.client(**options), scene.options(**options).for_batch())


def offsets_json(**partitions: int) -> str:
    """`p0=3` is offset 3 of t-0."""
    return json.dumps({"t": {name[1:]: offset for name, offset in partitions.items()}})


def spans(found: list[OffsetRange]) -> dict[TopicPartition, tuple[int, int]]:
    return {one.partition: (one.from_offset, one.until_offset) for one in found}


def text(offset: SourceOffset) -> str:
    """What Spark stores and compares."""
    return json.dumps(offset.as_dict())


def restored(offset: SourceOffset) -> SourceOffset:
    return SourceOffset.parse(json.loads(text(offset)))


def positions(offset: SourceOffset) -> dict[TopicPartition, int]:
    return {partition: position.offset for partition, position in offset.positions.items()}


def begins(planner: OffsetPlanner) -> dict[TopicPartition, int]:
    """Where a new query begins, as the end of its first micro-batch says."""
    return {one: at.offset for one, at in planner.next_offset(BEGINNING, None, limited=True).start.items()}


class Query:
    """A streaming query as Spark drives it: each offset goes through JSON, each batch is what lies between two."""

    def __init__(
        self, scene: Scene, target: Mapping[TopicPartition, Position] | None = None, /, **options: str
    ) -> None:
        self.planner = scene.planner(**options)
        self.target = target
        self.offset = BEGINNING

    def step(self, limited: bool = True) -> dict[TopicPartition, tuple[int, int]]:
        """Plan the next micro-batch. Returns the offsets that it reads."""
        end = restored(self.planner.next_offset(self.offset, self.target, limited))
        found = spans(ranges(self.offset, end))
        self.offset = end
        return found


def ends_now(scene: Scene) -> dict[TopicPartition, Position]:
    """As Trigger.AvailableNow asks for them when the query starts."""
    return scene.planner().available_now()


def add_partition(scene: Scene, partition: TopicPartition, *values: str) -> None:
    topic = scene.cluster.topics[partition.topic]
    added = replace(topic.partitions[0], partition=partition.partition)
    scene.cluster.topics[partition.topic] = replace(topic, partitions=(*topic.partitions, added))
    scene.cluster.logs[partition] = []
    if values:
        scene.write(partition, *values)


# --- batch ------------------------------------------------------------------------------------------------------------


def test_batch_reads_all_that_is_there_now(scene: Scene) -> None:
    del scene.cluster.logs[T1][0]
    planner = batch_planner(scene)
    found = planner.batch_ranges()

    assert spans(found) == {T0: (0, 12), T1: (3, 12), T2: (0, 12)}
    assert {one.topic_id for one in found} == {scene.cluster.topics["t"].topic_id}


def test_batch_between_offsets_by_partition(scene: Scene) -> None:
    options = {"startingOffsets": offsets_json(p0=3, p1=0, p2=12), "endingOffsets": offsets_json(p0=7, p1=-1, p2=12)}
    planner = batch_planner(scene, **options)
    found = planner.batch_ranges()

    assert spans(found) == {T0: (3, 7), T1: (0, 12), T2: (12, 12)}
    assert spans([one for task in planner.tasks(found) for one in task]) == {T0: (3, 7), T1: (0, 12)}


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
    "start behind the log": (
        {"startingOffsets": offsets_json(p0=13, p1=-2, p2=-2)},
        OptionError,
        "startingOffsets names offset 13 of t-0, and its log ends at 12: correct it",
    ),
    "end behind the log": (
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


@pytest.mark.parametrize(("options", "error", "said"), BAD_BATCHES.values(), ids=BAD_BATCHES.keys())
def test_batch_that_cannot_be_planned_says_why(
    scene: Scene, options: dict[str, str], error: type[Exception], said: str
) -> None:
    del scene.cluster.logs[T1][0]
    with pytest.raises(error, match=said):
        batch_planner(scene, **options).batch_ranges()


def test_batch_begins_at_the_start_of_the_log_where_losing_what_aged_out_is_allowed(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    del scene.cluster.logs[T1][0]
    planner = batch_planner(scene, startingOffsets=offsets_json(p0=5, p1=2, p2=-2), **GO_ON)

    assert spans(planner.batch_ranges()) == {T0: (5, 12), T1: (3, 12), T2: (0, 12)}
    assert "names offset 2 of t-1, and its log starts at 3" in caplog.text


def test_tasks_bundle_partitions_of_one_leader(scene: Scene) -> None:
    planner = batch_planner(scene, minPartitions="3")
    found = planner.batch_ranges()

    assert [spans(list(task)) for task in planner.tasks(found)] == [{T0: (0, 12)}, {T1: (0, 12)}, {T2: (0, 12)}]


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
BY_TIME: dict[str, tuple[dict[str, str], dict[TopicPartition, tuple[int, int]]]] = {
    "start": ({"startingTimestamp": str(WRITTEN_MS)}, {T0: (0, 14), T1: (0, 14), T2: (0, 12)}),
    "start, latest where there is none": (
        {"startingTimestamp": str(AFTER), "startingOffsetsByTimestampStrategy": "latest"},
        {T0: (12, 14), T1: (12, 14), T2: (12, 12)},
    ),
    "start by partition": (
        {"startingOffsetsByTimestamp": times_json(AFTER, 0, WRITTEN_MS)},
        {T0: (12, 14), T1: (0, 14), T2: (0, 12)},
    ),
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

    assert {one: found[one] for one in expected} == expected


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


@pytest.mark.parametrize(("options", "said"), BAD_TIMES.values(), ids=BAD_TIMES.keys())
def test_times_that_mean_nothing_are_refused(later: Scene, options: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        batch_planner(later, **options).batch_ranges()


def test_a_start_so_long_ago_is_counted_from_planning(later: Scene) -> None:
    ninety_seconds_later = WRITTEN.timestamp() + 90
    resolver = OffsetResolver(later.warm_client(), later.options().for_batch(), lambda: ninety_seconds_later)
    found = resolver.resolve(AgoSpec(40_000), (T0, T2), "startingOffsets")
    assert found == {T0: Position(12), T2: Position(12, 0)}
    assert resolver.resolve(AgoSpec(10**15), (T0,), "startingOffsets") == {T0: Position(0)}


def test_a_start_is_where_a_group_would_read_on(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    del scene.cluster.logs[T0][0]

    def resolve(committed: dict[TopicPartition, int], **options: str) -> dict[TopicPartition, Position]:
        query = scene.options(**options).for_batch()
        resolver = OffsetResolver(scene.warm_client(), query, committed=lambda *asked: committed)
        return resolver.resolve(GroupSpec("g"), (T0, T1), "startingOffsets")

    assert resolve({T0: 5, T1: 12}) == {T0: Position(5), T1: Position(12)}
    assert resolve({T1: 7}) == {T0: Position(3), T1: Position(7)}
    assert "consumer group g has committed no offset of t-0: beginning at their start" in caplog.text
    with pytest.raises(DataLossError, match="offset 2 of t-0, and its log starts at 3"):
        resolve({T0: 2, T1: 7})
    assert resolve({T0: 2, T1: 7}, **GO_ON)[T0] == Position(3)
    with pytest.raises(
        OptionError, match="the commit of consumer group g names offset 13 of t-1, and its log ends at 12"
    ):
        resolve({T0: 5, T1: 13})


def test_stream_begins_at_a_time_and_reads_later_partitions_from_their_start(later: Scene) -> None:
    query = Query(later, startingTimestamp=str(AFTER), startingOffsetsByTimestampStrategy="latest")

    assert query.step() == {T0: (12, 14), T1: (12, 14)}
    add_partition(later, T3, "new")
    later.clock.sleep(300)
    assert query.step() == {T3: (0, 1)}


# --- streams ----------------------------------------------------------------------------------------------------------


def test_stream_begins_at_latest_unless_it_is_told_otherwise(scene: Scene) -> None:
    by_partition = offsets_json(p0=5, p1=-1, p2=-2)

    assert begins(scene.planner()) == {T0: 12, T1: 12, T2: 12}
    assert begins(scene.planner(startingOffsets="earliest")) == {T0: 0, T1: 0, T2: 0}
    assert begins(scene.planner(startingOffsets=by_partition)) == {T0: 5, T1: 12, T2: 0}


def test_each_batch_reads_what_came_since_the_last(scene: Scene) -> None:
    query = Query(scene)

    assert query.step() == {}
    scene.write(T1, "a", "b")
    assert query.step() == {T1: (12, 14)}
    scene.write(T2, "c")
    scene.write(T1, "d")
    assert query.step() == {T1: (14, 15), T2: (12, 13)}


def test_nothing_new_is_the_same_text(scene: Scene) -> None:
    query = Query(scene)
    query.step()
    before = text(query.offset)
    scene.cluster.move_leader(T0, 2)
    for _ in range(3):
        assert query.step() == {}
        assert text(query.offset) == before
        scene.clock.sleep(400)


def test_batch_0_carries_the_start_it_was_planned_from(scene: Scene) -> None:
    query = Query(scene)
    assert query.step() == {}

    scene.write(T0, "a")
    assert {one: at.offset for one, at in query.offset.start.items()} == {T0: 12, T1: 12, T2: 12}
    assert spans(ranges(BEGINNING, query.offset)) == {}
    assert query.step() == {T0: (12, 13)}


NO_MORE: dict[str, tuple[dict[str, str], Any]] = {
    "partitions that are not named": (
        {"startingOffsets": '{"t":{"0":5,"1":5,"2":5}}'},
        lambda scene: add_partition(scene, T3),
    ),
    "a time that no record is as late as": (
        {"startingTimestamp": "1"},
        lambda scene: add_partition(scene, T3),
    ),
    "an offset that was cut off": (
        {"startingOffsets": '{"t":{"0":12,"1":5,"2":5}}'},
        lambda scene: scene.cluster.logs.__setitem__(T0, scene.cluster.logs[T0][:1]),
    ),
}


@pytest.mark.parametrize(("options", "happens"), NO_MORE.values(), ids=NO_MORE.keys())
def test_batch_0_is_replayed_though_its_options_fit_the_cluster_no_more(
    scene: Scene, options: dict[str, str], happens: Any
) -> None:
    end = restored(scene.planner(**options).next_offset(BEGINNING, None, limited=True))
    planned = spans(ranges(BEGINNING, end))
    happens(scene)

    with pytest.raises(OptionError):
        scene.planner(**options).next_offset(BEGINNING, None, limited=True)
    assert spans(ranges(restored(BEGINNING), end)) == planned != {}


def test_rate_limit_shares_the_batch_and_loses_nothing(scene: Scene) -> None:
    scene.write(T0, *map(str, range(88)))
    query = Query(scene, startingOffsets="earliest", maxOffsetsPerTrigger="31")
    read: dict[TopicPartition, list[int]] = {T0: [], T1: [], T2: []}
    sizes = []
    while step := query.step():
        sizes.append(sum(end - start for start, end in step.values()))
        assert set(step) == {partition for partition in read if len(read[partition]) < (100 if partition == T0 else 12)}
        for partition, (start, end) in step.items():
            read[partition] += range(start, end)

    assert read == {T0: list(range(100)), T1: list(range(12)), T2: list(range(12))}
    assert max(sizes) <= 31


def test_latest_seen_is_reported_though_the_batch_was_limited(scene: Scene) -> None:
    query = Query(scene, startingOffsets="earliest", maxOffsetsPerTrigger="3")
    assert query.planner.last_seen_latest() is None
    query.step()

    assert positions(SourceOffset.parse(query.planner.last_seen_latest())) == {T0: 12, T1: 12, T2: 12}


def test_new_partitions_are_read_from_their_start(scene: Scene) -> None:
    query = Query(scene)
    query.step()
    add_partition(scene, T3, "first", "second")
    scene.clock.sleep(300)

    assert query.step() == {T3: (0, 2)}
    scene.write(T3, "third")
    assert query.step() == {T3: (2, 3)}


def test_new_partitions_are_read_from_their_end_if_the_option_says_so(scene: Scene) -> None:
    query = Query(scene, newPartitions="latest")
    query.step()
    add_partition(scene, T3, "first", "second")
    scene.clock.sleep(300)

    assert query.step() == {}
    scene.write(T3, "third")
    assert query.step() == {T3: (2, 3)}


def test_new_partition_with_an_aged_out_start_begins_where_its_log_does(scene: Scene) -> None:
    query = Query(scene)
    query.step()
    add_partition(scene, T3, "first", "second")
    scene.write(T3, "third")
    del scene.cluster.logs[T3][0]
    scene.clock.sleep(300)

    assert query.step() == {T3: (2, 3)}


def test_small_batches_wait_for_more_records_but_not_longer_than_the_delay(scene: Scene) -> None:
    limits = {"minOffsetsPerTrigger": "5", "maxTriggerDelay": "1m", "maxOffsetsPerTrigger": "6"}
    query = Query(scene, startingOffsets=offsets_json(p0=-1, p1=-1, p2=10), **limits)
    assert query.step() == {T2: (10, 12)}, "the first waits for nothing"

    scene.write(T0, *"abcd")
    before = text(query.offset)
    assert query.step() == {}
    assert text(query.offset) == before
    scene.write(T0, "e")
    assert query.step() == {T0: (12, 17)}

    scene.write(T0, *"abc")
    scene.clock.sleep(59)
    assert query.step() == {}
    scene.clock.sleep(1)
    assert query.step() == {T0: (17, 20)}

    scene.write(T0, *"abcdefgh")
    assert query.step() == {T0: (20, 26)}, "at most as many as the other limit says"
    assert query.step() == {}
    assert query.step(limited=False) == {T0: (26, 28)}, "Trigger.Once has no limits"


def test_a_new_partition_is_not_put_off(scene: Scene) -> None:
    query = Query(scene, minOffsetsPerTrigger="5")
    query.step()
    add_partition(scene, T3, "first")
    scene.clock.sleep(300)

    assert query.step() == {T3: (0, 1)}


def test_the_delay_counts_from_the_micro_batch_that_a_new_partition_began(scene: Scene) -> None:
    query = Query(scene, minOffsetsPerTrigger="5", maxTriggerDelay="10m")
    query.step()
    add_partition(scene, T3, "first")
    scene.clock.sleep(300)
    assert query.step() == {T3: (0, 1)}
    scene.write(T0, "a", "b")
    scene.clock.sleep(400)

    assert query.step() == {}


def test_a_stream_with_ending_offsets_reads_up_to_them_and_no_further(scene: Scene) -> None:
    query = Query(scene, startingOffsets="earliest", endingOffsets=offsets_json(p0=13, p1=5), maxOffsetsPerTrigger="10")
    steps = [query.step(), query.step()]
    assert query.step() == {}, "t-0 ends at 12 so far"
    scene.write(T0, "a", "b")
    steps.append(query.step())

    assert query.step() == {}
    assert {one: [step[one] for step in steps if one in step] for one in (T0, T1, T2)} == {
        T0: [(0, 7), (7, 12), (12, 13)],
        T1: [(0, 2), (2, 5)],
        T2: [],
    }


# --- Trigger.AvailableNow ---------------------------------------------------------------------------------------------


def test_available_now_ends_where_it_began_in_batches_of_the_limit(scene: Scene) -> None:
    target = ends_now(scene)
    query = Query(scene, target, startingOffsets="earliest", maxOffsetsPerTrigger="15", minOffsetsPerTrigger="15")
    steps = []
    while step := query.step():
        steps.append(step)
        scene.write(T0, "too late")

    assert steps == [dict.fromkeys((T0, T1, T2), (start, start + 5)) for start in (0, 5)] + [
        dict.fromkeys((T0, T1, T2), (10, 12))
    ]
    assert positions(query.offset) == {T0: 12, T1: 12, T2: 12}


def test_available_now_leaves_partitions_that_came_since_to_the_next_run(scene: Scene) -> None:
    target = ends_now(scene)
    query = Query(scene, target, startingOffsets="earliest")
    add_partition(scene, T3, "new")
    scene.clock.sleep(300)

    assert T3 not in query.step()
    query.target = None
    assert query.step() == {T3: (0, 1)}


def test_available_now_whose_target_is_older_than_its_start_never_goes_back(scene: Scene) -> None:
    target = ends_now(scene)
    scene.write(T0, "between target and start")
    query = Query(scene, target)

    assert query.step() == {}
    assert positions(query.offset) == {T0: 13, T1: 12, T2: 12}


def lose_the_end(scene: Scene) -> None:
    del scene.cluster.logs[T0][2:]


def lose_partitions(scene: Scene) -> None:
    topic = scene.cluster.topics["t"]
    scene.cluster.topics["t"] = replace(topic, topic_id=uuid4(), partitions=topic.partitions[:1])


@pytest.mark.parametrize(
    ("happens", "said", "read", "told"),
    [
        (
            lose_the_end,
            "the log of t-0 ends at offset 6, before offset 12 at which the query is to end",
            (1, 6),
            [(0, 6, 12)],
        ),
        (
            lose_partitions,
            "t-0 was read up to offset 1, and its new log ends at 12",
            (0, 12),
            [(0, 1, None), (1, 1, None), (2, 1, None)],
        ),
    ],
    ids=["shorter", "fewer partitions"],
)
def test_available_now_whose_target_is_lost_says_so_once(
    scene: Scene,
    happens: Any,
    said: str,
    read: tuple[int, int],
    told: list[tuple[int, int, int | None]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    target = ends_now(scene)
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "3"}
    strict, lenient = Query(scene, target, **options), Query(scene, target, **options, **GO_ON)
    for query in (strict, lenient):
        query.step()
    happens(scene)
    scene.clock.sleep(300)

    with pytest.raises(DataLossError, match=f"{said}.*{HOW_TO}"):
        strict.step()
    steps = []
    while step := lenient.step():
        steps += [step[T0]] if T0 in step else []
    assert len(steps) > 2
    assert (steps[0][0], steps[-1][1]) == read
    assert caplog.text.count(said) == 1
    events = [one for one in scene.events if one.kind is EventKind.DATA_LOSS]
    assert [(one.cause_partition, one.lost_from_offset, one.lost_until_offset) for one in events] == told


def test_available_now_asks_again_only_once_about_a_target_that_is_lost(scene: Scene) -> None:
    query = Query(scene, ends_now(scene), startingOffsets="earliest", maxOffsetsPerTrigger="3", **GO_ON)
    lose_the_end(scene)
    query.step()
    asked = len(scene.wire.requests)

    assert query.step()
    assert len(scene.wire.requests) == asked + 3  # the end of each log, from its leader


# --- a pattern of topics ----------------------------------------------------------------------------------------------

BY_PATTERN = {"subscribePattern": "^[tu]$", "kafka_metadata_max_age_ms": "5000"}


def test_topics_with_a_match_in_their_name_are_read(scene: Scene) -> None:
    for topic in ("u", "tu", "other"):
        scene.cluster.create_topic(topic, partitions=1)
    scene.cluster.create_topic("__t", partitions=1)
    scene.cluster.topics["__t"] = replace(scene.cluster.topics["__t"], is_internal=True)
    scene.write(U0, "a")

    assert spans(batch_planner(scene, **BY_PATTERN).batch_ranges()) == {
        **dict.fromkeys((T0, T1, T2), (0, 12)),
        U0: (0, 1),
    }
    assert sorted(batch_planner(scene, subscribePattern="^_*t$").available_now()) == [T0, T1, T2]
    assert U0 in batch_planner(scene, subscribePattern="u").available_now()
    assert TopicPartition("tu", 0) in batch_planner(scene, subscribePattern="u").available_now()


def test_a_pattern_without_a_match_is_warned_of_as_acls_hide_topics(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    assert batch_planner(scene, subscribePattern="t").batch_ranges()
    assert caplog.text == ""
    assert batch_planner(scene, subscribePattern="none").batch_ranges() == []
    assert "no topic that this user may see" in caplog.text


def test_a_new_topic_that_matches_is_read_from_its_start_within_the_max_age(scene: Scene) -> None:
    query = Query(scene, **BY_PATTERN)
    query.step()
    scene.cluster.create_topic("u", partitions=1)
    scene.write(U0, "a", "b")
    assert query.step() == {}

    scene.clock.sleep(5)
    assert query.step() == {U0: (0, 2)}


def test_a_pattern_that_matches_nothing_yet_waits_for_topics(scene: Scene) -> None:
    query = Query(scene, **BY_PATTERN | {"subscribePattern": "u"})
    assert query.step() == {}
    scene.cluster.create_topic("u", partitions=1)
    scene.write(U0, "a")
    scene.clock.sleep(5)

    assert query.step() == {U0: (0, 1)}


def test_a_pattern_that_matched_nothing_at_first_pins_that_though_it_would_begin_at_the_latest(scene: Scene) -> None:
    planner = scene.planner(**BY_PATTERN | {"subscribePattern": "u"}, startingOffsets="latest")
    first = restored(planner.next_offset(BEGINNING, None, limited=True))
    assert text(first) != text(BEGINNING), "Spark takes equal texts for nothing new, and would begin anew"
    scene.cluster.create_topic("u", partitions=1)
    scene.write(U0, "a")
    scene.clock.sleep(300)

    assert spans(ranges(first, planner.next_offset(first, None, limited=True))) == {U0: (0, 1)}


def test_a_matching_topic_that_is_deleted_is_data_loss_or_left_out_where_that_is_allowed(scene: Scene) -> None:
    scene.cluster.create_topic("u", partitions=1)
    scene.write(U0, "a")
    strict, lenient = Query(scene, **BY_PATTERN), Query(scene, **BY_PATTERN, **GO_ON)
    for query in (strict, lenient):
        query.step()
    del scene.cluster.topics["u"]
    scene.write(T0, "b")
    scene.clock.sleep(5)

    with pytest.raises(DataLossError, match=f"topic u does not exist .*{HOW_TO_GO_ON}"):
        strict.step()
    assert lenient.step() == {T0: (12, 13)}
    assert positions(lenient.offset).keys() == {T0, T1, T2}
    assert [one.cause_topic for one in scene.events if one.kind is EventKind.DATA_LOSS] == ["u"]


# --- lost records -----------------------------------------------------------------------------------------------------


def recreate(scene: Scene) -> None:
    """With more records than before, so that offsets alone do not tell."""
    scene.cluster.create_topic("t", 3)
    scene.fill(batches=10)


def recreate_smaller(scene: Scene) -> None:
    scene.cluster.create_topic("t", 1)
    scene.write(T0, *"0123456789abcdef")


def delete(scene: Scene) -> None:
    del scene.cluster.topics["t"]


LOSSES: dict[str, tuple[Any, str, dict[TopicPartition, tuple[int, int]]]] = {
    "truncated": (
        lose_the_end,
        "the log of t-0 ends at offset 6, before offset 12 up to which it was read: it was truncated",
        {T0: (6, 7)},
    ),
    "made again": (
        recreate,
        r"topic t was deleted and made again \(topic id {old}, now {new}\)",
        {T0: (0, 31), T1: (0, 30), T2: (0, 30)},
    ),
    "made again, smaller": (
        recreate_smaller,
        r"topic t was deleted and made again \(topic id {old}, now {new}\): t-0 was read up to offset 12, and its new "
        "log ends at 16",
        {T0: (0, 17)},
    ),
    "deleted": (delete, "a topic or partition that was being read is gone: topic t does not exist", {}),
}


def lose(scene: Scene, happens: Any) -> None:
    happens(scene)
    scene.clock.sleep(300)


@pytest.mark.parametrize(("happens", "said"), [one[:2] for one in LOSSES.values()], ids=LOSSES.keys())
def test_loss_ends_the_query_and_the_error_says_what_is_lost(scene: Scene, happens: Any, said: str) -> None:
    query = Query(scene)
    query.step()
    old_id = scene.cluster.topics["t"].topic_id
    lose(scene, happens)
    topic = scene.cluster.topics.get("t")
    how_to = HOW_TO_FOLLOW if "made again" in said else HOW_TO_GO_ON
    expected = said.replace("{old}", str(old_id)).replace("{new}", str(topic and topic.topic_id))

    with pytest.raises(DataLossError, match=f"{expected}.*{how_to}"):
        query.step()


TOLD_BY_EVENTS = {
    "truncated": [("t", 0, 12)],
    "made again": [("t", 0, 12), ("t", 1, 12), ("t", 2, 12)],
    "made again, smaller": [("t", 0, 12), ("t", 1, 12), ("t", 2, 12)],
    "deleted": [("t", 0, 12), ("t", 1, 12), ("t", 2, 12)],
}


@pytest.mark.parametrize("loss", LOSSES)
def test_query_goes_on_behind_the_loss_if_that_is_allowed(
    scene: Scene, caplog: pytest.LogCaptureFixture, loss: str
) -> None:
    happens, _, expected = LOSSES[loss]
    query = Query(scene, **GO_ON)
    query.step()
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
    assert [record.levelno for record in caplog.records if "going on, as failOnDataLoss says" in record.message]
    events = [one for one in scene.events if one.kind is EventKind.DATA_LOSS]
    told = [(one.cause_topic, one.cause_partition, one.lost_from_offset) for one in events]
    assert told == TOLD_BY_EVENTS[loss]
    assert caplog.records[0].levelno == logging.WARNING


RECREATED = {
    "earliest, whatever failOnDataLoss says": (
        {"onTopicRecreated": "earliest"},
        {T0: (0, 30), T1: (0, 30), T2: (0, 30)},
    ),
    "latest": ({"onTopicRecreated": "latest"}, {}),
    "latest, losses allowed": ({"onTopicRecreated": "latest", **GO_ON}, {}),
}


@pytest.mark.parametrize(("options", "expected"), RECREATED.values(), ids=RECREATED.keys())
def test_policy_says_where_to_go_on_in_a_topic_that_was_made_again(
    scene: Scene, options: dict[str, str], expected: dict[TopicPartition, tuple[int, int]]
) -> None:
    query = Query(scene, **options)
    query.step()
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
    query = Query(scene, **options)
    query.step()
    scene.cluster.create_topic("t", 4)
    for one in (T0, T1, T2, T3):
        scene.write(one, "again")

    assert query.step() == expected


def query_whose_topic_was_away_before_it_was_made_again(scene: Scene, **options: str) -> Query:
    """It is u, which has one record again."""
    scene.cluster.create_topic("u", 1)
    query = Query(scene, **PATTERN, **options, **GO_ON)
    query.step()
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
def test_policy_covers_a_topic_that_was_away_before_it_was_made_again(
    scene: Scene, options: dict[str, str], expected: tuple[int, int] | None
) -> None:
    assert query_whose_topic_was_away_before_it_was_made_again(scene, **options).step().get(U0) == expected


def test_a_narrower_query_that_lost_records_too_says_each_once(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.cluster.create_topic("u", 1)
    first = Query(scene, subscribe="t,u", startingOffsets="earliest")
    first.step()
    query = Query(scene, subscribe="t", **GO_ON)
    query.offset = first.offset
    lose_the_end(scene)
    query.step()

    assert caplog.text.count("which the query asks for no more") == 1
    assert caplog.text.count("it was truncated") == 1


def test_policy_to_fail_covers_a_topic_that_was_away_before_it_was_made_again(scene: Scene) -> None:
    query = query_whose_topic_was_away_before_it_was_made_again(scene, onTopicRecreated="fail")

    for _ in range(2):
        with pytest.raises(DataLossError, match=f"topic u was deleted and made again .*{HOW_TO_FOLLOW}"):
            query.step()


NARROWER = {
    "subscribe": ({"subscribe": "t,u"}, {"subscribe": "t"}),
    "pattern": ({"subscribePattern": "^[tu]$"}, {"subscribePattern": "^t$"}),
    "assign": ({"assign": '{"t":[0,1,2],"u":[0]}'}, {"assign": '{"t":[0,1,2]}'}),
}


@pytest.mark.parametrize(("before", "now"), NARROWER.values(), ids=NARROWER.keys())
def test_query_that_asks_for_less_than_its_checkpoint_has_is_told_so(
    scene: Scene, before: dict[str, str], now: dict[str, str]
) -> None:
    scene.cluster.create_topic("u", 1)
    first = Query(scene, **before, startingOffsets="earliest")
    first.step()
    strict, lenient = Query(scene, **now), Query(scene, **now, **GO_ON)
    strict.offset = lenient.offset = first.offset
    scene.write(T0, "later")

    with pytest.raises(
        DataLossError, match=f"the checkpoint has u-0, which the query asks for no more.*{HOW_TO_GO_ON}"
    ):
        strict.step()
    assert lenient.step() == {T0: (12, 13)}
    assert lenient.step() == {}


def test_policy_covers_partitions_that_the_new_topic_lacks(scene: Scene) -> None:
    query = Query(scene, onTopicRecreated="earliest")
    query.step()
    lose(scene, recreate_smaller)

    assert query.step() == {T0: (0, 16)}


def test_policy_covers_the_target_of_a_query_that_ends_behind_the_new_log(scene: Scene) -> None:
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
    query = Query(scene, onTopicRecreated="fail", **GO_ON)
    query.step()
    lose(scene, recreate)

    with pytest.raises(DataLossError, match=HOW_TO_FOLLOW):
        query.step()


def test_policy_for_topics_that_were_made_again_excuses_no_other_loss(scene: Scene) -> None:
    query = Query(scene, onTopicRecreated="earliest")
    query.step()
    lose(scene, lose_the_end)

    with pytest.raises(DataLossError, match="it was truncated"):
        query.step()


def test_topic_that_was_deleted_and_comes_back_is_read_from_its_start(scene: Scene) -> None:
    query = Query(scene, **GO_ON)
    query.step()
    lose(scene, delete)
    query.step()
    lose(scene, recreate)

    assert query.step() == {T0: (0, 30), T1: (0, 30), T2: (0, 30)}


PATTERN = {"subscribePattern": "^[tu]$", "startingOffsets": "earliest"}


def before_offsets_are_asked(scene: Scene, nth: int, happens: Any) -> None:
    """Let it happen just before the nth time from now, from 0."""
    real, left = LeaderOffsets.ask, iter(range(nth, -1, -1))

    def ask(*arguments: Any) -> Any:
        if next(left, -1) == 0:
            happens(scene)
        return real(*arguments)

    scene.monkeypatch.setattr(LeaderOffsets, "ask", ask)


def delete_u(scene: Scene) -> None:
    del scene.cluster.topics["u"]


@pytest.mark.parametrize("nth", [0, 1], ids=["before its end is asked for", "before its start is"])
def test_new_topic_that_is_deleted_while_it_is_planned_fails_no_query_that_allows_loss(scene: Scene, nth: int) -> None:
    query = Query(scene, **PATTERN, **GO_ON)
    query.step()
    scene.cluster.create_topic("u", 1)
    scene.write(T0, "new")
    scene.clock.sleep(300)
    before_offsets_are_asked(scene, nth, delete_u)

    assert query.step() == {T0: (12, 13)}


def test_topic_made_again_and_deleted_while_it_is_planned_is_told_once_as_lost(scene: Scene) -> None:
    scene.cluster.create_topic("u", 1)
    scene.write(TopicPartition("u", 0), "old")
    query = Query(scene, **PATTERN, **GO_ON)
    query.step()
    scene.cluster.create_topic("u", 1)
    scene.clock.sleep(300)
    scene.events.clear()
    retries = 3
    before_offsets_are_asked(scene, 1 + retries, delete_u)

    assert query.step() == {}
    losses = [(one.cause_topic, one.lost_from_offset) for one in scene.events if one.kind is EventKind.DATA_LOSS]
    assert losses == [("u", 1)]


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
    scene.wire.metadata_errors["t"] = 3
    scene.clock.at(1, scene.wire.metadata_errors.clear)
    scene.cluster.move_leader(TopicPartition("u", 0), 3)


BOTH = {"subscribe": "t,u", "startingOffsets": "earliest"}
NOTHING_READ = SourceOffset({}, {})
PLANS: dict[str, Any] = {
    "new query": (0, lambda scene: scene.planner(**BOTH).next_offset(BEGINNING, None, False).topic_ids),
    "micro-batch": (0, lambda scene: scene.planner(**BOTH).next_offset(NOTHING_READ, None, False).topic_ids),
    "batch, asked for ends": (
        1,
        lambda scene: {one.partition.topic: one.topic_id for one in batch_planner(scene, **BOTH).batch_ranges()},
    ),
}


@pytest.mark.parametrize(("nth", "plan"), PLANS.values(), ids=PLANS.keys())
def test_topic_that_is_unknown_for_a_moment_leaves_no_plan_without_its_id(scene: Scene, nth: int, plan: Any) -> None:
    scene.cluster.create_topic("u", 1)
    scene.write(TopicPartition("u", 0), "one")
    before_offsets_are_asked(scene, nth, hide_t_for_a_moment)

    assert plan(scene) == {topic: scene.cluster.topics[topic].topic_id for topic in ("t", "u")}


def test_start_that_has_aged_out_is_told_once_however_often_it_is_planned(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.cluster.create_topic("u", 1)
    del scene.cluster.logs[T0][0]
    starts = json.dumps({"t": {"0": 1, "1": 0, "2": 0}, "u": {"0": 0}})
    before_offsets_are_asked(scene, 2, hide_t_for_a_moment)
    planner = scene.planner(subscribe="t,u", startingOffsets=starts, **GO_ON)

    assert begins(planner)[T0] == 3
    assert len(scene.sent("ListOffsets")) > 3 * 4, "it was planned more than once"
    assert [one.kind for one in scene.events].count(EventKind.DATA_LOSS) == 1
    assert caplog.text.count("names offset 1 of t-0, and its log starts at 3") == 1


def test_end_that_has_aged_out_tells_of_no_loss_behind_it(scene: Scene) -> None:
    del scene.cluster.logs[T0][:2]
    options = {"startingOffsets": "earliest", "endingOffsets": offsets_json(p0=4, p1=-1, p2=-1)}
    found = batch_planner(scene, **options, **GO_ON).batch_ranges()

    assert spans(found)[T0] == (6, 6)
    assert [one for one in scene.events if one.kind is EventKind.DATA_LOSS] == []


def lag(scene: Scene, node_id: int, topic: TopicMetadata) -> None:
    """This broker tells the topic as it was."""
    now, scene.cluster.topics["t"] = scene.cluster.topics["t"], topic
    scene.wire.cut_off(node_id)
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
    query = Query(scene, startingOffsets="earliest", **options)
    query.step()
    if restarted:
        query.planner = scene.planner(**options)
    lag(scene, 1 if restarted else scene.sent("Metadata")[-1], old)
    scene.write(T0, "new")
    scene.clock.sleep(300)

    assert query.step() == {T0: (30, 31)}
    assert caplog.records == []


def test_new_query_whose_topic_is_made_again_while_it_is_planned_begins_in_the_new_one(
    scene: Scene, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, happens = LogEnds.confirmed, iter([recreate_smaller])

    def confirmed(*arguments: Any) -> SourceOffset:
        for happen in happens:
            lose(scene, happen)
        return real(*arguments)

    monkeypatch.setattr(LogEnds, "confirmed", confirmed)
    query = Query(scene, startingOffsets="earliest")

    assert query.step() == {T0: (0, 16)}
    assert query.offset.topic_ids == {"t": scene.cluster.topics["t"].topic_id}
    assert caplog.records == []
    assert [event for event in scene.events if event.kind is EventKind.DATA_LOSS] == []


def test_assigned_partition_that_is_gone_is_waited_for_once(scene: Scene) -> None:
    query = Query(scene, assign='{"t":[0,1,2]}', **GO_ON)
    query.step()
    lose(scene, lambda scene: scene.cluster.create_topic("t", 2))
    query.step()
    scene.clock.sleep(10)
    began, asked = scene.clock(), len(scene.sent("Metadata"))

    query.step()
    assert (scene.clock() - began, len(scene.sent("Metadata")) - asked) == (0, 0)


def test_topic_that_is_not_seen_for_a_while_is_not_read_again(scene: Scene) -> None:
    query = Query(scene, **GO_ON)
    query.step()
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
def test_topic_that_is_not_seen_for_a_while_beside_others_is_read_on_where_it_was_left(
    scene: Scene, options: dict[str, str]
) -> None:
    u = TopicPartition("u", 0)
    scene.cluster.create_topic("u", 1)
    scene.write(u, "0", "1")
    query = Query(scene, **PATTERN, **GO_ON, **options)
    query.step()
    for seen in (2, 3):
        hidden = scene.cluster.topics.pop("u")
        lose(scene, lambda scene: scene.write(T0, "new"))
        assert query.step().keys() == {T0}

        scene.cluster.topics["u"] = hidden
        lose(scene, lambda scene: scene.write(u, "while it was not seen"))
        assert query.step() == {u: (seen, seen + 1)}
    losses = [(one.cause_topic, one.lost_from_offset) for one in scene.events if one.kind is EventKind.DATA_LOSS]
    assert losses == [("u", 2), ("u", 3)]


def test_topic_that_comes_back_with_an_earlier_end_for_a_moment_is_not_read_twice(scene: Scene) -> None:
    u = TopicPartition("u", 0)
    scene.cluster.create_topic("u", 1)
    scene.write(u, "0")
    scene.write(u, "1")
    query = Query(scene, **PATTERN, **GO_ON)
    query.step()
    hidden = scene.cluster.topics.pop("u")
    lose(scene, lambda scene: scene.write(T0, "new"))
    query.step()
    full = list(scene.cluster.logs[u])
    scene.cluster.topics["u"] = hidden
    lose(scene, lambda scene: scene.cluster.logs.update({u: full[:1]}))
    assert query.step() == {}

    scene.cluster.logs[u] = full
    scene.write(u, "while it was not seen")
    assert query.step() == {u: (2, 3)}


@pytest.mark.parametrize("options", [{}, GO_ON], ids=["fail", "go on"])
def test_kafka_7703_smaller_latest_for_a_moment_is_asked_again_and_is_no_loss(
    scene: Scene, options: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(scene, **options)
    query.step()
    full = list(scene.cluster.logs[T0])
    lose_the_end(scene)
    asked = len(scene.sent("ListOffsets"))
    scene.clock.at(2.5, lambda: scene.cluster.logs.update({T0: [*full]}))

    assert query.step() == {}
    assert len(scene.sent("ListOffsets")) == asked + 3 * (1 + 3)
    assert positions(query.offset)[T0] == 12
    assert caplog.records == []


def test_a_loss_is_called_one_after_as_many_retries_as_are_allowed(scene: Scene) -> None:
    query = Query(scene, **{"fetchOffset.numRetries": "1", "fetchOffset.retryIntervalMs": "7000"})
    query.step()
    lose_the_end(scene)
    asked, began = len(scene.sent("ListOffsets")), scene.clock()

    with pytest.raises(DataLossError):
        query.step()
    assert len(scene.sent("ListOffsets")) == asked + 2 * 3
    assert scene.clock() - began == pytest.approx(7, abs=0.5)


# --- open transactions ------------------------------------------------------------------------------------------------


def test_query_that_becomes_read_committed_waits_for_the_transaction_and_repeats_nothing(scene: Scene) -> None:
    """Its checkpoint lies behind the last stable offset, and that is no truncation."""
    start = scene.planner(startingOffsets="latest").next_offset(BEGINNING, None, limited=False)
    scene.wire.open_transactions[T0] = positions(start)[T0] - 2
    planner = scene.planner(kafka_isolation_level="read_committed")

    assert positions(planner.next_offset(restored(start), None, limited=False)) == positions(start)
    del scene.wire.open_transactions[T0]
    scene.write(T0, "later")
    later = planner.next_offset(restored(start), None, limited=False)
    assert positions(later)[T0] == positions(start)[T0] + 1


def test_starting_offset_behind_an_open_transaction_is_no_mistake(scene: Scene) -> None:
    end = scene.cluster.bounds(T0)[1]
    scene.wire.open_transactions[T0] = end - 2
    named = json.dumps({"t": {"0": end - 1, "1": -2, "2": -2}})
    planner = scene.planner(kafka_isolation_level="read_committed", startingOffsets=named)

    assert begins(planner)[T0] == end - 1


def test_available_now_passes_over_a_deleted_topic_where_that_is_allowed(scene: Scene) -> None:
    scene.cluster.create_topic("u", partitions=1)
    planner = scene.planner(subscribe="t,u", failOnDataLoss="false", kafka_metadata_max_age_ms="5000")
    assert len(planner.available_now()) == 4
    del scene.cluster.topics["u"]
    scene.clock.sleep(10)
    assert len(planner.available_now()) == 3
