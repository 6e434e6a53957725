"""Lengths followed together and one by one, held to records laid out by hand."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_kafka_meta.records import record_lengths
from pyspark_kafka_meta.records.record_fields import PADDING_BYTES, Bytes, Ints
from pyspark_kafka_meta.records.record_lengths import follow_lengths, follow_records
from tests.unit.records.handmade import BASE_MS, Row, record, varint

VALUES = st.one_of(
    st.binary(max_size=70),
    st.integers(0, 300).map(bytes),
    # Values that hold records themselves, of which some begin where they would if they were the batch's.
    st.lists(st.integers(0, 20), max_size=4).map(lambda offsets: b"".join(record(Row(offset)) for offset in offsets)),
)
BATCHES = st.lists(st.lists(VALUES, min_size=1, max_size=20), min_size=1, max_size=4)
SIZES = st.one_of(st.integers(-1, 70), st.sampled_from([8191, 8192, 8193, 70_000]))
GROUPS = st.lists(st.lists(SIZES, min_size=1, max_size=12), min_size=1, max_size=60)


def arrays(data: bytes, at: list[int], counts: list[int], ends: list[int]) -> tuple[Bytes, Ints, Ints, Ints]:
    at_each, count_of_each, end_of_each = (np.array(column, np.int32) for column in (at, counts, ends))
    return np.frombuffer(data + bytes([0xFF]) * PADDING_BYTES, np.uint8), at_each, count_of_each, end_of_each


def follow(data: bytes, at: list[int], counts: list[int], ends: list[int]) -> list[int]:
    return list(follow_lengths(*arrays(data, at, counts, ends)))


class Log(NamedTuple):
    """Gapless batches one behind the other, and where their records begin."""

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
def test_each_thing_starts_where_the_one_before_ends(groups: list[list[int]]) -> None:
    data, at, ends, starts = bytearray(), [], [], []
    for sizes in groups:
        data += b"\x7f" * 3  # what lies between groups belongs to none
        at.append(len(data))
        for size in sizes:  # -1 is null, which has no bytes
            starts.append(len(data))
            data += varint(size) + bytes(max(size, 0))
        ends.append(len(data))

    assert follow(bytes(data), at, [len(sizes) for sizes in groups], ends) == starts


@pytest.mark.parametrize("groups", [1, record_lengths.MIN_TOGETHER])
@pytest.mark.parametrize("length", [varint(4), varint(9000), b"\xfe\xff\xff\xff\x0f", b"\xff" * 6])
def test_length_that_leads_beyond_puts_the_rest_at_the_end(length: bytes, groups: int) -> None:
    group = varint(1) + b"x" + length + b"yyy"
    at = [len(group) * number for number in range(groups)]
    ends = [start + len(group) for start in at]

    found = follow(group * groups, at, [4] * groups, ends)

    assert found == [start for first, end in zip(at, ends, strict=True) for start in (first, first + 2, end, end)]


@given(batches=BATCHES)
@settings(deadline=None)
def test_guesses_do_not_change_where_records_are(batches: list[list[bytes]]) -> None:
    log = log_of(batches)
    with (
        mock.patch.object(record_lengths, "MIN_GUESSED_RECORDS", 1),
        mock.patch.object(record_lengths, "MIN_TOGETHER", 1),
    ):
        assert follow_records(*arrays(*log[:4])).tolist() == log.starts


RNG = random.Random(5)
CONTENTS: dict[str, Callable[[], bytes]] = {
    "text": lambda: b"%x" % RNG.getrandbits(400),
    "any bytes": lambda: RNG.randbytes(RNG.randrange(80, 120)),
    "zeros": lambda: bytes(RNG.randrange(80, 120)),
    "numbers": lambda: np.array(RNG.choices(range(-200, 200), k=12), "<i8").tobytes(),
    "now and then a large one": lambda: b"x" * int(RNG.paretovariate(1.2) * 30),
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS.keys())
def test_few_batches_of_many_records_are_followed_in_hundreds_of_groups(content: Callable[[], bytes]) -> None:
    log = log_of([[content() for _ in range(6000)] for _ in range(2)])

    with mock.patch.object(record_lengths, "follow_lengths", wraps=follow_lengths) as followed:
        assert follow_records(*arrays(*log[:4])).tolist() == log.starts

    (once,) = followed.call_args_list
    _, _, counts, _ = once.args
    assert len(counts) > 256
    assert np.median(counts) < 100


def test_guesses_that_were_wrong_are_forgotten() -> None:
    """Some values begin with records that could be the batch's own: nothing but following it tells them apart."""
    values = [b"x" * 20] * 12_000
    for offset in range(0, 11_000, 100):
        values[offset] = record(Row(offset + 2)) + record(Row(offset + 3)) + b"x" * 300
    log = log_of([values])

    with mock.patch.object(record_lengths, "follow_lengths", wraps=follow_lengths) as followed:
        assert follow_records(*arrays(*log[:4])).tolist() == log.starts

    assert followed.call_count == 2
