"""`ReadingCluster`: the logs that a history reads. They know their transactions, whatever part of them is left."""

from __future__ import annotations

from typing import Self

from pyspark_kafka_meta.model import TopicPartition
from tests.unit.fake_cluster import FakeCluster, StoredBatch
from tests.unit.kafka.records.handmade import CONTROL, TRANSACTIONAL, marker, repair_crc

_ATTRIBUTES_AT = 22
_PRODUCER_ID = slice(43, 51)
_MARKER_IS_COMMIT_AT = 61 + 8
"""Of a control batch, whose first record is a marker: after its header, five fields of a byte, and the version."""


def transactional(batch: bytes, producer_id: int) -> bytes:
    """The record batch, in a transaction of this producer."""
    changed = bytearray(batch)
    changed[_ATTRIBUTES_AT] |= TRANSACTIONAL
    changed[_PRODUCER_ID] = producer_id.to_bytes(8, "big")
    return repair_crc(bytes(changed))


class ReadingCluster(FakeCluster):
    """A log that was emptied keeps its offset. Transactions are those in the logs: one whose marker was truncated is
    open again.

    Attributes:
        high_watermarks: of logs with records that their leader may not give out.
        replica_errors: of `FakeNetwork`, without those of a replica that is elected: it is whole again.
    """

    def __init__(self, brokers: int) -> None:
        super().__init__(brokers)
        self.high_watermarks: dict[TopicPartition, int] = {}
        self.replica_errors: dict[tuple[int, TopicPartition], int] = {}
        self._starts: dict[TopicPartition, int] = {}  # of empty logs

    def create_topic(self, topic: str, partitions: int = 1) -> object:  # type: ignore[override]
        self._starts = {partition: start for partition, start in self._starts.items() if partition.topic != topic}
        return super().create_topic(topic, partitions)

    def fence(self, node_id: int) -> Self:
        own = super().fence(node_id)
        own.high_watermarks, own._starts = {}, dict(self._starts)
        return own

    def move_leader(self, partition: TopicPartition, leader_id: int) -> None:
        super().move_leader(partition, leader_id)
        self.replica_errors.pop((leader_id, partition), None)

    def bounds(self, partition: TopicPartition) -> tuple[int, int]:
        start = self._starts.get(partition, 0)
        return super().bounds(partition) if self.logs[partition] else (start, start)

    def high_watermark(self, partition: TopicPartition) -> int:
        return self.high_watermarks.get(partition, self.bounds(partition)[1])

    def append(self, partition: TopicPartition, batch: bytes) -> int:
        base_offset, log = self.bounds(partition)[1], self.logs[partition]
        super().append(partition, batch)
        length = log[-1].until_offset - log[-1].base_offset
        log[-1] = StoredBatch(base_offset, base_offset + length, base_offset.to_bytes(8, "big") + log[-1].data[8:])
        return base_offset

    def end_transaction(self, partition: TopicPartition, producer_id: int, commit: bool) -> None:
        self.append(partition, marker(0, producer_id, commit))

    def keep(self, partition: TopicPartition, log: list[StoredBatch], start: int) -> None:
        """Replace a log by a part of it, which begins at `start`."""
        self.logs[partition], self._starts[partition] = log, start

    def open_transactions(self, partition: TopicPartition) -> dict[int, int]:
        """First offsets by producer id."""
        return self._transactions(partition)[0]

    def last_stable_offset(self, partition: TopicPartition) -> int:
        return min([self.bounds(partition)[1], *self.open_transactions(partition).values()])

    def aborted(self, partition: TopicPartition, from_offset: int, until_offset: int) -> tuple[tuple[int, int], ...]:
        _, aborted = self._transactions(partition)
        return tuple(
            (producer, first) for producer, first, end in aborted if first < until_offset and end > from_offset
        )

    def aborted_batches(self, partition: TopicPartition) -> set[StoredBatch]:
        _, aborted = self._transactions(partition)
        return {
            batch
            for batch in self.logs[partition]
            for producer, first, end in aborted
            if is_transactional(batch) and _producer_id(batch) == producer
            if first <= batch.base_offset < end
        }

    def _transactions(self, partition: TopicPartition) -> tuple[dict[int, int], list[tuple[int, int, int]]]:
        """First offsets of open transactions by producer id; producer id, first offset and end offset of aborted."""
        opened: dict[int, int] = {}
        aborted = []
        for batch in filter(is_transactional, self.logs[partition]):
            producer_id = _producer_id(batch)
            if not batch.data[_ATTRIBUTES_AT] & CONTROL:
                opened.setdefault(producer_id, batch.base_offset)
            elif (first := opened.pop(producer_id, None)) is not None and not batch.data[_MARKER_IS_COMMIT_AT]:
                aborted.append((producer_id, first, batch.until_offset))
        return opened, aborted


def _producer_id(batch: StoredBatch) -> int:
    return int.from_bytes(batch.data[_PRODUCER_ID], "big", signed=True)


def is_transactional(batch: StoredBatch) -> bool:
    return bool(batch.data[_ATTRIBUTES_AT] & TRANSACTIONAL)
