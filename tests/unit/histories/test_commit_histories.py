"""Exactly-once writes through random faults; `commit_history` has the model and the invariants."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest

from tests.budget import cases
from tests.unit.histories.blocks import blocks
from tests.unit.histories.commit_checks import violations
from tests.unit.histories.commit_history import CommitHistory
from tests.unit.write.exactly_once.mutants import MUTANTS, InHistory, Mutant

MUTANT_SEEDS = 600


@pytest.mark.budget
@pytest.mark.parametrize("seeds", blocks(cases(20, 60, 5_000)))
def test_each_row_is_visible_once_through_faults(seeds: Iterable[int]) -> None:
    """A failure has the seed and the end of its history: `CommitHistory(seed).run()` repeats it."""
    for seed in seeds:
        history = CommitHistory(seed).run()
        found = violations(history)
        assert not found, f"CommitHistory({seed}): {found}\n{history}"


IN_HISTORIES = {mutant: finding for mutant, finding in MUTANTS.items() if isinstance(finding, InHistory)}


@pytest.mark.parametrize("mutant", IN_HISTORIES, ids=lambda mutant: mutant.__name__)
def test_histories_find_a_wrong_commit(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    text, first = IN_HISTORIES[mutant]
    seeds = range(first, first + MUTANT_SEEDS)
    found = (problem for seed in seeds for problem in violations(CommitHistory(seed).run()))
    assert any(text in problem for problem in found), f"nothing found in {MUTANT_SEEDS} histories"


def test_history_is_the_same_each_time() -> None:
    runs = [CommitHistory(1).run() for _ in range(2)]
    first, second = ([re.sub(r"[0-9a-f-]{36}", "id", text) for _, text in run.faults.notes] for run in runs)
    assert first == second, "apart from the ids of topics"
