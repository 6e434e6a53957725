"""The verdict of the exactly-once soak, its plan of kills, and what it reads from the steps of drivers."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from benchmarks.acked_feed import Acknowledged
from benchmarks.exactly_once_soak import (
    AT_RANDOM,
    COMMIT_STEPS,
    DECIDED,
    RECOVERY_STEPS,
    SETTLING_STEPS,
    STOPPED,
    Verdict,
    kill_plan,
)
from benchmarks.stepped_sink import Place, TakenStep, last_kill
from pyspark_kafka_meta.model import OpenTransaction, ProducerIdAndEpoch
from pyspark_kafka_meta.write.exactly_once.commit_protocol import Fence, WriteDecision, WriteSettled
from pyspark_kafka_meta.write.exactly_once.decision import STREAM, BatchId, Decision

KEYS = 3


@pytest.mark.parametrize(
    ("unknown", "fed", "numbers", "verdict"),
    [
        ([], [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5], Verdict(missing=0, repeated=0, disordered=0)),
        ([], [0, 1, 2, 3, 4, 5], [1, 4, 0, 2, 5, 3], Verdict(missing=0, repeated=0, disordered=0)),
        ([], [0, 1, 2, 3, 4, 5], [0, 1, 3, 4, 5], Verdict(missing=1, repeated=0, disordered=0)),
        ([2], [0, 1, 3, 4, 5], [0, 1, 3, 4, 5], Verdict(missing=0, repeated=0, disordered=0)),
        ([2], [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5], Verdict(missing=0, repeated=0, disordered=0)),
        ([], [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5, 5], Verdict(missing=0, repeated=1, disordered=0)),
        ([], [0, 1, 2, 3, 4, 5], [3, 1, 2, 0, 4, 5], Verdict(missing=0, repeated=0, disordered=1)),
        ([], [0, 1, 2, 3, 4, 5], [0, 3, 0, 3, 1, 2, 4, 5], Verdict(missing=0, repeated=2, disordered=1)),
        ([], [0, 1, 2, 3, 4, 5], [], Verdict(missing=6, repeated=0, disordered=0)),
        ([2], [0, 1, 2, 3, 4, 5], [0, 1, 3, 4, 5], Verdict(missing=1, repeated=0, disordered=0)),
        ([], [0, 1, 2, 3, 4, 5, 5], [0, 1, 2, 3, 4, 5, 5], Verdict(missing=0, repeated=0, disordered=0, fed_again=1)),
        ([], [0, 1, 2, 3, 4, 5, 5], [0, 1, 2, 3, 4, 5], Verdict(missing=1, repeated=0, disordered=0, fed_again=1)),
    ],
)
def test_the_verdict(unknown: list[int], fed: list[int], numbers: list[int], verdict: Verdict) -> None:
    written = np.array(numbers, np.int64)
    found = Verdict.of(Acknowledged(6, frozenset(unknown)), np.array(fed, np.int64), written % KEYS, written)
    assert found == verdict
    assert found.is_good == ((verdict.missing, verdict.repeated, verdict.disordered) == (0, 0, 0))


def test_forty_kills_get_to_each_step_of_a_commit_and_of_a_recovery() -> None:
    kills = [one.kill for one in kill_plan(40, 10)]
    for when in ("after", "during"):
        assert {Place("commit", step, when) for step in COMMIT_STEPS} <= set(kills)
        assert {Place("recover", step, when) for step in RECOVERY_STEPS} <= set(kills)
    assert {AT_RANDOM, STOPPED} <= set(kills)


def test_a_recovery_that_is_killed_has_something_to_settle() -> None:
    kills = [one.kill for one in kill_plan(40, 10)]
    for before, kill in pairwise(kills):
        if isinstance(kill, Place) and kill.protocol == "recover" and kill.step in SETTLING_STEPS:
            assert before == DECIDED


@pytest.mark.parametrize(("kills", "executor_kills"), [(6, 2), (40, 10), (40, 0), (12, 30)])
def test_the_plan_has_as_many_kills_as_asked_for(kills: int, executor_kills: int) -> None:
    plan = kill_plan(kills, executor_kills)
    assert len(plan) == kills
    assert sum(one.executor_kills for one in plan) == executor_kills
    assert plan[0].kill == DECIDED


def test_a_place_is_armed_until_a_driver_gets_there(tmp_path: Path) -> None:
    DECIDED.arm(tmp_path)
    assert last_kill(tmp_path) is None
    DECIDED.arm(tmp_path)
    (tmp_path / "kill.json").replace(tmp_path / "killed.json")  # as the driver does
    assert last_kill(tmp_path) == DECIDED
    assert last_kill(tmp_path) is None


def test_steps_tell_of_later_attempts_and_copies() -> None:
    transactions = tuple(OpenTransaction(f"sink/{task}", ProducerIdAndEpoch(1, 0), ()) for task in ("0/0", "1/2"))
    decision = Decision(BatchId(STREAM, "query", 7), transactions, time_ms=0)
    written, refused = (TakenStep.of("commit", WriteDecision(decision), 1.5, result) for result in (True, False))
    assert written == TakenStep("commit", "WriteDecision", 1.5, later_attempts=1, copied=0)
    assert refused.later_attempts == 0
    assert TakenStep.of("recover", WriteSettled(decision, transactions[:1]), 1.5, True).copied == 1
    assert TakenStep.of("recover", Fence(), 1.5, None) == TakenStep("recover", "Fence", 1.5, 0, 0)
