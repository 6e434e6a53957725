"""Explores a world: ways in which up to so many disturbances can hit it, those with the fewest first.

A world cannot be copied, so each run begins anew and repeats the choices that led to a state.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.unit.write.exactly_once.world import Choice, Scenario, Violation, World

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
