"""Unscaled numbers of decimals become words of Arrow's decimals."""

from __future__ import annotations

import numpy as np

from pyspark_kafka_meta.arrow_arrays import Bytes, Flags, Longs, numbers_at

_DECIMAL_BYTES = 16


def big_endian_words(data: Bytes, at: Longs, length: Longs, precision: int) -> tuple[Longs, Flags]:
    """Numbers as low and high word, and which of them have no bytes, or more digits than the precision.

    Args:
        data: at least 8 bytes.
        at, length: of big-endian numbers of any length, with sign.
    """
    bad = length == 0
    low = numbers_at(data, at, ">i8").astype(np.int64) >> (64 - 8 * np.clip(length, 1, 8))
    words = np.stack([low, low >> 63], axis=1)
    long = np.flatnonzero((length > 8) | (at > len(data) - 8))
    if long.size:
        words[long], has_more = _words(data, at[long], length[long])
        bad[long] |= has_more
    return words, bad | ~_has_digits(words, precision)


def _words(data: Bytes, at: Longs, length: Longs) -> tuple[Longs, Flags]:
    """Big-endian numbers of any length as low and high word, and whether they have more than 128 bits."""
    place = np.arange(_DECIMAL_BYTES)
    numbers = data.take((at + length)[:, None] - 1 - place, mode="clip")
    sign = (data.take(at, mode="clip").view(np.int8) >> 7).view(np.uint8)
    numbers = np.where(place < length[:, None], numbers, sign[:, None])
    has_more = np.zeros(len(at), np.bool_)
    for row in np.flatnonzero(length > _DECIMAL_BYTES).tolist():
        lead = data[at[row] : at[row] + length[row] - _DECIMAL_BYTES]
        has_more[row] = (lead != sign[row]).any() or (numbers[row, -1] ^ sign[row]) > 0x7F
    return numbers.view("<i8"), has_more


def _has_digits(words: Longs, precision: int) -> Flags:
    """Whether numbers, as low and high word, have at most so many digits."""
    low, high = words[:, 0].view(np.uint64), words[:, 1]

    def less(limit: int) -> Flags:
        limit_low, limit_high = np.uint64(limit & 2**64 - 1), np.int64(limit >> 64)
        is_less: Flags = (high < limit_high) | ((high == limit_high) & (low < limit_low))
        return is_less

    return less(10**precision) & ~less(1 - 10**precision)
