"""Planning: ranges into tasks. Cases named after a JIRA are those of Spark's KafkaOffsetRangeCalculatorSuite."""

from __future__ import annotations

from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafka_meta.model import NO_EPOCH, OffsetRange, TopicPartition
from pyspark_kafka_meta.read.planning.batch_plan import BUNDLE_OFFSETS, SPLIT_OFFSETS, SPLIT_TASKS, plan_tasks
from tests.cpu_time import least_cpu_s

TOPIC_ID = UUID(int=7)


def a_range(partition: int, start: int, end: int) -> OffsetRange:
    return OffsetRange(TopicPartition("t", partition), TOPIC_ID, start, end, start_epoch=3)


def spans(tasks: list[tuple[OffsetRange, ...]]) -> list[list[tuple[int, int, int]]]:
    """Each task as (partition, from, until) triples."""
    return [
        [(planned.partition.partition, planned.from_offset, planned.until_offset) for planned in task] for task in tasks
    ]


LIKE_SPARK = {
    "enough ranges": (3, [(1, 1, 2), (2, 1, 2), (3, 1, 2)], [(1, 1, 2), (2, 1, 2), (3, 1, 2)]),
    "one into four": (4, [(1, 1, 5)], [(1, 1, 2), (1, 2, 3), (1, 3, 4), (1, 4, 5)]),
    "skewed": (4, [(1, 1, 5), (2, 1, 21)], [(1, 1, 5), (2, 1, 7), (2, 7, 14), (2, 14, 21)]),
    "SPARK-30656 an empty and a large": (4, [(1, 1, 1), (2, 1, 21)], [(2, 1, 6), (2, 6, 11), (2, 11, 16), (2, 16, 21)]),
    "SPARK-30656 very skewed": (4, [(1, 1, 2), (2, 1, 1001)], [(1, 1, 2), (2, 1, 334), (2, 334, 667), (2, 667, 1001)]),
    "inexact multiple": (3, [(1, 1, 11)], [(1, 1, 4), (1, 4, 7), (1, 7, 11)]),
    "empty are dropped": (4, [(1, 1, 5), (2, 1, 21), (3, 1, 1)], [(1, 1, 5), (2, 1, 7), (2, 7, 14), (2, 14, 21)]),
    "SPARK-28489 never drop offsets": (
        6,
        [(1, 0, 10), (2, 0, 10), (3, 0, 1)],
        [(1, 0, 3), (1, 3, 6), (1, 6, 10), (2, 0, 3), (2, 3, 6), (2, 6, 10), (3, 0, 1)],
    ),
    "SPARK-36576 no small and three large": (
        9,
        [(1, 0, 10000), (2, 0, 15000), (3, 0, 20000)],
        [
            *[(1, 0, 5000), (1, 5000, 10000), (2, 0, 5000), (2, 5000, 10000), (2, 10000, 15000)],
            *[(3, 0, 5000), (3, 5000, 10000), (3, 10000, 15000), (3, 15000, 20000)],
        ],
    ),
    "SPARK-36576 one small and two large": (
        6,
        [(1, 0, 500), (2, 0, 12000), (3, 0, 15001)],
        [(1, 0, 500), (2, 0, 6000), (2, 6000, 12000), (3, 0, 5000), (3, 5000, 10000), (3, 10000, 15001)],
    ),
    "SPARK-36576 two small and one large": (
        6,
        [(1, 0, 1), (2, 0, 1), (3, 0, 10000)],
        [(1, 0, 1), (2, 0, 1), (3, 0, 2500), (3, 2500, 5000), (3, 5000, 7500), (3, 7500, 10000)],
    ),
    "more tasks than offsets": (9, [(1, 5, 7)], [(1, 5, 6), (1, 6, 7)]),
    "more pieces than an offset each, uneven": (4, [(1, 0, 10)], [(1, 0, 2), (1, 2, 4), (1, 4, 7), (1, 7, 10)]),
}


@pytest.mark.parametrize(("min_partitions", "ranges", "expected"), LIKE_SPARK.values(), ids=LIKE_SPARK.keys())
def test_min_partitions_splits_like_spark(
    min_partitions: int, ranges: list[tuple[int, int, int]], expected: list[tuple[int, int, int]]
) -> None:
    tasks = plan_tasks([a_range(*numbers) for numbers in ranges], {}, min_partitions)

    assert spans(tasks) == [[span] for span in expected]


def test_min_partitions_below_the_number_of_ranges_splits_nothing() -> None:
    ranges = [a_range(1, 1, 5), a_range(2, 1, 21)]

    assert [planned for task in plan_tasks(ranges, {}, 1) for planned in task] == ranges


def test_nothing_to_read_is_no_task() -> None:
    assert plan_tasks([], {}) == []
    assert plan_tasks([a_range(0, 5, 5)], {}, 4) == []


def test_a_big_range_is_cut_into_near_even_pieces() -> None:
    tasks = plan_tasks([a_range(0, 10, 10 + 2 * SPLIT_OFFSETS + 1)], {})

    assert spans(tasks) == [[(0, 10, 666_677)], [(0, 666_677, 1_333_344)], [(0, 1_333_344, 2_000_011)]]


def test_only_the_first_piece_of_a_cut_range_knows_the_epoch_before_it() -> None:
    (first, *others) = [task[0] for task in plan_tasks([a_range(0, 0, 3 * SPLIT_OFFSETS)], {})]

    assert first.start_epoch == 3
    assert [(planned.start_epoch, planned.topic_id) for planned in others] == [(NO_EPOCH, TOPIC_ID)] * 2


