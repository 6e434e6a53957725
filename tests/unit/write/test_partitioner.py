"""`Partitioner` chooses the partitions that Kafka's producer chooses. `murmur2` equals Kafka's, with vectors of Kafka's
`UtilsTest` and a plain version that hashes one key at a time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import groupby, pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafka_meta.kafka.records.encoder import Records
from pyspark_kafka_meta.write.partitioner import MIN_TOGETHER, Partitioner, RowTopics, murmur2

STICKY_BYTES = 1000
ROW_BYTES = 100


def partitioner(ignore_keys: bool = False, seed: int = 7) -> Partitioner:
    return Partitioner(ignore_keys, STICKY_BYTES, random.Random(seed))


def assign(
    to: Partitioner,
    keys: Sequence[bytes | None],
    chosen: Sequence[int] | None = None,
    topic: str = "t",
    count: int = 6,
    available: Sequence[int] = range(6),
    row_bytes: int = ROW_BYTES,
) -> list[int]:
    column = pa.array(keys, pa.binary())
    records = Records(column, column, None, np.zeros(len(keys), np.int64))
    numbers = None if chosen is None else np.array(chosen, np.int32)
    sizes = np.full(len(keys), row_bytes, np.int64)
    topics = RowTopics([topic], np.zeros(len(keys), np.int32), np.array([count], np.int32))
    return list(to.assign(topics, records, sizes, numbers, lambda _: available).tolist())


def runs(partitions: Sequence[int]) -> list[tuple[int, int]]:
    """Each partition with the number of rows that it got in a row."""
    return [(partition, len(list(group))) for partition, group in groupby(partitions)]


KEYS = [b"key-%d" % number for number in range(50)]


@pytest.mark.parametrize("count", [1, 2, 6, 1000])
def test_key_decides_by_its_hash(count: int) -> None:
    hashes = murmur2(pa.array(KEYS, pa.binary())).tolist()

    assert assign(partitioner(), KEYS, count=count) == [(each & 0x7FFFFFFF) % count for each in hashes]


def test_keys_as_java_partitions_them() -> None:
    """-973932308 and 479470107 are the hashes of these keys in Kafka's `UtilsTest`."""
    assert assign(partitioner(), [b"21", b"abc"], count=10) == [(-973932308 & 0x7FFFFFFF) % 10, 479470107 % 10]


def test_key_may_lead_to_a_partition_without_leader() -> None:
    assert assign(partitioner(), KEYS, available=[0]) == assign(partitioner(), KEYS)


def test_empty_key_is_a_key() -> None:
    assert assign(partitioner(), [b""] * 30) == [(275646681 & 0x7FFFFFFF) % 6] * 30


def test_chosen_partition_comes_before_the_key() -> None:
    by_key = assign(partitioner(), KEYS[:4])

    assert assign(partitioner(), KEYS[:4], chosen=[5, -1, 0, -1]) == [5, by_key[1], 0, by_key[3]]


def test_chosen_partition_may_have_no_leader() -> None:
    assert assign(partitioner(), [None, None], chosen=[4, 5], available=[0]) == [4, 5]


def test_chosen_partitions_are_not_changed() -> None:
    chosen = np.array([-1, 2], np.int32)
    column = pa.nulls(2, pa.binary())

    topics = RowTopics(["t"], np.zeros(2, np.int32), np.array([6], np.int32))
    records = Records(column, column, None, np.zeros(2, np.int64))
    partitioner().assign(topics, records, np.ones(2, np.int64), chosen, lambda _: [0])

    assert chosen.tolist() == [-1, 2]


def test_no_rows() -> None:
    assert assign(partitioner(), []) == []


