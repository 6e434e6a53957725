"""The transactions of one transactional id: what the coordinator is asked, and what becomes of errors."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.errors import ConnectError, FencedError, KafkaMetaError, TransactionTimeoutError
from pyspark_kafka_meta.facts import Ending, TransactionsEnded
from pyspark_kafka_meta.kafka.client.client_state import Traffic
from pyspark_kafka_meta.kafka.protocol.frame_codec import ApiResponse
from pyspark_kafka_meta.model import (
    NO_PRODUCER,
    OpenTransaction,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionSpan,
    TransactionVersion,
)
from pyspark_kafka_meta.write.partition_queue import AcknowledgedRange
from pyspark_kafka_meta.write.transactional_producer import TransactionalProducer
from tests.partitions import T0, T1, T2

V1, V2 = TransactionVersion.V1, TransactionVersion.V2
ID = "orders/3/0"
WRITTEN = {T1: [AcknowledgedRange(0, 1, 1)], T0: [AcknowledgedRange(5, 7, 2), AcknowledgedRange(9, 10, 1)]}
SPANS = (TransactionSpan("t", 0, 5, 10, 3), TransactionSpan("t", 1, 0, 1, 1))


class FakeClient:
    """A client whose coordinator does as it is told, at once. It is its own clock and coordinators.

    Attributes:
        requests: in order, with their arguments.
        end_code: error code of EndTxn.
        error: raised instead of the next response.
    """

    def __init__(self) -> None:
        self.now = 100.0
        self.epoch = -1
        self.requests: list[Any] = []
        self.end_code = 0
        self.error: KafkaMetaError | None = None
        self.facts: list[Any] = []
        self.report = self.facts.append
        self.traffic = Traffic()
        self.coordinators = self

    def clock(self) -> float:
        return self.now

    def _respond(self, *request: Any) -> None:
        self.requests.append(request)
        if self.error is not None:
            error, self.error = self.error, None
            raise error

    def fence(
        self, transactional_ids: Collection[str], timeout_ms: int, deadline: float
    ) -> dict[str, ProducerIdAndEpoch]:
        (transactional_id,) = transactional_ids
        self._respond("InitProducerId", transactional_id, timeout_ms, deadline - self.now)
        self.epoch += 1
        return {transactional_id: ProducerIdAndEpoch(7, self.epoch)}

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
        deadline: float,
    ) -> None:
        self._respond("AddPartitionsToTxn", transactional_id, producer, partitions, deadline - self.now)

    def end_transactions(
        self, producers: Mapping[str, ProducerIdAndEpoch], committed: bool, version: TransactionVersion, deadline: float
    ) -> dict[str, ApiResponse[ProducerIdAndEpoch]]:
        self._respond("EndTxn", dict(producers), committed, version, deadline - self.now)
        producer = NO_PRODUCER
        if version is V2 and self.end_code == 0:
            self.epoch += 1
            producer = ProducerIdAndEpoch(7, self.epoch)
        return {name: ApiResponse(1, self.end_code, producer) for name in producers}

    def names(self) -> list[str]:
        return [request[0] for request in self.requests]


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


def transaction(client: Any, version: TransactionVersion = V2, timeout_ms: int = 60_000) -> TransactionalProducer:
    return TransactionalProducer(client, ID, timeout_ms, version, max_block_ms=9_000)


def test_task_without_rows_begins_no_transaction(client: FakeClient) -> None:
    made = transaction(client)

    assert made.opened({}) is None
    made.abort()
    assert client.requests == []


def test_first_rows_begin_the_transaction_that_the_driver_gets(client: FakeClient) -> None:
    made = transaction(client)
    made.add({T0})
    made.add({T0, T1})

    assert client.requests == [("InitProducerId", ID, 60_000, 9.0)]
    assert client.traffic.transactions_begun == 1
    assert made.opened(WRITTEN) == OpenTransaction(ID, ProducerIdAndEpoch(7, 0), SPANS)


def test_version_1_adds_each_partition_once_and_several_in_one_request(client: FakeClient) -> None:
    made = transaction(client, V1)
    made.add({T1, T0})
    made.add({T0, T1})
    made.add({T0, T2})

    assert client.requests[1:] == [
        ("AddPartitionsToTxn", ID, ProducerIdAndEpoch(7, 0), [T0, T1], 9.0),
        ("AddPartitionsToTxn", ID, ProducerIdAndEpoch(7, 0), [T2], 9.0),
    ]


def test_partition_that_was_not_added_is_added_again(client: FakeClient) -> None:
    made = transaction(client, V1)
    made.begin()
    client.error = ConnectError("no response in time")
    with pytest.raises(ConnectError):
        made.add({T0})

    made.add({T0})

    assert client.names() == ["InitProducerId", "AddPartitionsToTxn", "AddPartitionsToTxn"]


def test_sequences_start_at_0_for_each_partition(client: FakeClient) -> None:
    made = transaction(client)
    made.add({T0, T1})

    assert [made.sequence(T0).take(5), made.sequence(T0).take(1), made.sequence(T1).take(2)] == [0, 5, 0]
    assert made.sequence(T0).producer == ProducerIdAndEpoch(7, 0)


@pytest.mark.parametrize(
    ("version", "expected"), [(V1, (ProducerIdAndEpoch(7, 0), 5)), (V2, (ProducerIdAndEpoch(7, 1), 0))]
)
def test_next_transaction_continues_the_sequences_of_its_epoch(
    client: FakeClient, version: TransactionVersion, expected: tuple[ProducerIdAndEpoch, int]
) -> None:
    """Brokers take a batch with the number of an earlier batch of the same epoch for its repetition."""
    made = transaction(client, version)
    made.add({T0})
    made.sequence(T0).take(5)

    made.commit(client.now + 30)
    assert made.opened({}) is None
    made.add({T0})

    assert (made.sequence(T0).producer, made.sequence(T0).next_sequence) == expected
    added = ["AddPartitionsToTxn"] if version is V1 else []
    assert client.names() == ["InitProducerId", *added, "EndTxn", *added]
    assert ("EndTxn", {ID: ProducerIdAndEpoch(7, 0)}, True, version, 30.0) in client.requests


def test_fenced_driver_commits_nothing(client: FakeClient) -> None:
    made = transaction(client)
    made.add({T0})
    client.end_code = ErrorCode.producer_fenced

    with pytest.raises(FencedError, match=r"transaction orders/3/0 cannot be committed: PRODUCER_FENCED"):
        made.commit(client.now + 30)


def test_transaction_that_timed_out_is_not_committed(client: FakeClient) -> None:
    made = transaction(client)
    made.add({T0})
    client.end_code = ErrorCode.invalid_txn_state

    with pytest.raises(FencedError, match=r"INVALID_TXN_STATE.* or it timed out"):
        made.commit(client.now + 30)


def test_failed_task_aborts_soon(client: FakeClient) -> None:
    made = transaction(client)
    made.add({T0})

    made.abort()

    assert client.requests[-1] == ("EndTxn", {ID: ProducerIdAndEpoch(7, 0)}, False, V2, 5.0)
    assert client.facts == [TransactionsEnded(Ending.ABORTED, ID, 1, 0.0)]


def test_version_1_aborts_with_another_epoch_because_requests_may_be_on_their_way(client: FakeClient) -> None:
    made = transaction(client, V1)
    made.add({T0})

    made.abort()

    assert client.requests[-1] == ("InitProducerId", ID, 60_000, 5.0)


def test_abort_that_fails_is_left_to_the_driver(client: FakeClient, caplog: pytest.LogCaptureFixture) -> None:
    made = transaction(client)
    made.add({T0})
    client.error = ConnectError("no response in time")

    made.abort()

    assert "transaction orders/3/0 stays open for the driver to abort: no response in time" in caplog.text
    assert client.facts == []


def test_transaction_is_given_up_before_it_times_out(client: FakeClient) -> None:
    made = transaction(client)
    made.begin()
    client.now += 1_000
    made.add({T0})
    client.now += 47.9
    made.fail_if_late(client.now)

    client.now += 0.1
    with pytest.raises(TransactionTimeoutError, match=r"has been written for 48 s, and its timeout is 60 s: "):
        made.fail_if_late(client.now)
    made.commit(client.now + 30)
    made.fail_if_late(client.now)
