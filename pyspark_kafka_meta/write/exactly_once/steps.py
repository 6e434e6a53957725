"""The steps of the commit protocol that need a broker, and their results.

`step_runner.StepRunner` carries them out in Kafka; tests carry them out in a model. A step may be repeated: a driver
that dies within a step, or does not see its response, repeats it in its next run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from pyspark_kafka_meta.model import OpenTransaction
from pyspark_kafka_meta.write.exactly_once.decision import Decision


@dataclass(frozen=True, slots=True)
class Fence:
    """Take over the sink's own transactional id (InitProducerId): no other driver can write a decision any more, and
    its open transaction is aborted. Result: None."""


@dataclass(frozen=True, slots=True)
class ReadDecisions:
    """Read the committed decisions of the sink, up to the end of the log. Result: `Decisions`."""


@dataclass(frozen=True, slots=True)
class ConfirmDecisions:
    """Write a record behind the decisions, and read up to it: a broker that does not know yet that it has lost the
    partition reports an end of the log that is too low. Result: False if there are decisions that `ReadDecisions` did
    not return, or another driver has fenced this one."""


@dataclass(frozen=True, slots=True)
class WriteDecision:
    """Write a decision in a transaction of the sink's own id. Result: False if another driver has fenced this one, and
    nothing was written."""

    decision: Decision


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit transactions of tasks (EndTxn). Result: a tuple of those whose coordinator knows them neither as open nor
    as committed: they timed out, or their ids are in use again."""

    transactions: tuple[OpenTransaction, ...]


@dataclass(frozen=True, slots=True)
class ReadOutcomes:
    """Read from the log how transactions ended: the markers behind their records. Result: a tuple of those that were
    aborted. Raises DataLossError if no marker can come any more, and ConnectError if one may come later."""

    transactions: tuple[OpenTransaction, ...]


@dataclass(frozen=True, slots=True)
class WriteSettled:
    """Write the settled decision, and copies of the records of its aborted transactions, all in one transaction of the
    sink's own id. If one transaction is too short for all copies, it holds some of them, and the decision with what is
    left to copy. Result: True if the batch is settled, that decision if some is left, and False if another driver has
    fenced this one, and nothing became visible. Raises DataLossError if records are gone."""

    decision: Decision
    aborted: tuple[OpenTransaction, ...]


@dataclass(frozen=True, slots=True)
class AbortOpen:
    """Abort the open transactions of the sink's tasks: all decided ones have ended. Result: None.

    Attributes:
        known: transactional ids of attempts that may have left a transaction open. The list of brokers may lack them,
            while their coordinator moves or does not respond.
        guessed: further ids, if brokers do not list what is open (before Kafka 3.0). Each id that a broker has not
            heard of costs it memory for a week.
    """

    known: tuple[str, ...] = ()
    guessed: tuple[str, ...] = ()


Step: TypeAlias = (
    Fence | ReadDecisions | ConfirmDecisions | WriteDecision | Commit | ReadOutcomes | WriteSettled | AbortOpen
)
