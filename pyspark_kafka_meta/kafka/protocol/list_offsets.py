"""ListOffsets and OffsetForLeaderEpoch: our own types, and their translation to the protocol
library's messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark_kafka_meta.kafka.protocol import frame_codec
from pyspark_kafka_meta.kafka.protocol.frame_codec import LIST_OFFSETS, OFFSET_FOR_LEADER_EPOCH, Exchange
from pyspark_kafka_meta.kafka.protocol.response_checks import check, grouped, ms, unique
from pyspark_kafka_meta.model import (
    NO_EPOCH,
    TopicPartition,
)

EARLIEST_TIMESTAMP = -2
"""ListOffsets: the log start offset (Kafka `ListOffsetsRequest.EARLIEST_TIMESTAMP`)."""
LATEST_TIMESTAMP = -1
"""ListOffsets: the high watermark, or the last stable offset under read_committed."""
EARLIEST_LOCAL_TIMESTAMP = -4
"""The first offset on the leader's own disk, with tiered storage later than the log start offset (KIP-405)."""


@dataclass(frozen=True, slots=True)
class OffsetQuery:
    """One partition of an `OffsetsRequest`.

    Attributes:
        wanted: ms since 1970 UTC, or one of the constants above; in a request `by_epoch`, a leader epoch.
        leader_epoch: the cached epoch: a former leader then returns an error instead of offsets of its old log.
    """

    partition: TopicPartition
    wanted: int
    leader_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class OffsetsRequest:
    """ListOffsets or OffsetForLeaderEpoch to one broker.

    Attributes:
        read_committed: whether the latest offset is the last stable offset instead of the high watermark.
        by_epoch: whether to request the end offsets of leader epochs (OffsetForLeaderEpoch, KIP-320).
    """

    queries: tuple[OffsetQuery, ...]
    read_committed: bool = False
    by_epoch: bool = False


@dataclass(frozen=True, slots=True)
class PartitionOffset:
    """One partition of an `OffsetsResponse`.

    Attributes:
        offset: of the first record at or after the requested timestamp, -1 if there is none. By epoch: the end offset
            (exclusive) of the largest epoch in the log up to the requested epoch, -1 if the leader knows none.
        leader_epoch: of the record at `offset`. For the latest offset, the leader's own. By epoch, the largest epoch.
    """

    partition: TopicPartition
    error_code: int
    offset: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class OffsetsResponse:
    """One broker's response to an `OffsetsRequest`.

    Attributes:
        offsets: may lack requested partitions.
        throttle_ms: how long the broker accepts no further requests (KIP-219).
    """

    node_id: int
    offsets: Mapping[TopicPartition, PartitionOffset]
    throttle_ms: int = 0


CONSUMER_ID = -1
"""Replica id in the requests of a client (Kafka `ListOffsetsRequest.CONSUMER_REPLICA_ID`)."""
LOCAL_OFFSETS_SINCE = 8
"""First version of ListOffsets with `EARLIEST_LOCAL_TIMESTAMP` (KIP-405)."""


def offsets_request(version: int, request: OffsetsRequest) -> Any:
    return _epoch_ends_request(version, request) if request.by_epoch else _list_offsets_request(version, request)


def _list_offsets_request(version: int, request: OffsetsRequest) -> Any:
    schema = frame_codec.request_schema(LIST_OFFSETS, version)
    return schema.ListOffsetsRequest(
        replica_id=CONSUMER_ID,
        isolation_level=int(request.read_committed),
        topics=tuple(
            schema.ListOffsetsTopic(
                name=topic,
                partitions=tuple(
                    schema.ListOffsetsPartition(
                        partition_index=query.partition.partition,
                        current_leader_epoch=query.leader_epoch,
                        timestamp=_timestamp(query.wanted, version),
                    )
                    for query in members
                ),
            )
            for topic, members in grouped(request.queries, lambda query: query.partition.topic)
        ),
    )


def _timestamp(timestamp: int, version: int) -> int:
    # A broker without local offsets has no tiered storage: its whole log is local.
    return EARLIEST_TIMESTAMP if timestamp == EARLIEST_LOCAL_TIMESTAMP and version < LOCAL_OFFSETS_SINCE else timestamp


def _epoch_ends_request(version: int, request: OffsetsRequest) -> Any:
    schema = frame_codec.request_schema(OFFSET_FOR_LEADER_EPOCH, version)
    return schema.OffsetForLeaderEpochRequest(
        **({"replica_id": CONSUMER_ID} if version >= 3 else {}),
        topics=tuple(
            schema.OffsetForLeaderTopic(
                topic=topic,
                partitions=tuple(
                    schema.OffsetForLeaderPartition(
                        partition=query.partition.partition,
                        current_leader_epoch=query.leader_epoch,
                        leader_epoch=query.wanted,
                    )
                    for query in members
                ),
            )
            for topic, members in grouped(request.queries, lambda query: query.partition.topic)
        ),
    )


def offsets_response(exchange: Exchange, request: OffsetsRequest, node_id: int) -> OffsetsResponse:
    wanted = {query.partition: query.wanted for query in request.queries}
    offsets = []
    for topic in exchange.message.topics:
        for entry in topic.partitions:
            if request.by_epoch:
                partition, offset = TopicPartition(str(topic.topic), int(entry.partition)), int(entry.end_offset)
            else:
                partition, offset = TopicPartition(str(topic.name), int(entry.partition_index)), int(entry.offset)
            check(partition in wanted, "unrequested %s", partition)
            # Every log has a start and an end. A timestamp or an epoch may have no offset.
            always_exists = not request.by_epoch and wanted[partition] < 0 and entry.error_code == 0
            smallest = 0 if always_exists else -1
            check(offset >= smallest and entry.leader_epoch >= -1, "a negative offset or epoch for %s", partition)
            offsets.append(PartitionOffset(partition, int(entry.error_code), offset, int(entry.leader_epoch)))
    by_partition = {entry.partition: entry for entry in unique(offsets, lambda entry: entry.partition, "partition")}
    return OffsetsResponse(node_id, by_partition, ms(exchange.message.throttle_time))
