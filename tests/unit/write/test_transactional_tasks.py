"""Tasks that write in transactions, to healthy and faulty fake brokers: each row once, in one open transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.errors import (
    AuthorizationError,
    BrokerError,
    ConnectError,
    DeliveryTimeoutError,
    FencedError,
    InvalidRowError,
    KafkaMetaError,
    TransactionTimeoutError,
)
from pyspark_kafka_meta.events.event import EventKind
from pyspark_kafka_meta.kafka.client.producer_state import MAX_EPOCH
from pyspark_kafka_meta.kafka.protocol.transactions import (
    AddPartitionsRequest,
    EndTransactionRequest,
    ProducerIdRequest,
)
from pyspark_kafka_meta.model import OpenTransaction, ProducerIdAndEpoch, TransactionSpan, TransactionVersion
from pyspark_kafka_meta.write.partition_queue import AcknowledgedRange
from pyspark_kafka_meta.write.transactional_producer import LAST_EPOCHS, TransactionalProducer
from tests.partitions import T0, T1, T2
from tests.unit.fake_coordinators import ONGOING
from tests.unit.write.batches import encoded_batch
from tests.unit.write.writer_scene import SMALL_BATCHES, WriterScene, in_turn, numbered, rows

COUNT = 300
ID = "orders/3/0"
TIMEOUT_MS = 60_000
V1, V2 = TransactionVersion.V1, TransactionVersion.V2


@pytest.fixture(params=[V1, V2], ids=["v1", "v2"])
def version(request: pytest.FixtureRequest) -> TransactionVersion:
    found: TransactionVersion = request.param
    return found


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch, version: TransactionVersion) -> WriterScene:
    made = WriterScene(monkeypatch)
    made.cluster.coordinators.version = version
    return made


@pytest.fixture
def transaction(scene: WriterScene, version: TransactionVersion) -> TransactionalProducer:
    return scene.transaction(ID, version, TIMEOUT_MS)


def is_open(scene: WriterScene) -> bool:
    return scene.cluster.coordinators.transactions[ID].state == ONGOING


# --- healthy brokers --------------------------------------------------------------------------------------------------


def test_all_rows_are_in_one_open_transaction(
    scene: WriterScene, transaction: TransactionalProducer, version: TransactionVersion
) -> None:
    written = scene.write_in(transaction, numbered(COUNT), **SMALL_BATCHES)

    assert scene.numbers() == in_turn(COUNT)
    assert written == dict.fromkeys((T0, T1, T2), AcknowledgedRange(0, 100, 100))
    assert is_open(scene)
    opened = transaction.opened({})
    assert opened is not None
    assert opened.producer == scene.cluster.coordinators.transactions[ID].producer
    headers = [header for partition in (T0, T1, T2) for header in scene.batch_headers(partition)]
    assert {ProducerIdAndEpoch(header.producer_id, header.producer_epoch) for header in headers} == {opened.producer}
    assert all(header.is_transactional for header in headers)
    requests = [request for _, request in scene.network.produces]
    assert {(request.transactional_id, request.transaction_version) for request in requests} == {(ID, version)}


def test_version_1_adds_each_partition_once(
    scene: WriterScene, transaction: TransactionalProducer, version: TransactionVersion
) -> None:
    scene.write_in(transaction, rows(value=[b"1"], partition=[1]))
    scene.write_in(transaction, numbered(COUNT), **SMALL_BATCHES)

    requests = [request for _, request in scene.network.transactions_sent]
    added = [request.partitions for request in requests if isinstance(request, AddPartitionsRequest)]
    assert added == ([(T1,), (T0, T2)] if version is V1 else [])


def test_no_rows_need_no_transaction(scene: WriterScene, transaction: TransactionalProducer) -> None:
    assert scene.write_in(transaction, numbered(0)) == {}
    assert transaction.opened({}) is None
    assert scene.network.requests == []


def test_producer_id_is_requested_early_if_the_last_had_one(scene: WriterScene, version: TransactionVersion) -> None:
    requested_before: list[bool] = []

    def given(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        sent = [request for _, request in scene.network.transactions_sent]
        requested_before.append(any(isinstance(request, ProducerIdRequest) for request in sent))
        yield batch

    for number, count in enumerate([30, 0, 30, 30]):
        scene.network.transactions_sent.clear()
        transaction = scene.transaction(f"orders/{number}/0", version, TIMEOUT_MS)
        batch = numbered(count)
        scene.write_from(given(batch), batch.schema.names, transaction)

    assert requested_before == [False, True, False, True]


def test_tasks_of_a_worker_have_separate_producers(
    scene: WriterScene, transaction: TransactionalProducer, version: TransactionVersion
) -> None:
    other = scene.transaction("orders/4/0", version, TIMEOUT_MS)
    scene.write_task(numbered(30))
    scene.write_in(transaction, numbered(30, start=30))
    scene.write_in(other, numbered(30, start=60))
    scene.write_task(numbered(30, start=90))

    assert scene.numbers() == in_turn(120)
    assert [header.base_sequence for header in scene.batch_headers(T0)] == [0, 0, 0, 10]


@pytest.mark.parametrize("epoch", [*range(MAX_EPOCH - 6, MAX_EPOCH)])
def test_no_transaction_begins_in_the_last_epochs_of_a_producer_id(
    epoch: int, scene: WriterScene, transaction: TransactionalProducer, version: TransactionVersion
) -> None:
    scene.transaction(ID, version, TIMEOUT_MS).begin()
    state = scene.cluster.coordinators.transactions[ID]
    state.producer = state.producer._replace(epoch=epoch)
    for start in range(0, 90, 30):
        scene.write_in(transaction, numbered(30, start=start))
        transaction.commit(scene.clock() + 30)

    assert scene.numbers() == in_turn(90)
    written = [header for header in scene.batch_headers(T0) if not header.is_control]  # V2 ends in the next epoch
    assert max(header.producer_epoch for header in written) < LAST_EPOCHS


def test_driver_writes_one_transaction_after_the_other(scene: WriterScene, transaction: TransactionalProducer) -> None:
    """Under V1 in the same epoch, in which brokers take repeated sequence numbers for repeated batches."""
    for start in range(0, 90, 30):
        scene.write_in(transaction, numbered(30, start=start))
        transaction.commit(scene.clock() + 30)

    assert scene.numbers() == in_turn(90)
    assert len(scene.sent("InitProducerId")) == 1


def test_batches_are_written_as_they_are(scene: WriterScene, transaction: TransactionalProducer) -> None:
    copies = [(partition, encoded_batch(count)) for partition, count in ((T1, 3), (T0, 5), (T1, 2), (T1, 7))]

    writer = scene.task_writer(["value", "partition"], transaction, **{"kafka.buffer.memory": "100"})
    written = writer.write_encoded(iter(copies))

    assert [int(value) for value in scene.log(T1)] == [0, 1, 2, 0, 1, 0, 1, 2, 3, 4, 5, 6]
    assert written == {T1: AcknowledgedRange(0, 12, 12), T0: AcknowledgedRange(0, 5, 5)}
    writer.write(iter([rows(value=[b"9"], partition=[0])]))
    assert scene.log(T0)[5:] == [b"9"]
    assert is_open(scene)


# --- the end of a transaction -----------------------------------------------------------------------------------------


def test_driver_gets_what_a_transaction_holds(scene: WriterScene, transaction: TransactionalProducer) -> None:
    written = {T1: AcknowledgedRange(0, 1, 1), T0: AcknowledgedRange(5, 10, 3)}
    transaction.add({T0})
    transaction.add({T0, T1})

    producer = scene.cluster.coordinators.transactions[ID].producer
    spans = (TransactionSpan("t", 0, 5, 10, 3), TransactionSpan("t", 1, 0, 1, 1))
    assert transaction.opened(written) == OpenTransaction(ID, producer, spans)
    assert scene.worker(scene.sink_options()).traffic.transactions_begun == 1


def test_partition_that_was_not_added_is_added_again(scene: WriterScene) -> None:
    scene.cluster.coordinators.version = V1
    transaction = scene.transaction(ID, V1, TIMEOUT_MS)
    scene.network.transaction_errors["AddPartitionsToTxn"].append(ErrorCode.transactional_id_authorization_failed)
    with pytest.raises(AuthorizationError):
        transaction.add({T0})
    transaction.add({T0})

    requests = [request for _, request in scene.network.transactions_sent]
    assert len([each for each in requests if isinstance(each, AddPartitionsRequest)]) == 2


def initialise_again(scene: WriterScene) -> None:
    scene.cluster.coordinators.init(ID, TIMEOUT_MS)


def time_out(scene: WriterScene) -> None:
    scene.cluster.coordinators.time_out(ID)


@pytest.mark.parametrize("end", [initialise_again, time_out])
def test_transaction_that_has_ended_is_not_committed(
    end: Callable[[WriterScene], None], scene: WriterScene, transaction: TransactionalProducer
) -> None:
    scene.write_in(transaction, numbered(3))
    end(scene)

    with pytest.raises(FencedError, match=r"orders/3/0 cannot be committed: .* uses its id by now, or it timed out"):
        transaction.commit(scene.clock() + 30)


def test_abort_is_reported_and_one_that_fails_is_left_to_the_driver(
    scene: WriterScene, transaction: TransactionalProducer, caplog: pytest.LogCaptureFixture
) -> None:
    scene.write_in(transaction, numbered(3))
    scene.network.hung |= {1, 2, 3}
    transaction.abort()
    assert "transaction orders/3/0 stays open for the driver to abort: " in caplog.text
    assert EventKind.TRANSACTIONS_ABORTED not in [event.kind for event in scene.events]

    scene.network.hung.clear()
    transaction.abort()
    assert scene.events[-1].kind is EventKind.TRANSACTIONS_ABORTED


def test_transaction_is_given_up_before_it_times_out(scene: WriterScene, transaction: TransactionalProducer) -> None:
    transaction.begin()
    scene.clock.sleep(1_000)
    scene.write_in(transaction, numbered(3))
    scene.clock.sleep(47.9)
    transaction.fail_if_late(scene.clock())

    scene.clock.sleep(0.1)
    with pytest.raises(TransactionTimeoutError, match=r"has been written for 48 s, and its timeout is 60 s: "):
        transaction.fail_if_late(scene.clock())
    transaction.commit(scene.clock() + 30)
    transaction.fail_if_late(scene.clock())


# --- faults -----------------------------------------------------------------------------------------------------------

RETRIABLE = [
    ErrorCode.not_enough_replicas,
    ErrorCode.not_enough_replicas_after_append,
    ErrorCode.request_timed_out,
    ErrorCode.not_leader_or_follower,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.concurrent_transactions,
]


@pytest.mark.parametrize("code", RETRIABLE)
@pytest.mark.parametrize("times", [1, 7])
def test_retriable_error_neither_loses_nor_repeats_nor_reorders(
    scene: WriterScene, transaction: TransactionalProducer, code: ErrorCode, times: int
) -> None:
    scene.script(T1, *[code] * times)

    written = scene.write_in(transaction, numbered(COUNT), **SMALL_BATCHES)

    assert scene.numbers() == in_turn(COUNT)
    assert written[T1] == AcknowledgedRange(0, 100, 100)


@pytest.mark.parametrize("handled", [1, 3, 5])
def test_lost_responses_repeat_no_row(scene: WriterScene, transaction: TransactionalProducer, handled: int) -> None:
    scene.network.lost_responses = {2: handled, 3: handled}

    scene.write_in(transaction, numbered(COUNT), **SMALL_BATCHES)

    assert scene.numbers() == in_turn(COUNT)


@pytest.mark.parametrize("api", ["InitProducerId", "AddPartitionsToTxn"])
def test_lost_coordinator_responses_come(scene: WriterScene, transaction: TransactionalProducer, api: str) -> None:
    scene.network.lost_transactions[api] = 2

    scene.write_in(transaction, numbered(COUNT))

    assert scene.numbers() == in_turn(COUNT)
    assert is_open(scene)


def failing_rows() -> Iterator[pa.RecordBatch]:
    """Rows that are written, then a row that cannot be."""
    yield numbered(30)
    yield rows(value=[b"1"], partition=[-1])


def test_failed_task_aborts_its_transaction_and_what_it_sent_is_not_appended_later(
    scene: WriterScene, transaction: TransactionalProducer, version: TransactionVersion
) -> None:
    """A request that comes late would be part of the next transaction of this id."""
    with pytest.raises(InvalidRowError):
        scene.write_from(failing_rows(), ["value", "partition"], transaction, **{"kafka.buffer.memory": "1"})

    assert not is_open(scene)
    coordinators, (_, late) = scene.cluster.coordinators, scene.network.produces[0]
    assert coordinators.last_stable_offset(T0) == scene.cluster.bounds(T0)[1] > 10
    sent = late.partitions[0].records
    producer = ProducerIdAndEpoch(int.from_bytes(sent[43:51], "big"), int.from_bytes(sent[51:53], "big"))
    assert coordinators.append(ID, producer, T0, version, scene.clock()) == ErrorCode.invalid_producer_epoch


def test_abort_without_response_delays_the_error_little(scene: WriterScene, transaction: TransactionalProducer) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield numbered(30)
        scene.network.hung |= {1, 2, 3}
        yield rows(value=[b"1"], partition=[-1])

    began = scene.clock()
    with pytest.raises(InvalidRowError):
        scene.write_from(batches(), ["value", "partition"], transaction, **{"kafka.buffer.memory": "1"})

    assert 5 <= scene.clock() - began < 8


def test_fenced_task_fails_and_leaves_its_successor_alone(
    scene: WriterScene, transaction: TransactionalProducer, version: TransactionVersion
) -> None:
    successor = scene.transaction(ID, version, TIMEOUT_MS)

    def batches() -> Iterator[pa.RecordBatch]:
        yield numbered(30)
        scene.write_in(successor, numbered(30, start=100))
        yield numbered(30, start=30)

    with pytest.raises(FencedError, match=r"uses transactional id orders/3/0 by now"):
        scene.write_from(batches(), ["value", "partition"], transaction, **{"kafka.buffer.memory": "1"})

    opened = successor.opened({})
    assert opened is not None
    assert is_open(scene)
    assert scene.cluster.coordinators.transactions[ID].producer == opened.producer


def test_transaction_that_timed_out_fails_the_task(scene: WriterScene, transaction: TransactionalProducer) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield numbered(30)
        scene.cluster.coordinators.time_out(ID)
        yield numbered(30, start=30)

    with pytest.raises(FencedError, match="or its transaction timed out"):
        scene.write_from(batches(), ["value", "partition"], transaction, **{"kafka.buffer.memory": "1"})

    assert not is_open(scene)


def test_task_that_writes_too_long_fails_in_time(scene: WriterScene, transaction: TransactionalProducer) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, COUNT, 30):
            yield numbered(30, start=start)
            scene.clock.sleep(10)

    began = scene.clock()
    with pytest.raises(TransactionTimeoutError, match=r"orders/3/0 has been written for .* timeout is 60 s"):
        scene.write_from(batches(), ["value", "partition"], transaction, **{"kafka.buffer.memory": "1"})

    assert scene.clock() - began < TIMEOUT_MS / 1000
    assert not is_open(scene)


def test_task_that_waits_for_a_leader_fails_in_time(scene: WriterScene, transaction: TransactionalProducer) -> None:
    scene.script(T1, *[ErrorCode.not_enough_replicas] * 1_000)
    began = scene.clock()

    with pytest.raises(TransactionTimeoutError):
        scene.write_in(transaction, numbered(30))

    assert 48 <= scene.clock() - began < TIMEOUT_MS / 1000
    assert not is_open(scene)


REFUSALS: dict[ErrorCode, type[KafkaMetaError]] = {
    ErrorCode.unknown_producer_id: BrokerError,
    ErrorCode.out_of_order_sequence_number: BrokerError,
    ErrorCode.duplicate_sequence_number: BrokerError,
    ErrorCode.transaction_abortable: BrokerError,
    ErrorCode.invalid_record: BrokerError,
}


@pytest.mark.parametrize("code", REFUSALS)
def test_refused_batch_aborts_all(scene: WriterScene, transaction: TransactionalProducer, code: ErrorCode) -> None:
    scene.script(T1, code)

    with pytest.raises(REFUSALS[code], match=code.name.upper()):
        scene.write_in(transaction, numbered(30))

    assert not is_open(scene)


def test_rows_not_acknowledged_in_time_abort_the_transaction(scene: WriterScene, version: TransactionVersion) -> None:
    transaction = scene.transaction(ID, version, 900_000)
    scene.script(T1, *[ErrorCode.not_enough_replicas] * 1_000)

    with pytest.raises(DeliveryTimeoutError):
        scene.write_in(transaction, numbered(30))

    assert not is_open(scene)


def test_transactional_id_that_may_not_be_used_is_named(scene: WriterScene, transaction: TransactionalProducer) -> None:
    scene.network.transaction_errors["InitProducerId"].append(ErrorCode.transactional_id_authorization_failed)

    with pytest.raises(BrokerError, match="allow this user WRITE on all transactional ids"):
        scene.write_in(transaction, numbered(30))

    assert scene.network.produces == []
    assert not any(isinstance(request, EndTransactionRequest) for _, request in scene.network.transactions_sent)


def test_unreachable_coordinator_fails_the_task(scene: WriterScene, version: TransactionVersion) -> None:
    worker = scene.worker(scene.sink_options())
    transaction = TransactionalProducer(worker, ID, TIMEOUT_MS, version, max_block_ms=5_000)
    scene.network.transaction_errors["FindCoordinator"].extend([ErrorCode.coordinator_not_available] * 1_000)
    began = scene.clock()

    with pytest.raises(ConnectError, match="COORDINATOR_NOT_AVAILABLE"):
        scene.write_in(transaction, numbered(30))

    assert scene.clock() - began < 6
