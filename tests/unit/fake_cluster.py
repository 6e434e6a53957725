"""`FakeCluster`: brokers, topics, leaders and logs in plain memory, for `FakeWire` to answer from.

It decides as Apache Kafka 4.1 does: any replica serves a Fetch, a wrong leader epoch is refused, a recreated topic is
not known by its old id, a reader of records that were cut off learns of that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from uuid import UUID, uuid4

from pyspark_kafka_meta.model import (
    NO_EPOCH,
    NO_LEADER,
    Address,
    Broker,
    PartitionMetadata,
    TopicMetadata,
    TopicPartition,
)
from pyspark_kafka_meta.wire.messages import DivergingEpoch, FetchPartition, OffsetQuery


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """One record batch (v2) that holds offsets [base_offset, until_offset)."""

    base_offset: int
    until_offset: int
    data: bytes


class FakeCluster:
    """Brokers with ids from 1, at `broker-1:9092` and so on, each a replica of every partition.

    Attributes:
        brokers: by node id; a test may change them, and what follows, as it likes.
        topics: by name.
        logs: by partition; take batches away at the front for retention, at the end for truncation.
    """

    def __init__(self, brokers: int = 3) -> None:
        self.brokers = {n: Broker(n, Address(f"broker-{n}", 9092)) for n in range(1, brokers + 1)}
        self.topics: dict[str, TopicMetadata] = {}
        self.logs: dict[TopicPartition, list[StoredBatch]] = {}

    def create_topic(self, topic: str, partitions: int = 1) -> UUID:
        """Leaders in turn, epoch 0, empty logs. Again under the same name it is another topic with another id."""
        topic_id, nodes = uuid4(), tuple(self.brokers)
        members = tuple(
            PartitionMetadata(number, nodes[number % len(nodes)], 0, replicas=nodes, isr=nodes)
            for number in range(partitions)
        )
        self.topics[topic] = TopicMetadata(topic, topic_id, members)
        self.logs |= {TopicPartition(topic, number): [] for number in range(partitions)}
        return topic_id

    def move_leader(self, partition: TopicPartition, node_id: int) -> None:
        """The epoch grows. `NO_LEADER` leaves the partition without one (LEADER_NOT_AVAILABLE)."""
        old, topic = self.partition(partition), self.topics[partition.topic]
        code = 5 if node_id == NO_LEADER else 0
        new = replace(old, leader_id=node_id, leader_epoch=old.leader_epoch + 1, error_code=code)
        members = tuple(new if one is old else one for one in topic.partitions)
        self.topics[partition.topic] = replace(topic, partitions=members)

    def append(self, partition: TopicPartition, batch: bytes) -> int:
        """Store a record batch (v2) at the end of the log and in the leader's epoch, as a broker does. Returns its
        base offset. Neither field is covered by the checksum."""
        base_offset = self.bounds(partition)[1]
        epoch = self.partition(partition).leader_epoch
        data = base_offset.to_bytes(8, "big") + batch[8:12] + epoch.to_bytes(4, "big", signed=True) + batch[16:]
        until_offset = base_offset + int.from_bytes(batch[23:27], "big") + 1
        self.logs[partition].append(StoredBatch(base_offset, until_offset, data))
        return base_offset

    def partition(self, partition: TopicPartition) -> PartitionMetadata:
        members = self.topics[partition.topic].partitions
        return next(one for one in members if one.partition == partition.partition)

    def bounds(self, partition: TopicPartition) -> tuple[int, int]:
        """Log start offset and (exclusive) end offset."""
        log = self.logs[partition]
        return (log[0].base_offset, log[-1].until_offset) if log else (0, 0)

    def offset_at(self, partition: TopicPartition, timestamp_ms: int) -> int:
        """Base offset of the first batch with a record as late, -1 if there is none."""
        late = (one for one in self.logs[partition] if int.from_bytes(one.data[35:43], "big") >= timestamp_ms)
        return next((one.base_offset for one in late), -1)

    def records(self, partition: TopicPartition, offset: int, end: int, max_bytes: int) -> bytes:
        """Record batches from that which holds `offset` on, up to `end`; the first whole, however large (KIP-74)."""
        records = b""
        for batch in self.logs[partition]:
            if batch.until_offset > offset and batch.base_offset < end:
                if records and len(records) + len(batch.data) > max_bytes:
                    break
                records += batch.data
        return records

    def error_of(self, node_id: int, asked: OffsetQuery | FetchPartition) -> int:
        """The error code that this broker answers with, 0 if it serves what is asked."""
        fetch = asked if isinstance(asked, FetchPartition) else None
        topic = self.topics.get(asked.partition.topic)
        by_id = fetch is not None and fetch.topic_id is not None
        if topic is None or (fetch is not None and fetch.topic_id not in (None, topic.topic_id)):
            return 100 if by_id else 3
        if asked.partition.partition not in {one.partition for one in topic.partitions}:
            return 3
        known = self.partition(asked.partition)
        if asked.leader_epoch not in (NO_EPOCH, known.leader_epoch):
            return 74 if asked.leader_epoch < known.leader_epoch else 75
        if node_id != known.leader_id and (fetch is None or node_id not in known.replicas):
            return 6
        start, end = self.bounds(asked.partition)
        in_log = fetch is None or start <= fetch.fetch_offset <= end or self.diverging_epoch(fetch) is not None
        return 0 if in_log else 1

    def diverging_epoch(self, fetch: FetchPartition) -> DivergingEpoch | None:
        """Where the log and that of the reader part, None where the reader's is the beginning of this one."""
        asked = fetch.last_fetched_epoch
        found = self.epoch_end(fetch.partition, asked)
        is_common = found.epoch == asked and found.end_offset >= fetch.fetch_offset
        return None if asked == NO_EPOCH or is_common else found

    def epoch_end(self, partition: TopicPartition, asked: int) -> DivergingEpoch:
        """The largest epoch in the log that is not above `asked`, and where it ends."""
        end = self.bounds(partition)[1]
        starts = {self.partition(partition).leader_epoch: end}
        for batch in reversed(self.logs[partition]):
            starts[int.from_bytes(batch.data[12:16], "big", signed=True)] = batch.base_offset
        epoch = max((one for one in starts if one <= asked), default=NO_EPOCH)
        return DivergingEpoch(epoch, min((start for one, start in starts.items() if one > asked), default=end))
