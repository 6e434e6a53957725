"""`TransactionPlan`: what the tasks of a batch need to know for their transactions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pyspark_kafka_meta.model import TransactionVersion
from pyspark_kafka_meta.write.exactly_once.decision import Decisions

GUESSED_ATTEMPTS = 4
"""Attempts of a task whose transactions are looked for where brokers cannot list them (spark.task.maxFailures)."""


@dataclass(frozen=True, slots=True)
class TransactionPlan:
    """Made by the driver before the tasks of a batch.

    Attributes:
        transactional_id: of the sink. Those of its task attempts begin with it.
        timeout_ms: of each task's transaction.
        decisions: all settled.
    """

    transactional_id: str
    timeout_ms: int
    version: TransactionVersion
    decisions: Decisions = field(default_factory=dict)

    def task_id(self, task: int, attempt: int) -> str:
        return attempt_id(self.transactional_id, task, attempt)


def attempt_id(sink: str, task: int, attempt: int) -> str:
    """The transactional id of a task attempt. Their number stays bounded: the next batch uses them again."""
    return f"{sink}/{task}/{attempt}"


def sink_of_task(transactional_id: str) -> str | None:
    """The sink whose task attempt has this transactional id; None if it is not the id of a task attempt."""
    sink, *numbers = transactional_id.rsplit("/", 2)
    return sink if len(numbers) == 2 and all(number.isdecimal() for number in numbers) else None


def tasks_of_sink(transactional_ids: Iterable[str], sink: str) -> tuple[str, ...]:
    """Those of the sink's task attempts."""
    return tuple(each for each in transactional_ids if sink_of_task(each) == sink)


def earlier_attempts(transactional_id: str) -> list[str]:
    """The transactional ids of the attempts of the same task before this one."""
    task, _, attempt = transactional_id.rpartition("/")
    return [f"{task}/{earlier}" for earlier in range(int(attempt))]
