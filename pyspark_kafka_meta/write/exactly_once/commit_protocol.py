"""The two-phase commit of exactly-once writes, as generators that yield steps and know no socket.

`step_runner.StepRunner` carries the steps out in Kafka; tests carry them out in a model. A step may be repeated: a
driver that dies within a step, or does not see its response, repeats it in its next run.

Each task attempt writes in a transaction of its own and leaves it open. The driver writes its decision for the batch,
then ends the transactions. Two rules make this exact, whatever crashes:

1. A decision is written only by a driver that has fenced all others and then read what they have decided. So a batch is
   decided once, although Spark may write it again and again.
2. What is decided becomes visible. If a broker has aborted a decided transaction meanwhile (transaction.timeout.ms, or
   its id was used again), its records are copied from the log, together with the note that the batch is settled, or
   with the decision of what is left to copy.

The next batch begins after the batch before is settled, so records of one key keep their order.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from pyspark_kafka_meta.errors import ChangedBatchError, FencedError
from pyspark_kafka_meta.model import OpenTransaction
from pyspark_kafka_meta.write.exactly_once.decision import BatchId, Decision, Decisions, is_written


@dataclass(frozen=True, slots=True)
class Fence:
    """Take over the sink's own transactional id (InitProducerId): no other driver can write a decision any more, and
    its open transaction is aborted. Result: None."""


@dataclass(frozen=True, slots=True)
class ReadDecisions:
    """Read the committed decisions of the sink, up to the end of the log. Result: `Decisions`."""


@dataclass(frozen=True, slots=True)
class ConfirmDecisions:
    """Write a record after the decisions, and read up to it: a broker that does not know yet that it has lost the
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
    """Read from the log how transactions ended: the markers after their records. Result: a tuple of those that were
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


T = TypeVar("T")
Protocol: TypeAlias = Generator[Step, Any, T]
"""Yields steps, is sent their results, and returns T."""

MAX_FORMER_OWNERS = 100
MAX_TAKEOVERS = 10
"""Two drivers that keep fencing each other would do so forever."""


def recover(known: Sequence[str] = (), guessed: Sequence[str] = (), *, confirms: bool = True) -> Protocol[Decisions]:
    """Settle what earlier runs have decided, and abort what they have not. Returns the decisions, all of them settled.

    Args:
        known, guessed: transactional ids that may be open, for `AbortOpen`.
        confirms: False if this query has confirmed the decisions before: only its own have followed.

    Raises:
        FencedError: other drivers keep taking over.
        DataLossError: decided records, or decisions, are gone.
        ConnectError: it is not known yet how a decided transaction ended.
    """
    for _ in range(MAX_TAKEOVERS):
        decisions = yield from _settle_all()
        if not confirms or (yield ConfirmDecisions()):
            yield AbortOpen(tuple(known), tuple(guessed))
            return decisions
    raise _taken_over()


def commit(
    batch: BatchId,
    transactions: Sequence[OpenTransaction],
    now_ms: int,
    known: Sequence[str] = (),
    rows: int | None = None,
) -> Protocol[None]:
    """Make the rows of a batch visible, unless an earlier run has decided it: then its own transactions are aborted.

    Args:
        transactions: of the task attempts that Spark chose.
        now_ms: ms since 1970 UTC.
        known: as in `recover`.
        rows: number of rows of the batch, also if tasks did not write them because it was decided. None to accept any.

    Raises:
        ChangedBatchError: an earlier run has decided it, with another number of rows.
        FencedError: another query has taken over the transactional id, or other drivers keep doing so.
        DataLossError, ConnectError: as `recover`.
    """
    for _ in range(MAX_TAKEOVERS):
        decisions = yield from _settle_all()
        if is_written(decisions, batch):
            if not (yield ConfirmDecisions()):
                continue  # read what the driver that took over has decided
            yield AbortOpen((*known, *(transaction.transactional_id for transaction in transactions)))
            _require_same_rows(decisions[batch.series], batch, rows)
            return
        require_owner(decisions, batch)
        former = _former_owners(decisions, batch)
        decision = Decision(batch, tuple(transactions), now_ms, former_owners=former)
        written = yield WriteDecision(decision)
        if written and (yield from _settle(decision)):
            yield AbortOpen(tuple(known))
            return
    raise _taken_over()


def require_owner(decisions: Decisions, batch: BatchId) -> None:
    """Raises FencedError if the sink belongs to another query by now, or this query has gone back behind a decided
    batch. A new query takes over with its first batch."""
    last = decisions.get(batch.series)
    if last is None or not batch.is_stream:
        return
    if last.batch.owner != batch.owner and (batch.version > 0 or batch.owner in last.former_owners):
        raise FencedError(
            f"{batch} was fenced: {last.batch} has written with the same kafka.transactional.id since: stop this "
            "query, or give it an id of its own; if its rows are visible already, it repeats them"
        )
    if last.batch.owner == batch.owner and batch.version < last.batch.version:
        raise FencedError(
            f"{batch} comes after {last.batch}: was an old checkpoint restored? Start with the newest checkpoint, or "
            "with a new checkpoint and a new kafka.transactional.id, which writes all rows that it reads again"
        )


def _require_same_rows(decided: Decision, batch: BatchId, rows: int | None) -> None:
    """Raises ChangedBatchError if rows would be lost: a checkpoint from before the batch has planned it anew. Neither
    the tasks that have the rows nor, without keys, their partitions are the same in a repetition: their number is."""
    if decided.batch == batch and rows and decided.rows not in (None, rows):
        raise ChangedBatchError(
            f"{batch} was written before, and its number of rows, {decided.rows} then, is {rows} now: none of them is "
            "written again. Was an old checkpoint restored? Start with the newest checkpoint. Without it, use a new "
            "kafka.transactional.id, and the batch is written again, also its rows that are visible. If the rows "
            "differ only because the query is not deterministic, set the option onChangedBatch to skip"
        )


def _former_owners(decisions: Decisions, batch: BatchId) -> tuple[str, ...]:
    """Whose batches were decided in the series before this owner's."""
    last = decisions.get(batch.series)
    if last is None:
        return ()
    if last.batch.owner == batch.owner:
        return last.former_owners
    return (*last.former_owners, last.batch.owner)[-MAX_FORMER_OWNERS:]


