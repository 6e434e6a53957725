"""The classes that commit, with one thing wrong: what the explorer, or else histories, must find."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pytest

from pyspark_kafka_meta.errors import DataLossError
from pyspark_kafka_meta.model import OpenTransaction, RowDigest, TransactionVersion
from pyspark_kafka_meta.write import row_digest
from pyspark_kafka_meta.write.exactly_once import (
    batch_committer,
    commit_protocol,
    decision,
    decisions_topic,
    transaction_reader,
)
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
from pyspark_kafka_meta.write.exactly_once.decision import (
    BatchId,
    Decision,
    Decisions,
    Record,
    confirming_record,
    is_written,
)
from pyspark_kafka_meta.write.exactly_once.decisions_topic import DecisionsTopic
from pyspark_kafka_meta.write.exactly_once.step_runner import StepRunner
from pyspark_kafka_meta.write.exactly_once.transaction_reader import TransactionReader
from pyspark_kafka_meta.write.task_writer import TaskWriter
from tests.unit.write.exactly_once.commit_scene import SINK
from tests.unit.write.exactly_once.world import Disturbance, Scenario

Mutant: TypeAlias = Callable[[pytest.MonkeyPatch], None]
Run: TypeAlias = Callable[[StepRunner, Step], Any]
Mutation: TypeAlias = Callable[[Run, StepRunner, Step], Any]

V1 = TransactionVersion.V1
CRASH, ERROR, PAUSE, SPECULATE = Disturbance.CRASH, Disturbance.ERROR, Disturbance.PAUSE, Disturbance.SPECULATE
STALE, SWITCH, TIME_OUT, LATE = Disturbance.STALE, Disturbance.SWITCH, Disturbance.TIME_OUT, Disturbance.LATE


def _mutate(monkeypatch: pytest.MonkeyPatch, mutation: Mutation) -> None:
    """Carry out each step by `mutation`, which may use the original."""
    original = StepRunner.run
    monkeypatch.setattr(StepRunner, "run", lambda runner, step: mutation(original, runner, step))


def _mutate_settling(monkeypatch: pytest.MonkeyPatch, mutation: Callable[[Step], Protocol[Any]]) -> None:
    """Yield other steps in place of those that settle one decision."""
    original = commit_protocol._settle

    def settle(decision: Decision) -> Protocol[Any]:
        steps, result = original(decision), None
        while True:
            try:
                step = steps.send(result)
            except StopIteration as end:
                return end.value
            result = yield from mutation(step)

    monkeypatch.setattr(commit_protocol, "_settle", settle)


# --- fences and decisions ---------------------------------------------------------------------------------------------


def trust_a_stale_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DecisionsTopic, "is_unchanged_until", lambda *_: True)


def fence_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver fences others once it has read what they decided, and trusts what it has read."""

    def mutation(run: Run, runner: StepRunner, step: Step) -> Any:
        if isinstance(step, Fence):
            return None
        result = run(runner, step)
        if isinstance(step, ReadDecisions):
            run(runner, Fence())
        return result

    _mutate(monkeypatch, mutation)
    trust_a_stale_end(monkeypatch)


def decide_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_protocol, "is_written", lambda *_: False)


def forget_who_wrote_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_protocol, "_former_owners", lambda *_: ())


def ignore_being_fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    def mutation(run: Run, runner: StepRunner, step: Step) -> Any:
        result = run(runner, step)
        return True if isinstance(step, WriteDecision) else result

    _mutate(monkeypatch, mutation)


