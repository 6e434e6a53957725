"""The column decoder of decimals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pyspark_kafka_meta.arrow_arrays import Bytes, Flags, Longs, numbers_at
from pyspark_kafka_meta.typed.avro.columns import Slices, check
from pyspark_kafka_meta.typed.avro.cursor import Cursor

BAD_DECIMAL = "a decimal has no bytes, or more digits than its type"

_DECIMAL_BYTES = 16


@dataclass(frozen=True)
class Decimal(Slices):
    """An unscaled number in bytes, big-endian, with sign.

    Attributes:
        scale: of the writer, at most that of the type.
    """

    type: pa.DataType
    field: str
    fixed_bytes: int | None = None
    scale: int = 0

    def read(self, cursor: Cursor) -> pa.Array:
        at, length = cursor.slices(self.fixed_bytes, self.field)
        memory, bad = cursor.memory, length == 0
        low = numbers_at(memory.data, at, ">i8").astype(np.int64) >> (64 - 8 * np.clip(length, 1, 8))
        words = np.stack([low, low >> 63], axis=1)
        long = np.flatnonzero((length > 8) | (at > len(memory.data) - 8))
        if long.size:
            words[long], has_more = _words(memory.data, at[long], length[long])
            bad[long] |= has_more
        more = self.type.scale - self.scale
        bad |= ~_has_digits(words, max(self.type.precision - more, 0))
        check(cursor, bad, BAD_DECIMAL, self.field)
        if not more:
            return pa.Array.from_buffers(self.type, len(at), [None, pa.py_buffer(words)])
        words[bad] = 0
        kind = pa.decimal128(max(self.type.precision - more, self.scale, 1), self.scale)
        return pa.Array.from_buffers(kind, len(at), [None, pa.py_buffer(words)]).cast(self.type)


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
