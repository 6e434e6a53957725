"""Finds the fields of many records at once with numpy, after `boundaries` has found their starts.

Source: `DefaultRecord` in Apache Kafka. Numbers are zigzag varints, at most 5 bytes for 32 and 10 bytes for 64 bits:

    length             bytes after this field
    attributes         1 byte, unused
    timestamp delta    64 bits, ms after the batch's base timestamp; may be negative
    offset delta       from the batch's base offset
    key length         -1 for null; the key follows
    value length       -1 for null; the value follows
    header count       the headers follow: key length, key, value length, value

Every length is checked against its record before it is used as an index.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from pyspark_kafka_meta.errors import CorruptBatchError

Bytes: TypeAlias = npt.NDArray[np.uint8]
Ints: TypeAlias = npt.NDArray[np.int32]
Longs: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]
Locate: TypeAlias = Callable[[int], str]
"""Describes the location of the record at an index, for an error text."""

PADDING_BYTES = 32
"""How far after a record's end the checks may read: an attributes byte and three varints precede the first check."""


class Fields(NamedTuple):
    """Positions and lengths of the fields of n records in their payload, bytes. A length of -1 is null."""

    timestamp_delta: Longs
    offset_delta: Ints
    key_at: Ints
    key_length: Ints
    value_at: Ints
    value_length: Ints
    headers_at: Ints
    header_count: Ints
    end: Ints

    def select(self, rows: Flags) -> Fields:
        return Fields._make(column[rows] for column in self)


def find_fields(payload: Bytes, starts: Ints, ends: Ints, locate: Locate) -> Fields:
    """The fields of the records between these positions. At least `PADDING_BYTES` follow the last end. Raises
    CorruptBatchError: a length or a varint is wrong, or a record does not end where it should."""
    length, at = read_varints(payload, starts, locate)
    require(length == ends - at, "records do not end where they should", locate)
    timestamp_delta, at = read_varlongs(payload, at + 1, locate)
    offset_delta, at = read_varints(payload, at, locate)
    key_length, key_at = read_varints(payload, at, locate)
    at = _end_of(key_at, key_length, ends, "key", locate)
    value_length, value_at = read_varints(payload, at, locate)
    at = _end_of(value_at, value_length, ends, "value", locate)
    header_count, headers_at = read_varints(payload, at, locate)
    # A header has at least two bytes.
    require((header_count >= 0) & (header_count <= (ends - headers_at) >> 1), "a header count is wrong", locate)
    require((header_count > 0) | (headers_at == ends), "a record has bytes that belong to no field", locate)
    return Fields(
        timestamp_delta, offset_delta, key_at, key_length, value_at, value_length, headers_at, header_count, ends
    )


def read_varints(payload: Bytes, at: Ints, locate: Locate) -> tuple[Ints, Ints]:
    """The zigzag varints of up to 32 bits at these positions, and the positions after the varints."""
    raw, after, has_more = _read_unsigned(payload, at, np.dtype(np.uint32), 5)
    require(~has_more, "a varint has more than 5 bytes", locate)
    return ((raw >> 1) ^ -(raw & 1)).view(np.int32), after


def read_varlongs(payload: Bytes, at: Ints, locate: Locate) -> tuple[Longs, Ints]:
    """The zigzag varints of up to 64 bits at these positions, and the positions after the varints."""
    raw, after, has_more = _read_unsigned(payload, at, np.dtype(np.uint64), 10)
    require(~has_more, "a varint has more than 10 bytes", locate)
    return ((raw >> 1) ^ -(raw & 1)).view(np.int64), after


def guess_offset_deltas(payload: Bytes, attributes_at: Ints) -> Ints:
    """The offset deltas at the positions of possible records; negative where a record is impossible."""
    _, at, _ = _read_unsigned(payload, attributes_at + 1, np.dtype(np.uint64), 10)
    raw, _, has_more = _read_unsigned(payload, at, np.dtype(np.uint32), 5)
    return np.where(has_more | (raw & 1 > 0), -1, (raw >> 1).view(np.int32))


def require(holds: Flags, problem: str, locate: Locate) -> None:
    """Raise CorruptBatchError with the problem and the location of the first record that fails a check."""
    if not holds.all():
        raise CorruptBatchError(f"{locate(int(np.argmin(holds)))}: {problem}")


def _read_unsigned(
    payload: Bytes, at: Ints, kind: np.dtype[Any], max_bytes: int
) -> tuple[npt.NDArray[Any], Ints, Flags]:
    """Reads all varints together, byte by byte. Returns values, positions after them, and which are too long.

    `take` is a third faster than an index. Two bytes at a time, by a table of all pairs, are slower: not aligned.
    """
    byte = payload.take(at)
    value = (byte & 0x7F).astype(kind)
    after = at + 1
    more = byte >> 7
    for size in range(1, max_bytes):
        if not more.any():
            break
        byte = payload.take(after)
        value |= ((byte & 0x7F) * more).astype(kind) << 7 * size
        after += more
        more &= byte >> 7
    return value, after, more > 0


def _end_of(at: Ints, length: Ints, ends: Ints, name: str, locate: Locate) -> Ints:
    size = np.maximum(length, 0)
    require((length >= -1) & (size <= ends - at), f"a {name} length is wrong", locate)
    return at + size
