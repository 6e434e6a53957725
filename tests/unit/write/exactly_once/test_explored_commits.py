"""Commits in a world of fakes, with a few crashes, pauses and time-outs at any of their requests."""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_kafka_meta.model import TransactionVersion
from pyspark_kafka_meta.write.exactly_once import step_runner
from pyspark_kafka_meta.write.exactly_once.step_runner import StepRunner
from tests.budget import cases
from tests.unit.write.exactly_once.explorer import explore, walk
from tests.unit.write.exactly_once.mutants import MUTANTS, Explored, Mutant
from tests.unit.write.exactly_once.world import Disturbance, Scenario

V1, V2 = TransactionVersion


# --- every row exactly once -------------------------------------------------------------------------------------------


@pytest.mark.budget
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "scenario",
    [Scenario(V1), Scenario(V2, tasks=2), Scenario(V1, overlapping=True), Scenario(V2, overlapping=True)],
    ids=["v1", "v2, two tasks", "v1, overlapping", "v2, overlapping"],
)
def test_every_row_is_visible_exactly_once_after_a_disturbance_at_any_request(scenario: Scenario) -> None:
    """Of overlapping batch writes, which nobody repeats: once, or not at all. In the slow profile also after a part of
    all pairs of disturbances."""
    found = explore(scenario, disturbances=cases(1, 1, 2), every=cases(3, 2, 10))

    assert found.trace is None, found.trace
    assert found.runs > cases(30, 45, 90), found


@pytest.mark.budget
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("overlapping", [False, True])
@pytest.mark.parametrize("version", TransactionVersion)
def test_every_row_is_visible_exactly_once_after_many_random_disturbances(
    version: TransactionVersion, overlapping: bool
) -> None:
    found = walk(
        Scenario(version, batches=3, overlapping=overlapping, tasks=2, rows=2),
        seed=1,
        runs=cases(6, 20, 3_000),
        disturbances=10,
        likelihood=0.1,
    )

    assert found.trace is None, found.trace


@pytest.mark.budget
@pytest.mark.parametrize("version", TransactionVersion)
def test_records_that_are_copied_in_several_transactions_are_visible_exactly_once(
    version: TransactionVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, copy = list[Any](), StepRunner._copy

    def counted(*arguments: Any) -> Any:
        parts.extend(left := copy(*arguments))
        return left

    monkeypatch.setattr(step_runner, "COPY_SHARE", 0)  # one record batch in each
    monkeypatch.setattr(StepRunner, "_copy", counted)
    disturbances = frozenset({Disturbance.TIME_OUT, Disturbance.CRASH, Disturbance.PAUSE, Disturbance.SWITCH})
    found = walk(
        Scenario(version, tasks=3, disturbances=disturbances),
        seed=1,
        runs=cases(8, 16, 500),
        disturbances=12,
        likelihood=0.2,
    )

    assert found.trace is None, found.trace
    assert len(parts) > cases(4, 8, 20)


def test_late_end_of_a_transaction_ends_no_copies() -> None:
    """That one comes, the mutant `copy_in_the_epoch_of_the_decision` shows."""
    order = (Disturbance.TIME_OUT, Disturbance.LATE, Disturbance.CRASH)
    found = explore(Scenario(V1, batches=1, order=order), len(order))

    assert found.trace is None, found.trace


@pytest.mark.budget
@pytest.mark.timeout(1200)
def test_no_record_is_copied_if_drivers_crash_and_no_broker_aborts_its_transaction() -> None:
    crashes = frozenset({Disturbance.CRASH, Disturbance.ERROR, Disturbance.REPEAT})
    scenario = Scenario(tasks=2, disturbances=crashes, may_copy=False)
    found = explore(scenario, disturbances=cases(1, 1, 2), every=cases(3, 1, 1))

    assert found.trace is None, found.trace


# --- the explorer finds what is wrong ---------------------------------------------------------------------------------


EXPLORED = {mutant: finding for mutant, finding in MUTANTS.items() if isinstance(finding, Explored)}


@pytest.mark.parametrize("mutant", EXPLORED, ids=lambda mutant: mutant.__name__)
def test_explorer_finds_a_wrong_commit(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    text, scenario = EXPLORED[mutant]
    found = explore(scenario, len(scenario.order))

    assert found.trace is not None, f"nothing found in {found.runs} interleavings"
    assert f"violation: {text}" in found.trace, found.trace
