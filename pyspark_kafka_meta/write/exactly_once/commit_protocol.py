"""The two-phase commit of exactly-once writes, as generators that yield steps and know no socket.

`step_runner.StepRunner` carries the steps out in Kafka.

A Kafka transaction is atomic: readers with isolation level read_committed see all its records or none. But each task
needs a transaction of its own, and Spark may repeat tasks and whole batches. So the driver joins the transactions:

1. Each task attempt writes in its own transaction and leaves it open.
2. The driver writes a decision, which names the transactions of the attempts that Spark chose, to the decisions topic,
   in a transaction of the sink's own transactional id. Before it, the batch can be aborted. After it, the batch counts
   as written: all its records must become visible, and a repetition of the batch writes nothing.
3. The driver commits these transactions, notes that the batch is settled, and aborts the other open transactions of
   the sink's tasks. The note needs no transaction: what it says of this decision stays true, however late it comes.

In other two-phase commits a prepared participant waits for the decision. Kafka's brokers do not: they abort a decided
transaction after its timeout, or once its id is used again. Its records stay in the log, invisible, and the driver
copies them (`WriteSettled`).

    recover (before a query):  Fence, ReadDecisions, settle*, ConfirmDecisions, AbortOpen
    recover (next batches):    ReadDecisions, AbortOpen if a later batch is settled; else as before a query
    commit:                    Fence, ReadDecisions, settle*, WriteDecision, settle, AbortOpen
    commit if it was decided:  Fence, ReadDecisions, settle*, ConfirmDecisions, AbortOpen
    settle one decision:       Commit, then [ReadOutcomes, Fence, ReadDecisions] if need be, WriteSettled
    settle*:                   if decisions are unsettled, settle each, then Fence and ReadDecisions again

Under `TransactionVersion.V2`, a driver that has committed a batch has fenced all others for the next one too, and knows
all decisions until another driver fences it: the first Fence and ReadDecisions then send nothing (`step_runner.Lead`).

| state of a batch | its decision | its records | ends with |
|---|---|---|---|
| undecided | none | invisible; each transaction may be aborted | `WriteDecision`, or `AbortOpen` |
| decided | names all transactions | visible, invisible, or aborted by a broker | `WriteSettled` |
| partly copied | names what is left to copy | all others are visible | `WriteSettled` |
| settled | is noted as settled, or names none | visible | the next decision of its series |

A step may be repeated: a driver that dies within a step, or sees no response, repeats it in its next run. Races: what
happens without a guard, and the guard. A and B are drivers of the same sink.

1. A stands still. (1) A reads that batch 7 is undecided. (2) Spark starts B, which repeats and commits batch 7. (3) A
   wakes up and decides batch 7 with its own transactions: its rows are visible twice. Guard: `Fence` comes before
   `ReadDecisions`. The `Fence` of B lets brokers refuse A's decision; A reads again, finds batch 7, aborts its own.
2. The driver dies between decision and commit. Guard: the decision comes first. The next run commits what it names; the
   tasks of the repeated batch write nothing. If commits came first, half of the batch could be visible and undecided.
3. A coordinator does not know a decided transaction. (1) It was aborted after its timeout; or an earlier run committed
   it, and its id was used again. (2) Without copies rows are lost; with copies in the second case they are visible
   twice. Guard: `ReadOutcomes` takes the outcome from the markers in the log. Only aborted records are copied.
4. A and B copy the same records. (1) A finds an aborted transaction. (2) B takes over, copies it, and settles the
   batch. (3) A copies it too. Guards: A fences and reads again before it copies. Copies and the settled decision are in
   one transaction, which a fenced driver cannot commit. If that would take too long, several transactions each hold
   some copies and the decision of what is left.
5. A late EndTxn (`TransactionVersion.V1`). (1) A commits a decision; the EndTxn seems lost and is sent again. (2) A
   writes copies, or the next decision, in the same epoch. (3) The first EndTxn arrives, and commits half of them.
   Guard: `Fence` raises the epoch before copies, and after earlier decisions were settled. A settled decision without
   copies needs no guard: it is one record, which is true.
6. A broker lags behind. (1) It does not know yet that it leads the decisions topic no more, and reports an end of the
   log before the last decision. (2) The driver decides that batch again, or aborts its transactions. Guard: a record
   that is acknowledged is at the true end. `WriteDecision` reads up to a record of its own before it commits, and so
   does `WriteSettled`, unless it is a note. `ConfirmDecisions` writes one for this alone, before the first `AbortOpen`
   of a query, and after a micro-batch that failed.
7. The next batch overtakes. (1) Its tasks write while batch 7 is decided, but not settled. (2) Records of batch 7 are
   copied after theirs: records of one key change their order. Guard: `recover` settles before the next batch begins.
8. Owners overlap. (1) Two batch writes are decided in one series: the second decision replaces the first. (2) The first
   driver, which saw no response, decides again. Guard: decisions name `former_owners`. A streaming query whose id
   another query uses by now is refused (`require_owner`).
9. A late note. (1) A decides batch 7, and stands still. (2) B settles it, decides and notes batch 8. (3) A's note of
   batch 7 comes, and compaction removes that of batch 8. (4) Long after, when markers are gone, nobody knows how batch
   8 ended. Guard: the last note counts alone from the start, so the next run settles batch 8 once more.
10. Decisions are gone. (1) Batch 7 is repeated; it is decided, so its tasks write nothing. (2) The decisions topic is
    deleted. (3) A commits the repetition, finds no decision, and decides batch 7 without its rows. Guard: a decision
    needs transactions with all rows of its batch. Else `commit` fails, after `ConfirmDecisions` (race 6).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from pyspark_kafka_meta.errors import ChangedBatchError, DataLossError, FencedError
from pyspark_kafka_meta.model import OpenTransaction, RowDigest
from pyspark_kafka_meta.write.exactly_once.decision import (
    BATCH,
    MAX_EARLIER,
    STREAM,
    BatchId,
    Decision,
    Decisions,
    Versions,
    is_written,
)


@dataclass(frozen=True, slots=True)
class Fence:
    """Take over the sink's own transactional id (InitProducerId): drivers that took it over before can write no
    decision any more, and their open transaction is aborted. Result: None."""


@dataclass(frozen=True, slots=True)
class ReadDecisions:
    """Read the committed decisions of the sink, up to the end of the log. Waits a moment for the marker of the last
    one, unless `Fence` has waited for it. Result: `Decisions`."""


@dataclass(frozen=True, slots=True)
class ConfirmDecisions:
    """Write a record to the decisions topic, and read up to it (race 6). Result: False if there are decisions that
    `ReadDecisions` did not return, or another driver has fenced this one."""


@dataclass(frozen=True, slots=True)
class WriteDecision:
    """Write a decision in a transaction of the sink's own id. Result: False, and nothing is decided, if another driver
    has fenced this one, or there are decisions that `ReadDecisions` did not return."""

    decision: Decision


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit transactions of tasks (EndTxn). Result: a tuple of the transactions that their coordinators know neither
    as open nor as committed: they timed out, or their ids are in use again."""

    transactions: tuple[OpenTransaction, ...]