def test_small_ranges_of_one_leader_share_a_task() -> None:
    ranges = [a_range(partition, 0, 10) for partition in range(100)]

    assert spans(plan_tasks(ranges, {})) == [[(partition, 0, 10) for partition in range(100)]]


def test_a_range_as_large_as_a_bundle_stands_alone_and_comes_first() -> None:
    ranges = [a_range(0, 0, 1), a_range(1, 0, BUNDLE_OFFSETS), a_range(2, 0, 1)]

    assert spans(plan_tasks(ranges, {})) == [[(1, 0, BUNDLE_OFFSETS)], [(0, 0, 1), (2, 0, 1)]]


def test_a_bundle_crosses_leaders_only_where_that_saves_a_task() -> None:
    size = BUNDLE_OFFSETS // 5
    ranges = [a_range(partition, 0, size) for partition in range(14)]
    leaders = {planned.partition: planned.partition.partition % 2 for planned in ranges}

    tasks = spans(plan_tasks(ranges, leaders))

    assert [[partition for partition, _, _ in task] for task in tasks] == [
        [0, 2, 4, 6, 8],
        [1, 3, 5, 7, 9],
        [10, 12, 11, 13],
    ]


def test_bundles_of_two_leaders_that_do_not_fit_together_stay_apart() -> None:
    size = BUNDLE_OFFSETS // 2 - 1
    ranges = [a_range(partition, 0, size) for partition in range(4)]
    leaders = {planned.partition: planned.partition.partition % 2 for planned in ranges}

    tasks = spans(plan_tasks(ranges, leaders))

    assert [[partition for partition, _, _ in task] for task in tasks] == [[0, 2], [1, 3]]


def test_bundling_leaves_as_many_tasks_as_min_partitions_asks_for() -> None:
    ranges = [a_range(partition, 0, 10) for partition in range(100)]

    tasks = plan_tasks(ranges, {}, 10)

    assert 10 <= len(tasks) <= 20
    assert max(len(task) for task in tasks) <= 10


ranges_of_partitions = st.lists(
    st.tuples(st.integers(0, 2**62), st.one_of(st.integers(0, 10), st.integers(0, 200_000), st.integers(0, 4_000_000))),
    max_size=12,
).map(lambda spans: [a_range(partition, start, start + size) for partition, (start, size) in enumerate(spans)])


@given(
    ranges_of_partitions,
    st.lists(st.integers(-1, 3), min_size=12),
    st.none() | st.integers(1, 60),
    st.none() | st.integers(50_000, 2**40),
    st.none() | st.integers(1, 60),
)
def test_tasks_tile_the_ranges_whatever_the_limits_are(
    ranges: list[OffsetRange],
    leader_ids: list[int],
    min_partitions: int | None,
    max_records: int | None,
    max_tasks: int | None,
) -> None:
    leaders = {TopicPartition("t", partition): leader for partition, leader in enumerate(leader_ids)}

    tasks = plan_tasks(ranges, leaders, min_partitions, max_records, max_tasks)

    for whole in ranges:
        pieces = [piece for task in tasks for piece in task if piece.partition == whole.partition]
        pieces.sort(key=lambda piece: piece.from_offset)
        assert all(piece.size > 0 for piece in pieces)
        assert all(before.until_offset == after.from_offset for before, after in pairwise(pieces))
        ends = (pieces[0].from_offset, pieces[-1].until_offset, pieces[0].start_epoch) if pieces else None
        assert ends == ((whole.from_offset, whole.until_offset, 3) if whole.size else None)
    assert all(len({planned.partition for planned in task}) == len(task) > 0 for task in tasks)
    nonempty = sum(planned.size > 0 for planned in ranges)
    assert len(tasks) >= min(min_partitions or 1, nonempty, max_tasks or nonempty)
    if max_tasks is not None:
        assert len(tasks) <= max_tasks
    elif max_records is not None:
        assert all(sum(planned.size for planned in task) <= max_records for task in tasks)


@given(st.lists(st.integers(0, 30), max_size=6), st.integers(1, 12))
def test_a_task_has_no_more_than_max_records_and_no_partition_twice(sizes: list[int], max_records: int) -> None:
    tasks = plan_tasks([a_range(number, 5, 5 + size) for number, size in enumerate(sizes)], {}, None, max_records)

    assert all(0 < sum(planned.size for planned in task) <= max_records for task in tasks)
    assert all(len({planned.partition for planned in task}) == len(task) for task in tasks)
    assert sum(planned.size for task in tasks for planned in task) == sum(sizes)


def test_no_number_of_offsets_makes_more_tasks_than_a_driver_can_plan() -> None:
    tasks = plan_tasks([a_range(0, 0, 2**36), a_range(1, 0, 5)], {})

    assert len(tasks) <= SPLIT_TASKS + 2
    assert sum(planned.size for task in tasks for planned in task) == 2**36 + 5


def test_thousands_of_tasks_are_dealt_out_in_the_time_of_a_few_plans_without_their_number() -> None:
    ranges = [a_range(number, 0, 100_000) for number in range(3_000)]

    usual = least_cpu_s(lambda: plan_tasks(ranges, {}))
    assert least_cpu_s(lambda: plan_tasks(ranges, {}, max_tasks=1_000)) < 40 * usual


def test_max_tasks_deals_the_offsets_out_evenly() -> None:
    tasks = plan_tasks([a_range(0, 0, 3 * SPLIT_OFFSETS), a_range(1, 7, 7), a_range(2, 0, 10)], {}, None, None, 2)

    assert spans(tasks) == [[(0, 0, 1_500_005)], [(0, 1_500_005, 3_000_000), (2, 0, 10)]]
    assert [[planned.start_epoch for planned in task] for task in tasks] == [[3], [NO_EPOCH, 3]]
