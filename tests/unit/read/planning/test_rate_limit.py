"""Rate limits: how much a micro-batch reads, and whether it is delayed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafka_meta.model import Position, TopicPartition
from pyspark_kafka_meta.read.planning.batch_plan import backlog, is_delayed, limit_offsets

INT64_MAX = 2**63 - 1

LIMITS = {
    "shares in proportion": ([0, 0], [100, 300], 40, [10, 30]),
    "shares are rounded down": ([0, 0, 0], [10, 10, 10], 10, [3, 3, 3]),
    "small partitions do not starve": ([0, 0, 0], [101, 11, 1], 10, [8, 1, 1]),
    "a limit below the number of partitions": ([0, 0, 0], [1000, 1000, 1000], 1, [1, 1, 1]),
    "a limit beyond the backlog": ([5, 5], [7, 9], 100, [7, 9]),
    "no backlog": ([5, 5], [5, 5], 10, [5, 5]),
    "an end before its start is left as it is": ([5, 0], [3, 100], 10, [3, 10]),
    "SPARK-26718 a limit of Long.MaxValue": ([5, 5], [INT64_MAX, 6], INT64_MAX, [INT64_MAX, 6]),
}


@pytest.mark.parametrize(("starts", "latest", "limit", "ends"), LIMITS.values(), ids=LIMITS.keys())
def test_a_limit_is_shared_by_backlog(starts: list[int], latest: list[int], limit: int, ends: list[int]) -> None:
    limited = limit_offsets(
        {TopicPartition("t", number): Position(offset, 1) for number, offset in enumerate(starts)},
        {TopicPartition("t", number): Position(partition, 2) for number, partition in enumerate(latest)},
        limit,
    )

    assert [limited[TopicPartition("t", number)] for number in range(len(ends))] == [Position(end, 2) for end in ends]


@given(st.lists(st.tuples(st.integers(0, 2**62), st.integers(0, 2**62)), max_size=8), st.integers(1, INT64_MAX))
def test_a_limited_batch_stays_in_bounds_and_serves_every_backlog(spans: list[tuple[int, int]], limit: int) -> None:
    starts = {TopicPartition("t", number): Position(start) for number, (start, _) in enumerate(spans)}
    latest = {TopicPartition("t", number): Position(start + size) for number, (start, size) in enumerate(spans)}

    limited = limit_offsets(starts, latest, limit)

    read = {partition: limited[partition].offset - starts[partition].offset for partition in latest}
    assert sum(read.values()) <= limit + len(spans)
    assert all(limited[partition].offset <= latest[partition].offset for partition in latest)
    assert all(read[partition] > 0 for partition in latest if latest[partition].offset > starts[partition].offset)


def test_a_backlog_counts_no_partition_that_lies_before_its_start() -> None:
    t0, t1 = TopicPartition("t", 0), TopicPartition("t", 1)

    assert backlog({t0: Position(5), t1: Position(9)}, {t0: Position(12), t1: Position(3)}) == 7


@pytest.mark.parametrize(
    ("backlog", "waited_ms", "delayed"),
    [(9, 0, True), (9, 999, True), (9, 1000, False), (10, 0, False), (0, 1000, False), (0, None, False)],
)
def test_a_small_batch_is_delayed_for_the_delay(backlog: int, waited_ms: float | None, delayed: bool) -> None:
    assert is_delayed(backlog, 10, waited_ms, 1000) is delayed
