"""The record batches of a partition: sequence numbers, the order of sending, and what each response leads to."""

from __future__ import annotations

import gc
import weakref
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.errors import (
    AuthorizationError,
    BrokerError,
    DataLossError,
    DeliveryTimeoutError,
    FencedError,
    KafkaMetaError,
    RecordTooLargeError,
)
from pyspark_kafka_meta.kafka.client.next_request import BackOff, Fail, Refresh
from pyspark_kafka_meta.kafka.client.producer_state import MAX_EPOCH, NO_SEQUENCE, PartitionSequence
from pyspark_kafka_meta.kafka.protocol.produce import ProducedPartition
from pyspark_kafka_meta.kafka.records.batches import read_batch_headers
from pyspark_kafka_meta.kafka.records.compression import Codec, Compression
from pyspark_kafka_meta.kafka.records.encoder import encode, record_sizes
from pyspark_kafka_meta.model import NO_PRODUCER, ProducerIdAndEpoch, RefreshReason
from pyspark_kafka_meta.write.partition_queue import MAX_IN_FLIGHT, AcknowledgedRange, PartitionQueue, QueuedBatch
from tests.partitions import T0
from tests.unit.write.batches import encoded_batch, records

TOPIC_ID = uuid4()
PRODUCER = ProducerIdAndEpoch(7, 0)
NODE = 2


class Queue(PartitionQueue):
    """A queue with batches of these record counts, whose rows are numbered from 0. By default it has written before."""

    def __init__(
        self,
        *counts: int,
        producer: ProducerIdAndEpoch = PRODUCER,
        next_sequence: int = 0,
        max_in_flight: int = MAX_IN_FLIGHT,
        transactional_id: str | None = None,
    ) -> None:
        super().__init__(T0, TOPIC_ID, PartitionSequence(producer, next_sequence), transactional_id)
        self._max_in_flight = max_in_flight
        row = 0
        for count in counts:
            self.add(encoded_batch(count), np.arange(row, row + count), deadline=100.0)
            row += count

    def send_all(self) -> list[QueuedBatch]:
        """Send as much as may be in flight."""
        sent = []
        while (queued := self.next_batch(generation=1, now=0.0)) is not None:
            self.send(queued, NODE)
            sent.append(queued)
        return sent

    def respond(self, queued: QueuedBatch, code: int = 0, offset: int = -1) -> Refresh | BackOff | Fail | None:
        return self.on_response(queued, ProducedPartition(T0, code, offset))

    def sequences(self) -> list[int]:
        return [queued.base_sequence for queued in self._batches if not queued.is_acknowledged]


def error_of(instruction: object) -> KafkaMetaError:
    assert isinstance(instruction, Fail)
    return instruction.error


def test_batches_are_numbered_by_their_records_and_sent_in_order() -> None:
    queue = Queue(3, 1, 5)

    assert [(queued.base_sequence, queued.batch.record_count) for queued in queue.send_all()] == [
        (0, 3),
        (3, 1),
        (4, 5),
    ]


def test_sequence_continues_in_the_next_task_and_after_the_largest_number() -> None:
    assert Queue(2, 4, 1, next_sequence=2**31 - 2).sequences() == [2**31 - 2, 0, 4]


def test_sent_batch_carries_producer_and_sequence() -> None:
    queue = Queue(3, 2)
    first, second = queue.send_all()

    (header,) = read_batch_headers(queue.send(second, NODE))

    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.record_count) == (7, 0, 3, 2)
    assert first.in_flight


def test_as_many_batches_are_in_flight_as_a_broker_remembers() -> None:
    queue = Queue(*[1] * 8)
    sent = queue.send_all()
    assert len(sent) == 5

    queue.respond(sent[0], offset=0)

    assert [queued.base_sequence for queued in queue.send_all()] == [5]


def test_without_idempotence_one_batch_is_in_flight_so_that_no_retry_reorders() -> None:
    queue = Queue(1, 1, 1, producer=NO_PRODUCER, max_in_flight=1)
    (first,) = queue.send_all()
    assert queue.sequences() == [NO_SEQUENCE] * 3

    queue.respond(first, ErrorCode.not_enough_replicas)
    assert queue.send_all() == [first]
    queue.respond(first, offset=0)

    assert len(queue.send_all()) == 1


