"""`murmur2` equals Kafka's, with vectors of Kafka's `UtilsTest` and a plain version that hashes one key at a time."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafka_meta.write.partitioner import MIN_TOGETHER, murmur2

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
