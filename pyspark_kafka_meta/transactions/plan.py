"""`TransactionPlan`: what the tasks of a batch need to know for their transactions."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyspark_kafka_meta.model import TransactionVersion
from pyspark_kafka_meta.transactions.decision import Decisions

LISTED_ATTEMPTS = 4
"""Attempts of a task whose transactions are looked for where brokers cannot list them (spark.task.maxFailures)."""


@dataclass(frozen=True, slots=True)
class TransactionPlan:
    """Made by the driver before the tasks of a batch.

    Attributes:
        transactional_id: of the sink. Those of its task attempts begin with it.
        timeout_ms: of each transaction.
        decisions: all settled.
    """

    transactional_id: str
    timeout_ms: int
    version: TransactionVersion
    decisions: Decisions = field(default_factory=dict)

    def task_id(self, task: int, attempt: int) -> str:
        """The transactional id of an attempt. Their number stays bounded: the next batch uses them again."""
        return f"{self.transactional_id}/{task}/{attempt}"


def is_task_of(transactional_id: str, sink: str) -> bool:
    """Whether a transactional id is one of the task attempts of a sink."""
    prefix, *numbers = transactional_id.rsplit("/", 2)
    return prefix == sink and len(numbers) == 2 and all(number.isdecimal() for number in numbers)
