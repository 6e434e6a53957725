"""Commits in a world of fakes, with a few crashes, pauses and time-outs at any of their requests."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from pyspark_kafka_meta.model import TransactionVersion
from pyspark_kafka_meta.write.exactly_once import step_runner
from pyspark_kafka_meta.write.exactly_once.step_runner import StepRunner
from tests.budget import cases
from tests.unit.write.exactly_once.mutants import MUTANTS, Explored, Mutant
from tests.unit.write.exactly_once.world import Choice, Disturbance, Scenario, Violation, World

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
def test_rows_are_visible_once_after_random_disturbances(version: TransactionVersion, overlapping: bool) -> None:
    found = walk(
        Scenario(version, batches=3, overlapping=overlapping, tasks=2, rows=2),
        seed=1,
        runs=cases(6, 10, 3_000),
        disturbances=10,
        likelihood=0.1,
    )

    assert found.trace is None, found.trace


@pytest.mark.budget
@pytest.mark.parametrize("version", TransactionVersion)
def test_records_copied_in_parts_are_visible_once(version: TransactionVersion, monkeypatch: pytest.MonkeyPatch) -> None:
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
        runs=cases(8, 10, 500),
        disturbances=12,
        likelihood=0.2,
    )

    assert found.trace is None, found.trace
    assert len(parts) > cases(4, 4, 20)


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


Choices = Mapping[int, Choice]
"""Disturbances by the number of the stop."""
Decide = Callable[[int, World], Choice | None]
"""The disturbance at this stop of a world, if any."""


@dataclass(frozen=True)
class Exploration:
    """What was explored.

    Attributes:
        runs: number of interleavings.
        trace: what led to the first violation, one line for each stop or disturbance; None without a violation.
    """

    runs: int
    trace: str | None = None


def explore(scenario: Scenario, disturbances: int, every: int = 1) -> Exploration:
    """Explore all interleavings with up to so many disturbances.

    Args:
        every: of the interleavings with the most disturbances, explore one of so many.
    """
    runs, level = 0, list[Choices]([{}])
    for left in reversed(range(disturbances + 1)):
        next_level: list[Choices] = []
        for choices in level:
            runs += 1
            lines, violation = run(scenario, _follow(choices, next_level))
            if violation:
                return Exploration(runs, "\n".join(lines))
        level = next_level[::every] if left == 1 else next_level
    return Exploration(runs)


def _follow(choices: Choices, found: list[Choices]) -> Decide:
    """Repeat the choices, and add all with one more to `found`."""
    last = max(choices, default=-1)

    def decide(stop: int, world: World) -> Choice | None:
        if stop > last:
            found.extend({**choices, stop: choice} for choice in world.disturbances())
        return choices.get(stop)

    return decide


def walk(scenario: Scenario, seed: int, runs: int, disturbances: int, likelihood: float) -> Exploration:
    """Explore runs with up to so many disturbances at random moments: each stop is disturbed with a likelihood."""
    chance = random.Random(seed)
    for number in range(runs):
        left = disturbances

        def decide(_: int, world: World) -> Choice | None:
            nonlocal left
            possible = list(world.disturbances()) if left and chance.random() < likelihood else []
            left -= bool(possible)
            return chance.choice(possible) if possible else None

        lines, violation = run(scenario, decide)
        if violation:
            return Exploration(number + 1, "\n".join(lines))
    return Exploration(runs)


def run(scenario: Scenario, decide: Decide) -> tuple[list[str], bool]:
    """What happened, and whether it ended with a violation. Disturbances begin with a star."""
    world, lines = World(scenario), list[str]()
    try:
        while undisturbed := world.undisturbed():
            choice = decide(len(lines), world) or undisturbed
            lines.append(str(choice))
            world.take(choice)
        world.require_exactly_once()
    except Violation as violation:
        return [*lines, f"violation: {violation}"], True
    finally:
        world.close()
    return lines, False