def lead_on_after_another_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another driver has fenced the one that leads, which goes on with the decisions of its lead nevertheless."""
    fence = StepRunner._fence

    def fence_again(runner: StepRunner) -> None:
        lead, runner._lead = runner._lead, None
        fence(runner)
        runner._lead = lead

    monkeypatch.setattr(StepRunner, "_fence", fence_again)
    trust_a_stale_end(monkeypatch)


def take_aborted_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions_topic, "is_abort_marker", lambda *_: False)


def trust_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an error, a driver does not read whether its last decision was written nevertheless."""
    memory: dict[DecisionsTopic, dict[str, Decision]] = {}

    def mutation(run: Run, runner: StepRunner, step: Step) -> Any:
        topic = runner._decisions
        if isinstance(step, ReadDecisions) and topic in memory:
            return dict(memory[topic])
        result = run(runner, step)
        if isinstance(step, ReadDecisions):
            memory[topic] = dict(result)
        elif isinstance(step, WriteDecision | WriteSettled) and result is True:
            is_settled = isinstance(step, WriteSettled)
            memory[topic][step.decision.batch.series] = step.decision.settled() if is_settled else step.decision
        return result

    _mutate(monkeypatch, mutation)


def look_for_the_topic_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = DecisionsTopic.lost

    def still_ensured(topic: DecisionsTopic, cause: str) -> DataLossError:
        error = lost(topic, cause)
        topic.is_ensured = True
        return error

    def was_read_and_is_gone(topic: DecisionsTopic) -> bool:
        return topic._next_offset is not None and not topic._client.cache.snapshot.partitions(topic.partition.topic)

    monkeypatch.setattr(DecisionsTopic, "lost", still_ensured)
    monkeypatch.setattr(DecisionsTopic, "is_gone", property(was_read_and_is_gone))


# --- commits ----------------------------------------------------------------------------------------------------------


def commit_before_deciding(monkeypatch: pytest.MonkeyPatch) -> None:
    def mutation(run: Run, runner: StepRunner, step: Step) -> Any:
        if isinstance(step, WriteDecision):
            run(runner, Commit(step.decision.transactions))
        return run(runner, step)

    _mutate(monkeypatch, mutation)


def forget_to_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    _mutate(monkeypatch, lambda run, runner, step: () if isinstance(step, Commit) else run(runner, step))


def settle_before_committing(monkeypatch: pytest.MonkeyPatch) -> None:
    def mutation(run: Run, runner: StepRunner, step: Step) -> Any:
        if isinstance(step, Commit):
            return ()
        result = run(runner, step)
        if isinstance(step, WriteSettled):
            run(runner, Commit(step.decision.transactions))
        return result

    _mutate(monkeypatch, mutation)


def forget_to_settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an earlier run has decided."""

    def settle_nothing() -> Protocol[Any]:
        yield Fence()
        return (yield ReadDecisions())

    monkeypatch.setattr(commit_protocol, "_settle_all", settle_nothing)


def settle_by_a_note_of_any_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (decisions_topic, decision):
        monkeypatch.setattr(module, "note_of", lambda _: b"the last one")


def settle_in_an_epoch_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def mutation(step: Step) -> Protocol[Any]:
        if isinstance(step, WriteSettled):
            yield Fence()
        return (yield step)

    _mutate_settling(monkeypatch, mutation)
    trust_a_stale_end(monkeypatch)


def begin_before_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    def recover_what_is_settled(*_: Any, **__: Any) -> Protocol[Decisions]:
        yield Fence()
        decisions: Decisions = yield ReadDecisions()
        if all(decision.is_settled for decision in decisions.values()):
            yield AbortOpen()
        return decisions

    def commit_unless_written(
        batch: BatchId, transactions: Sequence[OpenTransaction], now_ms: int, *_: Any
    ) -> Protocol[None]:
        if not is_written((yield from recover_what_is_settled()), batch):
            yield from commit(batch, transactions, now_ms)  # settles the batch before, too

    monkeypatch.setattr(batch_committer, "recover", recover_what_is_settled)
    monkeypatch.setattr(batch_committer, "commit", commit_unless_written)


# --- copies -----------------------------------------------------------------------------------------------------------


def copy_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def mutation(run: Run, runner: StepRunner, step: Step) -> Any:
        result = run(runner, step)
        return () if isinstance(step, Commit) else result

    _mutate(monkeypatch, mutation)


def copy_what_was_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    def mutation(run: Run, runner: StepRunner, step: Step) -> Any:
        return step.transactions if isinstance(step, ReadOutcomes) else run(runner, step)

    _mutate(monkeypatch, mutation)


def _copy_alone(runner: StepRunner, aborted: Sequence[OpenTransaction]) -> bool:
    """Copy records in a transaction without a decision."""

    def copies(writer: TaskWriter) -> Record:
        runner._copy(aborted, writer)
        return confirming_record(SINK)

    return runner._write("copies", copies)


def copy_in_a_transaction_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def mutation(run: Run, runner: StepRunner, step: Step) -> Any:
        if isinstance(step, WriteSettled) and step.aborted:
            return _copy_alone(runner, step.aborted) and run(runner, WriteSettled(step.decision, ()))
        return run(runner, step)

    _mutate(monkeypatch, mutation)


def copy_in_parts_without_a_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of several transactions of the driver does not say what is left to copy."""

    def mutation(run: Run, runner: StepRunner, step: Step) -> Any:
        if isinstance(step, WriteSettled) and len(step.aborted) > 1:
            first, left = step.aborted[:1], step.aborted[1:]
            return _copy_alone(runner, first) and run(runner, WriteSettled(step.decision, left))
        return run(runner, step)

    _mutate(monkeypatch, mutation)


