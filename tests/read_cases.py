"""Responses to Metadata, Fetch, ListOffsets and OffsetForLeaderEpoch: the fake network and real brokers agree on the
table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from pyspark_kafka_meta.kafka.protocol.apis import ApiResponse
from pyspark_kafka_meta.kafka.protocol.fetch import FetchPartition, FetchRequest, FetchResponse
from pyspark_kafka_meta.kafka.protocol.list_offsets import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    OffsetQuery,
    OffsetsRequest,
)
from pyspark_kafka_meta.kafka.protocol.network_interface import Network
from pyspark_kafka_meta.model import NO_EPOCH, Broker, TopicPartition

BATCH_SIZES = (2, 3)
"""Records of the batches in the log, all of the first leader epoch."""
END = sum(BATCH_SIZES)
OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER, INVALID_TOPIC = 1, 3, 6, 17
UNKNOWN_LEADER_EPOCH, UNKNOWN_TOPIC_ID = 75, 100
WAIT_MS = 200
PATIENCE_S = 30.0
OTHER_ID = UUID(int=7)


@dataclass(frozen=True, slots=True)
class Log:
    """Partition 0 of a topic with one partition and `BATCH_SIZES`.

    Attributes:
        follower: another broker.
        clock: of the network's deadlines.
    """

    network: Network
    clock: Callable[[], float]
    partition: TopicPartition
    topic_id: UUID
    leader: Broker
    follower: Broker
    epoch: int

    def soon(self) -> float:
        return self.clock() + PATIENCE_S


class Fetched(NamedTuple):
    """A Fetch, and the error code and the base offset of the first batch in its response; -1 without a batch."""

    offset: int
    code: int = 0
    base_offset: int = -1
    newer_epoch: bool = False
    topic_id: UUID | None = None
    partition: int = 0
    max_bytes: int = 1 << 20

    def of(self, log: Log) -> tuple[int, int]:
        partition = log.partition._replace(partition=self.partition)
        epoch = log.epoch + self.newer_epoch
        entry = FetchPartition(partition, self.topic_id or log.topic_id, self.offset, epoch, NO_EPOCH, self.max_bytes)
        log.network.fetch.send(log.leader, FetchRequest((entry,), WAIT_MS, 1, self.max_bytes, False), log.soon())
        response = log.network.fetch.receive([log.leader.node_id], log.soon())
        assert isinstance(response, FetchResponse), response
        (part,) = response.partitions
        return part.error_code, int.from_bytes(bytes(part.records[:8]), "big") if part.records else -1

    @property
    def expected(self) -> tuple[int, int]:
        return self.code, self.base_offset


class Listed(NamedTuple):
    """A ListOffsets or OffsetForLeaderEpoch, and the error code and the offset in its response."""

    wanted: int
    code: int = 0
    offset: int = -1
    newer_epoch: bool = False
    by_epoch: bool = False
    at_follower: bool = False
    partition: int = 0

    def of(self, log: Log) -> tuple[int, int]:
        partition = log.partition._replace(partition=self.partition)
        wanted = log.epoch if self.by_epoch else self.wanted
        query = OffsetQuery(partition, wanted, log.epoch + self.newer_epoch)
        broker = log.follower if self.at_follower else log.leader
        log.network.offsets.send(broker, OffsetsRequest((query,), by_epoch=self.by_epoch), log.soon())
        response = log.network.offsets.receive([broker.node_id], log.soon())
        assert isinstance(response, ApiResponse), response
        return response.result[partition].error_code, response.result[partition].offset

    @property
    def expected(self) -> tuple[int, int]:
        return self.code, self.offset


class Described(NamedTuple):
    """A Metadata request for this topic, and the error code and the number of partitions in its response."""

    topic: str | None
    code: int = 0
    partitions: int = 0

    def of(self, log: Log) -> tuple[int, int]:
        log.network.send_metadata(log.leader.address, [self.topic or log.partition.topic], log.soon())
        response = log.network.receive_metadata(log.soon())
        assert response is not None
        (topic,) = response.topics
        return topic.error_code, len(topic.partitions)

    @property
    def expected(self) -> tuple[int, int]:
        return self.code, self.partitions


CASES: dict[str, Fetched | Listed | Described] = {
    "fetch from the start": Fetched(0, base_offset=0),
    "fetch within a batch": Fetched(1, base_offset=0),
    "fetch the second batch": Fetched(2, base_offset=2),
    "fetch a batch above the limits": Fetched(0, base_offset=0, max_bytes=1),
    "fetch at the end": Fetched(END),
    "fetch after the end": Fetched(END + 1, OUT_OF_RANGE),
    "fetch with a newer epoch": Fetched(0, UNKNOWN_LEADER_EPOCH, newer_epoch=True),
    "fetch by another topic id": Fetched(0, UNKNOWN_TOPIC_ID, topic_id=OTHER_ID),
    "fetch from another partition": Fetched(0, UNKNOWN_TOPIC_OR_PARTITION, partition=1),
    "latest offset": Listed(LATEST_TIMESTAMP, offset=END),
    "earliest offset": Listed(EARLIEST_TIMESTAMP, offset=0),
    "offset of a time after all records": Listed(2**62),
    "latest offset with a newer epoch": Listed(LATEST_TIMESTAMP, UNKNOWN_LEADER_EPOCH, newer_epoch=True),
    "latest offset from a follower": Listed(LATEST_TIMESTAMP, NOT_LEADER, at_follower=True),
    "latest offset of another partition": Listed(LATEST_TIMESTAMP, UNKNOWN_TOPIC_OR_PARTITION, partition=1),
    "end of an epoch": Listed(0, offset=END, by_epoch=True),
    "end of an epoch with a newer epoch": Listed(0, UNKNOWN_LEADER_EPOCH, newer_epoch=True, by_epoch=True),
    "end of an epoch from a follower": Listed(0, NOT_LEADER, by_epoch=True, at_follower=True),
    "metadata of a topic": Described(None, partitions=1),
    "metadata of a missing topic": Described("no-such-topic", UNKNOWN_TOPIC_OR_PARTITION),
    "metadata of a name that is not allowed": Described("no such topic", INVALID_TOPIC),
}