@dataclass(frozen=True, slots=True)
class ReadOutcomes:
    """Read from the log how transactions ended: the markers after their records. Result: a tuple of the aborted
    transactions. Raises DataLossError if no marker can come any more, and ConnectError if a marker may come later."""

    transactions: tuple[OpenTransaction, ...]


@dataclass(frozen=True, slots=True)
class WriteSettled:
    """Write the settled decision, and before it copies of the records of its aborted transactions, all in one
    transaction of the sink's own id. If its timeout is too short for all copies, the transaction holds some of them,
    and the decision with what is left to copy. If nothing was aborted, and the driver has written the decision since
    its last `Fence`, a note without a transaction is enough.

    Result: True if the batch is settled; the written decision if something is left; False, and nothing became visible,
    as for `WriteDecision`. Raises DataLossError if records are gone from the log."""

    decision: Decision
    aborted: tuple[OpenTransaction, ...]


@dataclass(frozen=True, slots=True)
class AbortOpen:
    """Abort the open transactions of the sink's tasks. All transactions of decisions that were read have ended before;
    those that another driver decides meanwhile, it copies. Result: None.

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
"""A decision names the latest."""
MAX_TAKEOVERS = 10
"""Two drivers that keep fencing each other would do so forever."""


def recover(
    known: Sequence[str] = (), guessed: Sequence[str] = (), planned: Decisions | None = None
) -> Protocol[Decisions]:
    """Settle what earlier runs have decided, and abort what they have not. Returns the decisions, all of them settled.

    Args:
        known, guessed: transactional ids that may be open, for `AbortOpen`.
        planned: the decisions that this process has planned its last micro-batch with, if any. If a later micro-batch
            is settled by now, it need not take over: what another driver decides meanwhile, `commit` reads and
            settles. Else the last one failed or had no rows, or a broker lags behind (race 6).

    Raises:
        FencedError: other drivers keep taking over.
        DataLossError: decided records, or decisions, are gone.
        ConnectError: it is not known yet how a decided transaction ended.
    """
    if planned is not None:
        last: Decisions = yield ReadDecisions()
        if last.get(STREAM) != planned.get(STREAM) and all(decision.is_settled for decision in last.values()):
            yield AbortOpen(tuple(known), tuple(guessed))
            return last
    for _ in range(MAX_TAKEOVERS):
        decisions = yield from _settle_all()
        if (yield ConfirmDecisions()):
            yield AbortOpen(tuple(known), tuple(guessed))
            return decisions
    raise _taken_over()


def commit(
    batch: BatchId,
    transactions: Sequence[OpenTransaction],
    now_ms: int,
    known: Sequence[str] = (),
    rows: RowDigest | None = None,
) -> Protocol[None]:
    """Make the rows of a batch visible, unless an earlier run has decided it: then `transactions` are aborted.

    Args:
        transactions: of the task attempts that Spark chose.
        now_ms: ms since 1970 UTC.
        known: as in `recover`.
        rows: of the batch, also if tasks did not write them because it was decided. None to accept any.

    Raises:
        ChangedBatchError: it counts as written, with other rows, or with rows that are not known any more.
        FencedError: another query has taken over the transactional id, or other drivers keep doing so.
        DataLossError: as `recover`; or the tasks have skipped rows, because the batch was decided, and it is not now.
        ConnectError: as `recover`.
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
        if rows is not None and (skipped := rows.rows - sum(each.rows for each in transactions)):
            if not (yield ConfirmDecisions()):
                continue  # the decision that the tasks know is after the end that a broker has reported
            raise _decision_is_gone(batch, skipped)
        last = decisions.get(batch.series)
        former = _former_owners(last, batch)
        decision = Decision(batch, tuple(transactions), now_ms, False, former, rows, _earlier(last))
        written = yield WriteDecision(decision)
        if written and (yield from _settle(decision)):
            yield AbortOpen(tuple(known))
            return
    raise _taken_over()


