"""Starts of records found by numpy and by the plain loop equal the known starts."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_kafka_meta.kafka.records import boundaries
from pyspark_kafka_meta.kafka.records.boundaries import find_record_starts, find_starts
from pyspark_kafka_meta.kafka.records.fields import PADDING_BYTES, Bytes, Ints
from tests.unit.kafka.records.handmade import BASE_MS, Row, record, varint

VALUES = st.one_of(
    st.binary(max_size=70),
    st.integers(0, 300).map(bytes),
    # Values that contain records, some of which could be the batch's own.
    st.lists(st.integers(0, 20), max_size=4).map(lambda offsets: b"".join(record(Row(offset)) for offset in offsets)),
)
BATCHES = st.lists(st.lists(VALUES, min_size=1, max_size=20), min_size=1, max_size=4)
SIZES = st.one_of(st.integers(-1, 70), st.sampled_from([8191, 8192, 8193, 70_000]))
GROUPS = st.lists(st.lists(SIZES, min_size=1, max_size=12), min_size=1, max_size=60)


def arrays(data: bytes, at: list[int], counts: list[int], ends: list[int]) -> tuple[Bytes, Ints, Ints, Ints]:
    at_array, count_array, end_array = (np.array(column, np.int32) for column in (at, counts, ends))
    return np.frombuffer(data + bytes([0xFF]) * PADDING_BYTES, np.uint8), at_array, count_array, end_array


def starts_of(data: bytes, at: list[int], counts: list[int], ends: list[int]) -> list[int]:
    return list(find_starts(*arrays(data, at, counts, ends)))


class Log(NamedTuple):
    """Adjacent batches without offset gaps, and the starts of their records."""

    data: bytes
    at: list[int]
    counts: list[int]
    ends: list[int]
    starts: list[int]


def log_of(batches: Sequence[Sequence[bytes]]) -> Log:
    data = bytearray()
    log = Log(b"", [], [], [], [])
    for values in batches:
        log.at.append(len(data))
        log.counts.append(len(values))
        for offset, value in enumerate(values):
            log.starts.append(len(data))
            data += record(Row(offset, b"key", value, BASE_MS + offset % 7, (("h", value[:9]),) if value else None))
        log.ends.append(len(data))
    return log._replace(data=bytes(data))


@given(groups=GROUPS)
def test_each_item_starts_at_the_end_of_the_item_before(groups: list[list[int]]) -> None:
    data, at, ends, starts = bytearray(), [], [], []
    for sizes in groups:
        data += b"\x7f" * 3  # bytes between groups belong to no group
        at.append(len(data))
        for size in sizes:  # -1 is null and has no bytes
            starts.append(len(data))
            data += varint(size) + bytes(max(size, 0))
        ends.append(len(data))

    assert starts_of(bytes(data), at, [len(sizes) for sizes in groups], ends) == starts


@pytest.mark.parametrize("groups", [1, boundaries.MIN_TOGETHER])
@pytest.mark.parametrize("length", [varint(4), varint(9000), b"\xfe\xff\xff\xff\x0f", b"\xff" * 6])
def test_length_beyond_the_group_puts_the_other_starts_at_its_end(length: bytes, groups: int) -> None:
    group = varint(1) + b"x" + length + b"yyy"
    at = [len(group) * number for number in range(groups)]
    ends = [start + len(group) for start in at]

    starts = starts_of(group * groups, at, [4] * groups, ends)

    assert starts == [start for first, end in zip(at, ends, strict=True) for start in (first, first + 2, end, end)]


@given(batches=BATCHES)
@settings(deadline=None)
def test_guesses_do_not_change_the_starts(batches: list[list[bytes]]) -> None:
    log = log_of(batches)
    with mock.patch.object(boundaries, "MIN_GUESSED_RECORDS", 1), mock.patch.object(boundaries, "MIN_TOGETHER", 1):
        assert find_record_starts(*arrays(*log[:4])).tolist() == log.starts


RNG = random.Random(5)
CONTENTS: dict[str, Callable[[], bytes]] = {
    "text": lambda: b"%x" % RNG.getrandbits(400),
    "any bytes": lambda: RNG.randbytes(RNG.randrange(80, 120)),
    "zeros": lambda: bytes(RNG.randrange(80, 120)),
    "numbers": lambda: np.array(RNG.choices(range(-200, 200), k=12), "<i8").tobytes(),
    "a few large values": lambda: b"x" * int(RNG.paretovariate(1.2) * 30),
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS.keys())
def test_few_batches_of_many_records_are_split_into_hundreds_of_groups(content: Callable[[], bytes]) -> None:
    log = log_of([[content() for _ in range(6000)] for _ in range(2)])

    with mock.patch.object(boundaries, "find_starts", wraps=find_starts) as find:
        assert find_record_starts(*arrays(*log[:4])).tolist() == log.starts

    (call,) = find.call_args_list
    _, _, counts, _ = call.args
    assert len(counts) > 256
    assert np.median(counts) < 100


def test_wrong_guesses_are_not_used() -> None:
    """Some values begin with records that could be the batch's own: only their lengths prove that they are not."""
    values = [b"x" * 20] * 12_000
    for offset in range(0, 11_000, 100):
        values[offset] = record(Row(offset + 2)) + record(Row(offset + 3)) + b"x" * 300
    log = log_of([values])

    with mock.patch.object(boundaries, "find_starts", wraps=find_starts) as find:
        assert find_record_starts(*arrays(*log[:4])).tolist() == log.starts

    assert find.call_count == 2
