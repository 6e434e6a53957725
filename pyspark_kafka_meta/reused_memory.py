"""`ReusedMemory`: room for fetched bytes and decompressed records, which come and go many times a second."""

from __future__ import annotations

import sys

import numpy as np

_OURS = 2
"""References to memory that is not used elsewhere: the attribute, and the question itself."""


class ReusedMemory:
    """The same memory again and again, because fresh pages cost as much as what is written into them: a fifth of the
    time that a read took. It grows to what was asked for most, and takes no more of it than is written to."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)

    def of(self, size: int) -> memoryview:
        """`size` bytes, with any content. What was handed out before is left alone as long as it is referenced."""
        if len(self._bytes) < size or sys.getrefcount(self._bytes) > _OURS:
            self._bytes = np.empty(size, np.uint8)
        return self._bytes[:size].data
