"""The requests for the offsets of consumer groups, and for topics and their configuration: our own types, and their
translation to the protocol library's messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from pyspark_kafka_meta.kafka.protocol import frame_codec, transactions
from pyspark_kafka_meta.kafka.protocol.error_codes import UNKNOWN_TOPIC_OR_PARTITION
from pyspark_kafka_meta.kafka.protocol.frame_codec import (
    CREATE_TOPICS,
    DESCRIBE_CONFIGS,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    Api,
    Exchange,
)
from pyspark_kafka_meta.kafka.protocol.response_checks import check, grouped, ms, printable, unique
from pyspark_kafka_meta.kafka.protocol.transactions import CoordinatorResponse, FindCoordinatorRequest, Translation
from pyspark_kafka_meta.model import TopicPartition

BROKER_RESOURCE, TOPIC_RESOURCE = 4, 2
"""Kafka's `ConfigResource.Type`."""


@dataclass(frozen=True, slots=True)
class OffsetFetchRequest:
    """The committed offsets of a group, from its coordinator. An open transaction does not hide the offset before."""

    group: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class OffsetFetchResponse:
    """`offsets` has the partitions with a committed offset. `error_code` is the first of the group or a partition."""

    node_id: int
    error_code: int
    offsets: Mapping[TopicPartition, int]
    throttle_ms: int = 0


@dataclass(frozen=True, slots=True)
class OffsetCommitRequest:
    """Set the committed offsets of a group, at its coordinator. It refuses this while the group has members, because
    the request is not of a member (KIP-396, and KIP-848 for the newer groups)."""

    group: str
    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class OffsetCommitResponse:
    """`error_code` is the first of a partition, but for `missing_topics`, which the broker does not know."""

    node_id: int
    error_code: int
    missing_topics: frozenset[str] = frozenset()
    throttle_ms: int = 0


@dataclass(frozen=True, slots=True)
class CreateTopicRequest:
    """Create a topic. The controller creates it; a broker without ZooKeeper forwards the request (KIP-590).

    Attributes:
        timeout_ms: how long the controller waits until the topic is created.
    """

    topic: str
    partitions: int
    replicas: int
    config: Mapping[str, str]
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class CreateTopicResponse:
    """`error_text` is the broker's, "" without one."""

    node_id: int
    error_code: int
    error_text: str
    throttle_ms: int = 0


@dataclass(frozen=True, slots=True)
class DescribeConfigsRequest:
    """The configuration of a topic, from any broker, or of a broker, from itself.

    Attributes:
        names: of the values; empty for all.
    """

    resource_type: int
    resource: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribeConfigsResponse:
    """`config` is empty with an error, and lacks secret values."""

    node_id: int
    error_code: int
    config: Mapping[str, str]
    throttle_ms: int = 0


AdminRequest: TypeAlias = (
    FindCoordinatorRequest | OffsetFetchRequest | OffsetCommitRequest | CreateTopicRequest | DescribeConfigsRequest
)
AdminResponse: TypeAlias = (
    CoordinatorResponse | OffsetFetchResponse | OffsetCommitResponse | CreateTopicResponse | DescribeConfigsResponse
)

SEVERAL_GROUPS_SINCE = 8
"""First version of OffsetFetch for several groups (KIP-709)."""


def admin_api(request: AdminRequest) -> Api:
    """The API with the versions that this request may have."""
    return TRANSLATIONS[type(request)].api


def admin_request(version: int, request: AdminRequest) -> Any:
    return TRANSLATIONS[type(request)].request(version, request)


def admin_response(exchange: Exchange, request: AdminRequest, node_id: int) -> AdminResponse:
    response: AdminResponse = TRANSLATIONS[type(request)].response(exchange, request, node_id)
    return response


def _offset_fetch_request(version: int, request: OffsetFetchRequest) -> Any:
    schema = frame_codec.request_schema(OFFSET_FETCH, version)
    by_groups = version >= SEVERAL_GROUPS_SINCE
    topic_class = schema.OffsetFetchRequestTopics if by_groups else schema.OffsetFetchRequestTopic
    topics = tuple(
        topic_class(name=topic, partition_indexes=tuple(member.partition for member in members))
        for topic, members in grouped(request.partitions, lambda partition: partition.topic)
    )
    if by_groups:
        group = schema.OffsetFetchRequestGroup(group_id=request.group, topics=topics)
        return schema.OffsetFetchRequest(groups=(group,))
    return schema.OffsetFetchRequest(group_id=request.group, topics=topics)


