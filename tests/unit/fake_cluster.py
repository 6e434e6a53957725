"""`FakeCluster`: brokers, topics, leaders and logs in memory, for the responses of `FakeNetwork`.

Behaves as Apache Kafka 4.1: any replica serves a Fetch, a wrong leader epoch is an error, the old id of a recreated
topic is unknown, a reader of truncated records gets the diverging epoch. A replica that leaves the ISR may go on with a
log of its own, and be elected. The leader accepts each batch of an idempotent
producer once and in its order (Kafka `ProducerAppendInfo`, `ProducerStateEntry`).
"""

from __future__ import annotations

import copy
import itertools
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Self
from uuid import UUID, uuid4

from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.kafka.protocol.fetch import DivergingEpoch, FetchPartition
from pyspark_kafka_meta.kafka.protocol.list_offsets import OffsetQuery
from pyspark_kafka_meta.kafka.protocol.produce import ProducePartition
from pyspark_kafka_meta.model import (
    NO_EPOCH,
    NO_LEADER,
    Address,
    Broker,
    LeaderHint,
    PartitionMetadata,
    TopicMetadata,
    TopicPartition,
)
from tests.unit.fake_coordinators import FakeCoordinators

REMEMBERED_BATCHES = 5
MAX_SEQUENCE = 2**31 - 1
TRANSACTIONAL = 0x10


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """One record batch (v2) with offsets [base_offset, until_offset)."""

    base_offset: int
    until_offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class ProducerBatch:
    """The producer's fields in the header of a record batch (v2). `producer_id` is -1 without idempotence."""

    producer_id: int
    epoch: int
    first_sequence: int
    last_sequence: int
    is_transactional: bool

    @classmethod
    def of(cls, batch: bytes) -> ProducerBatch:
        producer_id, epoch, first = (
            int.from_bytes(batch[start:end], "big", signed=True) for start, end in ((43, 51), (51, 53), (53, 57))
        )
        count = int.from_bytes(batch[23:27], "big") + 1
        last = (first + count - 1) % (MAX_SEQUENCE + 1)
        return cls(producer_id, epoch, first, last, bool(batch[22] & TRANSACTIONAL))


@dataclass(slots=True)
class ProducerState:
    """What a log knows of one producer: its epoch, and base offsets of its last batches in this epoch."""

    epoch: int
    last_batches: deque[tuple[ProducerBatch, int]] = field(default_factory=lambda: deque(maxlen=REMEMBERED_BATCHES))


