"""The commit protocol with one thing wrong: what the explorer must find."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeAlias

import pytest

from pyspark_kafka_meta.model import OpenTransaction, TransactionVersion
from pyspark_kafka_meta.write.exactly_once import commit_protocol
from pyspark_kafka_meta.write.exactly_once.commit_protocol import (
    AbortOpen,
    Commit,
    Fence,
    Protocol,
    ReadDecisions,
    ReadOutcomes,
    Step,
    WriteDecision,
    WriteSettled,
    commit,
    recover,
)
from pyspark_kafka_meta.write.exactly_once.decision import BatchId, Decision, Decisions, is_written
from tests.unit.write.exactly_once.actors import Disturbance, Scenario
from tests.unit.write.exactly_once.model import SINK_ID, DriverModel, KafkaModel, Requests, Row

Mutation: TypeAlias = Callable[[Step], Protocol[Any]]
"""Yields other steps in place of a step, and returns its result."""
Mutant: TypeAlias = Callable[[pytest.MonkeyPatch], Scenario]


def _scenario(mutation: Mutation, **arguments: Any) -> Scenario:
    return Scenario(recover=_mutated(recover, mutation), commit=_mutated(commit, mutation), **arguments)


def _mutated(original: Callable[..., Protocol[Any]], mutation: Mutation) -> Callable[..., Protocol[Any]]:
    def protocol(*arguments: Any, **named: Any) -> Protocol[Any]:
        steps = original(*arguments, **named)
        result: Any = None
        while True:
            try:
                step = steps.send(result)
            except StopIteration as end:
                return end.value
            result = yield from mutation(step)

    return protocol


def fence_after_reading(_: pytest.MonkeyPatch) -> Scenario:
    def mutation(step: Step) -> Protocol[Any]:
        if isinstance(step, Fence):
            return None
        result = yield step
        if isinstance(step, ReadDecisions):
            yield Fence()
        return result

    return _scenario(mutation)


def decide_again(monkeypatch: pytest.MonkeyPatch) -> Scenario:
    monkeypatch.setattr(commit_protocol, "is_written", lambda *_: False)
    return Scenario()


def forget_who_wrote_before(monkeypatch: pytest.MonkeyPatch) -> Scenario:
    monkeypatch.setattr(commit_protocol, "_former_owners", lambda *_: ())
    return Scenario(overlapping=True, disturbances=frozenset({Disturbance.SWITCH, Disturbance.TIME_OUT}))


def ignore_being_fenced(_: pytest.MonkeyPatch) -> Scenario:
    def mutation(step: Step) -> Protocol[Any]:
        result = yield step
        return True if isinstance(step, WriteDecision) else result

    return _scenario(mutation)


def commit_before_deciding(_: pytest.MonkeyPatch) -> Scenario:
    def mutation(step: Step) -> Protocol[Any]:
        if isinstance(step, WriteDecision):
            yield Commit(step.decision.transactions)
        return (yield step)

    return _scenario(mutation)


def settle_before_committing(_: pytest.MonkeyPatch) -> Scenario:
    def mutation(step: Step) -> Protocol[Any]:
        if isinstance(step, Commit):
            return ()
        result = yield step
        if isinstance(step, WriteSettled):
            yield Commit(step.decision.transactions)
        return result

    return _scenario(mutation)


def settle_by_a_note_of_any_decision(monkeypatch: pytest.MonkeyPatch) -> Scenario:
    def last_decision(self: KafkaModel) -> tuple[Decision, ...]:
        return tuple(each.settled() if self.note else each for each in self.decisions()[-1:])

    monkeypatch.setattr(KafkaModel, "last_decision", last_decision)
    return Scenario()


def lead_on_after_another_fence(monkeypatch: pytest.MonkeyPatch) -> Scenario:
    def fence(self: DriverModel) -> Requests[None]:
        self.producer = yield self.kafka.init_producer, (SINK_ID,)

    monkeypatch.setattr(DriverModel, "_fence", fence)  # goes on with the decisions of the lead nevertheless
    return Scenario(disturbances=frozenset({Disturbance.PAUSE, Disturbance.SWITCH}))


def settle_in_an_epoch_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Scenario:
    def mutation(step: Step) -> Protocol[Any]:
        if isinstance(step, WriteSettled):
            yield Fence()
        return (yield step)

    monkeypatch.setattr(commit_protocol, "_settle", _mutated(commit_protocol._settle, mutation))
    return Scenario(disturbances=frozenset({Disturbance.PAUSE, Disturbance.SWITCH}))


def copy_nothing(_: pytest.MonkeyPatch) -> Scenario:
    def mutation(step: Step) -> Protocol[Any]:
        result = yield step
        return () if isinstance(step, Commit) else result

    return _scenario(mutation)


def copy_without_reading_outcomes(_: pytest.MonkeyPatch) -> Scenario:
    def mutation(step: Step) -> Protocol[Any]:
        return step.transactions if isinstance(step, ReadOutcomes) else (yield step)

    # Found after three disturbances: without the others, and with one batch, sooner.
    return _scenario(mutation, batches=1, disturbances=frozenset({Disturbance.PAUSE, Disturbance.SWITCH}))


def copy_in_a_transaction_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Scenario:
    write = DriverModel._write

    def write_one_by_one(self: DriverModel, values: tuple[Row | Decision, ...]) -> Requests[bool]:
        for value in values:
            if not (yield from write(self, (value,))):
                return False
        return True

    monkeypatch.setattr(DriverModel, "_write", write_one_by_one)
    return Scenario(disturbances=frozenset({Disturbance.TIME_OUT, Disturbance.CRASH}))


def copy_in_parts_without_a_decision(monkeypatch: pytest.MonkeyPatch) -> Scenario:
    write = DriverModel._write

    def write_rows_alone(self: DriverModel, values: tuple[Row | Decision, ...]) -> Requests[bool]:
        *rows, decision = values
        is_left = isinstance(decision, Decision) and not decision.is_settled
        return (yield from write(self, tuple(rows) if rows and is_left else values))

    monkeypatch.setattr(DriverModel, "copied_at_once", 1)
    monkeypatch.setattr(DriverModel, "_write", write_rows_alone)
    disturbances = frozenset({Disturbance.TIME_OUT, Disturbance.CRASH})
    return Scenario(batches=1, tasks=2, disturbances=disturbances)


def copy_without_reading_again(monkeypatch: pytest.MonkeyPatch) -> Scenario:
    settle = commit_protocol._settle

    def settle_as_read_before(decision: Decision) -> Protocol[Any]:
        def mutation(step: Step) -> Protocol[Any]:
            return {decision.batch.series: decision} if isinstance(step, ReadDecisions) else (yield step)

        return (yield from _mutated(settle, mutation)(decision))

    monkeypatch.setattr(commit_protocol, "_settle", settle_as_read_before)
    return Scenario(batches=1, disturbances=frozenset({Disturbance.TIME_OUT, Disturbance.PAUSE, Disturbance.SWITCH}))


def copy_in_the_epoch_of_the_decision(monkeypatch: pytest.MonkeyPatch) -> Scenario:
    def mutation(step: Step) -> Protocol[Any]:
        return None if isinstance(step, Fence) else (yield step)

    monkeypatch.setattr(commit_protocol, "_settle", _mutated(commit_protocol._settle, mutation))
    monkeypatch.setattr(DriverModel, "produced_at_once", 1)
    disturbances = frozenset({Disturbance.TIME_OUT, Disturbance.LATE, Disturbance.CRASH})
    return Scenario(TransactionVersion.V1, batches=1, disturbances=disturbances)


def begin_before_settling(_: pytest.MonkeyPatch) -> Scenario:
    def recover_what_is_settled(**_: Any) -> Protocol[Decisions]:
        yield Fence()
        decisions: Decisions = yield ReadDecisions()
        if all(decision.is_settled for decision in decisions.values()):
            yield AbortOpen()
        return decisions

    def commit_unless_written(batch: BatchId, transactions: Sequence[OpenTransaction], now_ms: int) -> Protocol[None]:
        if not is_written((yield from recover_what_is_settled()), batch):
            yield from commit(batch, transactions, now_ms)  # settles the batch before, too

    return Scenario(recover=recover_what_is_settled, commit=commit_unless_written)


def settle_own_batch_alone(monkeypatch: pytest.MonkeyPatch) -> Scenario:
    def settle_nothing() -> Protocol[Decisions]:
        yield Fence()
        decisions: Decisions = yield ReadDecisions()
        return decisions

    monkeypatch.setattr(commit_protocol, "_settle_all", settle_nothing)
    return Scenario()


def abort_nothing(_: pytest.MonkeyPatch) -> Scenario:
    def mutation(step: Step) -> Protocol[Any]:
        return None if isinstance(step, AbortOpen) else (yield step)

    return _scenario(mutation)


def abort_before_settling(_: pytest.MonkeyPatch) -> Scenario:
    def abort_first(**_: Any) -> Generator[Step, Any, Decisions]:
        yield AbortOpen()
        return (yield from recover())

    return Scenario(recover=abort_first, disturbances=frozenset({Disturbance.CRASH}), may_copy=False)


MUTANTS: dict[Mutant, str] = {
    fence_after_reading: "rows are visible twice",
    decide_again: "rows are visible twice",
    forget_who_wrote_before: "rows are visible twice",
    ignore_being_fenced: "rows are visible although their batch is undecided",
    commit_before_deciding: "rows are visible although their batch is undecided",
    settle_before_committing: "rows are missing",
    settle_by_a_note_of_any_decision: "rows are missing",
    lead_on_after_another_fence: "rows are visible twice",
    settle_in_an_epoch_of_its_own: "rows are visible twice",
    copy_nothing: "rows are missing",
    copy_without_reading_outcomes: "rows are visible twice",
    copy_in_a_transaction_of_its_own: "rows are visible twice",
    copy_in_parts_without_a_decision: "rows are visible twice",
    copy_without_reading_again: "rows are visible twice",
    copy_in_the_epoch_of_the_decision: "rows are visible twice",
    begin_before_settling: "rows are visible out of order",
    settle_own_batch_alone: "rows are missing",
    abort_nothing: "transactions are open",
    abort_before_settling: "rows are copied, although no broker aborted them",
}
"""What a reader sees by each."""
LATE = {copy_without_reading_outcomes}
"""Found after some seconds: not by make test."""
