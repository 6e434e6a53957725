"""Lengths followed together and one by one, held to records laid out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from handmade import varint
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafka_meta.records import fields
from pyspark_kafka_meta.records.fields import PADDING_BYTES, follow_lengths

SIZES = st.one_of(st.integers(-1, 70), st.sampled_from([8191, 8192, 8193, 70_000]))
GROUPS = st.lists(st.lists(SIZES, min_size=1, max_size=12), min_size=1, max_size=60)


def follow(data: bytes, at: list[int], counts: list[int], ends: list[int]) -> list[int]:
    payload = np.frombuffer(data + bytes([0xFF]) * PADDING_BYTES, np.uint8)
    columns = (np.array(column, np.int32) for column in (at, counts, ends))
    return follow_lengths(payload, *columns).tolist()


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


@pytest.mark.parametrize("groups", [1, fields.MIN_TOGETHER])
@pytest.mark.parametrize("length", [varint(4), varint(9000), b"\xfe\xff\xff\xff\x0f", b"\xff" * 6])
def test_length_that_leads_beyond_puts_the_rest_at_the_end(length: bytes, groups: int) -> None:
    group = varint(1) + b"x" + length + b"yyy"
    at = [len(group) * number for number in range(groups)]
    ends = [start + len(group) for start in at]

    found = follow(group * groups, at, [4] * groups, ends)

    assert found == [start for first, end in zip(at, ends, strict=True) for start in (first, first + 2, end, end)]
