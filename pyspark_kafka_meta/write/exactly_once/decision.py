"""`Decision`: which transactions a batch of rows consists of. Once it is written, the batch counts as written.

It is the commit record of a two-phase commit: before it, all transactions of the batch can be aborted; after it, all of
them must become visible, whoever ends them. Decisions of one sink are in a compacted topic (`decisions_topic.py`).

The key of a record is the sink's transactional id and the series, its value the decision, both as JSON. Compaction
keeps the last record of each key. A decision names each partition of each task: compressed, about 80,000 of these pairs
take 1 MB, Kafka's default of max.message.bytes. A topic that a sink has created takes 16 MB.

A settled decision replaces the decision, or a note says that all its transactions are committed. A note is in no
transaction. It has a key of its own, and names the decision, so that a late note of a driver that was fenced settles no
later decision. After compaction, a late note may have replaced that of a later decision. This decision is then settled
again, for which the markers of its transactions must still be in the log.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple, TypeAlias

from pyspark_kafka_meta.errors import ProtocolError
from pyspark_kafka_meta.model import OpenTransaction, ProducerIdAndEpoch, RowDigest, TransactionSpan, TransactionVersion

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


FORMAT = 1
NOTE: Final = "settled"
"""In the key of the note."""
MESSAGE_BYTES = 1_048_588
"""Kafka's default of max.message.bytes."""


Record: TypeAlias = tuple[bytes, bytes | None]
"""Key and value."""


class RecordKey(NamedTuple):
    """The key of a record: of a decision, or of the note that it is settled (`NOTE`)."""

    transactional_id: str
    series: str
    note: Literal["settled"] | None = None

    @classmethod
    def parse(cls, key: bytes | None) -> RecordKey | None:
        """None if the record is none of a decision."""
        with suppress(ValueError):
            match json.loads(key or b""):
                case [str(transactional_id), str(series)]:
                    return cls(transactional_id, series)
                case [str(transactional_id), str(series), "settled"]:
                    return cls(transactional_id, series, NOTE)
        return None

    def to_json(self) -> bytes:
        return json.dumps(self[:2] if self.note is None else self).encode()


def confirming_record(transactional_id: str) -> Record:
    """A record of this sink that is none of a decision, and that compaction removes."""
    return json.dumps([transactional_id]).encode(), None


def settled_note(transactional_id: str, decision: Decision) -> tuple[bytes, bytes]:
    """The record which says that all transactions of this decision are committed."""
    return RecordKey(transactional_id, decision.batch.series, NOTE).to_json(), note_of(decision)


def note_of(decision: Decision) -> bytes:
    """What names this decision in a note."""
    return json.dumps([decision.batch.owner, decision.batch.version, decision.time_ms]).encode()


def decision_record(transactional_id: str, decision: Decision) -> tuple[bytes, bytes]:
    """The key and value of the record that holds a decision of this sink."""
    return RecordKey(transactional_id, decision.batch.series).to_json(), _to_json(decision)


def parse_decision(key: RecordKey, value: bytes) -> Decision:
    """
    Raises:
        ProtocolError: another release of this package wrote the decision.
        TypeError, ValueError, KeyError: something else wrote the record.
    """
    fields = json.loads(value)
    if fields["format"] != FORMAT:
        raise ProtocolError(
            f"the last decision of this sink has format {fields['format']}, and this release reads {FORMAT}: use the "
            "release that wrote it"
        )
    transactions = tuple(
        OpenTransaction(
            transactional_id, ProducerIdAndEpoch(*producer), tuple(TransactionSpan(*each) for each in written)
        )
        for transactional_id, producer, written in fields["transactions"]
    )
    batch = BatchId(key.series, fields["owner"], fields["version"])
    return Decision(
        batch,
        transactions,
        fields["time_ms"],
        fields["is_settled"],
        tuple(fields["former_owners"]),
        # Until the first release: a clone of before wrote neither.
        _rows(fields.get("rows")),
        tuple((version, _rows(rows)) for version, rows in fields.get("earlier", ())),
    )


def _rows(fields: list[int] | None) -> RowDigest | None:
    return None if fields is None else RowDigest(*fields)


def _row_fields(rows: RowDigest | None) -> list[int] | None:
    return None if rows is None else [rows.rows, rows.hash]


def _to_json(decision: Decision) -> bytes:
    batch = decision.batch
    return json.dumps(
        {
            "format": FORMAT,
            "owner": batch.owner,
            "version": batch.version,
            "time_ms": decision.time_ms,
            "is_settled": decision.is_settled,
            "former_owners": decision.former_owners,
            "rows": _row_fields(decision.rows),
            "earlier": [(version, _row_fields(rows)) for version, rows in decision.earlier],
            "transactions": decision.transactions,
        }
    ).encode()
