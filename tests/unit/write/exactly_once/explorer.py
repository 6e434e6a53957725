"""Explores a world: all ways in which up to so many disturbances can hit it, those with the fewest first.

A world cannot be copied, so each run begins anew and repeats the choices that led to a state. States that were reached
before, by other choices and no more disturbances, are not explored again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from tests.unit.write.exactly_once.actors import Choice, Scenario, World
from tests.unit.write.exactly_once.model import Violation


@dataclass(frozen=True)
class Exploration:
    """What was explored.

    Attributes:
        runs: number of interleavings.
        states: number of different states.
        longest: number of requests of the longest run.
        trace: what led to the first violation, one line for each request or disturbance; None without a violation.
    """

    runs: int
    states: int
    longest: int
    trace: str | None = None

    def __str__(self) -> str:
        return f"{self.runs} interleavings, {self.states} states, up to {self.longest} requests"


def explore(scenario: Scenario, disturbances: int) -> Exploration:
    """Explore all interleavings with up to so many disturbances."""
    visited: set[int] = set()
    runs = longest = 0
    level: list[tuple[tuple[int, Choice], ...]] = [()]
    for depth in range(disturbances + 1):
        next_level: list[tuple[tuple[int, Choice], ...]] = []
        for planned in level:
            runs += 1
            choices = dict(planned)
            first_new = planned[-1][0] + 1 if planned else 0
            world = World(scenario)
            step = 0
            try:
                while undisturbed := world.undisturbed():
                    if step >= first_new:
                        key = world.key()
                        if key in visited:
                            break
                        visited.add(key)
                        if depth < disturbances:
                            next_level += [(*planned, (step, choice)) for choice in world.disturbances()]
                    world.take(choices.get(step, undisturbed))
                    step += 1
                else:
                    world.require_exactly_once()
            except Violation:
                return Exploration(runs, len(visited), max(longest, step), trace(scenario, choices))
            longest = max(longest, step)
        level = next_level
    return Exploration(runs, len(visited), longest)


def walk(scenario: Scenario, seed: int, runs: int, disturbances: int, likelihood: float) -> Exploration:
    """Explore runs with up to so many disturbances at random moments: each request is disturbed with a likelihood."""
    chance = random.Random(seed)
    longest = 0
    for run in range(runs):
        world = World(scenario)
        taken: dict[int, Choice] = {}
        step = 0
        try:
            while choice := world.undisturbed():
                if len(taken) < disturbances and chance.random() < likelihood:
                    possible = list(world.disturbances())
                    if possible:
                        choice = taken[step] = chance.choice(possible)
                world.take(choice)
                step += 1
            world.require_exactly_once()
        except Violation:
            return Exploration(run + 1, 0, step, trace(scenario, taken))
        longest = max(longest, step)
    return Exploration(runs, 0, longest)


def trace(scenario: Scenario, choices: dict[int, Choice]) -> str:
    """What happens by these choices, up to the violation. Disturbances begin with a star."""
    return "\n".join(_lines(scenario, choices))


def _lines(scenario: Scenario, choices: dict[int, Choice]) -> Iterator[str]:
    world = World(scenario)
    step = 0
    try:
        while undisturbed := world.undisturbed():
            choice = choices.get(step, undisturbed)
            yield f"{step:3} {world.describe(choice)}"
            world.take(choice)
            step += 1
        world.require_exactly_once()
    except Violation as violation:
        yield f"violation: {violation}"
