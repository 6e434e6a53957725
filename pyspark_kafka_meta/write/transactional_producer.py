"""`TransactionalProducer`: the transactions of one transactional id, one after the other (KIP-98).

The coordinator of a transactional id, one of the brokers, gives out a producer id and an epoch (InitProducerId). Each
time it raises the epoch, which fences: brokers refuse every request of an earlier epoch. It also aborts the transaction
that an earlier epoch left open, and a transaction that is older than its timeout. A task attempt begins a transaction
with its first rows and leaves it open, for the driver to commit or abort. The driver's own transactions, which hold its
decisions, it commits itself.

| state | meaning | ends with |
|---|---|---|
| no producer | the coordinator was not asked | `begin`; `add` begins too |
| ready | producer id and epoch are known, no transaction is open | `add` with the first partitions |
| open | records may be written; `opened` describes it to the driver | `commit`, `abort`, the driver, the timeout |

A cluster has one of two protocols, and requests of both must not be mixed (`TransactionVersion`, KIP-890):

| | V1 | V2 |
|---|---|---|
| a partition joins the transaction | by AddPartitionsToTxn, before its first Produce | by its first Produce |
| after the commit | the same epoch; sequence numbers continue | the next epoch; sequence numbers start at 0 |
| abort | InitProducerId, because of race 1 | EndTxn |

Races: what happens without a guard, and the guard.

1. A late Produce (KAFKA-14402). (1) A task fails while a Produce is on its way, and aborts its transaction. (2) Under
   V1, EndTxn keeps the epoch, so the leader appends the late Produce after the abort. (3) Its records are part of the
   next transaction of this id, and visible with it. Guard: the abort raises the epoch: brokers refuse a late Produce.
2. A repeated number. (1) Under V1 the next transaction has the same epoch. (2) Its first batch has number 0 again. (3)
   The leader takes the batch for a repetition of an earlier one, and drops it. Guard: numbers continue in an epoch.
3. The timeout. (1) A task writes for almost the whole timeout. (2) The driver decides the batch. (3) The coordinator
   aborts the transaction before the driver commits it. Guard: `fail_if_late` gives up a transaction at `LATE_SHARE` of
   its timeout. What still times out after the decision, the driver copies.
4. The last epochs. (1) A transaction begins in one of the last epochs of its producer id. (2) Some releases of Kafka
   never complete its abort, and readers wait for it. Guard: `LAST_EPOCHS`.

After `commit` the producer is ready for the next transaction, or, if its next epoch is one of the last, has none.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from pyspark_kafka_meta.client_facts import Ending, TransactionsEnded
from pyspark_kafka_meta.errors import FencedError, KafkaMetaError, TransactionTimeoutError
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.client.producer_state import MAX_EPOCH, ProducerState
from pyspark_kafka_meta.kafka.protocol.apis import ApiResponse
from pyspark_kafka_meta.kafka.protocol.error_codes import describe
from pyspark_kafka_meta.model import (
    NO_PRODUCER,
    OpenTransaction,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionSpan,
    TransactionVersion,
)
from pyspark_kafka_meta.write.partition_queue import TaskOutput

logger = logging.getLogger(__name__)

LATE_SHARE = 0.8
"""Of the timeout. An older transaction is given up: the rest of the time is for the commit (race 3)."""
LAST_EPOCHS = MAX_EPOCH - 3
"""No transaction begins in this epoch or a later one (race 4: KAFKA-19367, KAFKA-20090). Instead `begin` repeats
InitProducerId, until the coordinator gives another producer id or `max_block_ms` are over. The margin is for aborts,
which raise the epoch by up to two."""
ABORT_S = 5.0
"""Maximum wait for the abort of transactions, which the driver repeats for its next batch."""


class TransactionalProducer(ProducerState):
    """The transactions of one transactional id. Without a producer id, the next one fences all earlier producers. Not
    thread-safe.

    Attributes:
        transactional_id: of a task attempt, or, for the driver's own transactions, of the sink.
        version: the protocol that the cluster has finalized.
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
        super().__init__()
        self.transactional_id = transactional_id
        self.version = version
        self._client = client
        self._timeout_ms = timeout_ms
        self._max_block_ms = max_block_ms
        self._partitions: set[TopicPartition] = set()  # of the open transaction
        self._began_at: float | None = None  # without an open transaction None

    def begin(self) -> None:
        """Get a producer id and an epoch, unless there is one. This fences all earlier producers of this transactional
        id, and aborts the transaction that they left open. Raises AuthorizationError, BrokerError, ConnectError: as
        `TransactionCoordinators.fence`."""
        if not self.has_id:
            deadline = self._deadline()
            producer = self._fence(deadline)
            while producer.epoch >= LAST_EPOCHS and self._client.clock() < deadline:
                producer = self._fence(deadline)
            self.start(producer)

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
            self._client.traffic.transactions_begun += 1
        if self.version is TransactionVersion.V1:
            self._client.coordinators.add_partitions(self.transactional_id, self._producer, new, self._deadline())
        self._partitions.update(new)

    def opened(self, written: TaskOutput) -> OpenTransaction | None:
        """The open transaction with the offsets of its records, for the driver; None if no transaction is open."""
        if self._began_at is None:
            return None
        spans = tuple(TransactionSpan(*partition, *offsets) for partition, offsets in sorted(written.items()))
        return OpenTransaction(self.transactional_id, self._producer, spans)

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
        if ended.result != NO_PRODUCER:
            self.start(ended.result if ended.result.epoch < LAST_EPOCHS else NO_PRODUCER)

    def abort(self) -> None:
        """Abort the open transaction, if there is one. If the coordinator does not respond within `ABORT_S`, this logs
        a warning: the driver aborts it later, or the timeout. Nothing may be written with this object afterwards."""
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
        self._client.report(TransactionsEnded(Ending.ABORTED, self.transactional_id, 1, latency_ms))

    def fail_if_late(self, now: float) -> None:
        """Raises TransactionTimeoutError if the coordinator may abort the transaction before the driver commits it."""
        if self._began_at is not None and now >= self._began_at + LATE_SHARE * self._timeout_ms / 1000:
            raise TransactionTimeoutError(
                f"transaction {self.transactional_id} has been written for {now - self._began_at:.0f} s, and its "
                f"timeout is {self._timeout_ms / 1000:.0f} s: write smaller batches (maxOffsetsPerTrigger, or more "
                "tasks), or raise kafka.transaction.timeout.ms and transaction.max.timeout.ms of the brokers; a "
                "micro-batch that was planned keeps its rows"
            )

    def _fence(self, deadline: float) -> ProducerIdAndEpoch:
        """InitProducerId."""
        return self._client.coordinators.fence([self.transactional_id], self._timeout_ms, deadline)[
            self.transactional_id
        ]

    def _end(self, committed: bool, deadline: float) -> ApiResponse[ProducerIdAndEpoch]:
        """EndTxn."""
        producers = {self.transactional_id: self._producer}
        responses = self._client.coordinators.end_transactions(producers, committed, self.version, deadline)
        return responses[self.transactional_id]

    def _deadline(self) -> float:
        return self._client.clock() + self._max_block_ms / 1000
