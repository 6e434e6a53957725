"""A model of what the commit protocol needs of Kafka: transactional ids, one log, and the steps of a driver.

The log is one partition. It holds rows and decisions, so "atomic" means one transaction. AddPartitionsToTxn is part of
Produce: an added partition without records shows nothing. The results of EndTxn were measured on Apache Kafka 4.1.1.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeVar
from zlib import crc32

from pyspark_kafka_meta.model import NO_PRODUCER, OpenTransaction, ProducerIdAndEpoch, TransactionVersion
from pyspark_kafka_meta.write.exactly_once.commit_protocol import (
    AbortOpen,
    Commit,
    ConfirmDecisions,
    Fence,
    Protocol,
    ReadDecisions,
    ReadOutcomes,
    Step,
    WriteDecision,
    WriteSettled,
)
from pyspark_kafka_meta.write.exactly_once.decision import BatchId, Decision, Decisions

SINK_ID = "T"
"""The sink's own transactional id. Those of its tasks are T/<task>/<attempt>."""

T = TypeVar("T")
Request: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...]]
"""What an actor sends to a broker: it is carried out at once, and its result is sent back to the actor."""
Requests: TypeAlias = Generator[Request, Any, T]


class Violation(Exception):  # noqa: N818
    """What a user of the sink would see and must not."""


class Row(NamedTuple):
    """A row of a micro-batch, from the input of one task."""

    batch: int
    task: int
    number: int

    def __str__(self) -> str:
        return f"row {self.batch}.{self.task}.{self.number}"


def text(value: Any) -> str:
    """For traces: short."""
    match value:
        case Decision(batch, transactions, _, is_settled):
            return (
                f"batch {batch.version} is settled" if is_settled else f"batch {batch.version} is {text(transactions)}"
            )
        case OpenTransaction(transactional_id, producer, _):
            return f"{transactional_id} {text(producer)}"
        case ProducerIdAndEpoch(_, epoch):
            return f"epoch {epoch}"
        case Enum():
            return str(value.value)
        case tuple() | list() if not isinstance(value, Row):
            return f"[{', '.join(map(text, value))}]"
        case _:
            return str(value)


class Outcome(Enum):
    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"

    __hash__ = object.__hash__  # Enum's own is slow


class Record(NamedTuple):
    value: Row | Decision
    transactional_id: str
    producer: ProducerIdAndEpoch
    outcome: Outcome


class _Producer(NamedTuple):
    """What a transaction coordinator knows of a transactional id.

    Attributes:
        last: how the last transaction ended, and the epoch that it had: for a repeated EndTxn.
    """

    epoch: int = -1
    is_open: bool = False
    last: tuple[int, Outcome] | None = None