@pytest.mark.parametrize("code", [ErrorCode.not_enough_replicas, ErrorCode.unknown_producer_id])
def test_first_batch_goes_alone_because_a_leader_that_has_none_takes_any_sequence(code: ErrorCode) -> None:
    queue = Queue(1, 1, 1, max_in_flight=1)
    (first,) = queue.send_all()

    queue.respond(first, code)
    assert queue.send_all() == [first]
    queue.respond(first, offset=0)

    assert len(queue.send_all()) == 2


def test_batch_that_failed_stays_among_those_that_a_broker_remembers() -> None:
    queue = Queue(*[1] * 8)
    first, *others = queue.send_all()
    queue.respond(first, ErrorCode.request_timed_out)  # the log holds it
    for offset, queued in enumerate(others, 1):
        queue.respond(queued, offset=offset)

    assert queue.send_all() == [first]
    queue.respond(first, offset=0)

    assert [queued.base_sequence for queued in queue.send_all()] == [5, 6, 7]


def test_acknowledged_offsets_become_a_range() -> None:
    queue = Queue(3, 2, 4)
    for queued, offset in zip(queue.send_all(), (10, 13, 20), strict=True):
        assert queue.respond(queued, offset=offset) is None

    assert queue.written == AcknowledgedRange(10, 24, 9)
    assert (bool(queue), queue.size_bytes) == (False, 0)


def test_batch_that_the_log_holds_already_counts_as_written() -> None:
    queue = Queue(3, 2)
    first, second = queue.send_all()

    queue.respond(first, ErrorCode.duplicate_sequence_number)
    queue.respond(second, offset=8)

    assert queue.written == AcknowledgedRange(8, 10, 5)


def test_after_a_failure_nothing_is_sent_until_all_responses_are_there_then_all_again_in_order() -> None:
    queue = Queue(1, 1, 1, 1)
    first, second, third, fourth = queue.send_all()
    queue.respond(first, offset=0)

    assert queue.respond(second, ErrorCode.not_enough_replicas) == BackOff()
    assert queue.next_batch(1, now=0.0) is None
    assert queue.respond(third, ErrorCode.out_of_order_sequence_number) is None
    assert queue.next_batch(1, now=0.0) is None
    assert queue.respond(fourth, ErrorCode.out_of_order_sequence_number) is None

    assert queue.send_all() == [second, third, fourth]
    assert [queued.base_sequence for queued in (second, third, fourth)] == [1, 2, 3]


def test_batch_after_a_failed_one_may_be_acknowledged_before_it() -> None:
    queue = Queue(1, 1, 1)
    first, second, third = queue.send_all()

    queue.respond(first, ErrorCode.not_enough_replicas_after_append)  # the log holds it
    queue.respond(second, offset=1)
    queue.respond(third, ErrorCode.request_timed_out)
    assert queue.written == AcknowledgedRange()
    assert queue.send_all() == [first, third]
    queue.respond(first, offset=0)
    queue.respond(third, offset=2)

    assert queue.written == AcknowledgedRange(0, 3, 3)


def test_requests_without_a_response_are_sent_again_in_order() -> None:
    queue = Queue(1, 1, 1)
    sent = queue.send_all()
    for queued in sent:
        queue.on_request_failed(queued, "broker 2 closed the connection")

    queue.wait_for_metadata_after(1)
    assert queue.next_batch(1, now=0.0) is None
    assert queue.next_batch(2, now=0.0) is sent[0]


def test_batches_stay_at_a_broker_while_one_is_in_flight_there() -> None:
    queue = Queue(1, 1)
    sent = queue.send_all()
    assert (queue.can_go_to(NODE), queue.can_go_to(3)) == (True, False)

    for queued in sent:
        queue.on_request_failed(queued, "lost")

    assert queue.can_go_to(3)