def copy_without_reading_again(monkeypatch: pytest.MonkeyPatch) -> None:
    settle = commit_protocol._settle

    def settle_as_read_before(decision: Decision) -> Protocol[Any]:
        steps, result = settle(decision), None
        while True:
            try:
                step = steps.send(result)
            except StopIteration as end:
                return end.value
            result = {decision.batch.series: decision} if isinstance(step, ReadDecisions) else (yield step)

    monkeypatch.setattr(commit_protocol, "_settle", settle_as_read_before)
    trust_a_stale_end(monkeypatch)


def copy_in_the_epoch_of_the_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    def mutation(step: Step) -> Protocol[Any]:
        return None if isinstance(step, Fence) else (yield step)

    _mutate_settling(monkeypatch, mutation)


def copy_the_last_rows_first(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = TransactionReader.copies
    monkeypatch.setattr(TransactionReader, "copies", lambda *arguments: reversed(list(copies(*arguments))))


def take_aborts_for_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_reader, "is_abort_marker", lambda *_: False)


# --- aborts -----------------------------------------------------------------------------------------------------------


def abort_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    _mutate(monkeypatch, lambda run, runner, step: None if isinstance(step, AbortOpen) else run(runner, step))


def abort_before_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    def abort_first(*arguments: Any, **named: Any) -> Protocol[Decisions]:
        yield AbortOpen()
        return (yield from recover(*arguments, **named))

    monkeypatch.setattr(batch_committer, "recover", abort_first)


# --- rows of a repeated batch -----------------------------------------------------------------------------------------


def compare_the_last_version_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    require = commit_protocol._require_same_rows

    def require_of_last(last: Decision, batch: BatchId, rows: RowDigest | None) -> None:
        require(last, batch, rows if batch == last.batch else None)

    monkeypatch.setattr(commit_protocol, "_require_same_rows", require_of_last)


def take_unknown_rows_for_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    require = commit_protocol._require_same_rows

    def require_of_known(last: Decision, batch: BatchId, rows: RowDigest | None) -> None:
        require(last, batch, rows if batch.version in dict(last.versions) else None)

    monkeypatch.setattr(commit_protocol, "_require_same_rows", require_of_known)


def compare_the_number_of_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_digest, "_row_hashes", lambda _, rows: np.zeros(rows, np.uint64))


def hash_rows_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        RowDigest, "__add__", lambda first, second: RowDigest(first.rows + second.rows, hash((first, second)))
    )


