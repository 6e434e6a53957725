"""`TaskWriter`: writes the rows of one task to the leaders of their partitions, in a loop that encodes and sends.

Brokers append one chunk while Python encodes the next. A task takes no more rows while kafka.buffer.memory is full of
unacknowledged batches, and ends once all are acknowledged.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakSet

import numpy as np

from pyspark_kafka_meta.errors import FencedError, InvalidRowError, UnknownTopicError
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.client.producer_state import PartitionSequence
from pyspark_kafka_meta.kafka.records.compression import Codec, Compression
from pyspark_kafka_meta.kafka.records.encoder import EncodedBatch, compressed_share, encode
from pyspark_kafka_meta.kafka.records.fields import Ints, Longs
from pyspark_kafka_meta.model import NO_PRODUCER, TopicPartition, shortened
from pyspark_kafka_meta.options import ProducerOptions
from pyspark_kafka_meta.value_checks import is_topic_name
from pyspark_kafka_meta.write.input_columns import SinkColumns
from pyspark_kafka_meta.write.input_rows import CHUNK_BYTES, NO_CHOICE, InputRows, read_rows
from pyspark_kafka_meta.write.partition_queue import PartitionQueue, TaskOutput
from pyspark_kafka_meta.write.partitioner import Partitioner, RowTopics
from pyspark_kafka_meta.write.produce_sender import ProduceSender
from pyspark_kafka_meta.write.topic_metadata import ask_partitions
from pyspark_kafka_meta.write.transactional_producer import TransactionalProducer

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

_HAD_ROWS: WeakSet[KafkaClient] = WeakSet()
"""The clients whose last task in a transaction had rows: the next task gets its producer id before its own rows. A
query may have thousands of tasks without rows."""


class TaskWriter:
    """Writes rows, and returns when all are acknowledged."""

    def __init__(
        self,
        client: KafkaClient,
        options: ProducerOptions,
        columns: SinkColumns,
        topic: str | None,
        transaction: TransactionalProducer | None = None,
        *,
        wall_clock: Callable[[], float] = time.time,
        rng: random.Random | None = None,
    ) -> None:
        """
        Args:
            topic: of all rows; None if the rows have a topic column.
            transaction: that all rows belong to; None to write at least once.
            wall_clock: seconds since 1970 UTC.
        """
        self._client = client
        self._options = options
        self._columns = columns
        self._topic = topic
        self._transaction = transaction
        self._wall_clock = wall_clock
        self._compression = Compression(Codec[options.compression_type.upper()], options.compression_level)
        self._compressed_share = 1.0  # until the first chunk is compressed
        self._partitioner = Partitioner(options.ignore_keys, options.batch_bytes, rng or random.Random())
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._in_flight = ProduceSender(client, options, transaction)

    def write(self, batches: Iterable[pa.RecordBatch]) -> TaskOutput:
        """Write all rows. Returns the offsets of each partition. A transaction stays open; a task that fails aborts it.

        Raises:
            InvalidRowError, RecordTooLargeError: a row cannot be written.
            UnknownTopicError: a topic or partition does not exist.
            BrokerError: a broker refused records or the producer.
            DeliveryTimeoutError: records were not acknowledged within kafka.delivery.timeout.ms.
            DataLossError: acknowledged records were lost.
            ConnectError: no broker of the cluster responded.
            FencedError: another task or query uses the transactional id.
            TransactionTimeoutError: the transaction is about to time out.
        """
        # Make glibc keep up to 32 MiB of freed memory for the next chunk. The kernel maps returned memory again page by
        # page, which takes 5 to 25 % of the CPU time of encoding. glibc keeps twice the size of the largest mapped
        # block that was freed (`mallopt(3)`, M_MMAP_THRESHOLD). Other C libraries are not affected.
        np.empty(CHUNK_BYTES, np.uint8)  # freed at once, never touched
        chunk_bytes = min(CHUNK_BYTES, self._options.buffer_bytes)
        max_record_bytes = self._options.max_request_bytes
        with self._failing():
            if self._transaction is not None and self._client in _HAD_ROWS:
                self._transaction.begin()  # while Spark computes the first rows
            given, now_ms = self._without_deadlines(batches), lambda: int(self._wall_clock() * 1000)
            for rows in read_rows(given, self._columns, chunk_bytes, max_record_bytes, now_ms):
                self._add(rows)
                self._wait_until_unacknowledged(self._options.buffer_bytes)
            self._wait_until_unacknowledged(0)
        if self._transaction is not None:
            (_HAD_ROWS.add if self._queues else _HAD_ROWS.discard)(self._client)
        return self._written()

    def write_encoded(self, batches: Iterable[tuple[TopicPartition, EncodedBatch]]) -> TaskOutput:
        """Write record batches as they are. Returns and raises as `write`."""
        with self._failing():
            for partition, batch in self._without_deadlines(batches):
                self._partitions_of([partition.topic])
                self._enqueue([(partition, batch, batch.rows.astype(np.int64))])
                self._wait_until_unacknowledged(self._options.buffer_bytes)
            self._wait_until_unacknowledged(0)
        return self._written()

    def _written(self) -> TaskOutput:
        return {partition: queue.written for partition, queue in self._queues.items()}

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """After an error, abandon all requests, and abort the transaction or forget the producer."""
        try:
            yield
        except BaseException as error:
            self._in_flight.abandon_all()
            if self._transaction is None:
                self._client.producer.forget()
            elif not isinstance(error, FencedError):  # what is open belongs to another producer
                self._transaction.abort()
            raise

    def _without_deadlines(self, batches: Iterable[T]) -> Iterator[T]:
        """The batches; waiting for them counts to no deadline, because nothing is sent meanwhile."""
        asked_at = self._client.clock()
        for batch in batches:
            self._postpone_deadlines(self._client.clock() - asked_at)
            yield batch
            asked_at = self._client.clock()
        self._postpone_deadlines(self._client.clock() - asked_at)

    def _postpone_deadlines(self, seconds: float) -> None:
        for queue in self._queues.values():
            queue.postpone_deadlines(seconds)
        self._in_flight.postpone_overdue(seconds)

    # --- rows to queues -----------------------------------------------------------------------------------------------

    def _add(self, rows: InputRows) -> None:
        topics, topic_of = self._topics(rows)
        of_topics = self._partitions_of(topics)
        if rows.chosen is not None and (rows.chosen >= _counts(of_topics)[topic_of]).any():
            of_topics = self._ask_chosen(rows.first_row, rows.chosen, topics, topic_of)
        of_rows = RowTopics(topics, topic_of, _counts(of_topics))
        partition = self._partitioner.assign(of_rows, rows.records, rows.sizes, rows.chosen, self._available)
        first_of_topic = np.cumsum(of_rows.partition_counts, dtype=np.int32) - of_rows.partition_counts
        partition += first_of_topic[topic_of]
        encoded = encode(
            rows.records, partition, rows.sizes, self._options.batch_bytes, self._compression, self._compressed_share
        )
        self._compressed_share = compressed_share(encoded)
        partitions = [partition for of_topic in of_topics for partition in of_topic]
        self._enqueue(
            [(partitions[batch.partition], batch, batch.rows + np.int64(rows.first_row)) for batch in encoded]
        )

    def _enqueue(self, batches: Sequence[tuple[TopicPartition, EncodedBatch, Longs]]) -> None:
        """Queue batches, each with the rows of the task that its records are from."""
        if self._transaction is not None:
            self._transaction.fail_if_late(self._client.clock())
            self._transaction.add({partition for partition, _, _ in batches})
        deadline = self._client.clock() + self._options.delivery_timeout_ms / 1000
        for partition, batch, rows in batches:
            self._queue(partition).add(batch, rows, deadline)

    def _topics(self, rows: InputRows) -> tuple[list[str], Ints]:
        """The topics of the rows, and the index of each row's topic."""
        if self._topic is not None or rows.topic is None:
            return [str(self._topic)], np.zeros(len(rows), np.int32)
        encoded = rows.topic.dictionary_encode()
        return encoded.dictionary.to_pylist(), encoded.indices.to_numpy()

    def _partitions_of(self, topics: Sequence[str]) -> list[tuple[TopicPartition, ...]]:
        """All partitions of each topic that the cache knows; waits for the metadata of new topics only."""
        cache = self._client.cache
        new = [topic for topic in topics if topic not in cache.snapshot.topics]
        if new:
            self._ask_partitions(new)
        return [cache.snapshot.partitions(topic) for topic in topics]

    def _ask_partitions(self, topics: Collection[str], expected: Collection[TopicPartition] = ()) -> None:
        if bad := [topic for topic in topics if not is_topic_name(topic)]:
            raise InvalidRowError(
                f"{shortened(bad[0])!r} is no name of a topic: use up to 249 of the characters a-z, A-Z, 0-9, '.', '_' "
                "and '-' in the column topic"
            )
        ask_partitions(self._client, topics, self._options.max_block_ms, expected)

    def _ask_chosen(
        self, first_row: int, chosen: Ints, topics: Sequence[str], topic_of: Ints
    ) -> list[tuple[TopicPartition, ...]]:
        """All partitions of each topic, once the brokers know those that rows have chosen: some may be new. Raises
        UnknownTopicError: no broker knows a partition."""
        largest = np.full(len(topics), NO_CHOICE, np.int32)
        np.maximum.at(largest, topic_of, chosen)
        wanted = [TopicPartition(*each) for each in zip(topics, largest.tolist(), strict=True)]
        self._ask_partitions(topics, [partition for partition in wanted if partition.partition != NO_CHOICE])
        known = self._partitions_of(topics)
        counts = _counts(known)[topic_of]
        if (chosen >= counts).any():
            at = int(np.argmax(chosen >= counts))
            raise UnknownTopicError(
                f"row {first_row + at} is for partition {chosen[at]}, and topic {topics[topic_of[at]]} has "
                f"{counts[at]} partitions: correct the column partition, or add partitions to the topic"
            )
        return known

    def _available(self, topic: str) -> list[int]:
        """The partitions of a topic that have a leader."""
        snapshot = self._client.cache.snapshot
        return [each.partition for each in snapshot.partitions(topic) if snapshot.leader(each) is not None]

    def _queue(self, partition: TopicPartition) -> PartitionQueue:
        if partition not in self._queues:
            topic_id = self._client.cache.snapshot.topic_id(partition.topic)
            transactional_id = None if self._transaction is None else self._transaction.transactional_id
            sequence = self._sequence(partition)
            self._queues[partition] = PartitionQueue(partition, topic_id, sequence, transactional_id)
        return self._queues[partition]

    def _sequence(self, partition: TopicPartition) -> PartitionSequence:
        producer = self._transaction or self._client.producer
        if self._transaction is None and not self._options.idempotent:
            return PartitionSequence(NO_PRODUCER)
        if not producer.has_id:
            deadline = self._client.clock() + self._options.max_block_ms / 1000
            producer.start(self._client.coordinators.producer_id(deadline))
        return producer.sequence(partition)

    # --- queues to brokers --------------------------------------------------------------------------------------------

    def _wait_until_unacknowledged(self, max_bytes: int) -> None:
        """Send, and wait until at most this many bytes are unacknowledged. With less, only take what has arrived."""
        while waiting := [queue for queue in self._queues.values() if queue]:
            waits = sum(queue.size_bytes for queue in waiting) > max_bytes
            now = self._client.clock()  # one look, as in `TaskReader`
            self._client.cache.refresh_if_due(deadline=math.inf, until=now)
            received = self._in_flight.receive_overdue(now)
            if received is None:
                self._in_flight.send(waiting, now)
                wake_up_at = min(self._in_flight.wake_up_at(waiting, now), *(queue.deadline for queue in waiting))
                received = self._in_flight.receive(wake_up_at if waits else now)
            if received is not None:
                self._in_flight.handle(received)
                continue
            self._fail_if_late(waiting, now)
            if not waits:
                return

    def _fail_if_late(self, waiting: Sequence[PartitionQueue], now: float) -> None:
        if self._transaction is not None:
            self._transaction.fail_if_late(now)
        late = [queue for queue in waiting if now >= queue.deadline]
        if late:
            raise min(late, key=lambda queue: queue.deadline).timeout_error()


def _counts(of_topics: Sequence[Sequence[TopicPartition]]) -> Ints:
    return np.array([len(partitions) for partitions in of_topics], np.int32)
