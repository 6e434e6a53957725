"""Metadata: the request, and its response in the types of `model`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from pyspark_kafka_meta.kafka.protocol.apis import METADATA, ApiRequest, Exchange
from pyspark_kafka_meta.kafka.protocol.error_codes import INVALID_TOPIC_EXCEPTION
from pyspark_kafka_meta.kafka.protocol.frame_codec import request_schema
from pyspark_kafka_meta.kafka.protocol.response_checks import broker, check, checked_text, ms, unique
from pyspark_kafka_meta.model import MetadataResponse, PartitionMetadata, TopicMetadata
from pyspark_kafka_meta.value_checks import is_topic_name

MAX_BROKERS = 10_000


@dataclass(frozen=True, slots=True)
class MetadataRequest(ApiRequest[MetadataResponse]):
    """The brokers, and these topics; None for all. Requests only names that Kafka allows, and the response has the
    error of a broker for the others: a broker closes the connection at a name that its response cannot hold, and would
    not respond for the other topics."""

    api = METADATA
    topics: Collection[str] | None

    def encode(self, version: int) -> Any:
        schema = request_schema(METADATA, version)
        by_id = {} if version < 10 else {"topic_id": None}
        # Kafka removed the cluster operations from the request in v11.
        cluster_operations = {"include_cluster_authorized_operations": False} if version <= 10 else {}
        return schema.MetadataRequest(
            topics=None
            if self.topics is None
            else tuple(
                schema.MetadataRequestTopic(name=name, **by_id) for name in sorted(self.topics) if is_topic_name(name)
            ),
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
            **cluster_operations,
        )

    def decode(self, exchange: Exchange, node_id: int) -> MetadataResponse:
        message = exchange.message
        refused = {name for name in self.topics or () if not is_topic_name(name)}
        requested = None if self.topics is None else set(self.topics) - refused
        check(len(message.brokers) <= MAX_BROKERS, "more than %d brokers", MAX_BROKERS)
        return MetadataResponse(
            cluster_id=checked_text(message.cluster_id, "cluster id"),
            controller_id=message.controller_id,
            brokers=unique(map(broker, message.brokers), lambda known: known.node_id, "broker"),
            topics=(
                *unique((_topic(topic, requested) for topic in message.topics), lambda topic: topic.name, "topic"),
                *(TopicMetadata(name, None, (), INVALID_TOPIC_EXCEPTION) for name in sorted(refused)),
            ),
            api_version=exchange.api_version,
            correlation_id=exchange.correlation_id,
            request_bytes=exchange.request_bytes,
            response_bytes=exchange.response_bytes,
            throttle_ms=ms(message.throttle_time),
            error_code=int(getattr(message, "error_code", 0)),
        )


def _topic(topic: Any, requested: Collection[str] | None) -> TopicMetadata:
    name = topic.name or ""
    is_requested = is_topic_name(name) if requested is None else name in requested
    check(is_requested, "unrequested topic '%s'", name)
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