class KafkaModel:
    """Brokers. Each request is carried out as a whole, but the markers of an EndTxn may be late.

    Attributes:
        delays_markers: whether those of the next EndTxn are in the log only once its id is used again. Until then a
            coordinator answers CONCURRENT_TRANSACTIONS, and the request is repeated.
        note: which batch is settled, as the last record outside of transactions says. Compaction removes earlier ones.
    """

    def __init__(self, version: TransactionVersion) -> None:
        self.version = version
        self.delays_markers = False
        self._producers: dict[str, _Producer] = {}
        self._late: dict[str, Outcome] = {}  # of markers
        self.log: list[Record] = []
        self.note: BatchId | None = None

    def key(self) -> tuple[Any, ...]:
        """Equal for equal states."""
        producers, late = tuple(sorted(self._producers.items())), tuple(sorted(self._late))
        return (tuple(self.log), self.note, producers, late)

    def open_ids(self) -> tuple[str, ...]:
        """ListTransactions: open transactions of the sink and its tasks."""
        return tuple(sorted(name for name, producer in self._producers.items() if producer.is_open))

    def init_producer(self, name: str) -> ProducerIdAndEpoch:
        """InitProducerId: fences earlier producers and aborts their transaction."""
        self.write_markers(name)
        self._end(name, Outcome.ABORTED)
        epoch = self._producers.get(name, _Producer()).epoch + 1
        self._producers[name] = _Producer(epoch)
        return ProducerIdAndEpoch(_producer_id(name), epoch)

    def produce(self, name: str, producer: ProducerIdAndEpoch, values: tuple[Row | Decision, ...]) -> bool:
        """Produce. False if the producer is fenced. A repeated batch has its sequence numbers, and is not appended."""
        self.write_markers(name)
        known = self._producers[name]
        if known.epoch != producer.epoch:
            return False
        self._producers[name] = known._replace(is_open=True)
        for value in values:
            record = Record(value, name, producer, Outcome.OPEN)
            if record not in self.log:
                self.log.append(record)
        return True

    def end(self, name: str, producer: ProducerIdAndEpoch, outcome: Outcome) -> ProducerIdAndEpoch | None:
        """EndTxn. Returns the producer of the next transaction; None if the transaction did not end so."""
        self.write_markers(name)
        known = self._producers[name]
        if known.is_open and known.epoch == producer.epoch:
            self._end(name, outcome)
        elif known.last != (producer.epoch, outcome):
            return None
        return ProducerIdAndEpoch(producer.producer_id, self._producers[name].epoch)

    def confirm(self, name: str, producer: ProducerIdAndEpoch) -> ProducerIdAndEpoch | None:
        """Produce and EndTxn of a record without a value. Returns as `end`."""
        self.produce(name, producer, ())
        return self.end(name, producer, Outcome.COMMITTED)

    def abort(self, name: str, producer: ProducerIdAndEpoch) -> None:
        """What a failed task sends: with V1, InitProducerId, which takes over the id."""
        if self.version == TransactionVersion.V1:
            self.init_producer(name)
        else:
            self.end(name, producer, Outcome.ABORTED)

    def time_out(self, name: str) -> None:
        """A coordinator aborts a transaction after transaction.timeout.ms, and fences its producer."""
        self._end(name, Outcome.ABORTED)
        known = self._producers[name]
        if self.version == TransactionVersion.V1:
            self._producers[name] = known._replace(epoch=known.epoch + 1)

    def ids_that_end_again(self) -> tuple[str, ...]:
        """Ids whose open transaction has the epoch of the transaction before, so that its EndTxn ends both."""
        producers = self._producers.items()
        return tuple(
            sorted(name for name, each in producers if each.is_open and each.last and each.last[0] == each.epoch)
        )

    def end_again(self, name: str) -> None:
        """The EndTxn of the transaction before arrives again."""
        last = self._producers[name].last
        assert last is not None
        self._end(name, last[1])

    def _end(self, name: str, outcome: Outcome) -> None:
        known = self._producers.get(name)
        if known is None or not known.is_open:
            return
        epoch = known.epoch + (self.version == TransactionVersion.V2)
        self._producers[name] = _Producer(epoch, last=(known.epoch, outcome))
        self._late[name] = outcome
        if not self.delays_markers:
            self.write_markers(name)

    def write_markers(self, name: str) -> None:
        """The markers of the id's last transaction, unless they are in the log."""
        outcome = self._late.pop(name, None)
        if outcome is None:
            return
        for offset, record in enumerate(self.log):
            if record.transactional_id == name and record.outcome == Outcome.OPEN:
                self.log[offset] = record._replace(outcome=outcome)
        if outcome == Outcome.COMMITTED:
            self._require_exact()

    def write_all_markers(self) -> None:
        for name in list(self._late):
            self.write_markers(name)

    # --- what the log shows ------------------------------------------------------------------------------------------

    def decisions(self) -> tuple[Decision, ...]:
        """All committed decisions, in their order."""
        return tuple(
            record.value
            for record in self.log
            if record.outcome == Outcome.COMMITTED and isinstance(record.value, Decision)
        )

    def _acknowledged(self) -> Iterator[Decision]:
        """Decisions that are committed, and whose markers are late."""
        for record in self.log:
            is_late = record.outcome == Outcome.OPEN and self._late.get(record.transactional_id) == Outcome.COMMITTED
            if is_late and isinstance(record.value, Decision):
                yield record.value

    def note_settled(self, decision: Decision) -> None:
        self.note = decision.batch

    def last_decision(self) -> tuple[Decision, ...]:
        return tuple(each.settled() if each.batch == self.note else each for each in self.decisions()[-1:])

    def outcome(self, transaction: OpenTransaction) -> Outcome:
        """Of a transaction that has records in the log."""
        return next(record.outcome for record in self.log if record.producer == transaction.producer)

    def aborted(self, transactions: tuple[OpenTransaction, ...]) -> tuple[OpenTransaction, ...]:
        for transaction in transactions:
            self.write_markers(transaction.transactional_id)  # which are waited for
        outcomes = {transaction: self.outcome(transaction) for transaction in transactions}
        if Outcome.OPEN in outcomes.values():
            raise Violation(f"the outcome of an open transaction is taken for granted: {text(transactions)}")
        return tuple(transaction for transaction in transactions if outcomes[transaction] == Outcome.ABORTED)

    def rows_of(self, transactions: tuple[OpenTransaction, ...]) -> tuple[Row, ...]:
        producers = {transaction.producer for transaction in transactions}
        return tuple(
            record.value for record in self.log if record.producer in producers and isinstance(record.value, Row)
        )

    def visible(self) -> list[Record]:
        """Rows for readers with isolation.level=read_committed."""
        return [record for record in self.log if record.outcome == Outcome.COMMITTED and isinstance(record.value, Row)]

    def copies(self) -> int:
        return sum(record.transactional_id == SINK_ID for record in self.visible())

    def _require_exact(self) -> None:
        """At any time, readers see rows of decided batches alone, each once, and in order."""
        visible = self.visible()
        rows = [record.value for record in visible if isinstance(record.value, Row)]
        if len(set(rows)) < len(rows):
            raise Violation(f"rows are visible twice: {text(rows)}")
        decisions = [*self.decisions(), *self._acknowledged()]
        # Batch writes overlap: the rows of each are in order.
        of_stream = all(decision.batch.is_stream for decision in decisions)
        parts = {(None if of_stream else row.batch, row.task) for row in rows}
        in_parts = [[row for row in rows if batch in (None, row.batch) and row.task == task] for batch, task in parts]
        if any(part != sorted(part) for part in in_parts) or (
            of_stream and rows != sorted(rows, key=lambda row: row.batch)
        ):
            raise Violation(f"rows are visible out of order: {text(rows)}")
        decided = {transaction.producer for decision in decisions for transaction in decision.transactions}
        batches = {decision.batch.version for decision in decisions}
        undecided = [
            record.value
            for record, row in zip(visible, rows, strict=True)
            if record.producer not in decided and not (record.transactional_id == SINK_ID and row.batch in batches)
        ]
        if undecided:
            raise Violation(f"rows are visible although their batch is undecided: {text(undecided)}")