def require_owner(decisions: Decisions, batch: BatchId) -> None:
    """Raises FencedError if the sink belongs to another query by now, or if a later batch of this query was decided, as
    after the restore of an old checkpoint. A new query takes the sink over with its first batch."""
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


def _require_same_rows(last: Decision, batch: BatchId, rows: RowDigest | None) -> None:
    """Raises ChangedBatchError if a batch that counts as written may have had other rows, as far as `last` knows: Spark
    has planned it anew, from a checkpoint that is older than the batch, and its new rows would not be written."""
    decided = dict(last.versions).get(batch.version)
    if batch.series == BATCH or rows is None or rows.rows == 0 or rows == decided:
        return
    if decided is None:
        what = f"counts as written, because {last.batch} is, and nobody knows any more which rows it had"
    else:
        what = f"was written before with other rows ({decided.rows} then, {rows.rows} now)"
    raise ChangedBatchError(
        f"{batch} {what}: none of its rows is written. Was an old checkpoint restored? Start with the newest "
        "checkpoint. Without it, use a new kafka.transactional.id, and the batch is written, also its rows that are "
        "visible. If no row is missing, because the query makes other rows of the same input (random values, the "
        "current time, a joined table that has changed), set the option onChangedBatch to skip"
    )


def _earlier(last: Decision | None) -> Versions:
    """The versions that the next decision of the series of `last` knows. Streams and batch writes without txnAppId
    repeat none of them."""
    return () if last is None or last.batch.series in (STREAM, BATCH) else last.versions[-MAX_EARLIER:]


def _former_owners(last: Decision | None, batch: BatchId) -> tuple[str, ...]:
    """The owners whose batches were decided in this series before the batches of this owner (race 8).

    Args:
        last: of the series.
    """
    if last is None:
        return ()
    if last.batch.owner == batch.owner:
        return last.former_owners
    return (*last.former_owners, last.batch.owner)[-MAX_FORMER_OWNERS:]


def _settle_all() -> Protocol[Decisions]:
    """Fence all other drivers, and settle every decision. Returns the decisions, read after the last fence."""
    for _ in range(MAX_TAKEOVERS):
        yield Fence()
        decisions: Decisions = yield ReadDecisions()
        unsettled = [decision for decision in decisions.values() if not decision.is_settled]
        if not unsettled:
            return decisions
        # Fence again: what follows must be in an epoch of its own (race 5).
        for decision in unsettled:
            if not (yield from _settle(decision)):
                break
    raise _taken_over()


def _settle(decision: Decision) -> Protocol[bool]:
    """Make a decided batch visible. False if another driver has taken over meanwhile: the caller reads again."""
    unknown = yield Commit(decision.transactions)
    aborted = (yield ReadOutcomes(unknown)) if unknown else ()
    while True:
        if aborted:
            yield Fence()  # races 4 and 5
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
        "in a row: stop the other query, which needs an id of its own, or raise transaction.max.timeout.ms of the "
        "brokers. Then start this query again: it goes on from there"
    )


def _decision_is_gone(batch: BatchId, skipped: int) -> DataLossError:
    """Of a batch that was decided when its tasks were planned. Decided again without their rows, it would count as
    written."""
    return DataLossError(
        f"decisions are gone: {batch} was decided when its tasks began, which therefore have not written {skipped} of "
        "its rows, and it is not decided any more. Start the query again: it writes the batch again, also its rows "
        "that are visible"
    )
