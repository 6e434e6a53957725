"""Which records the logs of a history held, and hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from pyspark_kafka_meta.model import TopicPartition
from tests.unit.fake_cluster import FakeCluster, StoredBatch


class Record(NamedTuple):
    """A record of one topic: a recreated topic has another id."""

    topic_id: UUID | None
    partition: TopicPartition
    offset: int
    value: str

    def __str__(self) -> str:
        return f"{self.partition}@{self.offset}={self.value} ({str(self.topic_id)[:4]})"


def epoch_of(batch: StoredBatch) -> int:
    """The leader epoch of a batch."""
    return int.from_bytes(batch.data[12:16], "big", signed=True)


class StoredRecords:
    """Remembers each appended batch, its records, and the log before it."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self._batches: dict[StoredBatch, list[Record]] = {}
        self._batch_of: dict[Record, StoredBatch] = {}
        self._before: dict[StoredBatch, list[StoredBatch]] = {}
        self._logs: dict[tuple[UUID | None, TopicPartition], list[StoredBatch]] = defaultdict(list)

    def add(self, served: FakeCluster, partition: TopicPartition, values: Mapping[int, str]) -> None:
        """The last batch of a log, as a broker serves it, has these values, by offset in the batch: none if readers
        see none."""
        *before, batch = served.logs[partition]
        topic_id = served.topics[partition.topic].topic_id
        self._logs[topic_id, partition].append(batch)
        self._batches[batch] = [
            Record(topic_id, partition, batch.base_offset + offset, value) for offset, value in values.items()
        ]
        self._before[batch] = before
        self._batch_of |= dict.fromkeys(self._batches[batch], batch)

    def epochs(self, served: FakeCluster, partition: TopicPartition, from_offset: int) -> set[int]:
        """The leader epochs of all batches that any log of this partition ever had, from this offset on."""
        topic_id = served.topics[partition.topic].topic_id
        return {epoch_of(batch) for batch in self._logs[topic_id, partition] if batch.until_offset > from_offset}

    def has_log(self, records: Sequence[Record]) -> bool:
        """Whether these records of one partition, but for those of no log, are in the log of the last of them."""
        batches = [self._batch_of[record] for record in records if record in self._batch_of]
        return not batches or {*batches[:-1]} <= {*self._before[batches[-1]], batches[-1]}

    def all(self) -> Iterator[Record]:
        """Each record that a log has ever had."""
        return (record for records in self._batches.values() for record in records)

    def current(self) -> Iterator[Record]:
        """The records of the logs, in order."""
        for topic in self._cluster.topics.values():
            for member in topic.partitions:
                yield from self.of(self._cluster.logs[TopicPartition(topic.name, member.partition)])

    def of(self, batches: Iterable[StoredBatch]) -> Iterator[Record]:
        return (record for batch in batches for record in self._batches[batch])


def read_records(rows: Any, ids: Mapping[TopicPartition, UUID | None]) -> list[Record]:
    """The records in an Arrow batch with the columns topic, partition, offset and value. `ids`: of the planned
    topics."""
    records = []
    for row in rows.to_pylist():
        partition = TopicPartition(row["topic"], row["partition"])
        records.append(Record(ids[partition], partition, row["offset"], row["value"].decode()))
    return records