def _offset_fetch_response(exchange: Exchange, request: OffsetFetchRequest, node_id: int) -> OffsetFetchResponse:
    group = message = exchange.message
    if exchange.api_version >= SEVERAL_GROUPS_SINCE:
        check([found.group_id for found in message.groups] == [request.group], "no or unrequested groups")
        (group,) = message.groups
    entries, code = _by_partition(group.topics), int(group.error_code)
    is_complete = entries.keys() == set(request.partitions) or (code != 0 and not entries)
    check(is_complete, "other partitions than requested")
    codes = [code, *(int(entry.error_code) for entry in entries.values())]
    offsets = {part: int(entry.committed_offset) for part, entry in entries.items() if entry.committed_offset >= 0}
    return OffsetFetchResponse(node_id, _first_error(codes), offsets, ms(message.throttle_time))


def _offset_commit_request(version: int, request: OffsetCommitRequest) -> Any:
    schema = frame_codec.request_schema(OFFSET_COMMIT, version)

    def partition(part: TopicPartition) -> Any:
        return schema.OffsetCommitRequestPartition(
            partition_index=part.partition, committed_offset=request.offsets[part], committed_metadata=""
        )

    topics = tuple(
        schema.OffsetCommitRequestTopic(name=topic, partitions=tuple(map(partition, members)))
        for topic, members in grouped(request.offsets, lambda part: part.topic)
    )
    return schema.OffsetCommitRequest(group_id=request.group, member_id="", topics=topics)


def _offset_commit_response(exchange: Exchange, request: OffsetCommitRequest, node_id: int) -> OffsetCommitResponse:
    entries = _by_partition(exchange.message.topics)
    check(entries.keys() == request.offsets.keys(), "other partitions than requested")
    codes = {part: int(entry.error_code) for part, entry in entries.items()}
    missing = frozenset(part.topic for part, code in codes.items() if code == UNKNOWN_TOPIC_OR_PARTITION)
    code = _first_error([code for part, code in codes.items() if part.topic not in missing])
    return OffsetCommitResponse(node_id, code, missing, ms(exchange.message.throttle_time))


def _by_partition(topics: Any) -> dict[TopicPartition, Any]:
    """The entries of a response about the offsets of a group."""
    entries = [
        (TopicPartition(str(topic.name), int(entry.partition_index)), entry)
        for topic in topics
        for entry in topic.partitions
    ]
    return dict(unique(entries, lambda pair: pair[0], "partition"))


def _first_error(codes: list[int]) -> int:
    return next((code for code in codes if code != 0), 0)


def _create_topic_request(version: int, request: CreateTopicRequest) -> Any:
    schema = frame_codec.request_schema(CREATE_TOPICS, version)
    topic = schema.CreatableTopic(
        name=request.topic,
        num_partitions=request.partitions,
        replication_factor=request.replicas,
        assignments=(),
        configs=tuple(schema.CreatableTopicConfig(name=name, value=value) for name, value in request.config.items()),
    )
    return schema.CreateTopicsRequest(topics=(topic,), timeout=frame_codec.milliseconds(request.timeout_ms))


def _create_topic_response(exchange: Exchange, request: CreateTopicRequest, node_id: int) -> CreateTopicResponse:
    message = exchange.message
    check([topic.name for topic in message.topics] == [request.topic], "no or unrequested topics")
    (topic,) = message.topics
    text = printable(topic.error_message or "")
    return CreateTopicResponse(node_id, int(topic.error_code), text, ms(message.throttle_time))


def _describe_configs_request(version: int, request: DescribeConfigsRequest) -> Any:
    schema = frame_codec.request_schema(DESCRIBE_CONFIGS, version)
    resource = schema.DescribeConfigsResource(
        resource_type=request.resource_type,
        resource_name=request.resource,
        configuration_keys=request.names or None,
    )
    return schema.DescribeConfigsRequest(resources=(resource,))


def _describe_configs_response(
    exchange: Exchange, request: DescribeConfigsRequest, node_id: int
) -> DescribeConfigsResponse:
    message = exchange.message
    found = [(result.resource_type, result.resource_name) for result in message.results]
    check(found == [(request.resource_type, request.resource)], "no or unrequested configurations")
    (result,) = message.results
    config = {str(entry.name): str(entry.value) for entry in result.configs if entry.value is not None}
    return DescribeConfigsResponse(node_id, int(result.error_code), config, ms(message.throttle_time))


TRANSLATIONS: Mapping[type[AdminRequest], Translation] = {
    FindCoordinatorRequest: transactions.TRANSLATIONS[FindCoordinatorRequest],
    OffsetFetchRequest: Translation(OFFSET_FETCH, _offset_fetch_request, _offset_fetch_response),
    OffsetCommitRequest: Translation(OFFSET_COMMIT, _offset_commit_request, _offset_commit_response),
    CreateTopicRequest: Translation(CREATE_TOPICS, _create_topic_request, _create_topic_response),
    DescribeConfigsRequest: Translation(DESCRIBE_CONFIGS, _describe_configs_request, _describe_configs_response),
}
