"""`ReusableBuffer`: a reusable buffer for fetched bytes and decompressed records."""

from __future__ import annotations

import sys

import numpy as np

OWN_REFERENCES = 2
"""References to unused memory: the attribute and the argument of `getrefcount`."""


class ReusableBuffer:
    """Reuses one buffer, because new memory pages took a fifth of the time of a read. The buffer grows to the largest
    requested size; the system backs only the pages that were written."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)

    def of(self, size: int) -> memoryview:
        """`size` bytes of arbitrary content. A buffer that is still referenced is not reused."""
        return self.whole(size)[:size]

    def whole(self, min_size: int) -> memoryview:
        """The whole buffer, at least `min_size` bytes. As `of`."""
        if len(self._bytes) < min_size or sys.getrefcount(self._bytes) > OWN_REFERENCES:
            self._bytes = np.empty(0, np.uint8)  # frees the buffer before the next is allocated
            self._bytes = np.empty(min_size, np.uint8)
        return self._bytes.data