REFRESHES = {
    ErrorCode.not_leader_or_follower: RefreshReason.NOT_LEADER,
    ErrorCode.leader_not_available: RefreshReason.NO_LEADER,
    ErrorCode.fenced_leader_epoch: RefreshReason.FENCED_EPOCH,
    ErrorCode.unknown_topic_or_partition: RefreshReason.UNKNOWN_TOPIC,
    ErrorCode.unknown_topic_id: RefreshReason.UNKNOWN_TOPIC_ID,
    ErrorCode.kafka_storage_error: RefreshReason.NOT_LEADER,
}


@pytest.mark.parametrize("code", REFRESHES)
def test_stale_leader_makes_a_refresh_with_its_reason(code: ErrorCode) -> None:
    queue = Queue(1)
    (queued,) = queue.send_all()

    assert queue.respond(queued, code) == Refresh(REFRESHES[code], code)
    assert queue.next_batch(1, now=0.0) is queued


def test_retries_back_off_longer_each_time_until_an_acknowledgement() -> None:
    queue = Queue(1, 1)
    queue.back_off(10.0, lambda failures: failures)
    queue.back_off(20.0, lambda failures: failures)
    assert (queue.next_batch(1, 21.9), queue.not_before) == (None, 22.0)
    queued = queue.next_batch(1, 22.0)
    assert queued is not None
    queue.send(queued, NODE)
    queue.respond(queued, offset=0)

    queue.back_off(30.0, lambda failures: failures)

    assert queue.not_before == 31.0


@pytest.mark.parametrize("code", [ErrorCode.unknown_producer_id, ErrorCode.out_of_order_sequence_number])
def test_forgotten_producer_starts_again_with_the_next_epoch(code: ErrorCode) -> None:
    queue = Queue(3, 2, 4, next_sequence=50)
    first, second, third = queue.send_all()

    for queued in (first, second, third):
        queue.respond(queued, ErrorCode.out_of_order_sequence_number)
    assert queue.send_all() == [first], "alone: with others after it in flight, its epoch would never go up"
    assert queue.respond(first, code) == BackOff()
    assert queue.sequences() == [0, 3, 5]

    assert queue.send_all() == [first]
    (header,) = read_batch_headers(queue.send(first, NODE))
    assert (header.producer_epoch, header.base_sequence) == (1, 0)
    queue.respond(first, offset=0)
    assert queue.send_all() == [second, third]


def test_batches_in_flight_keep_their_numbers_because_the_log_may_hold_them() -> None:
    queue = Queue(3, 2, next_sequence=50)
    first, second = queue.send_all()
    queue.respond(first, ErrorCode.unknown_producer_id)
    assert queue.sequences() == [50, 53]

    queue.on_request_failed(second, "lost")
    assert queue.send_all() == [first]


@pytest.mark.parametrize("may_be_held", [True, False])
def test_part_of_a_batch_fails_the_task_if_the_log_may_hold_it_and_else_goes_on(may_be_held: bool) -> None:
    queue = Queue(4, next_sequence=50, max_in_flight=1)
    (whole,) = queue.send_all()
    if may_be_held:
        queue.respond(whole, ErrorCode.request_timed_out)
        (whole,) = queue.send_all()
    queue.respond(whole, ErrorCode.message_too_large)
    (first,) = queue.send_all()

    responded = queue.respond(first, ErrorCode.out_of_order_sequence_number)

    if may_be_held:
        error = str(error_of(responded))
        assert error.startswith("t-0 refuses a record batch of 2 rows from row 0 on: OUT_OF_ORDER_SEQUENCE_NUMBER")
        assert "the log may hold them already, from an earlier attempt in a larger batch" in error
    else:
        assert responded == BackOff()
    assert queue.sequences() == ([50, 52] if may_be_held else [0, 2])


def test_queue_keeps_no_memory_of_the_chunk_that_its_batches_are_from() -> None:
    gc.collect()
    before, rows = pa.total_allocated_bytes(), records(10_000)
    batches = encode(rows, np.zeros(10_000, np.int32), record_sizes(rows), 1_000, Compression(Codec.NONE, None))
    queue = Queue()
    queue.add(batches[0], np.arange(batches[0].record_count), deadline=100.0)
    order = weakref.ref(batches[0].rows.base)
    del batches, rows

    # Less, if another thread of the process freed something meanwhile.
    assert pa.total_allocated_bytes() <= before
    assert order() is None