@pytest.mark.parametrize("rows_per_call", [1, 3, 10, 11, 64, 1000])
def test_rows_without_key_fill_one_partition_after_the_other(rows_per_call: int) -> None:
    to = partitioner()

    partitions = [each for _ in range(0, 1000, rows_per_call) for each in assign(to, [None] * rows_per_call)]

    assert {length for _, length in runs(partitions[:1000])} == {STICKY_BYTES // ROW_BYTES}
    assert {partition for partition, _ in runs(partitions)} == set(range(6))


def test_row_that_crosses_the_limit_is_the_last_of_its_partition() -> None:
    assert {length for _, length in runs(assign(partitioner(), [None] * 400, row_bytes=300))} == {4}


def test_each_row_larger_than_the_limit_gets_another_partition() -> None:
    partitions = assign(partitioner(), [None] * 100, row_bytes=STICKY_BYTES + 1)

    assert all(first != second for first, second in pairwise(partitions))


@pytest.mark.parametrize("available", [[3], [3, 4]])
def test_rows_without_key_go_to_available_partitions(available: list[int]) -> None:
    assert set(assign(partitioner(), [None] * 100, available=available)) == set(available)


def test_without_an_available_partition_all_are_used() -> None:
    assert set(assign(partitioner(), [None] * 1000, available=[])) == set(range(6))


def test_partition_that_is_not_available_any_more_is_left_at_once() -> None:
    to = partitioner()
    (first,) = assign(to, [None])
    others = [partition for partition in range(6) if partition != first]

    assert assign(to, [None], available=others)[0] in others


def test_partition_is_kept_while_its_topic_grows() -> None:
    to = partitioner()
    (first,) = assign(to, [None], count=2, available=[0, 1])

    assert assign(to, [None] * 9, count=100, available=range(100)) == [first] * 9


def test_topics_have_sticky_partitions_of_their_own() -> None:
    to, alone = partitioner(), partitioner()
    together = [(assign(to, [None] * 4, topic="a"), assign(to, [None] * 7, topic="b")) for _ in range(50)]

    for topic in (0, 1):
        rows = [partition for each in together for partition in each[topic]]
        assert {length for _, length in runs(rows)[:-1]} == {10}
    assert assign(alone, [None] * 4) == together[0][0]


@pytest.mark.parametrize("key", [b"key", None])
def test_rows_of_many_topics_get_the_partitions_that_each_topic_alone_gives_them(key: bytes | None) -> None:
    counts = {f"topic-{number}": 1 + number % 7 for number in range(300)}
    names, of_rows = list(counts), np.random.default_rng(7).integers(0, 300, 5_000, np.int32)
    keys = pa.array([None if key is None else key + b"%d" % row for row in range(5_000)], pa.binary())
    records, sizes = Records(keys, keys, None, np.zeros(5_000, np.int64)), np.full(5_000, ROW_BYTES, np.int64)
    topics = RowTopics(names, of_rows, np.array(list(counts.values()), np.int32))

    together = partitioner().assign(topics, records, sizes, None, lambda topic: range(counts[topic]))

    alone = partitioner()
    for number, (topic, count) in enumerate(counts.items()):
        rows = np.flatnonzero(of_rows == number)
        expected = assign(alone, keys.take(rows).to_pylist(), topic=topic, count=count, available=range(count))
        assert together[rows].tolist() == expected


def test_sticky_bytes_count_only_rows_without_key_or_choice() -> None:
    to = partitioner()
    keys = [None, b"key", None] * 100
    chosen = [-1, -1, 5] * 100

    partitions = assign(to, keys, chosen)

    assert {length for _, length in runs(partitions[::3])} == {10}
    assert set(partitions[1::3]) == set(assign(to, [b"key"]))


def test_ignored_keys_are_as_no_keys() -> None:
    keys = KEYS * 2

    assert assign(partitioner(ignore_keys=True), keys) == assign(partitioner(), [None] * len(keys))


def test_chance_decides_the_partitions() -> None:
    assert len({tuple(assign(partitioner(seed=seed), [None] * 30)) for seed in range(20)}) > 10


VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
FEW_OR_MANY = st.sampled_from([1, 2, MIN_TOGETHER + 1])
"""A few keys are hashed by a plain loop."""


def plain_murmur2(key: bytes) -> int:
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ len(key)
    for at in range(0, len(key) // 4 * 4, 4):
        k = int.from_bytes(key[at : at + 4], "little") * m & mask
        h = h * m & mask ^ ((k ^ k >> 24) * m & mask)
    rest = key[len(key) // 4 * 4 :]
    if rest:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    h ^= h >> 15
    return h - (1 << 32) if h >> 31 else h


@pytest.mark.parametrize("times", [1, MIN_TOGETHER])
def test_vectors_of_kafka(times: int) -> None:
    assert murmur2(pa.array([*VECTORS] * times, pa.binary())).tolist() == [*VECTORS.values()] * times


@given(keys=st.lists(st.binary(max_size=40), max_size=20), times=FEW_OR_MANY)
def test_keys_of_any_lengths(keys: list[bytes], times: int) -> None:
    assert murmur2(pa.array(keys * times, pa.binary())).tolist() == [plain_murmur2(key) for key in keys] * times


@given(keys=st.lists(st.none() | st.binary(max_size=10), min_size=2, max_size=10), times=FEW_OR_MANY)
def test_keys_of_a_slice(keys: list[bytes | None], times: int) -> None:
    keys = keys * times

    hashes = murmur2(pa.array(keys, pa.binary())[1:-1])

    assert hashes.tolist() == [plain_murmur2(key or b"") for key in keys[1:-1]]


@pytest.mark.parametrize("length", [*range(20), 255, 1000, 1_000_003])
def test_one_long_key_among_many_short_keys(length: int) -> None:
    rng = random.Random(length)
    keys = [rng.randbytes(rng.randrange(20)) for _ in range(100)]
    keys[50] = rng.randbytes(length)

    assert murmur2(pa.array(keys, pa.binary())).tolist() == [plain_murmur2(key) for key in keys]
