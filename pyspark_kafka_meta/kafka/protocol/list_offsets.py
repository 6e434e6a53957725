"""Translate ListOffsets and OffsetForLeaderEpoch between our types and the protocol library's messages."""

from __future__ import annotations

from typing import Any

from pyspark_kafka_meta.kafka.protocol import frame_codec
from pyspark_kafka_meta.kafka.protocol.frame_codec import LIST_OFFSETS, OFFSET_FOR_LEADER_EPOCH, Exchange
from pyspark_kafka_meta.kafka.protocol.messages import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    OffsetsRequest,
    OffsetsResponse,
    PartitionOffset,
)
from pyspark_kafka_meta.kafka.protocol.response_checks import check, grouped, ms, unique
from pyspark_kafka_meta.model import TopicPartition

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
