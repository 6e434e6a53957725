"""Find the fields of many records at once: numpy over all records, once `lengths` has found where each begins.

Source: `DefaultRecord` in Apache Kafka. Numbers are zigzag varints, at most 5 bytes for 32 and 10 bytes for 64 bits:

    length             of all that follows
    attributes         one byte, unused
    timestamp delta    64 bits, ms after the batch's base timestamp; may be negative
    offset delta       from the batch's base offset
    key length         -1 for null; the key follows
    value length       -1 for null; the value follows
    header count       the headers follow: key length, key, value length, value

Nothing on the wire is trusted: every length is checked against its record before it is used to index.
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
Place: TypeAlias = Callable[[int], str]
"""Says of the record at an index where it is, for an error's text."""

PADDING_BYTES = 32
"""How far behind a record's end its checks may look: an attributes byte and three varints come before the first."""


class Fields(NamedTuple):
    """Where n records have what: positions and lengths in their payload, in bytes. Lengths are -1 for null."""

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


def find_fields(payload: Bytes, starts: Ints, ends: Ints, place: Place) -> Fields:
    """The fields of the records between these positions; behind the last end lie `PADDING_BYTES` or more.

    Raises:
        CorruptBatchError: a length or a varint is wrong, or a record does not end where it should.
    """
    length, at = read_varints(payload, starts, place)
    require(length == ends - at, "records do not end where they should", place)
    timestamp_delta, at = read_varlongs(payload, at + 1, place)
    offset_delta, at = read_varints(payload, at, place)
    key_length, key_at = read_varints(payload, at, place)
    at = _behind(key_at, key_length, ends, "key", place)
    value_length, value_at = read_varints(payload, at, place)
    at = _behind(value_at, value_length, ends, "value", place)
    header_count, headers_at = read_varints(payload, at, place)
    # A header takes two bytes at the least.
    require((header_count >= 0) & (header_count <= (ends - headers_at) >> 1), "a header count is wrong", place)
    require((header_count > 0) | (headers_at == ends), "a record has bytes that belong to no field", place)
    return Fields(
        timestamp_delta, offset_delta, key_at, key_length, value_at, value_length, headers_at, header_count, ends
    )


def read_varints(payload: Bytes, at: Ints, place: Place) -> tuple[Ints, Ints]:
    """The zigzag varints of up to 32 bits at these positions, and the positions behind them."""
    raw, behind, has_more = _read_unsigned(payload, at, np.dtype(np.uint32), 5)
    require(~has_more, "a varint has more than 5 bytes", place)
    return ((raw >> 1) ^ -(raw & 1)).view(np.int32), behind


def read_varlongs(payload: Bytes, at: Ints, place: Place) -> tuple[Longs, Ints]:
    """The zigzag varints of up to 64 bits at these positions, and the positions behind them."""
    raw, behind, has_more = _read_unsigned(payload, at, np.dtype(np.uint64), 10)
    require(~has_more, "a varint has more than 10 bytes", place)
    return ((raw >> 1) ^ -(raw & 1)).view(np.int64), behind


def guess_offset_deltas(payload: Bytes, attributes_at: Ints) -> Ints:
    """Those of what seem to be records; negative where it is none."""
    _, at, _ = _read_unsigned(payload, attributes_at + 1, np.dtype(np.uint64), 10)
    raw, _, has_more = _read_unsigned(payload, at, np.dtype(np.uint32), 5)
    return np.where(has_more | (raw & 1 > 0), -1, (raw >> 1).view(np.int32))


def require(holds: Flags, claim: str, place: Place) -> None:
    """Raise CorruptBatchError with the claim and the place of the first record for which a check does not hold."""
    if not holds.all():
        raise CorruptBatchError(f"{place(int(np.argmin(holds)))}: {claim}")


def _read_unsigned(
    payload: Bytes, at: Ints, kind: np.dtype[Any], max_bytes: int
) -> tuple[npt.NDArray[Any], Ints, Flags]:
    """Byte after byte of all varints together, until none has more; and which are longer than they may be.

    `take` is a third quicker than an index. Two bytes at a time, by a table of all pairs, were slower: not aligned.
    """
    byte = payload.take(at)
    value = (byte & 0x7F).astype(kind)
    behind = at + 1
    more = byte >> 7
    for size in range(1, max_bytes):
        if not more.any():
            break
        byte = payload.take(behind)
        value |= ((byte & 0x7F) * more).astype(kind) << 7 * size
        behind += more
        more &= byte >> 7
    return value, behind, more > 0


def _behind(at: Ints, length: Ints, ends: Ints, what: str, place: Place) -> Ints:
    taken = np.maximum(length, 0)
    require((length >= -1) & (taken <= ends - at), f"a {what} length is wrong", place)
    return at + taken
