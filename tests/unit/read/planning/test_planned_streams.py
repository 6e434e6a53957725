"""What the micro-batches of a stream are to read."""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_kafka_meta.errors import DataLossError, OptionError
from pyspark_kafka_meta.model import Position, TopicPartition
from pyspark_kafka_meta.options import EARLIEST_OFFSET
from pyspark_kafka_meta.read.planning.checkpoint_offsets import BEGINNING, SourceOffset, ranges
from tests.checkpoints import restored, text
from tests.partitions import T0, T1, T2, T3
from tests.unit.read.planning.changes import plan_again
from tests.unit.read.planning.queries import GO_ON, Query, add_partition, begins, offsets_json, positions, spans
from tests.unit.scene import Scene


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
    query = Query.started(scene)
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
    assert {partition: at.offset for partition, at in query.offset.start.items()} == {T0: 12, T1: 12, T2: 12}
    assert spans(ranges(BEGINNING, query.offset)) == {}
    assert query.step() == {T0: (12, 13)}


NO_MORE: dict[str, tuple[dict[str, str], Any]] = {
    "partitions not named": ({"startingOffsets": '{"t":{"0":5,"1":5,"2":5}}'}, lambda scene: add_partition(scene, T3)),
    "a time that no record is as late as": ({"startingTimestamp": "1"}, lambda scene: add_partition(scene, T3)),
    "an offset that was cut off": (
        {"startingOffsets": '{"t":{"0":12,"1":5,"2":5}}'},
        lambda scene: scene.cluster.logs.__setitem__(T0, scene.cluster.logs[T0][:1]),
    ),
}


@pytest.mark.parametrize(("options", "happens"), NO_MORE.values(), ids=NO_MORE.keys())
def test_batch_0_is_replayed_if_its_options_do_not_fit(scene: Scene, options: dict[str, str], happens: Any) -> None:
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
    query = Query.started(scene)
    add_partition(scene, T3, "first", "second")
    scene.clock.sleep(300)

    assert query.step() == {T3: (0, 2)}
    scene.write(T3, "third")
    assert query.step() == {T3: (2, 3)}


def test_new_partitions_are_read_from_their_end_if_the_option_says_so(scene: Scene) -> None:
    query = Query.started(scene, newPartitions="latest")
    add_partition(scene, T3, "first", "second")
    scene.clock.sleep(300)

    assert query.step() == {}
    scene.write(T3, "third")
    assert query.step() == {T3: (2, 3)}


def add_partition_that_aged_out(scene: Scene) -> None:
    """Two of the three records of the new partition are gone."""
    add_partition(scene, T3, "first", "second")
    scene.write(T3, "third")
    del scene.cluster.logs[T3][0]
    scene.clock.sleep(300)


LATE = "t-3 is new and its log starts at offset 2"


def test_new_partition_with_an_aged_out_start_ends_the_query(scene: Scene) -> None:
    query = Query.started(scene)
    add_partition_that_aged_out(scene)

    for _ in range(2):
        with pytest.raises(DataLossError, match=f"{LATE}.*set the option failOnDataLoss to false"):
            query.step()


def test_new_partition_with_an_aged_out_start_begins_where_its_log_does_if_that_is_allowed(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query.started(scene, **GO_ON)
    add_partition_that_aged_out(scene)

    assert query.step() == {T3: (2, 3)}
    assert query.step() == {}
    assert caplog.text.count(LATE) == 1
    assert scene.losses() == [(T3, 0, 2)]


def test_aged_out_start_is_recorded_once_though_the_plan_is_made_again(scene: Scene) -> None:
    query = Query.started(scene, **GO_ON)
    add_partition_that_aged_out(scene)
    plan_again(scene)

    assert query.step() == {T3: (2, 3)}
    assert scene.losses() == [(T3, 0, 2)]


def test_aged_out_start_is_no_loss_if_new_partitions_are_read_from_their_end(scene: Scene) -> None:
    query = Query.started(scene, newPartitions="latest")
    add_partition_that_aged_out(scene)

    assert query.step() == {}
    assert scene.losses() == []


def test_recreated_topic_whose_own_first_records_aged_out_lost_them_too(scene: Scene) -> None:
    query = Query.started(scene, onTopicRecreated="earliest", **GO_ON)
    scene.cluster.create_topic("t", 3)
    scene.fill()
    del scene.cluster.logs[T1][0]
    scene.clock.sleep(300)

    assert query.step() == {T0: (0, 12), T1: (3, 12), T2: (0, 12)}
    assert (T1, 0, 3) in scene.losses()


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


def test_the_first_batch_is_not_put_off_though_it_is_planned_again(scene: Scene) -> None:
    """Its initial offset is no end of a batch: Spark would log it, and no start could read it."""
    query = Query(scene, startingOffsets="earliest", minOffsetsPerTrigger="1000")
    plan_again(scene)

    assert query.step() == dict.fromkeys((T0, T1, T2), (0, 12))


def test_a_new_partition_is_not_put_off(scene: Scene) -> None:
    query = Query.started(scene, minOffsetsPerTrigger="5")
    add_partition(scene, T3, "first")
    scene.clock.sleep(300)

    assert query.step() == {T3: (0, 1)}


def test_the_delay_counts_from_the_micro_batch_that_a_new_partition_began(scene: Scene) -> None:
    query = Query.started(scene, minOffsetsPerTrigger="5", maxTriggerDelay="10m")
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
    assert {partition: [step[partition] for step in steps if partition in step] for partition in (T0, T1, T2)} == {
        T0: [(0, 7), (7, 12), (12, 13)],
        T1: [(0, 2), (2, 5)],
        T2: [],
    }


def test_migrated_batch_reads_a_new_partition_from_its_log_start(scene: Scene) -> None:
    del scene.cluster.logs[T1][0]
    start = SourceOffset({T0: Position(5)}, {"t": None})
    end = SourceOffset({T0: Position(7), T1: Position(9)}, {"t": None}, start={T1: Position(EARLIEST_OFFSET)})

    assert spans(scene.planner(**GO_ON).ranges(start, restored(end))) == {T0: (5, 7), T1: (3, 9)}
    assert scene.losses() == [(T1, 0, 3)]
