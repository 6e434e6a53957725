"""`StepRunner`: carries out the steps of the commit protocol in Kafka."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from pyspark_kafka_meta.errors import (
    DeliveryTimeoutError,
    FencedError,
    KafkaMetaError,
    RecordTooLargeError,
    TransactionTimeoutError,
    UnsupportedBrokerError,
)
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.records.encoder import EncodedBatch
from pyspark_kafka_meta.model import OpenTransaction, TopicPartition, TransactionVersion
from pyspark_kafka_meta.options import SinkOptions
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
from pyspark_kafka_meta.write.exactly_once.decision import (
    MESSAGE_BYTES,
    Decision,
    Decisions,
    Record,
    TransactionPlan,
    confirming_record,
    decision_record,
    settled_note,
    tasks_of_sink,
)
from pyspark_kafka_meta.write.exactly_once.decisions_topic import MAX_MESSAGE_BYTES, DecisionsTopic
from pyspark_kafka_meta.write.exactly_once.transaction_reader import TransactionReader, not_copied
from pyspark_kafka_meta.write.input_columns import SinkColumns
from pyspark_kafka_meta.write.task_writer import TaskWriter
from pyspark_kafka_meta.write.transactional_producer import ABORT_S, TransactionalProducer

logger = logging.getLogger(__name__)

T = TypeVar("T")

COPY_SHARE = 0.5
"""Of the timeout of the driver's own transaction. What is not copied in this time is copied in the next one."""
MARKER_S, MARKER_PAUSE_S = 0.2, 0.02
"""Maximum wait for the marker of a decision, and the pause between two reads. Without it, the plan after a commit would
take over the lead from the committer."""
MAX_DECISION_BYTES = 4 * MAX_MESSAGE_BYTES
"""Before compression."""
MAX_NAMED = 10
"""Transactions in a log line."""
_COLUMNS = SinkColumns(key=0, value=1, headers=None, topic=None, partition=2, timestamp=None)


class Lead(NamedTuple):
    """What a protocol that has committed a batch leaves to the next one, under `TransactionVersion.V2`.

    As long as no other driver takes over, the producer may write, and nobody else has decided anything. Once one does,
    the producer is fenced, and the next `WriteDecision` or `ConfirmDecisions` returns False. Under V1 the next protocol
    would write in the same epoch: see race 5 of `commit_protocol`.

    Attributes:
        producer: of the sink's own transactional id.
        written: decisions after those that were read.
    """

    producer: TransactionalProducer
    timeout_ms: int
    written: dict[str, Decision]