def _settle_all() -> Protocol[Decisions]:
    """Fence all other drivers, and settle every decision."""
    for _ in range(MAX_TAKEOVERS):
        yield Fence()
        decisions: Decisions = yield ReadDecisions()
        unsettled = [decision for decision in decisions.values() if not decision.is_settled]
        if not unsettled:
            return decisions
        # What follows is in an epoch of its own again: under V1, a late EndTxn would commit half of it.
        for decision in unsettled:
            if not (yield from _settle(decision)):
                break
    raise _taken_over()


def _settle(decision: Decision) -> Protocol[bool]:
    """Make a decided batch visible. False if another driver has been at work meanwhile."""
    unknown = yield Commit(decision.transactions)
    aborted = (yield ReadOutcomes(unknown)) if unknown else ()
    while True:
        if aborted:
            # The copies are in an epoch of their own, too.
            yield Fence()
            decisions: Decisions = yield ReadDecisions()
            if decisions.get(decision.batch.series) != decision:
                return False
        written: Decision | bool = yield WriteSettled(decision, aborted)
        if isinstance(written, bool):
            return written
        decision, aborted = written, written.transactions


def _taken_over() -> FencedError:
    return FencedError(
        f"other drivers took over this kafka.transactional.id, or its own transaction timed out, {MAX_TAKEOVERS} times "
        "in a row: stop the other query, or raise transaction.max.timeout.ms of the brokers"
    )
