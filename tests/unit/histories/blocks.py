"""Seeds in blocks, each a case of a test: a failure names its block, and workers share the blocks of a file."""

from __future__ import annotations

from typing import Any

import pytest

SEEDS = 20


def blocks(count: int) -> list[Any]:
    """So many seeds from 0 on."""
    seeds = [range(begin, min(begin + SEEDS, count)) for begin in range(0, count, SEEDS)]
    return [pytest.param(block, id=f"seeds {block.start} to {block[-1]}") for block in seeds]
