"""Writing tasks through random faults; `writing_history` has the model and the invariants."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.unit.histories.blocks import SLOW, blocks
from tests.unit.histories.writing_checks import violations
from tests.unit.histories.writing_history import WritingHistory


@pytest.mark.parametrize("seeds", [*blocks(0, 200), *blocks(1_000, 5_000, SLOW)])
def test_each_row_is_written_through_faults(seeds: Iterable[int]) -> None:
    """A failure has the seed and the end of its history: `WritingHistory(seed).run()` repeats it."""
    for seed in seeds:
        history = WritingHistory(seed).run()
        found = violations(history)
        assert not found, f"WritingHistory({seed}): {found}\n{history}"
