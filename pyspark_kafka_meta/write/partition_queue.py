"""`PartitionQueue`: the record batches of one partition of one task, until they are acknowledged; no I/O.

A task sends the rows of a partition to its leader, in record batches, several in flight at a time. A request may fail
after the leader has appended the batch to its log: the client cannot know, so it sends the batch again. Kafka's
idempotent producer (KIP-98) makes this safe. Each batch carries a producer id, an epoch, and the sequence number of its
first record in this partition. The leader appends a batch only if its number follows the last batch of the producer. If
one of the last five batches comes again, the leader acknowledges it without appending it. So the log holds each batch
once and in order, if the queue keeps three rules: a batch keeps its number when it is sent again; at most five batches
are in flight, counted from the oldest without an acknowledgement; after a failure, batches are sent again in order.

| state of a batch | meaning | ends with |
|---|---|---|
| waiting | to be sent, for the first time or again | `send` |
| in flight | in a Produce request to the broker `node_id` | the response, or the failure of the request |
| acknowledged | the log holds it; an earlier batch has no acknowledgement | all earlier acknowledgements |

| outcome of a request | may the log hold the batch? | what the queue does |
|---|---|---|
| success | yes | acknowledged; once all earlier batches are, its offsets are in `written` |
| DUPLICATE_SEQUENCE_NUMBER | yes, at an unknown offset | the same; in a transaction, the task fails |
| no response, stale leader, temporary error | yes | waiting, until newer metadata or the end of a backoff |
| wrong number (OUT_OF_ORDER_SEQUENCE_NUMBER, UNKNOWN_PRODUCER_ID) | in a larger batch (race 5) | see races 3 to 6 |
| larger than the topic allows | as before | replaced by its two halves; a single record fails the task |
| any other error | does not matter | the task fails |

After a response, the queue returns an `Instruction` to its caller: request metadata, back off, or fail the task.

Races: what happens without a guard, and the guard. A, B ... are batches in the order of the queue.

1. The response to A is lost. (1) The leader has appended A. (2) A is sent again. With another number, the log would
   hold A twice: A keeps its number. (3) If the leader appended B to F meanwhile, A would be none of the last five
   batches, and the leader would not recognise it. Guard: counted from A, F is the sixth, and waits.
2. The first batch of a task fails (KAFKA-14359). (1) The leader has no batch of this producer, so it takes any number.
   A and B are in flight. (2) A fails, B is appended. (3) A is refused, or comes after B. Guard: `_max_in_flight` is 1
   until the first acknowledgement of the task, and again after a wrong number of the first batch in the queue.
3. A batch fails with others in flight. (1) A fails; the leader refuses B, because its log lacks A. (2) A is sent again,
   to a new leader, which acknowledges it. (3) Only now the refusal of B arrives: it looks as if the log had lost A
   (race 6). Guards: nothing is sent while a batch after the first waiting batch is in flight (`next_batch`), nor to
   another broker while any batch is (`can_go_to`). A wrong number of a batch that is not the first in the queue says
   nothing. Without idempotence no leader would refuse B, and B would come before A: one batch is in flight throughout.
4. The leader has forgotten the producer, or lost its batches before A (KIP-360). (1) A is the first in the queue and is
   refused; B is in flight. (2) Both get new numbers, from 0 in the next epoch. (3) B was appended under its old number:
   the log holds it twice. Guard: A is sent again alone, under its old number. New numbers are given only once A is
   refused with no batch in flight. In a transaction the task fails instead, because a transaction has one epoch.
5. Half of a batch that the log may hold. (1) A is appended, but its request fails. (2) The topic's limit is lowered,
   and A is refused as too large. (3) The leader recognises whole batches alone, so it refuses the first half. In a new
   epoch (race 4) its rows would be in the log twice. Guard: with `may_be_logged_in_larger` the refusal fails the task.
6. Acknowledged records are lost. (1) A is acknowledged. (2) The topic is recreated, or its log truncated. (3) B is
   acknowledged, and the task ends without A. Guards: OUT_OF_ORDER_SEQUENCE_NUMBER of the first batch in the queue after
   an acknowledgement, an offset below those written before, and another topic id each fail the task, and Spark's next
   attempt writes all its rows. Two brokers must report the other id, if there are two: a broker may lag behind.

Follows Kafka's `Sender.completeBatch` and `TransactionManager.canRetry`; the guards of race 6 are of this project.
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
from pyspark_kafka_meta.model import NO_PRODUCER, RefreshReason, TopicPartition, is_other_topic

Instruction = Refresh | BackOff | Fail | None
"""What a queue wants done after a response; None if nothing."""


UNKNOWN_OFFSET = -1
"""Base offset of a batch that the log held already, when the leader does not say where."""


class AcknowledgedRange(NamedTuple):
    """Acknowledged records of a task in one partition, with offsets in [from_offset, until_offset). Records of other
    producers may lie between them. Both offsets are `UNKNOWN_OFFSET` if no offset is known."""

    from_offset: int = UNKNOWN_OFFSET
    until_offset: int = UNKNOWN_OFFSET
    records: int = 0

    def with_batch(self, base_offset: int, records: int) -> AcknowledgedRange:
        """The range after one more batch, which is after all others in the log."""
        if base_offset == UNKNOWN_OFFSET:
            return self._replace(records=self.records + records)
        from_offset = base_offset if self.from_offset == UNKNOWN_OFFSET else self.from_offset
        return AcknowledgedRange(from_offset, base_offset + records, self.records + records)


TaskOutput: TypeAlias = Mapping[TopicPartition, AcknowledgedRange]
"""What a task wrote, by partition."""


MAX_IN_FLIGHT = 5
"""A leader recognises this many batches of a producer (`ProducerStateEntry.NUM_BATCHES_TO_RETAIN`)."""
_OLD_COPIES = (
    "records of a decided batch are older by now than topic {} allows: raise its message.timestamp.before.max.ms, or "
    "before Kafka 3.6 message.timestamp.difference.max.ms, and start the query again; set it back once the query runs"
)


@dataclass(slots=True, eq=False)
class QueuedBatch:
    """A record batch in the queue.

    Attributes:
        batch: its `rows` are numbers of rows of the task. Its payload keeps no chunk in memory.
        data: the bytes that are sent, with the header, which has the sequence number.
        deadline: of its acknowledgement, in seconds of the caller's clock.
        base_sequence: sequence number of its first record.
        may_be_logged: whether an attempt failed after which the log may hold the batch.
        may_be_logged_in_larger: whether the log may hold its records in the larger batch that it was split from.
        base_offset: offset of its first record, once it is acknowledged.
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
        topic_id: of the topic that the batches are sent to; None if brokers report none.
        size_bytes: of all batches in the queue.
        node_id: the broker that the last batch was sent to.
        written: the acknowledged records.
        last_error: the last failure of a batch; empty if none failed since the last acknowledgement of the first batch.
    """

    def __init__(
        self,
        partition: TopicPartition,
        topic_id: UUID | None,
        sequence: PartitionSequence,
        transactional_id: str | None = None,
    ) -> None:
        """`transactional_id` is of the transaction that the batches belong to."""
        super().__init__(partition)
        self.topic_id = topic_id
        self.size_bytes = 0
        self.node_id: int | None = None
        self.written = AcknowledgedRange()
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
        """The deadline of the first batch, which is the earliest. Call it only while there is a batch."""
        return self._batches[0].deadline

    def add(self, batch: EncodedBatch, rows: Longs, deadline: float) -> None:
        """Queue a batch, and give it its sequence number. The queue copies its bytes, so that the chunk of rows that it
        was encoded in can be freed.

        Args:
            rows: for each record, the number of its row in the task.
            deadline: of its acknowledgement.
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
        """Do not count time in which nothing is sent or received."""
        for queued in self._batches:
            queued.deadline += seconds

    # --- sending ------------------------------------------------------------------------------------------------------

    def next_batch(self, generation: int, now: float) -> QueuedBatch | None:
        """The batch to send now to the leader in the metadata of this `generation`, if any."""
        if not self.is_ready(generation, now):
            return None
        at = next((at for at, queued in enumerate(self._batches) if queued.is_waiting), self._max_in_flight)
        if at >= self._max_in_flight or any(queued.in_flight for queued in islice(self._batches, at, None)):
            return None  # race 3: batches after a failed batch are in flight
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
        """Take the failure of a request without a response: the log may hold the batch."""
        queued.in_flight, queued.may_be_logged = False, True
        self.last_error = error

    def on_response(self, queued: QueuedBatch, produced: ProducedPartition) -> Instruction:
        """Take the response of this partition, as the second table of the module says."""
        queued.in_flight = False
        code = produced.error_code
        if code == 0:
            return self._acknowledge(queued, produced.base_offset)
        self.last_error, action = describe(code), write_action(code)
        # A leader appends a batch before it waits for its followers. It may be deposed, or time out, while it waits.
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
        """Take the topic id of the current metadata. If the topic was recreated, a task without acknowledged records
        goes on in the new topic, and any other task fails (race 6).

        Args:
            reporter: node id of the broker that reported the id, None if unknown.
            brokers: number of brokers in the cluster.
        """
        if not is_other_topic(self.topic_id, topic_id):
            self._recreated_by.clear()
        elif not self.written.records:
            self.topic_id = topic_id
        else:
            self._recreated_by.add(reporter)
            self.last_error = f"topic {self.partition.topic} was deleted and created again"
            if len(self._recreated_by) >= min(brokers, 2):
                return Fail(self._lost(self.last_error))
            return Refresh(RefreshReason.ON_DEMAND, 0)
        return None

    def timeout_error(self) -> DeliveryTimeoutError:
        """The error of a queue whose first batch has passed its deadline."""
        return DeliveryTimeoutError(
            f"{self.partition} did not acknowledge {self._batches[0]} within kafka.delivery.timeout.ms: "
            f"{self.last_error or 'no response yet'}: check the partition's leader and its in-sync replicas"
        )

    def _acknowledge(self, queued: QueuedBatch, base_offset: int) -> Instruction:
        """Take an acknowledgement, and remove the batches that no earlier batch holds up any more."""
        queued.is_acknowledged, queued.base_offset = True, base_offset
        self.succeeded()
        self._max_in_flight = 1 if self._sequence.producer == NO_PRODUCER else MAX_IN_FLIGHT
        while self._batches and self._batches[0].is_acknowledged:
            done = self._batches.popleft()
            self.size_bytes -= done.batch.size_bytes
            self.last_error = ""
            if UNKNOWN_OFFSET < done.base_offset < self.written.until_offset:
                return Fail(self._lost(f"its log ended at offset {done.base_offset} when later records came"))
            self.written = self.written.with_batch(done.base_offset, done.batch.record_count)
        return None

    def _on_wrong_sequence(self, queued: QueuedBatch, produced: ProducedPartition) -> Instruction:
        """The log does not end with the predecessor of this batch (races 3 to 6)."""
        if queued is not self._batches[0]:
            return None
        code = produced.error_code
        if queued.may_be_logged_in_larger:
            said = "the log may hold them already, from an earlier attempt in a larger batch"
            return Fail(self._refusal(queued, replace(produced, error_message=said)))
        if self.written.records and code == OUT_OF_ORDER_SEQUENCE_NUMBER:
            return Fail(self._lost(f"its log ends before them, its leader answered {describe(code)}"))
        self._max_in_flight = 1
        if self.in_flight:
            return BackOff()  # race 4: send this batch again, alone, once the others have responses
        if self._transactional_id is not None or not self._sequence.restart():
            return Fail(self._refusal(queued, produced))
        for waiting in self._batches:
            if not waiting.is_acknowledged:
                waiting.base_sequence = self._sequence.take(waiting.batch.record_count)
                waiting.data = self._to_bytes(waiting.batch, waiting.base_sequence)
        return BackOff()

    def _on_too_large(self, queued: QueuedBatch, code: int) -> Instruction:
        """Replace the batch by two, whose records keep their sequence numbers: a log that holds the batch refuses the
        first of them (race 5)."""
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
        """The error of a batch that no retry helps, with the row that the broker names and the broker's own words."""
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
        return DataLossError(
            f"{self.partition} has lost up to {self.written.records} records that it had acknowledged to this task: "
            f"{cause}. A new attempt of the task writes all its rows again"
        )
