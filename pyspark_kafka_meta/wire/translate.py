"""The protocol library's messages to and from our types, with the checks that no answer from a broker is spared.

An answer may hold only what was asked for, each thing once; names, ids and offsets must be possible. What breaks a rule
is a `ProtocolError`, never a value passed on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar
from uuid import UUID

from pyspark_kafka_meta.errors import ProtocolError
from pyspark_kafka_meta.metadata.model import (
    Address,
    Broker,
    MetadataAnswer,
    PartitionMetadata,
    TopicMetadata,
    TopicPartition,
)
from pyspark_kafka_meta.wire import codec
from pyspark_kafka_meta.wire.codec import FETCH, LIST_OFFSETS, METADATA
from pyspark_kafka_meta.wire.connection import Exchange
from pyspark_kafka_meta.wire.messages import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    DivergingEpoch,
    FetchAnswer,
    FetchedPartition,
    FetchRequest,
    LeaderHint,
    OffsetAnswer,
    OffsetQuery,
)

MAX_BROKERS = 10_000
LOCAL_OFFSETS_SINCE = 8
"""ListOffsets knows `EARLIEST_LOCAL_TIMESTAMP` from this version on (KIP-405)."""
TOPIC_IDS_SINCE = 13
"""Fetch names topics by id from this version on (KIP-516)."""
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_HOST = re.compile(r"[!-~]{1,255}")
_MAX_LABEL = 255

K = TypeVar("K")
V = TypeVar("V")


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


def metadata_answer(exchange: Exchange, topics: Collection[str] | None) -> MetadataAnswer:
    message = exchange.message
    _check(len(message.brokers) <= MAX_BROKERS, "a Metadata answer names more than %d brokers", MAX_BROKERS)
    return MetadataAnswer(
        cluster_id=_label(message.cluster_id, "cluster id"),
        controller_id=message.controller_id,
        brokers=_unique(map(_broker, message.brokers), lambda broker: broker.node_id, "broker"),
        topics=_unique((_topic(topic, topics) for topic in message.topics), lambda topic: topic.name, "topic"),
        api_version=exchange.api_version,
        correlation_id=exchange.correlation_id,
        request_bytes=exchange.request_bytes,
        response_bytes=exchange.response_bytes,
        throttle_ms=_ms(message.throttle_time),
        error_code=int(getattr(message, "error_code", 0)),
    )


def _broker(broker: Any) -> Broker:
    _check(broker.node_id >= 0, "a broker id of %d", broker.node_id)
    _check(_HOST.fullmatch(broker.host) is not None, "an impossible host name for broker %d", broker.node_id)
    _check(0 < broker.port < 65536, "port %d for broker %d", broker.port, broker.node_id)
    return Broker(int(broker.node_id), Address(broker.host, int(broker.port)), _label(broker.rack, "rack"))


def _label(text: str | None, what: str) -> str | None:
    _check(text is None or (len(text) <= _MAX_LABEL and text.isprintable()), f"an impossible {what}")
    return text


def _topic(topic: Any, asked: Collection[str] | None) -> TopicMetadata:
    name = topic.name or ""
    # A name that breaks Kafka's rule can come back only because it was asked for (error 17).
    _check(name in asked if asked is not None else _TOPIC_NAME.fullmatch(name) is not None, "topic %r unasked", name)
    return TopicMetadata(
        name=str(name),
        topic_id=getattr(topic, "topic_id", None) or None,
        partitions=_unique(
            map(_partition, topic.partitions), lambda partition: partition.partition, f"partition of {name}"
        ),
        error_code=int(topic.error_code),
        is_internal=topic.is_internal,
    )


def _partition(partition: Any) -> PartitionMetadata:
    _check(partition.partition_index >= 0, "a partition number of %d", partition.partition_index)
    _check(partition.leader_epoch >= -1, "a leader epoch of %d", partition.leader_epoch)
    _check(partition.leader_id >= -1, "a leader id of %d", partition.leader_id)
    return PartitionMetadata(
        partition=int(partition.partition_index),
        leader_id=int(partition.leader_id),
        leader_epoch=int(partition.leader_epoch),
        replicas=tuple(map(int, partition.replica_nodes)),
        isr=tuple(map(int, partition.isr_nodes)),
        offline_replicas=tuple(map(int, partition.offline_replicas)),
        error_code=int(partition.error_code),
    )


def list_offsets_request(version: int, queries: Sequence[OffsetQuery], read_committed: bool) -> Any:
    schema = codec.request_schema(LIST_OFFSETS, version)
    return schema.ListOffsetsRequest(
        replica_id=-1,
        isolation_level=int(read_committed),
        topics=tuple(
            schema.ListOffsetsTopic(
                name=topic,
                partitions=tuple(
                    schema.ListOffsetsPartition(
                        partition_index=query.partition.partition,
                        current_leader_epoch=query.leader_epoch,
                        timestamp=_timestamp(query.timestamp, version),
                    )
                    for query in members
                ),
            )
            for topic, members in _grouped(queries, lambda query: query.partition.topic)
        ),
    )


def _timestamp(timestamp: int, version: int) -> int:
    # A broker that does not know of local offsets has no tiered storage: all of its log is local.
    return EARLIEST_TIMESTAMP if timestamp == EARLIEST_LOCAL_TIMESTAMP and version < LOCAL_OFFSETS_SINCE else timestamp


def list_offsets_answer(exchange: Exchange, queries: Sequence[OffsetQuery]) -> dict[TopicPartition, OffsetAnswer]:
    asked = {query.partition for query in queries}
    answers = _unique(
        (_offset(str(topic.name), entry, asked) for topic in exchange.message.topics for entry in topic.partitions),
        lambda answer: answer.partition,
        "partition",
    )
    return {answer.partition: answer for answer in answers}


def _offset(topic: str, entry: Any, asked: Collection[TopicPartition]) -> OffsetAnswer:
    partition = TopicPartition(topic, int(entry.partition_index))
    _check(partition in asked, "%s unasked", partition)
    _check(entry.offset >= -1 and entry.leader_epoch >= -1, "a negative offset or epoch for %s", partition)
    return OffsetAnswer(
        partition, int(entry.error_code), int(entry.offset), int(entry.timestamp), int(entry.leader_epoch)
    )


def fetch_request(version: int, request: FetchRequest) -> Any:
    schema = codec.request_schema(FETCH, version)
    by_id = version >= TOPIC_IDS_SINCE
    groups = _grouped(request.partitions, lambda entry: (entry.partition.topic, entry.topic_id))
    # Replica id left the request's body with v15; a consumer's is -1 and the default of its tagged successor.
    replica = {"replica_id": -1} if version < 15 else {}
    return schema.FetchRequest(
        max_wait=codec.milliseconds(request.max_wait_ms),
        min_bytes=request.min_bytes,
        max_bytes=request.max_bytes,
        isolation_level=int(request.read_committed),
        topics=tuple(
            schema.FetchTopic(
                **({"topic_id": topic_id} if by_id else {"topic": topic}),
                partitions=tuple(
                    schema.FetchPartition(
                        partition=entry.partition.partition,
                        current_leader_epoch=entry.leader_epoch,
                        fetch_offset=entry.fetch_offset,
                        last_fetched_epoch=entry.last_fetched_epoch,
                        partition_max_bytes=entry.max_bytes,
                    )
                    for entry in members
                ),
            )
            for (topic, topic_id), members in groups
        ),
        forgotten_topics_data=(),
        rack_id=request.rack,
        **replica,
    )


def fetch_answer(exchange: Exchange, request: FetchRequest, node_id: int) -> FetchAnswer:
    message = exchange.message
    asked = {entry.partition for entry in request.partitions}
    names: dict[UUID | None, str] = {entry.topic_id: entry.partition.topic for entry in request.partitions}
    endpoints = {broker.node_id: broker for broker in map(_broker, getattr(message, "node_endpoints", ()))}
    partitions = []
    records = iter(exchange.records)
    for topic in () if message.error_code else message.responses:
        name = names.get(topic.topic_id, "") if exchange.api_version >= TOPIC_IDS_SINCE else str(topic.topic)
        for entry in topic.partitions:
            partition = TopicPartition(name, int(entry.partition_index))
            _check(partition in asked, "%s unasked", partition)
            partitions.append(_fetched(partition, entry, next(records), endpoints))
    return FetchAnswer(
        node_id=node_id,
        error_code=int(message.error_code),
        partitions=_unique(partitions, lambda fetched: fetched.partition, "partition"),
        throttle_ms=_ms(message.throttle_time),
        response_bytes=exchange.response_bytes,
        latency_ms=exchange.latency_ms,
    )


def _fetched(
    partition: TopicPartition, entry: Any, records: memoryview, endpoints: dict[int, Broker]
) -> FetchedPartition:
    aborted = entry.aborted_transactions or ()
    # Where a broker answers with an error it states -1.
    _check(min(entry.high_watermark, entry.last_stable_offset) >= -1, "a negative offset for %s", partition)
    _check(all(one.first_offset >= 0 for one in aborted), "a transaction at a negative offset for %s", partition)
    return FetchedPartition(
        partition=partition,
        error_code=int(entry.error_code),
        records=records,
        high_watermark=int(entry.high_watermark),
        last_stable_offset=int(entry.last_stable_offset),
        aborted_transactions=tuple((int(one.producer_id), int(one.first_offset)) for one in aborted),
        leader_hint=_leader_hint(entry.current_leader, endpoints),
        diverging_epoch=_diverging_epoch(entry.diverging_epoch),
        preferred_read_replica=int(entry.preferred_read_replica),
    )


def _leader_hint(leader: Any, endpoints: dict[int, Broker]) -> LeaderHint | None:
    if leader.leader_id < 0:
        return None
    _check(leader.leader_epoch >= -1, "a leader epoch of %d", leader.leader_epoch)
    return LeaderHint(int(leader.leader_id), int(leader.leader_epoch), endpoints.get(leader.leader_id))


def _diverging_epoch(diverging: Any) -> DivergingEpoch | None:
    if diverging.end_offset < 0:
        return None
    _check(diverging.epoch >= -1, "a diverging epoch of %d", diverging.epoch)
    return DivergingEpoch(int(diverging.epoch), int(diverging.end_offset))


def _grouped(items: Iterable[V], key: Callable[[V], K]) -> list[tuple[K, list[V]]]:
    groups: dict[K, list[V]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.items())


def _unique(items: Iterable[V], key: Callable[[V], Any], what: str) -> tuple[V, ...]:
    found = tuple(items)
    _check(len({key(item) for item in found}) == len(found), "the same %s twice", what)
    return found


def _check(holds: bool, text: str, *values: object) -> None:
    if not holds:
        raise ProtocolError(f"a broker's answer names {text % values}: the answer is dropped")


def _ms(delta: Any) -> int:
    return int(delta.total_seconds() * 1000)
