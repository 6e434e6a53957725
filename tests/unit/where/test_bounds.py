"""Offsets and times that a condition excludes before records are read."""

from __future__ import annotations

import random
import tracemalloc

import pyarrow as pa
import pytest

from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.where.bounds import FIRST, LAST, spans
from pyspark_kafka_meta.where.syntax import parse_condition
from tests.where_cases import masked

PARTITIONS = (TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b-c", 0))
ALL, NONE = (FIRST, LAST), (LAST, FIRST)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("offset >= 5", [(5, LAST)] * 3),
        ("5 < offset AND OFFSET <= 9", [(6, 9)] * 3),
        ("offset BETWEEN 5L AND 9", [(5, 9)] * 3),
        ("offset IN (7, 3, NULL)", [ALL] * 3),
        ("offset IN (7, 3)", [(3, 7)] * 3),
        ("offset = 5 AND offset = 6", [NONE] * 3),
        ("NOT offset >= 5 OR offset != 3 OR offset > 1.5 OR offset <=> NULL", [ALL] * 3),
        ("topic = 'a' AND partition IN (1, 2)", [NONE, ALL, NONE]),
        ("NOT topic LIKE 'a%'", [NONE, NONE, ALL]),
        ("topic = NULL", [NONE] * 3),
        ("(topic = 'a' AND offset >= 5) OR (partition = 0 AND offset < 3)", [ALL, (5, LAST), (FIRST, 2)]),
        ("(partition = 1 AND offset = 5 AND offset = 6) OR offset = 8", [(8, 8)] * 3),
        ("headers['x'] = 'y' OR offset > 5", [ALL] * 3),
        ("offset < -9223372036854775808", [(FIRST, FIRST)] * 3),
    ],
)
def test_offsets_are_bounded_in_each_partition(text: str, expected: list[tuple[int, int]]) -> None:
    firsts, lasts = spans(parse_condition(text), "offset", PARTITIONS)
    assert list(zip(firsts.tolist(), lasts.tolist(), strict=True)) == expected


def test_times_are_bounded_by_literals_with_a_zone() -> None:
    condition = parse_condition("timestamp > TIMESTAMP '1970-01-01 00:00:00Z' AND timestamp IS NOT NULL AND offset > 7")
    firsts, lasts = spans(condition, "timestamp", PARTITIONS[:1])
    assert (firsts.tolist(), lasts.tolist()) == ([1], [LAST])


def test_no_row_of_which_a_condition_is_true_is_outside_its_span() -> None:
    rng = random.Random(60)

    def made(depth: int) -> str:
        if depth and rng.random() < 0.7:
            return f"{rng.choice(['', '', 'NOT '])}({made(depth - 1)} {rng.choice(['AND', 'OR'])} {made(depth - 1)})"
        operator, number = rng.choice(["=", "!=", "<", "<=", ">", ">=", "<=>"]), rng.randrange(8)
        leaves = (
            f"offset {operator} {number}",
            f"{number} {operator} offset",
            f"partition = {number % 2}",
            "topic = 'a'",
        )
        return rng.choice(leaves)

    rows = [(each, offset) for each in PARTITIONS for offset in range(10)]
    batch = pa.RecordBatch.from_pylist(
        [{"topic": each.topic, "partition": each.partition, "offset": offset} for each, offset in rows],
        pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())]),
    )
    for _ in range(300):
        text = made(4)
        firsts, lasts = (each.tolist() for each in spans(parse_condition(text), "offset", PARTITIONS))
        for (place, offset), is_true in zip(rows, masked(text, batch), strict=True):
            at = PARTITIONS.index(place)
            assert not is_true or firsts[at] <= offset <= lasts[at], text


def test_a_long_list_takes_no_memory_for_each_literal_and_partition() -> None:
    partitions = [TopicPartition("t", number) for number in range(2_000)]
    condition = parse_condition(f"offset IN ({', '.join(map(str, range(2_000)))})")
    tracemalloc.start()
    try:
        firsts, lasts = spans(condition, "offset", partitions)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (set(firsts.tolist()), set(lasts.tolist())) == ({0}, {1_999})
    assert peak_bytes < 4_000_000