def test_no_epoch_is_used_twice() -> None:
    queue = Queue(1, producer=ProducerIdAndEpoch(7, MAX_EPOCH))
    (queued,) = queue.send_all()

    assert isinstance(error_of(queue.respond(queued, ErrorCode.unknown_producer_id)), BrokerError)


def test_log_that_lost_acknowledged_records_fails_the_task_and_one_that_forgot_the_producer_does_not() -> None:
    queue = Queue(3, 2)
    first, second = queue.send_all()
    queue.respond(first, offset=0)

    error = error_of(queue.respond(second, ErrorCode.out_of_order_sequence_number))

    assert isinstance(error, DataLossError)
    assert str(error).startswith("t-0 has lost up to 3 records that it had acknowledged to this task")
    assert queue.respond(second, ErrorCode.unknown_producer_id) == BackOff()
    assert queue.sequences() == [0]


def test_offsets_that_go_back_fail_the_task() -> None:
    queue = Queue(3, 2)
    first, second = queue.send_all()
    queue.respond(first, offset=1000)

    assert isinstance(error_of(queue.respond(second, offset=0)), DataLossError)


def test_recreated_topic_fails_a_task_with_acknowledged_records_only() -> None:
    queue, other = Queue(1, 1), uuid4()
    first, _ = queue.send_all()
    assert queue.on_topic_id(TOPIC_ID, 1, 1) is queue.on_topic_id(None, 1, 1) is None
    assert (queue.on_topic_id(other, 1, 1), queue.topic_id) == (None, other)

    queue.respond(first, offset=0)

    assert "was deleted and created again" in str(error_of(queue.on_topic_id(TOPIC_ID, 1, 1)))


def test_recreated_topic_is_believed_once_a_second_broker_reports_it() -> None:
    queue, other, ask_again = Queue(1), uuid4(), Refresh(RefreshReason.ON_DEMAND, 0)
    (only,) = queue.send_all()
    queue.respond(only, offset=0)

    assert [queue.on_topic_id(other, node_id, 3) for node_id in (3, 3)] == [ask_again, ask_again]
    assert queue.on_topic_id(TOPIC_ID, 1, 3) is None
    assert [queue.on_topic_id(other, node_id, 3) for node_id in (None, None)] == [ask_again, ask_again]
    assert "was deleted and created again" in str(error_of(queue.on_topic_id(other, 1, 3)))


def test_batch_that_is_too_large_goes_as_two_under_the_same_numbers() -> None:
    queue = Queue(5, 2)
    first, second = queue.send_all()

    assert queue.respond(first, ErrorCode.message_too_large) is None
    queue.respond(second, ErrorCode.out_of_order_sequence_number)

    halves = queue.send_all()
    assert [(queued.base_sequence, queued.batch.rows.tolist()) for queued in halves] == [
        (0, [0, 1]),
        (2, [2, 3, 4]),
        (5, [5, 6]),
    ]
    assert queue.size_bytes == sum(queued.batch.size_bytes for queued in halves)


REFUSED = {
    ErrorCode.message_too_large: (RecordTooLargeError, "t-0 refuses row 0, whose record has"),
    ErrorCode.record_list_too_large: (RecordTooLargeError, "raise max.message.bytes of topic t"),
    ErrorCode.topic_authorization_failed: (AuthorizationError, "no ACL allows this user WRITE on topic t"),
    ErrorCode.invalid_record: (BrokerError, "t-0 refuses row 0: INVALID_RECORD (error 87): correct or filter"),
    ErrorCode.invalid_producer_epoch: (BrokerError, "nothing is left to do if Spark's next attempt"),
    ErrorCode.unknown_server_error: (BrokerError, "UNKNOWN_SERVER_ERROR (error -1): the log of the broker says why"),
    ErrorCode.cluster_authorization_failed: (AuthorizationError, "allow this user IDEMPOTENT_WRITE on the cluster"),
    ErrorCode.transactional_id_authorization_failed: (AuthorizationError, "allow this user WRITE on all"),
    ErrorCode.invalid_config: (BrokerError, "INVALID_CONFIG (error 40): the log of the broker says more"),
}


