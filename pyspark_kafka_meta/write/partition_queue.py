"""`PartitionQueue`: the record batches of one partition until they are acknowledged, in order and without I/O.

A batch gets its sequence number when it is added, and keeps it when it is sent again. After a failure nothing is sent
until no batch is in flight; then the batches without an acknowledgement follow in their order. So the log holds each
batch once, in order, whatever the failed requests did: a broker recognises the last five batches of a producer, the
most that are in flight. Without idempotence one batch is in flight.

A leader without any batch of a producer takes any sequence number, so a task's first batch in a partition goes alone:
a second batch would come first in the log if only the first batch failed (KAFKA-14359).

Follows Kafka's `Sender.completeBatch` and `TransactionManager.canRetry`. Unlike there, a task fails if its acknowledged
records are lost, in a recreated topic or a truncated log, so that Spark's next attempt writes them again. In a
transaction, so does a task whose producer its leader has forgotten.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple, TypeAlias
from uuid import UUID

from pyspark_kafka_meta.errors import DataLossError, DeliveryTimeoutError, KafkaMetaError, RecordTooLargeError
from pyspark_kafka_meta.kafka.client.next_request import BackOff, Fail, Refresh, RetryPause
from pyspark_kafka_meta.kafka.client.producer_state import PartitionSequence, sequence_after
from pyspark_kafka_meta.kafka.protocol.error_codes import (
    INVALID_TIMESTAMP,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    Action,
    broker_error,
    describe,
    refresh_reason,
    transaction_error,
    write_action,
)
from pyspark_kafka_meta.kafka.protocol.produce import ProducedPartition
from pyspark_kafka_meta.kafka.records.batches import HEADER_BYTES
from pyspark_kafka_meta.kafka.records.encoder import EncodedBatch, split
from pyspark_kafka_meta.kafka.records.fields import Longs
from pyspark_kafka_meta.model import NO_PRODUCER, RefreshReason, TopicPartition, TransactionSpan, is_other_topic

Instruction = Refresh | BackOff | Fail | None
"""What a queue wants done after a response; None if nothing."""


UNKNOWN_OFFSET = -1
"""Base offset of records that the log held already, when the broker does not say where."""
MAX_RANGES = 16
"""Of a partition. Where other producers write between the batches, each batch would be a range of its own."""


class AcknowledgedRange(NamedTuple):
    """Acknowledged records of a task with offsets in [from_offset, until_offset): adjacent, but in the last of
    `MAX_RANGES` ranges. Both are `UNKNOWN_OFFSET` if no offset is known."""

    from_offset: int
    until_offset: int
    records: int


TaskOutput: TypeAlias = Mapping[TopicPartition, list[AcknowledgedRange]]
"""What a task wrote, by partition in the order of writing."""


def add_range(ranges: list[AcknowledgedRange], base_offset: int, records: int) -> None:
    """Add a batch to the ranges of its partition, as a part of the last range if it follows it."""
    until_offset = UNKNOWN_OFFSET if base_offset == UNKNOWN_OFFSET else base_offset + records
    last = ranges[-1] if ranges else None
    if last is not None and (last.until_offset == base_offset or len(ranges) == MAX_RANGES):
        from_offset = base_offset if last.from_offset == UNKNOWN_OFFSET else last.from_offset
        ranges[-1] = AcknowledgedRange(from_offset, max(last.until_offset, until_offset), last.records + records)
    else:
        ranges.append(AcknowledgedRange(base_offset, until_offset, records))


def spans(written: TaskOutput) -> tuple[TransactionSpan, ...]:
    """One span of offsets for each partition, which may hold records of others too."""
    return tuple(
        TransactionSpan(
            *partition, ranges[0].from_offset, ranges[-1].until_offset, sum(each.records for each in ranges)
        )
        for partition, ranges in sorted(written.items())
    )


MAX_IN_FLIGHT = 5
"""A broker recognises this many batches of a producer in a partition (`ProducerStateEntry.NUM_BATCHES_TO_RETAIN`).
The oldest batch without an acknowledgement must be one of them."""
_OLD_COPIES = (
    "records of a decided batch are older by now than topic {} allows: raise its message.timestamp.before.max.ms, or "
    "before Kafka 3.6 message.timestamp.difference.max.ms, and start the query again; set it back once the query runs"
)


@dataclass(slots=True, eq=False)
class QueuedBatch:
    """A record batch that is not acknowledged, or that waits for an earlier batch to be.

    Attributes:
        batch: its `rows` are those of the task, its payload is the memory of `data`.
        data: the batch as it is sent.
        deadline: of its acknowledgement, in seconds of the caller's clock.
        may_be_logged: whether the log may hold it after a failed attempt.
        may_be_logged_in_larger: whether the log may hold its records in the larger batch that it was split from.
    """

    batch: EncodedBatch
    data: bytes
    deadline: float
    base_sequence: int
    may_be_logged_in_larger: bool = False
    may_be_logged: bool = False
    in_flight: bool = False
    is_acknowledged: bool = False
    base_offset: int = UNKNOWN_OFFSET

    @property
    def is_waiting(self) -> bool:
        return not self.in_flight and not self.is_acknowledged

    def __str__(self) -> str:
        count, first = self.batch.record_count, self.batch.rows[0]
        if self.batch.is_copy:
            return f"copies of {count} records"
        return f"row {first}" if count == 1 else f"a record batch of {count} rows from row {first} on"


class PartitionQueue(RetryPause):
    """The batches of one partition of one task. `now` is in seconds of the caller's clock.

    Attributes:
        size_bytes: of the batches.
        node_id: the broker that has the batches in flight.
        written: offsets of the acknowledged records.
        last_error: why the first batch has no acknowledgement; empty if nothing failed.
    """

    def __init__(
        self,
        partition: TopicPartition,
        topic_id: UUID | None,
        sequence: PartitionSequence,
        transactional_id: str | None = None,
    ) -> None:
        """
        Args:
            transactional_id: of the transaction that the batches belong to.
        """
        super().__init__(partition)
        self.topic_id = topic_id
        self.size_bytes = 0
        self.node_id: int | None = None
        self.written: list[AcknowledgedRange] = []
        self.last_error = ""
        self._sequence = sequence
        self._transactional_id = transactional_id
        self._batches: deque[QueuedBatch] = deque()
        self._recreated_by: set[int | None] = set()  # brokers that report another topic
        self._max_in_flight = 1  # counted from the oldest batch without an acknowledgement

    def __bool__(self) -> bool:
        return bool(self._batches)

    @property
    def in_flight(self) -> int:
        return sum(queued.in_flight for queued in self._batches)

    @property
    def deadline(self) -> float:
        """Of the first batch, which is the oldest. Call it only while there is a batch."""
        return self._batches[0].deadline

    def add(self, batch: EncodedBatch, rows: Longs, deadline: float) -> None:
        """Queue a batch. Nothing of the chunk that it was encoded in stays in memory.

        Args:
            rows: of the task, that its records are from.
        """
        base_sequence = self._sequence.take(batch.record_count)
        self._batches.append(self._queued(replace(batch, rows=rows), deadline, base_sequence))
        self.size_bytes += batch.size_bytes

    def _queued(
        self, batch: EncodedBatch, deadline: float, base_sequence: int, may_be_logged_in_larger: bool = False
    ) -> QueuedBatch:
        data = self._to_bytes(batch, base_sequence)
        held = replace(batch, payload=memoryview(data)[HEADER_BYTES:])
        return QueuedBatch(held, data, deadline, base_sequence, may_be_logged_in_larger)

    def _to_bytes(self, batch: EncodedBatch, base_sequence: int) -> bytes:
        return batch.to_bytes(self._sequence.producer, base_sequence, self._transactional_id is not None)

    def postpone_deadlines(self, seconds: float) -> None:
        for queued in self._batches:
            queued.deadline += seconds

    # --- sending ------------------------------------------------------------------------------------------------------

    def next_batch(self, generation: int, now: float) -> QueuedBatch | None:
        """The batch to send now to the leader in the metadata of this `generation`, if any."""
        if not self.is_ready(generation, now):
            return None
        at = next((at for at, queued in enumerate(self._batches) if queued.is_waiting), self._max_in_flight)
        if at >= self._max_in_flight or any(queued.in_flight for queued in islice(self._batches, at, None)):
            return None  # batches after a failed batch are in flight: wait for all responses
        return self._batches[at]

    def can_go_to(self, node_id: int) -> bool:
        """Whether no batch is in flight to another broker."""
        return self.node_id in (None, node_id) or self.in_flight == 0

    def send(self, queued: QueuedBatch, node_id: int) -> bytes:
        """The bytes of the batch, which is in flight from now on."""
        queued.in_flight, self.node_id = True, node_id
        return queued.data

    # --- responses ----------------------------------------------------------------------------------------------------

    def on_request_failed(self, queued: QueuedBatch, error: str) -> None:
        """Take a request without a response: the log may hold the batch or not."""
        queued.in_flight, queued.may_be_logged = False, True
        self.last_error = error

    def on_response(self, queued: QueuedBatch, produced: ProducedPartition) -> Instruction:
        queued.in_flight = False
        code = produced.error_code
        if code == 0:
            return self._acknowledge(queued, produced.base_offset)
        self.last_error, action = describe(code), write_action(code)
        # A leader that waits for followers, or loses its office meanwhile, has appended the batch.
        queued.may_be_logged |= action in (Action.REFRESH, Action.RETRY)
        match action:
            case Action.DUPLICATE if self._transactional_id is None:  # else the driver must know the offsets
                return self._acknowledge(queued, UNKNOWN_OFFSET)
            case Action.REFRESH:
                return Refresh(refresh_reason(code), code)
            case Action.RETRY:
                return BackOff()
            case Action.SEQUENCE:
                return self._on_wrong_sequence(queued, produced)
            case Action.SPLIT:
                return self._on_too_large(queued, code)
            case _:
                return Fail(self._refusal(queued, produced))

    def on_topic_id(self, topic_id: UUID | None, reporter: int | None, brokers: int) -> Instruction:
        """Take the topic id of newer metadata. Only a task without acknowledged records may go on in another topic.

        Args:
            reporter: node id of the broker that reported it, None if unknown. A broker that lags behind reports the
                topic before: a second broker is asked, if there is one.
            brokers: their number.
        """
        if not is_other_topic(self.topic_id, topic_id):
            self._recreated_by.clear()
        elif not self.written:
            self.topic_id = topic_id
        else:
            self._recreated_by.add(reporter)
            self.last_error = f"topic {self.partition.topic} was deleted and created again"
            if len(self._recreated_by) >= min(brokers, 2):
                return Fail(self._lost(self.last_error))
            return Refresh(RefreshReason.ON_DEMAND, 0)
        return None

    def timeout_error(self) -> DeliveryTimeoutError:
        """The error of the first batch, whose deadline is over."""
        return DeliveryTimeoutError(
            f"{self.partition} did not acknowledge {self._batches[0]} within kafka.delivery.timeout.ms: "
            f"{self.last_error or 'no response yet'}: check the partition's leader and its in-sync replicas"
        )

    def _acknowledge(self, queued: QueuedBatch, base_offset: int) -> Instruction:
        queued.is_acknowledged, queued.base_offset = True, base_offset
        self.succeeded()
        self._max_in_flight = 1 if self._sequence.producer == NO_PRODUCER else MAX_IN_FLIGHT
        while self._batches and self._batches[0].is_acknowledged:
            done = self._batches.popleft()
            self.size_bytes -= done.batch.size_bytes
            self.last_error = ""
            last = self.written[-1] if self.written else None
            if last is not None and UNKNOWN_OFFSET < done.base_offset < last.until_offset:
                return Fail(self._lost(f"its log ended at offset {done.base_offset} when later records came"))
            add_range(self.written, done.base_offset, done.batch.record_count)
        return None

    def _on_wrong_sequence(self, queued: QueuedBatch, produced: ProducedPartition) -> Instruction:
        """A batch after a failed one just follows it again. The first batch has lost its predecessors in the log. A
        transaction cannot go on in another epoch, nor can part of a batch that the log holds: a broker recognises only
        whole batches."""
        if queued is not self._batches[0]:
            return None
        code = produced.error_code
        if queued.may_be_logged_in_larger:
            said = "the log may hold them already, from an earlier attempt in a larger batch"
            return Fail(self._refusal(queued, replace(produced, error_message=said)))
        if self.written and code == OUT_OF_ORDER_SEQUENCE_NUMBER:
            return Fail(self._lost(f"its log ends before them, its leader answered {describe(code)}"))
        self._max_in_flight = 1
        if self.in_flight:
            return BackOff()  # the log may hold batches with their present numbers: ask again with this batch alone
        if self._transactional_id is not None or not self._sequence.restart():
            return Fail(self._refusal(queued, produced))
        for waiting in self._batches:
            if not waiting.is_acknowledged:
                waiting.base_sequence = self._sequence.take(waiting.batch.record_count)
                waiting.data = self._to_bytes(waiting.batch, waiting.base_sequence)
        return BackOff()

    def _on_too_large(self, queued: QueuedBatch, code: int) -> Instruction:
        """Send the batch again as two, under the same sequence numbers, which a log that holds the batch refuses."""
        if queued.batch.record_count == 1:
            return Fail(
                RecordTooLargeError(
                    f"{self.partition} refuses {queued}, whose record has {queued.batch.size_bytes} bytes: "
                    f"{describe(code)}: raise max.message.bytes of topic {self.partition.topic}"
                    f"{'' if queued.batch.is_copy else ', or write less'}"
                )
            )
        at = self._batches.index(queued)
        self._batches.remove(queued)
        self.size_bytes -= queued.batch.size_bytes
        base_sequence = queued.base_sequence
        may_be_logged = queued.may_be_logged or queued.may_be_logged_in_larger
        for offset, half in enumerate(split(queued.batch)):
            self._batches.insert(at + offset, self._queued(half, queued.deadline, base_sequence, may_be_logged))
            self.size_bytes += half.size_bytes
            base_sequence = sequence_after(base_sequence, half.record_count)
        return None

    def _refusal(self, queued: QueuedBatch, produced: ProducedPartition) -> KafkaMetaError:
        """The error of a batch that the broker refuses for good, with its own words."""
        code = produced.error_code
        problem, words = f"{self.partition} refuses {queued}", [produced.error_message or ""]
        for index, message in produced.record_errors:
            if index < queued.batch.record_count:
                if not queued.batch.is_copy:
                    problem = f"{self.partition} refuses row {queued.batch.rows[index]}"
                words.append(message or "")
                break
        if self._transactional_id is not None and write_action(code) is Action.FENCED:
            return transaction_error(problem, code, self._transactional_id)
        said = " ".join(dict.fromkeys(filter(None, words)))
        topic, is_old = self.partition.topic, queued.batch.is_copy and code == INVALID_TIMESTAMP
        return broker_error(problem, code, topic, "WRITE", said, _OLD_COPIES.format(topic) if is_old else "")

    def _lost(self, cause: str) -> DataLossError:
        records = sum(written.records for written in self.written)
        return DataLossError(
            f"{self.partition} has lost up to {records} records that it had acknowledged to this task: {cause}. A new "
            "attempt of the task writes all its rows again"
        )
