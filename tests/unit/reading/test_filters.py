"""Filters that Spark pushes down: what they leave to be read, and which of them Spark applies all the same."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from pyspark_kafka_meta.metadata.model import NO_EPOCH, TopicPartition
from pyspark_kafka_meta.reading.filters import Narrowing, push
from pyspark_kafka_meta.reading.offsets import OffsetRange

TIME = datetime(2024, 5, 17, 12, 0, 0, 1500, UTC)
PLANNED = [OffsetRange(TopicPartition(topic, number), None, 10, 20, 7) for topic in "tu" for number in range(3)]
ALL = {(topic, number, 10, 20) for topic in "tu" for number in range(3)}

EXACT: dict[str, tuple[list[Filter], set[tuple[str, int, int, int]]]] = {
    "topic =": ([EqualTo(("topic",), "u")], {one for one in ALL if one[0] == "u"}),
    "topic in": ([In(("topic",), ("t", "other"))], {one for one in ALL if one[0] == "t"}),
    "partition =": ([EqualTo(("partition",), 1)], {one for one in ALL if one[1] == 1}),
    "partition in": ([In(("partition",), (0, 2, None))], {one for one in ALL if one[1] != 1}),
    "offset =": ([EqualTo(("offset",), 12)], {(*one[:2], 12, 13) for one in ALL}),
    "offset >": ([GreaterThan(("offset",), 12)], {(*one[:2], 13, 20) for one in ALL}),
    "offset >=": ([GreaterThanOrEqual(("offset",), 12)], {(*one[:2], 12, 20) for one in ALL}),
    "offset <": ([LessThan(("offset",), 12)], {(*one[:2], 10, 12) for one in ALL}),
    "offset <=": ([LessThanOrEqual(("offset",), 12)], {(*one[:2], 10, 13) for one in ALL}),
    "offsets that are there anyway": ([GreaterThan(("offset",), 5), LessThan(("offset",), 50)], ALL),
    "offsets behind the end": ([GreaterThan(("offset",), 19)], set()),
    "no offset at all": ([LessThan(("offset",), 12), GreaterThan(("offset",), 15)], set()),
    "the largest offset": ([GreaterThan(("offset",), 2**63 - 1)], set()),
    "a column spelt otherwise": ([EqualTo(("PARTITION",), 1)], {one for one in ALL if one[1] == 1}),
    "two that exclude each other": ([EqualTo(("partition",), 1), In(("partition",), (0, 2))], set()),
    "all at once": (
        [EqualTo(("topic",), "t"), In(("partition",), (1, 2)), EqualTo(("partition",), 2), LessThan(("offset",), 11)],
        {("t", 2, 10, 11)},
    ),
}


def spans(ranges: list[OffsetRange]) -> set[tuple[str, int, int, int]]:
    return {(one.partition.topic, one.partition.partition, one.from_offset, one.until_offset) for one in ranges}


@pytest.mark.parametrize(("filters", "read"), EXACT.values(), ids=EXACT.keys())
def test_filters_that_are_pushed_exactly_are_not_left_to_spark(
    filters: list[Filter], read: set[tuple[str, int, int, int]]
) -> None:
    narrowing, left = push(filters)

    assert left == []
    assert spans(narrowing.apply(PLANNED)) == read


NOT_PUSHED: list[Filter] = [
    Not(EqualTo(("partition",), 1)),
    EqualNullSafe(("partition",), 1),
    IsNotNull(("partition",)),
    EqualTo(("partition",), None),
    EqualTo(("partition", "topic"), 1),
    EqualTo(("value",), b"1"),
    LessThan(("timestamp",), TIME),
    EqualTo(("timestamp",), TIME),
    GreaterThan(("topic",), "t"),
]


@pytest.mark.parametrize("one", NOT_PUSHED, ids=str)
def test_other_filters_are_left_to_spark(one: Filter) -> None:
    assert push([one]) == (Narrowing(), [one])


@pytest.mark.parametrize("kind", [GreaterThan, GreaterThanOrEqual])
def test_a_time_is_a_bound_in_whole_milliseconds_and_spark_looks_at_each_row_too(kind: type[Filter]) -> None:
    filters = [kind(("timestamp",), TIME), kind(("timestamp",), TIME - timedelta(days=1))]
    narrowing, left = push(filters)

    assert left == filters
    assert narrowing == Narrowing(since_ms=int(TIME.timestamp()) * 1000 + 1)
    assert spans(narrowing.apply(PLANNED)) == ALL


def test_no_epoch_is_known_before_a_later_start() -> None:
    [later] = push([GreaterThan(("offset",), 12)])[0].apply(PLANNED[:1])
    [same] = push([LessThan(("offset",), 12)])[0].apply(PLANNED[:1])

    assert (later.start_epoch, same.start_epoch) == (NO_EPOCH, 7)


def test_what_is_pushed_survives_the_way_to_the_planner() -> None:
    narrowing, _ = push([In(("topic",), ("t",)), GreaterThan(("timestamp",), TIME)])

    assert pickle.loads(pickle.dumps(narrowing)) == narrowing
