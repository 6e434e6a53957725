"""`FakeCoordinators`: the state of transactional ids, in memory, for the responses of `FakeNetwork`.

Behaves as Apache Kafka 4.1 (`tests/kafka/test_transaction_requests.py`), but the markers of a transaction are in the
logs at once: CONCURRENT_TRANSACTIONS comes only from tests.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.kafka.client.producer_state import MAX_EPOCH
from pyspark_kafka_meta.model import ProducerIdAndEpoch, TopicPartition, TransactionVersion
from tests.unit.kafka.records.handmade import marker

if TYPE_CHECKING:
    from tests.unit.fake_cluster import FakeCluster

ONGOING, COMMITTED, ABORTED, EMPTY = "Ongoing", "CompleteCommit", "CompleteAbort", "Empty"


@dataclass(slots=True)
class FakeTransaction:
    """The last transaction of a transactional id.

    Attributes:
        producer: whose requests are accepted.
        ended: the producer of the last transaction, once it was ended by its own request or, under V2, timed out.
        partitions: of the open transaction.
    """

    producer: ProducerIdAndEpoch
    timeout_ms: int
    state: str = EMPTY
    ended: ProducerIdAndEpoch | None = None
    started_ms: int = 0
    partitions: set[TopicPartition] = field(default_factory=set)


class FakeCoordinators:
    """Transactions of a `FakeCluster`.

    Attributes:
        nodes: coordinators by transactional id. Others are coordinated by the first broker.
        transactions: by transactional id.
        version: finalized in the cluster.
        max_timeout_ms: transaction.max.timeout.ms.
    """

    def __init__(self, cluster: FakeCluster) -> None:
        self.nodes: dict[str, int] = {}
        self.transactions: dict[str, FakeTransaction] = {}
        self.version = TransactionVersion.V2
        self.max_timeout_ms = 900_000
        self._cluster = cluster
        self._first_offsets: dict[tuple[int, TopicPartition], int] = {}  # of open transactions
        self._aborted: list[tuple[TopicPartition, int, int, int]] = []  # producer id, first offset, end offset

    def node_id(self, transactional_id: str) -> int:
        return self.nodes.get(transactional_id, min(self._cluster.brokers))

    def init(self, transactional_id: str, timeout_ms: int) -> int | ProducerIdAndEpoch:
        """The next epoch, or an error code. Aborts the open transaction."""
        if not 0 < timeout_ms <= self.max_timeout_ms:
            return ErrorCode.invalid_transaction_timeout
        known = self.transactions.get(transactional_id)
        if known is None:
            producer = ProducerIdAndEpoch(next(self._cluster.producer_ids), 0)
        else:
            self._end(known, committed=False, raises_epoch=True)
            producer = self._next(known.producer)
        self.transactions[transactional_id] = FakeTransaction(producer, timeout_ms)
        return producer

    def time_out(self, transactional_id: str) -> None:
        """Abort the open transaction, as its coordinator does after its timeout."""
        known = self.transactions[transactional_id]
        assert known.state == ONGOING, "no transaction is open"
        self._end(known, committed=False, raises_epoch=True)
        if self.version is TransactionVersion.V2:
            known.ended = known.producer
        known.producer = known.producer._replace(epoch=known.producer.epoch + 1)

    def add(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partitions: set[TopicPartition], now: float
    ) -> int:
        """Returns the error code."""
        code = self._producer_error(transactional_id, producer)
        if code != 0:
            return code
        known = self.transactions[transactional_id]
        if known.state != ONGOING:
            known.state, known.started_ms, known.ended = ONGOING, int(now * 1000), None
        known.partitions |= partitions
        return 0

    def append(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partition: TopicPartition,
        version: TransactionVersion,
        now: float,
    ) -> int:
        """A leader is about to append a batch. Returns the error code."""
        if version is TransactionVersion.V2:
            code = self.add(transactional_id, producer, {partition}, now)
        else:
            code = self._producer_error(transactional_id, producer)
            known = self.transactions.get(transactional_id)
            if code == 0 and known is not None and partition not in known.partitions:
                return ErrorCode.invalid_txn_state
        if code == 0:
            self._first_offsets.setdefault((producer.producer_id, partition), self._cluster.bounds(partition)[1])
        return ErrorCode.invalid_producer_epoch if code == ErrorCode.producer_fenced else code

    def end(
        self, transactional_id: str, producer: ProducerIdAndEpoch, committed: bool, version: TransactionVersion
    ) -> int | ProducerIdAndEpoch:
        """The producer of the next transaction, or an error code."""
        known = self.transactions.get(transactional_id)
        if known is None or known.producer.producer_id != producer.producer_id:
            return ErrorCode.invalid_producer_id_mapping
        if known.ended == producer:
            is_same = known.state == (COMMITTED if committed else ABORTED)
            return known.producer if is_same else ErrorCode.invalid_txn_state
        if known.producer != producer:
            return ErrorCode.producer_fenced
        if known.state != ONGOING:
            return ErrorCode.invalid_txn_state
        self._end(known, committed, raises_epoch=version is TransactionVersion.V2)
        known.ended = producer
        if version is TransactionVersion.V2:
            known.producer = self._next(producer)
        return known.producer

    def _next(self, producer: ProducerIdAndEpoch) -> ProducerIdAndEpoch:
        """With the next epoch, or another producer id if there is none."""
        if producer.epoch >= MAX_EPOCH - 1:
            return ProducerIdAndEpoch(next(self._cluster.producer_ids), 0)
        return producer._replace(epoch=producer.epoch + 1)

    def last_stable_offset(self, partition: TopicPartition) -> int:
        """The first offset of an open transaction, or the end of the log."""
        opened = [offset for (_, of), offset in self._first_offsets.items() if of == partition]
        return min([self._cluster.bounds(partition)[1], *opened])

    def aborted(self, partition: TopicPartition, from_offset: int, until_offset: int) -> tuple[tuple[int, int], ...]:
        """Producer id and first offset of the aborted transactions with records in this range."""
        return tuple(
            (producer_id, first)
            for of, producer_id, first, end in self._aborted
            if of == partition and first < until_offset and end > from_offset
        )

    def _producer_error(self, transactional_id: str, producer: ProducerIdAndEpoch) -> int:
        known = self.transactions.get(transactional_id)
        if known is None or known.producer.producer_id != producer.producer_id:
            return ErrorCode.invalid_producer_id_mapping
        return 0 if known.producer == producer else ErrorCode.producer_fenced

    def _end(self, known: FakeTransaction, committed: bool, raises_epoch: bool) -> None:
        self._write_markers(known, known.producer, committed, raises_epoch)

    def _write_markers(
        self, known: FakeTransaction, producer: ProducerIdAndEpoch, committed: bool, raises_epoch: bool
    ) -> None:
        """Write the markers of this producer's transaction: with its epoch, or the next, which fences the producer.
        None to topics that were deleted."""
        producer_id, epoch = producer
        for partition in known.partitions:
            first = self._first_offsets.pop((producer_id, partition), None)
            if partition not in self._cluster.logs:
                continue
            self._cluster.append(partition, marker(0, producer_id, committed, epoch + raises_epoch))
            if not committed and first is not None:
                self._aborted.append((partition, producer_id, first, self._cluster.bounds(partition)[1]))
        known.state, known.partitions = COMMITTED if committed else ABORTED, set()
