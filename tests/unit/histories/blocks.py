"""Seeds in blocks, each a case of a test: a failure names its block, and workers share the blocks of a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

QUICK_SEEDS, SLOW_SEEDS = 20, 250
SLOW = (pytest.mark.thorough,)


def blocks(first: int, count: int, marks: Sequence[pytest.MarkDecorator] = ()) -> Iterator[Any]:
    """So many seeds from the first one on."""
    size = SLOW_SEEDS if marks else QUICK_SEEDS
    for begin in range(first, first + count, size):
        seeds = range(begin, min(begin + size, first + count))
        yield pytest.param(seeds, marks=marks, id=f"seeds {seeds.start} to {seeds[-1]}")
