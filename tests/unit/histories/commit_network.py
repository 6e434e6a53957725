"""`CommitNetwork`: a `FakeNetwork` whose brokers may handle requests of broken connections late; `LateCoordinators`."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.errors import UnsupportedBrokerError
from pyspark_kafka_meta.kafka.protocol.apis import ApiResponse, BrokerRequest
from pyspark_kafka_meta.kafka.protocol.list_offsets import (
    LATEST_TIMESTAMP,
    OffsetQuery,
    OffsetsRequest,
    PartitionOffset,
)
from pyspark_kafka_meta.kafka.protocol.network_interface import RequestFailure
from pyspark_kafka_meta.kafka.protocol.produce import ProduceRequest, ProduceResponse
from pyspark_kafka_meta.kafka.protocol.transactions import ListTransactionsRequest
from pyspark_kafka_meta.model import ProducerIdAndEpoch, TopicPartition, TransactionVersion
from tests.unit.fake_cluster import FakeCluster
from tests.unit.fake_coordinators import ONGOING, FakeCoordinators, FakeTransaction
from tests.unit.fake_network import FakeClock, FakeNetwork, FakeOffsets
from tests.unit.fake_requests import FakeProduce, FakeRequests, FakeTransactions, RequestT, ResponseT, node_id_of

PREPARE_COMMIT, PREPARE_ABORT = "PrepareCommit", "PrepareAbort"
LATE_S = (0.0, 0.0, 0.01, 0.2, 2.0, 30.0)


class CommitNetwork(FakeNetwork):
    """
    Attributes:
        lists_transactions: whether brokers do (Kafka 3.0).
        stale_ends: how many of the next ListOffsets responses have an end before the log's last batches, by partition.
    """

    def __init__(self, cluster: FakeCluster, clock: FakeClock, rng: random.Random) -> None:
        self.lists_transactions = True
        self.stale_ends: dict[TopicPartition, int] = {}
        super().__init__(cluster, clock, rng)

    def _open(self) -> None:
        super()._open()
        self.offsets, self.produce, self.transactions = StaleOffsets(self), LostProduce(self), LostTransactions(self)

    def draw_late(self) -> int:
        return self._rng.choice([0, 1, 5])

    def draw_late_s(self) -> float:
        """After how many seconds the broker handles them."""
        return self._rng.choice(LATE_S)

    def draw_stale_end(self, partition: TopicPartition) -> int:
        """An end of the log before one of its last batches."""
        return self._rng.choice(self.cluster.logs[partition][-6:]).base_offset


class LostRequests(FakeRequests[RequestT, ResponseT]):
    """Of a connection that breaks, the broker may have handled the oldest requests, may handle them later, or never."""

    network: CommitNetwork

    def drop(self, node_id: int) -> None:
        self._leave(node_id)
        self.not_sent.pop(node_id, None)

    def _outcome(self, node_id: int) -> ResponseT | RequestFailure:
        if node_id_of(node_id) in self.network.down | self.network.hung:
            self._handle_late(node_id)
        return super()._outcome(node_id)

    def _leave(self, connection: int) -> None:
        self._handle_late(connection)
        super()._leave(connection)

    def _handle_late(self, node_id: int) -> None:
        requests = list(self.in_flight.get(node_id, ()))[: self.network.draw_late()]

        def handle() -> None:
            if node_id_of(node_id) not in self.network.down:
                for sent in requests:
                    self.respond(node_id, sent.request, sent.sent_at)

        if requests and (late_s := self.network.draw_late_s()):
            self.network.clock.at(late_s, handle)
        else:
            handle()


class LostProduce(LostRequests[ProduceRequest, ProduceResponse], FakeProduce):
    pass


class LostTransactions(LostRequests[BrokerRequest[Any], ApiResponse[Any]], FakeTransactions):
    def respond(self, node_id: int, request: BrokerRequest[Any], sent_at: float) -> ApiResponse[Any] | RequestFailure:
        if isinstance(request, ListTransactionsRequest) and not self.network.lists_transactions:
            return RequestFailure(node_id, UnsupportedBrokerError("this broker cannot list transactions"))
        return super().respond(node_id, request, sent_at)


class StaleOffsets(FakeOffsets):
    """A leader that was deposed, and does not know it yet, reports an end that is too low."""

    network: CommitNetwork

    def _offset(self, node_id: int, query: OffsetQuery, request: OffsetsRequest) -> PartitionOffset:
        found, stale_ends = super()._offset(node_id, query, request), self.network.stale_ends
        is_stale = found.error_code == 0 and query.wanted == LATEST_TIMESTAMP and stale_ends.get(query.partition, 0) > 0
        if not is_stale or found.offset <= 0:
            return found
        stale_ends[query.partition] -= 1
        return found._replace(offset=self.network.draw_stale_end(query.partition))


class LateCoordinators(FakeCoordinators):
    """The markers of a transaction come after the response to EndTxn. Until then the coordinator refuses other requests
    of its id with CONCURRENT_TRANSACTIONS, as Apache Kafka does."""

    def __init__(
        self,
        cluster: FakeCluster,
        clock: FakeClock,
        marker_s: Callable[[], float],
        first_epoch: Callable[[], int] = lambda: 0,
    ) -> None:
        """
        Args:
            marker_s: draws after how many seconds the markers are in the logs.
            first_epoch: draws the epoch of a new transactional id.
        """
        super().__init__(cluster)
        self._clock = clock
        self._marker_s = marker_s
        self._first_epoch = first_epoch

    def is_open(self, transactional_id: str) -> bool:
        return self.transactions[transactional_id].state in (ONGOING, PREPARE_COMMIT, PREPARE_ABORT)

    def time_out_all(self) -> None:
        for transactional_id, known in self.transactions.items():
            if known.state == ONGOING:
                self.time_out(transactional_id)

    def init(self, transactional_id: str, timeout_ms: int) -> int | ProducerIdAndEpoch:
        known = self.transactions.get(transactional_id)
        if known is not None and known.state == ONGOING:
            self._end(known, committed=False, raises_epoch=True)
            known.producer = known.producer._replace(epoch=known.producer.epoch + 1)
        if self._is_ending(known):
            return ErrorCode.concurrent_transactions
        given = super().init(transactional_id, timeout_ms)
        if known is not None or not isinstance(given, ProducerIdAndEpoch):
            return given
        first = self.transactions[transactional_id].producer = given._replace(epoch=self._first_epoch())
        return first

    def add(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partitions: set[TopicPartition], now: float
    ) -> int:
        is_ending = self._is_ending(self.transactions.get(transactional_id))
        code = self._producer_error(transactional_id, producer) or (ErrorCode.concurrent_transactions * is_ending)
        return code or super().add(transactional_id, producer, partitions, now)

    def append(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partition: TopicPartition,
        version: TransactionVersion,
        now: float,
    ) -> int:
        known = self.transactions.get(transactional_id)
        if self._is_ending(known) and known is not None and known.producer == producer:
            return ErrorCode.concurrent_transactions
        return super().append(transactional_id, producer, partition, version, now)

    def end(
        self, transactional_id: str, producer: ProducerIdAndEpoch, committed: bool, version: TransactionVersion
    ) -> int | ProducerIdAndEpoch:
        known = self.transactions.get(transactional_id)
        if known is not None and self._is_ending(known) and producer in (known.producer, known.ended):
            is_same = known.state == (PREPARE_COMMIT if committed else PREPARE_ABORT)
            return ErrorCode.concurrent_transactions if is_same else ErrorCode.invalid_txn_state
        return super().end(transactional_id, producer, committed, version)

    @staticmethod
    def _is_ending(known: FakeTransaction | None) -> bool:
        return known is not None and known.state in (PREPARE_COMMIT, PREPARE_ABORT)

    def _write_markers(
        self, known: FakeTransaction, producer: ProducerIdAndEpoch, committed: bool, raises_epoch: bool
    ) -> None:
        marker_s = self._marker_s() if known.state == ONGOING else 0.0
        write = partial(super()._write_markers, known, producer, committed, raises_epoch)
        if marker_s == 0:
            write()
            return
        known.state = PREPARE_COMMIT if committed else PREPARE_ABORT
        self._clock.at(marker_s, write)
