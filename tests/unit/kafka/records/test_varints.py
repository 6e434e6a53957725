"""`varints` writes what `handmade.varint` writes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafka_meta.kafka.records.encoder import varint_bytes, varints
from tests.unit.kafka.records.handmade import varint

EDGES = sorted({sign * 2**bits + step for bits in range(63) for sign in (1, -1) for step in (-1, 0, 1)})
NUMBERS = st.sampled_from([*EDGES, -(2**63), 2**63 - 1]) | st.integers(-(2**63), 2**63 - 1) | st.integers(-100, 100)


@given(rows=st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), max_size=20))
def test_rows_of_varints(rows: list[tuple[int, int, int]]) -> None:
    columns = np.array(rows, np.int64).reshape(len(rows), 3).T

    assert varints(*columns).to_pylist() == [b"".join(map(varint, row)) for row in rows]


@given(numbers=st.lists(NUMBERS, max_size=20))
def test_sizes_of_varints(numbers: list[int]) -> None:
    assert varint_bytes(np.array(numbers, np.int64)).tolist() == [len(varint(number)) for number in numbers]


@pytest.mark.parametrize("numbers", [[], [0], [63, 64, -64, -65], [-(2**31), 2**31 - 1]])
def test_numbers_of_32_bits(numbers: list[int]) -> None:
    assert varints(np.array(numbers, np.int32)).to_pylist() == [varint(number) for number in numbers]
