"""`ProducerState`: the id of a producer, and the sequence numbers of its partitions; no I/O.

Each record batch carries the number of its first record in its partition, so that a broker accepts a batch once and in
order (KIP-98). The numbers continue in the worker's next task. Follows Kafka's `TransactionManager`, but the epoch is
of one partition, as the state of brokers is: a partition whose leader has forgotten the producer starts again with a
new epoch (KIP-360), and no other partition has to wait for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafka_meta.model import NO_PRODUCER, ProducerIdAndEpoch, TopicPartition

NO_SEQUENCE = -1
"""Base sequence of a record batch without idempotence."""
MAX_EPOCH = 2**15 - 1
_SEQUENCES = 2**31
"""After the largest int32 follows 0 (Kafka `DefaultRecordBatch.incrementSequence`)."""


@dataclass(slots=True)
class PartitionSequence:
    """The producer of one partition's next record batch, and the number of its first record."""

    producer: ProducerIdAndEpoch
    next_sequence: int = 0

    def take(self, record_count: int) -> int:
        """The base sequence of a batch with this many records."""
        if self.producer == NO_PRODUCER:
            return NO_SEQUENCE
        base_sequence = self.next_sequence
        self.next_sequence = sequence_after(base_sequence, record_count)
        return base_sequence

    def restart(self) -> bool:
        """Continue with the next epoch and sequence 0. False if there is no further epoch."""
        producer_id, epoch = self.producer
        if epoch == MAX_EPOCH:
            return False
        self.producer, self.next_sequence = ProducerIdAndEpoch(producer_id, epoch + 1), 0
        return True


class ProducerState:
    """The idempotent producer of one client, from the first write until a task fails, or of a transactional id."""

    def __init__(self) -> None:
        self._producer = NO_PRODUCER
        self._sequences: dict[TopicPartition, PartitionSequence] = {}

    @property
    def has_id(self) -> bool:
        return self._producer != NO_PRODUCER

    def start(self, producer: ProducerIdAndEpoch) -> None:
        """Use another producer id or epoch, whose sequence numbers start at 0."""
        self._producer, self._sequences = producer, {}

    def forget(self) -> None:
        """Use the producer id no more: after a failed task nobody knows which of its batches the logs hold."""
        self._producer = NO_PRODUCER

    def sequence(self, partition: TopicPartition) -> PartitionSequence:
        """The sequence of a partition, which its task changes. Call it only while there is an id."""
        assert self.has_id
        return self._sequences.setdefault(partition, PartitionSequence(self._producer))


def sequence_after(base_sequence: int, record_count: int) -> int:
    """The base sequence of the batch after a batch."""
    return base_sequence if base_sequence == NO_SEQUENCE else (base_sequence + record_count) % _SEQUENCES