def _producer_id(name: str) -> int:
    """The same in each run, whichever id is initialised first: so that equal states are known as equal."""
    return crc32(name.encode())


# --- a driver carries out steps ---------------------------------------------------------------------------------------


@dataclass
class DriverModel:
    """Carries out the steps of the protocol, as requests that other actors' requests come between.

    Attributes:
        copied_at_once: how many transactions are copied in one of the driver.
        produced_at_once: how many records are in one request.
        writes_notes: whether decisions are small enough for them.
        lead: the decisions after the last commit, if the next one may go on with its producer.
        planned: the decisions that it has planned its last batch with, if any.
    """

    copied_at_once: ClassVar[int] = 100
    produced_at_once: ClassVar[int] = 100
    writes_notes: ClassVar[bool] = True

    kafka: KafkaModel
    producer: ProducerIdAndEpoch = NO_PRODUCER
    lead: Decisions | None = None
    planned: Decisions | None = None
    _led: Decisions | None = None  # the lead that a commit goes on with, until its first `ReadDecisions`
    _decisions: dict[str, Decision] = field(default_factory=dict)
    _written: Decision | None = None  # since the last `ReadDecisions`

    def plan(self, recover: Callable[..., Protocol[Decisions]]) -> Requests[Decisions]:
        """Carry out the protocol of a plan."""
        self.planned = yield from self.carry_out(recover(planned=self.planned))
        return self.planned

    def commit(self, protocol: Protocol[T]) -> Requests[T]:
        """Carry out the protocol of a commit, which goes on with the lead of the last one."""
        self._led, self.lead = self.lead, None
        committed = yield from self.carry_out(protocol)
        self.lead = dict(self._decisions) if self.kafka.version is TransactionVersion.V2 else None
        return committed

    def carry_out(self, protocol: Protocol[T]) -> Requests[T]:
        result: Any = None
        while True:
            try:
                step = protocol.send(result)
            except StopIteration as end:
                returned: T = end.value
                return returned
            result = yield from self._run(step)

    def _run(self, step: Step) -> Requests[Any]:
        match step:
            case Fence():
                yield from self._fence()
            case ReadDecisions():
                return (yield from self._read_decisions())
            case ConfirmDecisions():
                return (yield from self._confirm())
            case WriteDecision(decision):
                written = yield from self._write((decision,))
                self._written = decision if written else None
                return written
            case Commit(transactions):
                return (yield from self._commit(transactions))
            case ReadOutcomes(transactions):
                return (yield self.kafka.aborted, (transactions,))
            case WriteSettled(decision, ()) if self._written == decision and self.writes_notes:
                yield self.kafka.note_settled, (decision,)
                self._decisions[decision.batch.series] = decision.settled()
                return True
            case WriteSettled(decision, aborted):
                copied, left = aborted[: self.copied_at_once], aborted[self.copied_at_once :]
                after = replace(decision, transactions=left) if left else decision.settled()
                return (yield from self._write((*self.kafka.rows_of(copied), after))) and (after.is_settled or after)
            case AbortOpen():
                yield from self._abort_open()
        return None

    def _fence(self) -> Requests[None]:
        if self._led is None:
            self.lead = None
            self.producer = yield self.kafka.init_producer, (SINK_ID,)

    def _read_decisions(self) -> Requests[Decisions]:
        self._written = None
        if self._led is None:
            decisions = yield self.kafka.last_decision, ()
            self._decisions = {decision.batch.series: decision for decision in decisions}
        else:
            self._decisions, self._led = dict(self._led), None
        return dict(self._decisions)

    def _confirm(self) -> Requests[bool]:
        producer = yield self.kafka.confirm, (SINK_ID, self.producer)
        self.producer = producer or self.producer
        return producer is not None

    def _abort_open(self) -> Requests[None]:
        for name in (yield self.kafka.open_ids, ()):
            if name != SINK_ID:
                yield self.kafka.init_producer, (name,)

    def _write(self, values: tuple[Row | Decision, ...]) -> Requests[bool]:
        for first in range(0, len(values), self.produced_at_once):
            part = values[first : first + self.produced_at_once]
            if not (yield self.kafka.produce, (SINK_ID, self.producer, part)):
                return False
        producer = yield self.kafka.end, (SINK_ID, self.producer, Outcome.COMMITTED)
        self.producer = producer or self.producer
        if producer is not None:
            self._decisions |= {each.batch.series: each for each in values if isinstance(each, Decision)}
        return producer is not None

    def _commit(self, transactions: tuple[OpenTransaction, ...]) -> Requests[tuple[OpenTransaction, ...]]:
        unknown = []
        for transaction in transactions:
            name, producer, _ = transaction
            if (yield self.kafka.end, (name, producer, Outcome.COMMITTED)) is None:
                unknown.append(transaction)
        return tuple(unknown)
