"""`TransactionalProducer`: the transactions of one transactional id, one after the other (KIP-98).

A task attempt begins a transaction with its first rows and leaves it open, for the driver to commit or abort. The
driver's own transactions, which hold its decisions, it commits itself.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from pyspark_kafka_meta.errors import FencedError, KafkaMetaError, TransactionTimeoutError
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.client.producer_state import MAX_EPOCH, PartitionSequence
from pyspark_kafka_meta.kafka.metadata.refresh_events import EventKind
from pyspark_kafka_meta.kafka.protocol.error_codes import describe
from pyspark_kafka_meta.kafka.protocol.transactions import EndTransactionResponse
from pyspark_kafka_meta.model import (
    NO_PRODUCER,
    OpenTransaction,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionVersion,
)
from pyspark_kafka_meta.write.partition_queue import TaskOutput, spans

logger = logging.getLogger(__name__)

LATE_SHARE = 0.8
"""Of the timeout. An older transaction is given up, so that the driver has time to commit the others."""
LAST_EPOCHS = MAX_EPOCH - 3
"""No transaction begins in an epoch from here on: after a few more InitProducerId, the coordinator gives another
producer id. Aborts raise the epoch too, by up to two: some releases never complete the abort of a transaction in one of
the last epochs (KAFKA-19367, KAFKA-20090), and read_committed readers wait for it."""
ABORT_S = 5.0
"""Maximum wait for the abort of transactions, which the driver repeats for its next batch."""


class TransactionalProducer:
    """The transactions of one transactional id. Not thread-safe.

    Attributes:
        transactional_id: of a task attempt, or of the sink.
        version: of all transactions of the cluster.
    """

    def __init__(
        self,
        client: KafkaClient,
        transactional_id: str,
        timeout_ms: int,
        version: TransactionVersion,
        max_block_ms: int = 60_000,
    ) -> None:
        """
        Args:
            timeout_ms: after which the coordinator aborts a transaction.
            max_block_ms: maximum wait for the coordinator.
        """
        self.transactional_id = transactional_id
        self.version = version
        self._client = client
        self._timeout_ms = timeout_ms
        self._max_block_ms = max_block_ms
        self._producer = NO_PRODUCER
        self._sequences: dict[TopicPartition, PartitionSequence] = {}
        self._partitions: set[TopicPartition] = set()  # of the open transaction
        self._began_at: float | None = None  # without an open transaction None

    def begin(self) -> None:
        """Get the producer, unless there is one: the coordinator fences all earlier producers of this id, and aborts
        the transaction that they left open.

        Raises:
            AuthorizationError, BrokerError, ConnectError: as `TransactionCoordinators.fence`.
        """
        if self._producer == NO_PRODUCER:
            deadline = self._deadline()
            producer = self._fence(deadline)
            while producer.epoch >= LAST_EPOCHS and self._client.clock() < deadline:
                producer = self._fence(deadline)
            self._start(producer)

    def add(self, partitions: Collection[TopicPartition]) -> None:
        """Make partitions part of the transaction. Call it before the first Produce to them.

        Raises:
            FencedError: another producer uses the transactional id.
            UnknownTopicError, AuthorizationError, BrokerError, ConnectError: as
                `TransactionCoordinators.add_partitions`.
        """
        self.begin()
        new = sorted(set(partitions) - self._partitions)
        if not new:
            return
        if self._began_at is None:
            self._began_at = self._client.clock()
            self._client.events.count_transaction()
        if self.version is TransactionVersion.V1:
            self._client.coordinators.add_partitions(self.transactional_id, self._producer, new, self._deadline())
        self._partitions.update(new)

    def sequence(self, partition: TopicPartition) -> PartitionSequence:
        """The sequence of an added partition, which its writer changes. It continues in the next transaction, unless
        the end of this one raises the epoch."""
        return self._sequences.setdefault(partition, PartitionSequence(self._producer))

    def opened(self, written: TaskOutput) -> OpenTransaction | None:
        """The open transaction, which has written these records, for the driver; None if nothing was written."""
        if self._began_at is None:
            return None
        return OpenTransaction(self.transactional_id, self._producer, spans(written))

    def commit(self, deadline: float) -> None:
        """Commit what was written. Further records are in another transaction.

        Raises:
            FencedError: another producer uses the transactional id, or the transaction has timed out.
            BrokerError: this user may not end it.
            ConnectError: the coordinator did not respond by `deadline`.
        """
        ended = self._end(True, deadline)
        if ended.error_code != 0:
            raise FencedError(
                f"transaction {self.transactional_id} cannot be committed: {describe(ended.error_code)}: another "
                "producer uses its id by now, or it timed out"
            )
        self._partitions.clear()
        self._began_at = None
        if ended.producer != NO_PRODUCER:
            self._start(ended.producer if ended.producer.epoch < LAST_EPOCHS else NO_PRODUCER)

    def abort(self) -> None:
        """Abort what was written, if the coordinator does so soon. If not, the driver aborts it, or the timeout.

        Under V1, EndTxn keeps the epoch: a Produce that is still on its way could be appended after the abort, and
        would belong to the next transaction of this id (KAFKA-14402). InitProducerId raises the epoch.
        """
        if self._began_at is None:
            return
        began, deadline = self._client.clock(), self._client.clock() + ABORT_S
        try:
            if self.version is TransactionVersion.V1:
                self._fence(deadline)
            elif self._end(False, deadline).error_code != 0:
                return  # it timed out, or another producer has aborted it
        except KafkaMetaError as error:
            logger.warning("transaction %s stays open for the driver to abort: %s", self.transactional_id, error)
            return
        latency_ms = (self._client.clock() - began) * 1000
        self._client.events.record_transactions(EventKind.TRANSACTIONS_ABORTED, self.transactional_id, 1, latency_ms)

    def fail_if_late(self, now: float) -> None:
        """Raises TransactionTimeoutError if the coordinator may abort the transaction before the driver commits it."""
        if self._began_at is not None and now >= self._began_at + LATE_SHARE * self._timeout_ms / 1000:
            raise TransactionTimeoutError(
                f"transaction {self.transactional_id} has been written for {now - self._began_at:.0f} s, and its "
                f"timeout is {self._timeout_ms / 1000:.0f} s: write smaller batches (maxOffsetsPerTrigger, or more "
                "tasks), or raise kafka.transaction.timeout.ms and transaction.max.timeout.ms of the brokers; a "
                "micro-batch that was planned keeps its rows"
            )

    def _start(self, producer: ProducerIdAndEpoch) -> None:
        """Another producer, whose sequences start at 0."""
        self._producer, self._sequences = producer, {}

    def _fence(self, deadline: float) -> ProducerIdAndEpoch:
        return self._client.coordinators.fence([self.transactional_id], self._timeout_ms, deadline)[
            self.transactional_id
        ]

    def _end(self, committed: bool, deadline: float) -> EndTransactionResponse:
        producers = {self.transactional_id: self._producer}
        responses = self._client.coordinators.end_transactions(producers, committed, self.version, deadline)
        return responses[self.transactional_id]

    def _deadline(self) -> float:
        return self._client.clock() + self._max_block_ms / 1000
