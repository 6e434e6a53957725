"""The bytes of Protobuf messages: varints of many positions at once, and the fields of one message one by one.

A message is a sequence of fields (https://protobuf.dev/programming-guides/encoding). A field begins with a varint, its
tag: the field number times 8, plus the wire type, which says where the field ends:

    0  a varint: 7 bits in each byte, the lowest first; the highest bit says that another byte follows
    1  8 bytes
    2  a varint with the length of what follows: a string, bytes, a message, or packed numbers
    3  a group: fields up to the tag with wire type 4 of the same number (deprecated)
    5  4 bytes

The limits and what is malformed are those of upb, the decoder of Protobuf's C and Python libraries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from pyspark_kafka_meta.typed.columnar.varints import STOP_BITS, TOO_SHORT, join_sevens, varint_at

if TYPE_CHECKING:
    from pyspark_kafka_meta.arrow_arrays import Bytes, Longs

Raw: TypeAlias = npt.NDArray[np.uint64]

VARINT, FIXED64, LENGTH, GROUP, END_GROUP, FIXED32 = range(6)

MAX_TAG = 2**32 - 1
MAX_VARINT_BYTES = 10
MAX_LENGTH_BYTES = 5
"""Of the varints of tags and lengths."""
MAX_GROUP_DEPTH = 100

BAD_TAG = "a field has number 0 or a wire type that does not exist"
BAD_GROUP = "a group does not end where it should"
DEEP_GROUP = f"more than {MAX_GROUP_DEPTH} groups are nested"

_PADDING_BYTES = 40
"""A tag, a length and two words may be read after the last byte of a message, before a check finds them too long."""
_ONE = np.uint64(1)


class Payload:
    """A copy of bytes, which brings them into the CPU's cache. What follows their end can be read and means nothing."""

    def __init__(self, data: Bytes) -> None:
        self.bytes = np.empty(0, np.uint8)
        self.replace(data)

    def replace(self, data: Bytes) -> None:
        """Copies other bytes, into the same memory if they fit: fresh memory costs as much as the copy."""
        if len(self.bytes) < len(data) + _PADDING_BYTES:
            self.bytes = np.zeros((len(data) + _PADDING_BYTES + 7) // 8 * 8, np.uint8)
            self._words = self.bytes.view("<u8")
        self.bytes[: len(data)] = data

    def words(self, at: Longs) -> Raw:
        """The 8 bytes at each position as a little-endian number. Two aligned reads are four times as fast as one that
        is not aligned."""
        index, bit = at >> 3, (at.view(np.uint64) & np.uint64(7)) << np.uint64(3)
        low, high = self._words.take(index), self._words.take(index + 1)
        words: Raw = low >> bit | high << _ONE << (np.uint64(63) - bit)
        return words

    def varints(self, at: Longs) -> tuple[Raw, Longs]:
        """The varints at these positions, and the positions after them. Bits above the 64th are dropped. A varint of
        more than `MAX_VARINT_BYTES` appears to be one byte longer than that."""
        first = self.bytes.take(at)
        if not (first & 0x80).any():
            return first.astype(np.uint64), at + 1
        second, more = self.bytes.take(at + 1), first >> 7
        if not ((second >> 7) & more).any():
            return (first & 0x7F).astype(np.uint64) | (second * more).astype(np.uint64) << np.uint64(7), at + 1 + more
        words = self.words(at)
        ends = ~words & STOP_BITS
        lowest = ends & (~ends + _ONE)  # the highest bit of the last byte, 0 if more than 8 bytes follow
        raw = words & (lowest - _ONE)
        join_sevens(raw)
        exponent = (lowest.astype(np.float64).view(np.int64) >> 52) - 1023  # 7, 15 ... 63: the position of that bit
        size = exponent + 1 >> 3
        long = np.flatnonzero(lowest == 0)
        if len(long):
            self._append_last_bytes(raw, size, long, at)
        return raw, at + size

    def _append_last_bytes(self, raw: Raw, size: Longs, rows: Longs, at: Longs) -> None:
        """The ninth and tenth byte of the varints of these rows."""
        ninth, tenth = self.bytes.take(at[rows] + 8), self.bytes.take(at[rows] + 9)
        more = ninth >> 7
        raw[rows] |= (ninth.astype(np.uint64) & 0x7F) << 56 | (tenth & more).astype(np.uint64) << 63
        size[rows] = 9 + more + (more & (tenth >> 7))


class WireField(NamedTuple):
    """A field of one message.

    Attributes:
        at: where its value begins, after tag and length.
        after: where it ends; of a group before the tag that ends it.
        raw: the value of a varint; else 0.
    """

    tag: int
    at: int
    after: int
    raw: int


def wire_fields(data: bytes | memoryview, at: int, end: int) -> Iterator[WireField]:
    """The fields of the message between two positions. Raises ValueError: the message is malformed. The fields before
    were yielded."""
    while at < end:
        tag, at = _tag(data, at, end)
        field, at = _field(data, tag, at, end, 0)
        yield field


def _field(data: bytes | memoryview, tag: int, at: int, end: int, depth: int) -> tuple[WireField, int]:
    """A field, and the position after it."""
    raw = 0
    match tag & 7:
        case 0:
            raw, after = varint_at(data, at, end, MAX_VARINT_BYTES)
        case 1:
            after = at + 8
        case 2:
            length, at = varint_at(data, at, end, MAX_LENGTH_BYTES)
            after = at + length
        case 3:
            after, next_at = _group_end(data, tag, at, end, depth + 1)
            return WireField(tag, at, after, 0), next_at
        case 4:
            raise ValueError(BAD_GROUP)
        case 5:
            after = at + 4
        case _:
            raise ValueError(BAD_TAG)
    if after > end:
        raise ValueError(TOO_SHORT)
    return WireField(tag, at, after, raw), after


def _group_end(data: bytes | memoryview, start_tag: int, at: int, end: int, depth: int) -> tuple[int, int]:
    """Where the tag that ends a group begins and ends."""
    if depth > MAX_GROUP_DEPTH:
        raise ValueError(DEEP_GROUP)
    while at < end:
        before = at
        tag, at = _tag(data, at, end)
        if tag == start_tag + 1:
            return before, at
        _, at = _field(data, tag, at, end, depth)
    raise ValueError(BAD_GROUP)


def _tag(data: bytes | memoryview, at: int, end: int) -> tuple[int, int]:
    tag, at = varint_at(data, at, end, MAX_LENGTH_BYTES)
    if not 8 <= tag <= MAX_TAG:
        raise ValueError(BAD_TAG)
    return tag, at
