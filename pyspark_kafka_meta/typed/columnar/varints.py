"""Varints, which Avro and Protobuf share: 7 bits in each byte, the lowest first; the highest bit says that another byte
follows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

TOO_SHORT = "a field continues after the end of its message"
LONG_VARINT = "a varint has too many bytes"

STOP_BITS = np.uint64(0x8080808080808080)
"""The highest bit of each byte of a word: 0 in the last byte of a varint."""

_GROUPS = (
    # Of bits in a word: which move down, by how many, and which stay. Seven bits of each byte become 14, 28 and 56.
    (np.uint64(0x7F007F007F007F00), np.uint64(1), np.uint64(0x007F007F007F007F)),
    (np.uint64(0x3FFF00003FFF0000), np.uint64(2), np.uint64(0x00003FFF00003FFF)),
    (np.uint64(0x0FFFFFFF00000000), np.uint64(4), np.uint64(0x000000000FFFFFFF)),
)


def varint_bytes(number: int) -> bytes:
    """Of a number that is not negative."""
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + varint_bytes(rest) if rest else bytes([low])


def zigzag_bytes(number: int) -> bytes:
    """The zigzag varint of a number of up to 64 bits: 0, -1, 1, -2 are written as 0, 1, 2, 3."""
    return varint_bytes(number << 1 ^ number >> 63)


def varint_at(data: bytes | memoryview, at: int, end: int, max_bytes: int) -> tuple[int, int]:
    """A varint, of which bits above the 64th are dropped, and the position after it. Raises ValueError: it has more
    bytes, or does not end before `end`."""
    value = 0
    for shift in range(0, 7 * max_bytes, 7):
        if at >= end:
            raise ValueError(TOO_SHORT)
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
    raise ValueError(LONG_VARINT)


def join_sevens(words: npt.NDArray[np.uint64]) -> None:
    """Join the lower 7 bits of the bytes of each word, in place: pairs of bytes, then pairs of pairs, then both
    halves."""
    words &= ~STOP_BITS
    for moving, bits, staying in _GROUPS:
        moved = words & moving
        moved >>= bits
        words &= staying
        words |= moved