class StepRunner:
    """Runs one protocol of one sink.

    Attributes:
        timeout_ms: of the driver's own transactions: they may copy what all tasks of a batch have written.
        written: decisions since the last `ReadDecisions` that sent a request.
        committed: how many transactions of tasks became visible: committed, or copied.
        aborted: how many of them it aborted, where brokers list what is open.
        copied_records: of decided transactions that were aborted by others.
    """

    def __init__(
        self,
        client: KafkaClient,
        options: SinkOptions,
        plan: TransactionPlan,
        timeout_ms: int,
        decisions: DecisionsTopic,
        lead: Lead | None = None,
    ) -> None:
        """`lead` is one that this driver has kept. The first `Fence` and `ReadDecisions` then send nothing."""
        self._client = client
        self._plan = plan
        self.timeout_ms = timeout_ms
        self._producer_options = replace(
            options.producer,
            compression_type="zstd",
            zstd_level=None,
            batch_bytes=MESSAGE_BYTES,
            max_request_bytes=max(MAX_DECISION_BYTES, options.producer.max_request_bytes),
        )
        self._topic = options.transaction.decisions_topic
        self._decisions = decisions
        self._producer: TransactionalProducer | None = None  # since the last `Fence`
        self.written: dict[str, Decision] = {}
        is_usable = lead is not None and (lead.producer.version, lead.timeout_ms) == (plan.version, timeout_ms)
        self._lead = lead if is_usable else None  # until the first `ReadDecisions`
        self.committed = self.aborted = self.copied_records = 0

    def carry_out(self, protocol: Protocol[T]) -> T:
        """Run a protocol to its end. Raises KafkaMetaError: of a step, or of the protocol. What is decided stays so:
        the next run settles it."""
        result: Any = None
        while True:
            try:
                step = protocol.send(result)
            except StopIteration as done:
                value: T = done.value
                return value
            result = self.run(step)

    def lead(self) -> Lead | None:
        """Of a protocol that has committed a batch, for the next one."""
        producer = self._producer
        if producer is None or producer.version is not TransactionVersion.V2:
            return None
        return Lead(producer, self.timeout_ms, self.written)

    def run(self, step: Step) -> Any:
        """Carry out one step; returns its result."""
        match step:
            case Fence():
                self._fence()
            case ReadDecisions():
                return self._read_decisions()
            case ConfirmDecisions():
                record = confirming_record(self._plan.transactional_id)
                return self._write("a record", lambda _: record)
            case WriteDecision(decision):
                return self._write_decision(decision) is not None
            case Commit(transactions):
                return self._commit(transactions)
            case ReadOutcomes(transactions):
                api_deadline = self._client.api_deadline
                return tuple(each for each in transactions if not self._reader.is_committed(each, api_deadline()))
            case WriteSettled(decision, aborted):
                return self._write_settled(decision, aborted)
            case AbortOpen(known, guessed):
                self._abort(known, guessed)
        return None

    def _fence(self) -> None:
        if self._lead is not None:
            self._producer, self.written = self._lead.producer, self._lead.written
            return
        plan, max_block_ms = self._plan, self._producer_options.max_block_ms
        self._producer = TransactionalProducer(
            self._client, plan.transactional_id, self.timeout_ms, plan.version, max_block_ms
        )
        self._producer.begin()

    def _read_decisions(self) -> Decisions:
        if self._lead is not None:
            self._lead = None
            return {**self._decisions.known(), **self.written}
        self.written.clear()
        decisions, until = self._decisions.read(), self._client.clock() + MARKER_S
        while self._producer is None and self._decisions.is_ending and self._client.clock() < until:
            self._client.sleep(MARKER_PAUSE_S)  # `Fence` would have waited for it
            decisions = self._decisions.read()
        return decisions

    @cached_property
    def _reader(self) -> TransactionReader:
        return TransactionReader(self._client)

    def _write_decision(self, decision: Decision, aborted: Sequence[OpenTransaction] | None = None) -> Decision | None:
        """Write a decision. With `aborted`, copies of their records come before it, and it is settled, or says what is
        left to copy. Returns what was written; None if `_write` is False."""

        def record(writer: TaskWriter) -> Record:
            nonlocal decision
            if aborted is not None:
                decision = decision.settled(self._copy(aborted, writer))
            return decision_record(self._plan.transactional_id, decision)

        if not self._write(f"the decision of {decision.batch}", record):
            return None
        self.written[decision.batch.series] = decision
        return decision

    def _write_settled(self, decision: Decision, aborted: Sequence[OpenTransaction]) -> Decision | bool:
        """Result of `WriteSettled`. A note is for the driver's own decision: after a `Fence`, the settled decision also
        shows that no other driver has decided anything (race 6)."""
        is_own = self.written.get(decision.batch.series) == decision
        if aborted or not is_own:
            written = self._write_decision(decision, aborted)
            if written is None:
                return False
            self.committed += len(aborted) - len(written.transactions)
            return written.is_settled or written
        options = replace(self._producer_options, idempotent=False)  # without a producer id: it is true twice
        writer = TaskWriter(self._client, options, _COLUMNS, self._topic)
        note = settled_note(self._plan.transactional_id, decision)
        with _advising(what := f"the note that {decision.batch} is settled"):
            self._write_record(writer, note, what)
        self.written[decision.batch.series] = decision.settled()
        return True

    def _write(self, what: str, record: Callable[[TaskWriter], Record]) -> bool:
        """Write a record to the decisions topic in a transaction of the sink's own id, and before it what `record`
        writes. False if decisions were committed that this driver has not read, or another driver has fenced it."""
        producer = self._producer
        assert producer is not None, "a driver fences all others before it writes"
        if not producer.has_id:  # its epochs are used up: to write it would take over, and perhaps from another driver
            return False
        try:
            writer = TaskWriter(self._client, self._producer_options, _COLUMNS, self._topic, transaction=producer)
            with _advising(what):
                offset = self._write_record(writer, record(writer), what)
            try:
                is_unchanged = self._decisions.is_unchanged_until(offset, self.written)
            except KafkaMetaError:
                producer.abort()  # readers of copies would wait for its timeout
                raise
            if not is_unchanged:
                producer.abort()
                return False
            producer.commit(self._client.api_deadline())
        except FencedError:
            return False
        except TransactionTimeoutError:
            raise TransactionTimeoutError(
                f"{what}, or copies of decided records, were not acknowledged within 80 % of the longest timeout that "
                f"brokers allow ({self.timeout_ms / 1000:.0f} s): check the leaders and in-sync replicas of the topics "
                f"and of topic {self._topic}, then start the query again: it goes on from there"
            ) from None
        return True

    def _write_record(self, writer: TaskWriter, record: Record, what: str) -> int:
        """Returns the offset of the record."""
        try:
            return writer.write([_row(record)])[self._decisions.partition].from_offset
        except RecordTooLargeError:
            raise RecordTooLargeError(
                f"{what} cannot be written, because topic {self._topic} refuses records of its size: raise "
                f"max.message.bytes of the topic to {MAX_MESSAGE_BYTES} or more, or write smaller batches"
            ) from None

    def _copy(self, aborted: Sequence[OpenTransaction], writer: TaskWriter) -> tuple[OpenTransaction, ...]:
        """Copy the records of aborted transactions, for as long as the driver's own transaction has time. Returns what
        is left of them."""
        left, until = deque(aborted), self._client.clock() + COPY_SHARE * self.timeout_ms / 1000

        def copies() -> Iterator[tuple[TopicPartition, EncodedBatch]]:
            while left:
                logger.warning(
                    "the transaction %s of a decided batch was aborted by its coordinator: its records are copied",
                    left[0].transactional_id,
                )
                for copy in self._reader.copies(left[0]):
                    self.copied_records += copy.batch.record_count
                    yield copy.partition, copy.batch
                    if self._client.clock() >= until:
                        left[0] = not_copied(left[0], copy)
                        return
                left.popleft()

        writer.write_encoded(copies())
        return tuple(transaction for transaction in left if transaction.written)

    def _commit(self, transactions: Sequence[OpenTransaction]) -> tuple[OpenTransaction, ...]:
        ended = self._client.coordinators.end_transactions(
            {each.transactional_id: each.producer for each in transactions},
            True,
            self._plan.version,
            self._client.api_deadline(),
        )
        unknown = tuple(each for each in transactions if ended[each.transactional_id].error_code != 0)
        self.committed += len(transactions) - len(unknown)
        return unknown

    def _abort(self, known: Sequence[str], guessed: Sequence[str]) -> None:
        """InitProducerId aborts an open transaction, and keeps an attempt that is still writing from going on. A broker
        that does not respond is not waited for: its coordinators move, and the next batch aborts what is left."""
        coordinators, clock = self._client.coordinators, self._client.clock
        listed = self._open_tasks()
        if listed:
            first = ", ".join(listed[:MAX_NAMED])
            logger.info("aborting %d transactions of no decided batch, the first are %s", len(listed), first)
        ids = (*known, *(guessed if listed is None else listed))
        try:
            coordinators.fence(dict.fromkeys(ids), self._plan.timeout_ms, clock() + ABORT_S)
            self.aborted += len(listed or ())
        except KafkaMetaError as error:  # what is decided is visible
            logger.warning("perhaps not all open transactions of undecided batches are aborted: %s", error)

    def _open_tasks(self) -> Sequence[str] | None:
        """The transactional ids of the sink's task attempts with an open transaction; None if brokers do not list
        them."""
        client = self._client
        try:
            listed = client.coordinators.list_transactions(client.clock() + ABORT_S, of_all_brokers=False)
        except UnsupportedBrokerError:  # before Kafka 3.0
            return None
        except KafkaMetaError as error:
            logger.warning("perhaps not all open transactions of undecided batches are aborted: %s", error)
            return None
        return tasks_of_sink(listed, self._plan.transactional_id)


@contextmanager
def _advising(what: str) -> Iterator[None]:
    """Add to the error of records that were not acknowledged what was to be written, and what to do next."""
    try:
        yield
    except DeliveryTimeoutError as error:
        raise DeliveryTimeoutError(
            f"{what} was not acknowledged: {error}; then start the query again: it goes on from there"
        ) from None


def _row(record: Record) -> pa.RecordBatch:
    key, value = record
    columns = [pa.array([key], pa.binary()), pa.array([value], pa.binary()), pa.array([0], pa.int32())]
    return pa.record_batch(columns, names=["key", "value", "partition"])
