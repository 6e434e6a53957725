"""Varints, which Avro and Protobuf share: 7 bits in each byte, the lowest first; the highest bit says that another byte
follows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

STOP_BITS = np.uint64(0x8080808080808080)
"""The highest bit of each byte of a word: 0 in the last byte of a varint."""

_GROUPS = (
    # Of bits in a word: which move down, by how many, and which stay. Seven bits of each byte become 14, 28 and 56.
    (np.uint64(0x7F007F007F007F00), np.uint64(1), np.uint64(0x007F007F007F007F)),
    (np.uint64(0x3FFF00003FFF0000), np.uint64(2), np.uint64(0x00003FFF00003FFF)),
    (np.uint64(0x0FFFFFFF00000000), np.uint64(4), np.uint64(0x000000000FFFFFFF)),
)


def join_sevens(words: npt.NDArray[np.uint64]) -> None:
    """Join the lower 7 bits of the bytes of each word, in place: pairs of bytes, then pairs of pairs, then both
    halves."""
    words &= ~STOP_BITS
    for moving, bits, staying in _GROUPS:
        moved = words & moving
        moved >>= bits
        words &= staying
        words |= moved