def forget_earlier_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_protocol, "_earlier", lambda _: ())


class Explored(NamedTuple):
    """What the explorer finds in a scenario."""

    text: str
    scenario: Scenario = Scenario()


class InHistory(NamedTuple):
    """What a history finds, and the first seed of a search. A change of the code may move the finding to a later
    seed."""

    text: str
    seed: int


UNDECIDED = "rows are visible although their batch is undecided"
TWICE, MISSING, DISORDERED = "rows are visible twice", "rows are missing", "rows are visible out of order"
OTHER_ROWS, REFUSED = "counts as written with other rows", "is refused with the same rows"
MUTANTS: dict[Mutant, Explored | InHistory] = {
    trust_a_stale_end: Explored(TWICE, Scenario(order=(PAUSE, STALE), begins_at=8)),
    fence_too_late: Explored(TWICE, Scenario(order=(PAUSE,))),
    decide_again: Explored(TWICE, Scenario(order=(PAUSE,))),
    forget_who_wrote_before: Explored(TWICE, Scenario(order=(TIME_OUT, SWITCH), overlapping=True)),
    ignore_being_fenced: Explored(UNDECIDED, Scenario(order=(PAUSE,))),
    lead_on_after_another_fence: Explored(TWICE, Scenario(order=(PAUSE,))),
    take_aborted_decisions: Explored(UNDECIDED, Scenario(batches=1, order=(ERROR,))),
    trust_its_memory: Explored("rows are copied", Scenario(batches=1, order=(ERROR,), may_copy=False)),
    look_for_the_topic_once: InHistory("does not exist in the cluster", 40),
    commit_before_deciding: Explored(UNDECIDED),
    forget_to_commit: Explored(MISSING),
    settle_before_committing: Explored(MISSING, Scenario(order=(CRASH,))),
    forget_to_settle: Explored(MISSING, Scenario(order=(CRASH,))),
    settle_by_a_note_of_any_decision: Explored(MISSING, Scenario(order=(CRASH,))),
    settle_in_an_epoch_of_its_own: Explored(TWICE, Scenario(order=(PAUSE, SWITCH), begins_at=12)),
    begin_before_settling: Explored(DISORDERED, Scenario(order=(CRASH,))),
    copy_nothing: Explored(MISSING, Scenario(order=(TIME_OUT,))),
    copy_what_was_committed: Explored(TWICE, Scenario(batches=1, order=(PAUSE, SWITCH, SWITCH), begins_at=6)),
    copy_in_a_transaction_of_its_own: Explored(TWICE, Scenario(batches=1, order=(TIME_OUT, CRASH))),
    copy_in_parts_without_a_decision: Explored(
        TWICE, Scenario(batches=1, tasks=2, order=(TIME_OUT, CRASH), begins_at=11)
    ),
    copy_without_reading_again: Explored(TWICE, Scenario(batches=1, order=(TIME_OUT, PAUSE))),
    copy_in_the_epoch_of_the_decision: Explored(TWICE, Scenario(V1, batches=1, order=(TIME_OUT, LATE, CRASH))),
    copy_the_last_rows_first: Explored(DISORDERED, Scenario(batches=1, rows=2, order=(TIME_OUT,))),
    take_aborts_for_commits: Explored(MISSING, Scenario(order=(TIME_OUT,))),
    abort_nothing: Explored("transactions are open", Scenario(order=(SPECULATE,))),
    abort_before_settling: Explored("rows are copied", Scenario(order=(CRASH,), may_copy=False)),
    compare_the_last_version_alone: InHistory(OTHER_ROWS, 8),
    take_unknown_rows_for_the_same: InHistory(OTHER_ROWS, 21),
    compare_the_number_of_rows_alone: InHistory(OTHER_ROWS, 8),
    hash_rows_in_their_order: InHistory(REFUSED, 2),
    forget_earlier_versions: InHistory(REFUSED, 21),
}