@pytest.mark.parametrize("code", REFUSED)
def test_refused_record_fails_the_task_with_its_row(code: ErrorCode) -> None:
    kind, text = REFUSED[code]
    queue = Queue(1)
    (queued,) = queue.send_all()

    error = error_of(queue.respond(queued, code))

    assert type(error) is kind
    assert text in str(error)


def test_broker_names_the_record_that_it_refuses() -> None:
    queue = Queue(2, 4)
    _, queued = queue.send_all()
    words = "Compacted topic cannot accept message without key"
    produced = ProducedPartition(
        T0, ErrorCode.invalid_record, -1, "One or more records have been rejected", ((2, words),)
    )

    error = error_of(queue.on_response(queued, produced))

    expected = "t-0 refuses row 4: INVALID_RECORD (error 87): One or more records have been rejected " + words
    assert str(error) == expected + ": correct or filter such rows"


def test_timeout_names_rows_and_the_last_error() -> None:
    queue = Queue(2)
    (queued,) = queue.send_all()
    queue.respond(queued, ErrorCode.not_enough_replicas)

    error = queue.timeout_error()

    assert isinstance(error, DeliveryTimeoutError)
    assert str(error) == (
        "t-0 did not acknowledge a record batch of 2 rows from row 0 on within kafka.delivery.timeout.ms: "
        "NOT_ENOUGH_REPLICAS (error 19): check the partition's leader and its in-sync replicas"
    )


# --- transactions -----------------------------------------------------------------------------------------------------

ID = "orders/3/0"


@pytest.mark.parametrize("transactional_id", [ID, None])
def test_batches_of_a_transaction_say_so(transactional_id: str | None) -> None:
    queue = Queue(3, transactional_id=transactional_id)
    (queued,) = queue.send_all()

    (header,) = read_batch_headers(queue.send(queued, NODE))

    assert header.is_transactional is (transactional_id is not None)


@pytest.mark.parametrize("code", [ErrorCode.unknown_producer_id, ErrorCode.out_of_order_sequence_number])
def test_transaction_does_not_go_on_in_another_epoch(code: ErrorCode) -> None:
    queue = Queue(3, 2, transactional_id=ID)
    first, second = queue.send_all()
    assert queue.respond(second, ErrorCode.out_of_order_sequence_number) is None  # it just follows the first again

    error = error_of(queue.respond(first, code))

    assert str(error).startswith(f"t-0 refuses a record batch of 3 rows from row 0 on: {code.name.upper()}")
    assert queue.sequences() == [0, 3]


def test_records_without_known_offsets_fail_the_task_because_the_driver_must_find_them() -> None:
    queue = Queue(3, transactional_id=ID)
    (queued,) = queue.send_all()

    assert isinstance(error_of(queue.respond(queued, ErrorCode.duplicate_sequence_number)), BrokerError)


@pytest.mark.parametrize("code", [ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced])
def test_fenced_task_names_the_transactional_id(code: ErrorCode) -> None:
    queue = Queue(1, transactional_id=ID)
    (queued,) = queue.send_all()

    error = error_of(queue.respond(queued, code))

    assert type(error) is FencedError
    assert f"t-0 refuses row 0: {code.name.upper()}" in str(error)
    assert "another query, uses transactional id orders/3/0" in str(error)


@pytest.mark.parametrize("code", [ErrorCode.invalid_txn_state, ErrorCode.transaction_abortable])
def test_transaction_that_has_ended_is_repeated(code: ErrorCode) -> None:
    queue = Queue(1, transactional_id=ID)
    (queued,) = queue.send_all()

    assert "if Spark's next attempt of the task succeeds" in str(error_of(queue.respond(queued, code)))


def test_markers_of_the_transaction_before_are_waited_for() -> None:
    queue = Queue(1, transactional_id=ID)
    (queued,) = queue.send_all()

    assert queue.respond(queued, ErrorCode.concurrent_transactions) == BackOff()
    assert queue.send_all() == [queued]