class FakeCluster:
    """Brokers with ids from 1, at `broker-1:9092` and so on, each a replica of every partition.

    Attributes:
        brokers: by node id. Tests may change all attributes.
        topics: by name.
        logs: by partition. Remove batches at the front for retention, at the end for truncation.
        producers: by partition and producer id. Remove producers that the log shall forget.
        max_message_bytes: largest record batch that a Produce may append, by topic.
        producer_ids: of the next producers.
        coordinators: of transactions.
        isolated: leader epoch and log of replicas outside the ISR, by node id and partition.
    """

    def __init__(self, brokers: int = 3) -> None:
        self.brokers = {n: Broker(n, Address(f"broker-{n}", 9092)) for n in range(1, brokers + 1)}
        self.topics: dict[str, TopicMetadata] = {}
        self.logs: dict[TopicPartition, list[StoredBatch]] = {}
        self.producers: dict[TopicPartition, dict[int, ProducerState]] = {}
        self.max_message_bytes: dict[str, int] = {}
        self.producer_ids = itertools.count(1000)
        self.coordinators = FakeCoordinators(self)
        self.isolated: dict[tuple[int, TopicPartition], tuple[int, list[StoredBatch]]] = {}

    def create_topic(self, topic: str, partitions: int = 1) -> UUID:
        """Leaders in turn, epoch 0, empty logs. The same name again recreates the topic with a new id."""
        topic_id, nodes = uuid4(), tuple(self.brokers)
        members = tuple(
            PartitionMetadata(number, nodes[number % len(nodes)], 0, replicas=nodes, isr=nodes)
            for number in range(partitions)
        )
        self.topics[topic] = TopicMetadata(topic, topic_id, members)
        self.logs |= {TopicPartition(topic, number): [] for number in range(partitions)}
        self.producers |= {TopicPartition(topic, number): {} for number in range(partitions)}
        return topic_id

    def delete_topic(self, topic: str) -> None:
        del self.topics[topic]
        for partition in [each for each in self.logs if each.topic == topic]:
            del self.logs[partition], self.producers[partition]

    def move_leader(self, partition: TopicPartition, node_id: int) -> None:
        """Increments the epoch. `NO_LEADER` leaves the partition without a leader (LEADER_NOT_AVAILABLE)."""
        old, topic = self.partition(partition), self.topics[partition.topic]
        code = int(ErrorCode.leader_not_available) if node_id == NO_LEADER else 0
        new = replace(old, leader_id=node_id, leader_epoch=old.leader_epoch + 1, error_code=code)
        members = tuple(new if member is old else member for member in topic.partitions)
        self.topics[partition.topic] = replace(topic, partitions=members)

    def isolate(self, partition: TopicPartition, node_id: int) -> None:
        """This replica keeps the leader epoch and a copy of the log, which later writes do not reach."""
        self.isolated[node_id, partition] = (self.partition(partition).leader_epoch, list(self.logs[partition]))

    def append_isolated(self, partition: TopicPartition, node_id: int, batch: bytes) -> int:
        """As `append`, at a replica that was isolated while it led the partition."""
        epoch, log = self.isolated[node_id, partition]
        return _append(log, epoch, batch)

    def elect_uncleanly(self, partition: TopicPartition, node_id: int) -> None:
        """The isolated replica leads, with its own log."""
        _, self.logs[partition] = self.isolated.pop((node_id, partition))
        self.move_leader(partition, node_id)

    def append(self, partition: TopicPartition, batch: bytes) -> int:
        """Store a record batch (v2) at the end of the log and in the leader's epoch, as a broker does. Returns its
        base offset. Neither field is covered by the checksum."""
        return _append(self.logs[partition], self.partition(partition).leader_epoch, batch)

    def produce(self, partition: TopicPartition, batch: bytes) -> int:
        """Append a batch, unless it is one of the producer's last batches, sent again. Returns its base offset."""
        sent = ProducerBatch.of(batch)
        known = self.producers[partition].get(sent.producer_id)
        for last, base_offset in () if known is None else known.last_batches:
            if last == sent:
                return base_offset
        base_offset = self.append(partition, batch)
        if sent.producer_id >= 0:
            if known is None or known.epoch != sent.epoch:
                known = self.producers[partition][sent.producer_id] = ProducerState(sent.epoch)
            known.last_batches.append((sent, base_offset))
        return base_offset

    def fence(self, node_id: int) -> Self:
        """Cut a broker off from controllers and brokers. Returns the cluster as this broker goes on serving it, with
        logs of its own. Its partitions need other leaders then."""
        own = copy.copy(self)
        own.brokers, own.topics = dict(self.brokers), dict(self.topics)
        own.logs = {partition: list(log) for partition, log in self.logs.items()}
        del self.brokers[node_id]
        return own

    def partition(self, partition: TopicPartition) -> PartitionMetadata:
        members = self.topics[partition.topic].partitions
        return next(member for member in members if member.partition == partition.partition)

    def bounds(self, partition: TopicPartition) -> tuple[int, int]:
        """Log start offset and (exclusive) end offset."""
        log = self.logs[partition]
        return (log[0].base_offset, log[-1].until_offset) if log else (0, 0)

    def high_watermark(self, partition: TopicPartition) -> int:
        return self.bounds(partition)[1]

    def last_stable_offset(self, partition: TopicPartition) -> int:
        return self.coordinators.last_stable_offset(partition)

    def aborted(self, partition: TopicPartition, from_offset: int, until_offset: int) -> tuple[tuple[int, int], ...]:
        """Producer id and first offset of the aborted transactions with records in this range."""
        return self.coordinators.aborted(partition, from_offset, until_offset)

    def offset_at(self, partition: TopicPartition, timestamp_ms: int) -> int:
        """Base offset of the first batch with a record of this timestamp or later, -1 if there is none."""
        late = (batch for batch in self.logs[partition] if int.from_bytes(batch.data[35:43], "big") >= timestamp_ms)
        return next((batch.base_offset for batch in late), -1)

    def records(self, partition: TopicPartition, offset: int, end: int, max_bytes: int) -> bytes:
        """Record batches from the batch with `offset` up to `end`. The first is whole, whatever its size."""
        records = b""
        for batch in self.logs[partition]:
            if batch.until_offset > offset and batch.base_offset < end:
                if records and len(records) + len(batch.data) > max_bytes:
                    break
                records += batch.data
        return records

    def error_of(self, node_id: int, request: OffsetQuery | FetchPartition) -> int:
        """The error code in the response of this broker."""
        fetch = request if isinstance(request, FetchPartition) else None
        topic = self.topics.get(request.partition.topic)
        by_id = fetch is not None and fetch.topic_id is not None
        if topic is None or (fetch is not None and fetch.topic_id not in (None, topic.topic_id)):
            return ErrorCode.unknown_topic_id if by_id else ErrorCode.unknown_topic_or_partition
        if request.partition.partition not in {member.partition for member in topic.partitions}:
            return ErrorCode.unknown_topic_or_partition
        known = self.partition(request.partition)
        if request.leader_epoch not in (NO_EPOCH, known.leader_epoch):
            is_older = request.leader_epoch < known.leader_epoch
            return ErrorCode.fenced_leader_epoch if is_older else ErrorCode.unknown_leader_epoch
        if node_id != known.leader_id and (fetch is None or node_id not in known.replicas):
            return ErrorCode.not_leader_or_follower
        start, end = self.bounds(request.partition)
        in_log = fetch is None or start <= fetch.fetch_offset <= end or self.diverging_epoch(fetch) is not None
        return ErrorCode.none if in_log else ErrorCode.offset_out_of_range

    def produce_error(self, node_id: int, request: ProducePartition) -> int:
        """The error code in the response of this broker."""
        topic, by_id = self.topics.get(request.partition.topic), request.topic_id is not None
        if by_id and (topic is None or topic.topic_id != request.topic_id):
            return ErrorCode.unknown_topic_id
        if topic is None or request.partition not in self.logs:
            return ErrorCode.unknown_topic_or_partition
        if self.partition(request.partition).leader_id != node_id:
            return ErrorCode.not_leader_or_follower
        if len(request.records) > self.max_message_bytes.get(request.partition.topic, len(request.records)):
            return ErrorCode.message_too_large
        return self._sequence_error(request.partition, ProducerBatch.of(bytes(request.records)))

    def _sequence_error(self, partition: TopicPartition, sent: ProducerBatch) -> int:
        known = self.producers[partition].get(sent.producer_id)
        if known is None or any(last == sent for last, _ in known.last_batches):
            return ErrorCode.none
        if sent.epoch < known.epoch:
            return ErrorCode.invalid_producer_epoch
        last, _ = known.last_batches[-1]
        expected = 0 if sent.epoch > known.epoch else (last.last_sequence + 1) % (MAX_SEQUENCE + 1)
        return ErrorCode.none if sent.first_sequence == expected else ErrorCode.out_of_order_sequence_number

    def leader_hint(self, partition: TopicPartition) -> LeaderHint | None:
        known = self.partition(partition)
        if known.leader_id == NO_LEADER:
            return None
        return LeaderHint(known.leader_id, known.leader_epoch, self.brokers[known.leader_id])

    def diverging_epoch(self, fetch: FetchPartition) -> DivergingEpoch | None:
        """End of the common log of reader and broker; None if the reader's log is a prefix of the broker's."""
        epoch = fetch.last_fetched_epoch
        found = self.epoch_end(fetch.partition, epoch)
        is_common = found.epoch == epoch and found.end_offset >= fetch.fetch_offset
        return None if epoch == NO_EPOCH or is_common else found

    def epoch_end(self, partition: TopicPartition, max_epoch: int) -> DivergingEpoch:
        """The largest epoch in the log up to `max_epoch`, and its end offset; `max_epoch` itself, and the start of the
        log, if all its epochs are larger (Kafka `LeaderEpochFileCache.endOffsetFor`)."""
        end = self.bounds(partition)[1]
        starts = {self.partition(partition).leader_epoch: end}
        for batch in reversed(self.logs[partition]):
            starts[int.from_bytes(batch.data[12:16], "big", signed=True)] = batch.base_offset
        epoch = max((known for known in starts if known <= max_epoch), default=max_epoch)
        return DivergingEpoch(epoch, min((start for known, start in starts.items() if known > max_epoch), default=end))


def _append(log: list[StoredBatch], epoch: int, batch: bytes) -> int:
    base_offset = log[-1].until_offset if log else 0
    data = base_offset.to_bytes(8, "big") + batch[8:12] + epoch.to_bytes(4, "big", signed=True) + batch[16:]
    log.append(StoredBatch(base_offset, base_offset + int.from_bytes(batch[23:27], "big") + 1, data))
    return base_offset
