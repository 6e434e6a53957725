"""Streaming queries through random faults; `reading_history` has the model and the invariants."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest

from tests.budget import cases
from tests.unit.histories.blocks import blocks
from tests.unit.histories.reading_checks import violations
from tests.unit.histories.reading_history import ReadingHistory
from tests.unit.histories.reading_mutants import MUTANTS, Mutant

MUTANT_SEEDS = 800


@pytest.mark.budget
@pytest.mark.parametrize("seeds", blocks(cases(20, 60, 3_000)))
def test_each_record_is_read_once_through_faults(seeds: Iterable[int]) -> None:
    for seed in seeds:
        check(seed, losses=False)


@pytest.mark.budget
@pytest.mark.parametrize("seeds", blocks(cases(20, 60, 2_000)))
def test_each_lost_record_is_reported(seeds: Iterable[int]) -> None:
    for seed in seeds:
        check(seed, losses=True)


def check(seed: int, losses: bool) -> None:
    """Fail with the seed and the end of its history: `ReadingHistory(seed, losses).run()` repeats it."""
    history = ReadingHistory(seed, losses).run()
    found = violations(history)
    assert not found, f"ReadingHistory({seed}, {losses}): {found}\n{history}"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_histories_find_a_wrong_reader(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    pattern, first, losses, kinds = MUTANTS[mutant]
    histories = (ReadingHistory(seed, losses, kinds) for seed in range(first, first + MUTANT_SEEDS))
    found = (text for history in histories for text in violations(history.run()))
    assert any(re.search(pattern, text) for text in found), f"nothing found in {MUTANT_SEEDS} histories"
