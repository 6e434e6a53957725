"""`Decision`: which transactions a batch of rows consists of. Once it is written, the batch counts as written.

It is the commit record of a two-phase commit: before it, all transactions of the batch can be aborted; after it, all of
them must become visible, whoever ends them. Decisions of one sink are in a compacted topic (`decisions_topic.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from pyspark_kafka_meta.model import OpenTransaction, RowDigest, TransactionVersion

STREAM = "stream"
"""The series of micro-batches."""
BATCH = "batch"
"""The series of batch writes without txnAppId."""
MAX_EARLIER = 100
"""Versions of a txnAppId before the last one, whose rows a decision keeps: as many as Spark's checkpoint keeps batches
(spark.sql.streaming.minBatchesToRetain)."""


@dataclass(frozen=True, slots=True)
class BatchId:
    """Identifies a batch of rows across restarts.

    Attributes:
        series: versions grow within a series: `STREAM`, `BATCH`, or that of a txnAppId.
        owner: the streaming query, or the txnAppId. A batch write without it has a random one, and so no predecessor.
        version: the id of the micro-batch, or txnVersion.
    """

    series: str
    owner: str
    version: int

    @classmethod
    def of_app(cls, txn_app_id: str, txn_version: int) -> BatchId:
        return cls(f"app {txn_app_id}", txn_app_id, txn_version)

    @property
    def is_stream(self) -> bool:
        return self.series == STREAM

    def __str__(self) -> str:
        return f"micro-batch {self.version} of query {self.owner}" if self.is_stream else f"version {self.version}"


Versions: TypeAlias = tuple[tuple[int, RowDigest | None], ...]
"""Versions of a series in their order, with their rows."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A decided batch.

    Attributes:
        is_settled: whether all its records are visible: nothing is left to do.
        time_ms: of the decision, ms since 1970 UTC.
        former_owners: queries, or batch writes without txnAppId, that were decided in this series before, the latest
            last.
        rows: of the batch; None if its driver did not say.
        earlier: the last versions before, in the series of a txnAppId.
    """

    batch: BatchId
    transactions: tuple[OpenTransaction, ...]
    time_ms: int
    is_settled: bool = False
    former_owners: tuple[str, ...] = ()
    rows: RowDigest | None = None
    earlier: Versions = ()

    @property
    def versions(self) -> Versions:
        """Those before and the batch's own."""
        return (*self.earlier, (self.batch.version, self.rows))

    def settled(self, left: tuple[OpenTransaction, ...] = ()) -> Decision:
        """The decision once nothing is left to do but to copy the records of `left`: without the other transactions,
        which nobody needs any more."""
        return replace(self, transactions=left, is_settled=not left)


Decisions: TypeAlias = Mapping[str, Decision]
"""The last decision of each series of one sink."""


def is_written(decisions: Decisions, batch: BatchId) -> bool:
    """Whether the batch was decided before: its rows must not be written again. txnVersion is that of a series of
    writes: all versions up to the last count as written, as in Delta Lake."""
    last = decisions.get(batch.series)
    if last is None:
        return False
    if batch.is_stream:
        return batch == last.batch
    return batch.owner in last.former_owners or (
        batch.owner == last.batch.owner and batch.version <= last.batch.version
    )


GUESSED_ATTEMPTS = 4
"""Attempts of a task whose transactions are looked for where brokers cannot list them (spark.task.maxFailures)."""


@dataclass(frozen=True, slots=True)
class TransactionPlan:
    """What the tasks of a batch need to know for their transactions. The driver makes it before they start.

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
