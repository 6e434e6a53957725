"""The classes that commit, with one thing wrong: what histories must find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest

from pyspark_kafka_meta.errors import DataLossError
from pyspark_kafka_meta.model import RowDigest
from pyspark_kafka_meta.write import row_digest
from pyspark_kafka_meta.write.exactly_once import (
    commit_protocol,
    decision_records,
    decisions_topic,
    transaction_reader,
)
from pyspark_kafka_meta.write.exactly_once.commit_protocol import (
    AbortOpen,
    Commit,
    Fence,
    ReadDecisions,
    ReadOutcomes,
    Step,
    WriteDecision,
)
from pyspark_kafka_meta.write.exactly_once.decision import BatchId, Decision
from pyspark_kafka_meta.write.exactly_once.decisions_topic import DecisionsTopic
from pyspark_kafka_meta.write.exactly_once.step_runner import StepRunner

Mutant: TypeAlias = Callable[[pytest.MonkeyPatch], None]
Run: TypeAlias = Callable[[StepRunner, Step], Any]


def _mutate(monkeypatch: pytest.MonkeyPatch, mutation: Callable[[Run, StepRunner, Step], Any]) -> None:
    """Carry out each step by `mutation`, which may use the original."""
    original = StepRunner.run
    monkeypatch.setattr(StepRunner, "run", lambda runner, step: mutation(original, runner, step))


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


def ignore_being_fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    def mutation(run: Run, runner: StepRunner, step: Step) -> Any:
        result = run(runner, step)
        return True if isinstance(step, WriteDecision) else result

    _mutate(monkeypatch, mutation)


def forget_to_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    _mutate(monkeypatch, lambda run, runner, step: () if isinstance(step, Commit) else run(runner, step))


def copy_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def mutation(run: Run, runner: StepRunner, step: Step) -> Any:
        result = run(runner, step)
        return () if isinstance(step, Commit) else result

    _mutate(monkeypatch, mutation)


def copy_what_was_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    def mutation(run: Run, runner: StepRunner, step: Step) -> Any:
        return step.transactions if isinstance(step, ReadOutcomes) else run(runner, step)

    _mutate(monkeypatch, mutation)


def forget_to_settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an earlier run has decided."""

    def settle_nothing() -> commit_protocol.Protocol[Any]:
        yield Fence()
        return (yield ReadDecisions())

    monkeypatch.setattr(commit_protocol, "_settle_all", settle_nothing)


def settle_by_a_note_of_any_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (decisions_topic, decision_records):
        monkeypatch.setattr(module, "note_of", lambda _: b"the last one")


def take_aborted_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions_topic, "is_abort_marker", lambda *_: False)


def take_aborts_for_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_reader, "is_abort_marker", lambda *_: False)


def abort_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    _mutate(monkeypatch, lambda run, runner, step: None if isinstance(step, AbortOpen) else run(runner, step))


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


MUTANTS: dict[Mutant, tuple[str, int]] = {
    trust_a_stale_end: ("2] times", 189),
    fence_too_late: ("2] times", 52),
    decide_again: ("was decided when its tasks began", 0),
    ignore_being_fenced: ("2] times", 31),
    forget_to_commit: ("0] times", 0),
    copy_nothing: ("0] times", 0),
    copy_what_was_committed: ("2] times", 531),
    forget_to_settle: ("0] times", 0),
    settle_by_a_note_of_any_decision: ("0] times", 0),
    take_aborted_decisions: ("0] times", 104),
    take_aborts_for_commits: ("0] times", 0),
    abort_nothing: ("transactions are open", 14),
    compare_the_last_version_alone: ("counts as written with other rows", 8),
    take_unknown_rows_for_the_same: ("counts as written with other rows", 21),
    compare_the_number_of_rows_alone: ("counts as written with other rows", 8),
    hash_rows_in_their_order: ("is refused with the same rows", 0),
    forget_earlier_versions: ("is refused with the same rows", 21),
    look_for_the_topic_once: ("does not exist in the cluster", 40),
}
"""What a history finds, and the first seed of a search. A change of the code may move the finding to a later seed."""
