"""The protocol library's Metadata, ListOffsets and OffsetForLeaderEpoch messages to and from our types.

`translate_fetch` has Fetch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pyspark_kafka_meta.model import MetadataResponse, PartitionMetadata, TopicMetadata, TopicPartition
from pyspark_kafka_meta.validators import is_topic_name
from pyspark_kafka_meta.wire import codec
from pyspark_kafka_meta.wire.codec import LIST_OFFSETS, METADATA, OFFSET_FOR_LEADER_EPOCH, Exchange
from pyspark_kafka_meta.wire.messages import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    OffsetsRequest,
    OffsetsResponse,
    PartitionOffset,
)
from pyspark_kafka_meta.wire.response_checks import broker, check, grouped, label, ms, unique

MAX_BROKERS = 10_000
CONSUMER_ID = -1
"""Replica id in the requests of a client that is no broker."""
LOCAL_OFFSETS_SINCE = 8
"""ListOffsets knows `EARLIEST_LOCAL_TIMESTAMP` from this version on (KIP-405)."""


def metadata_request(version: int, topics: Collection[str] | None) -> Any:
    schema = codec.request_schema(METADATA, version)
    by_id = {} if version < 10 else {"topic_id": None}
    # Cluster operations left the request with v11; they are never asked for.
    cluster_operations = {"include_cluster_authorized_operations": False} if version <= 10 else {}
    return schema.MetadataRequest(
        topics=None
        if topics is None
        else tuple(schema.MetadataRequestTopic(name=name, **by_id) for name in sorted(topics)),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
        **cluster_operations,
    )


def metadata_response(exchange: Exchange, topics: Collection[str] | None) -> MetadataResponse:
    message = exchange.message
    check(len(message.brokers) <= MAX_BROKERS, "more than %d brokers", MAX_BROKERS)
    return MetadataResponse(
        cluster_id=label(message.cluster_id, "cluster id"),
        controller_id=message.controller_id,
        brokers=unique(map(broker, message.brokers), lambda one: one.node_id, "broker"),
        topics=unique((_topic(topic, topics) for topic in message.topics), lambda topic: topic.name, "topic"),
        api_version=exchange.api_version,
        correlation_id=exchange.correlation_id,
        request_bytes=exchange.request_bytes,
        response_bytes=exchange.response_bytes,
        throttle_ms=ms(message.throttle_time),
        error_code=int(getattr(message, "error_code", 0)),
    )


def _topic(topic: Any, asked: Collection[str] | None) -> TopicMetadata:
    name = topic.name or ""
    # A name that breaks Kafka's rule can come back only because it was asked for (error 17).
    check(name in asked if asked is not None else is_topic_name(name), "topic %r unasked", name)
    return TopicMetadata(
        name=str(name),
        topic_id=getattr(topic, "topic_id", None) or None,
        partitions=unique(
            map(_partition, topic.partitions), lambda partition: partition.partition, f"partition of {name}"
        ),
        error_code=int(topic.error_code),
        is_internal=topic.is_internal,
    )


def _partition(partition: Any) -> PartitionMetadata:
    check(partition.partition_index >= 0, "a partition number of %d", partition.partition_index)
    check(partition.leader_epoch >= -1, "a leader epoch of %d", partition.leader_epoch)
    check(partition.leader_id >= -1, "a leader id of %d", partition.leader_id)
    return PartitionMetadata(
        partition=int(partition.partition_index),
        leader_id=int(partition.leader_id),
        leader_epoch=int(partition.leader_epoch),
        replicas=tuple(map(int, partition.replica_nodes)),
        isr=tuple(map(int, partition.isr_nodes)),
        offline_replicas=tuple(map(int, partition.offline_replicas)),
        error_code=int(partition.error_code),
    )


def offsets_request(version: int, request: OffsetsRequest) -> Any:
    return _epochs_request(version, request) if request.by_epoch else _list_offsets_request(version, request)


def _list_offsets_request(version: int, request: OffsetsRequest) -> Any:
    schema = codec.request_schema(LIST_OFFSETS, version)
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
    # A broker that does not know of local offsets has no tiered storage: all of its log is local.
    return EARLIEST_TIMESTAMP if timestamp == EARLIEST_LOCAL_TIMESTAMP and version < LOCAL_OFFSETS_SINCE else timestamp


def _epochs_request(version: int, request: OffsetsRequest) -> Any:
    schema = codec.request_schema(OFFSET_FOR_LEADER_EPOCH, version)
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
    asked = {query.partition: query.wanted for query in request.queries}
    read = _epoch_end if request.by_epoch else _offset
    answers = unique(
        (read(topic, entry, asked) for topic in exchange.message.topics for entry in topic.partitions),
        lambda answer: answer.partition,
        "partition",
    )
    by_partition = {answer.partition: answer for answer in answers}
    return OffsetsResponse(node_id, by_partition, ms(exchange.message.throttle_time))


def _offset(topic: Any, entry: Any, asked: Mapping[TopicPartition, int]) -> PartitionOffset:
    partition = TopicPartition(str(topic.name), int(entry.partition_index))
    check(partition in asked, "%s unasked", partition)
    # Every log has a start and an end; that no record is as late as a time is no error.
    smallest = 0 if asked[partition] < 0 and entry.error_code == 0 else -1
    check(entry.offset >= smallest and entry.leader_epoch >= -1, "a negative offset or epoch for %s", partition)
    return PartitionOffset(partition, int(entry.error_code), int(entry.offset), int(entry.leader_epoch))


def _epoch_end(topic: Any, entry: Any, asked: Mapping[TopicPartition, int]) -> PartitionOffset:
    partition = TopicPartition(str(topic.topic), int(entry.partition))
    check(partition in asked, "%s unasked", partition)
    check(entry.end_offset >= -1 and entry.leader_epoch >= -1, "a negative offset or epoch for %s", partition)
    return PartitionOffset(partition, int(entry.error_code), int(entry.end_offset), int(entry.leader_epoch))
