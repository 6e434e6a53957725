"""Planning queries that begin with the latest record of each key."""

from __future__ import annotations

import json
import logging

import pytest

from pyspark_kafka_meta.errors import CheckpointError, OptionError
from pyspark_kafka_meta.model import OffsetRange
from pyspark_kafka_meta.options import SourceOptions, choose_table
from pyspark_kafka_meta.options.offsets import LatestByKeySpec
from pyspark_kafka_meta.read.planning.batch_plan import plan_tasks
from pyspark_kafka_meta.read.planning.checkpoint_offsets import BEGINNING, SourceOffset, ranges
from pyspark_kafka_meta.read.planning.offset_planner import OffsetPlanner
from tests.checkpoints import text
from tests.partitions import T0, T1, T2
from tests.unit.read.planning.queries import Query, ends_now
from tests.unit.scene import Scene

BY_KEY = {"startingOffsets": "latestByKey"}
ALL = {T0: (0, 12), T1: (0, 12), T2: (0, 12)}


# --- streams ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [{}, {"maxOffsetsPerTrigger": "5"}, {"minOffsetsPerTrigger": "500"}])
def test_micro_batch_0_has_the_log_by_key_and_later_ones_every_record(scene: Scene, limit: dict[str, str]) -> None:
    query = Query(scene, **BY_KEY, **limit)

    assert query.step() == ALL
    assert [planned.latest_by_key for planned in ranges(BEGINNING, query.offset)] == [True] * 3
    scene.write(T0, "next")
    start = query.offset
    query.step(limited=False)
    assert ranges(start, query.offset) == [OffsetRange(T0, scene.cluster.topics["t"].topic_id, 12, 13, 0, 0)]


def test_an_idle_stream_plans_no_empty_micro_batch_after_the_first(scene: Scene) -> None:
    query = Query.started(scene, **BY_KEY)
    recorded = text(query.offset)
    query.step()

    assert text(query.offset) == recorded


def test_a_run_of_available_now_ends_micro_batch_0_at_its_target(scene: Scene) -> None:
    target = ends_now(scene)
    scene.write(T0, "later")
    query = Query(scene, target, **BY_KEY, maxOffsetsPerTrigger="5")

    assert query.step() == ALL
    assert query.step() == {}


def test_the_checkpoint_says_how_to_repeat_micro_batch_0_whatever_the_options_are_then(scene: Scene) -> None:
    query = Query.started(scene, **BY_KEY)
    scene.write(T0, "later")
    restarted = scene.planner(startingOffsets="latest")
    repeated = restarted.ranges(BEGINNING, SourceOffset.parse(json.loads(text(query.offset))))

    assert {planned.partition: (planned.from_offset, planned.until_offset) for planned in repeated} == ALL
    assert all(planned.latest_by_key for planned in repeated)


def test_another_value_than_true_is_refused() -> None:
    with pytest.raises(CheckpointError, match="latestByKey is not true"):
        SourceOffset.parse({"latestByKey": False, "topics": {}, "version": 1})


# --- batches ----------------------------------------------------------------------------------------------------------


def test_table_latest_reads_each_partition_from_its_start_by_key(scene: Scene) -> None:
    ends = '{"t":{"0":12,"1":-1,"2":5}}'
    options = scene.options(endingOffsets=ends).for_batch(latest_by_key=True)
    planned = OffsetPlanner(scene.client(), options).batch_ranges()

    assert [(each.from_offset, each.until_offset, each.latest_by_key) for each in planned] == [
        (0, 12, True),
        (0, 12, True),
        (0, 5, True),
    ]


@pytest.mark.parametrize("limits", [{}, {"max_records": 5}, {"min_partitions": 9}, {"max_tasks": 1}])
def test_each_partition_is_one_task(limits: dict[str, int]) -> None:
    by_key = [
        OffsetRange(partition, None, 0, end, latest_by_key=True) for partition, end in ((T0, 5), (T1, 10**7), (T2, 0))
    ]
    assert plan_tasks(by_key, {T0: 1, T1: 1, T2: 1}, **limits) == [(by_key[1],), (by_key[0],)]


# --- options ----------------------------------------------------------------------------------------------------------

GIVEN = {"kafka.bootstrap.servers": "h:9092", "subscribe": "t"}


@pytest.mark.parametrize("written", ["latestByKey", " latestbykey "])
def test_latest_by_key_is_a_start_of_streams_alone(written: str) -> None:
    options = SourceOptions.parse({**GIVEN, "startingOffsets": written})

    assert options.for_stream().starting_offsets == LatestByKeySpec()
    with pytest.raises(OptionError, match="can't be latestByKey for batch queries: set table to latest instead"):
        options.for_batch()


def test_options_that_divide_or_begin_a_batch_have_no_effect_in_table_latest(caplog: pytest.LogCaptureFixture) -> None:
    divided = {"minPartitions": "9", "startingOffsets": "earliest", "startingTimestamp": "1", "endingOffsets": "latest"}
    with caplog.at_level(logging.WARNING):
        _, used = choose_table({**GIVEN, **divided, "table": "latest"})

    assert used == {**GIVEN, "endingOffsets": "latest"}
    for name in divided.keys() - used.keys():
        assert f"Option '{name}' has no effect in table latest" in caplog.text
