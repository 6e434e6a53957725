"""The requests for new topics, and for the configuration of topics and brokers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark_kafka_meta.kafka.protocol.apis import CREATE_TOPICS, DESCRIBE_CONFIGS, BrokerRequest
from pyspark_kafka_meta.kafka.protocol.frame_codec import milliseconds, request_schema
from pyspark_kafka_meta.kafka.protocol.response_checks import check, printable

BROKER_RESOURCE, TOPIC_RESOURCE = 4, 2
"""Kafka's `ConfigResource.Type`."""


@dataclass(frozen=True, slots=True)
class CreateTopicRequest(BrokerRequest[str]):
    """Create a topic. The controller creates it; a broker without ZooKeeper forwards the request (KIP-590). The result
    is the broker's error text, "" without one.

    Attributes:
        timeout_ms: how long the controller waits until the topic is created.
    """

    api = CREATE_TOPICS
    topic: str
    partitions: int
    replicas: int
    config: Mapping[str, str]
    timeout_ms: int

    def encode(self, version: int) -> Any:
        schema = request_schema(CREATE_TOPICS, version)
        topic = schema.CreatableTopic(
            name=self.topic,
            num_partitions=self.partitions,
            replication_factor=self.replicas,
            assignments=(),
            configs=tuple(schema.CreatableTopicConfig(name=name, value=value) for name, value in self.config.items()),
        )
        return schema.CreateTopicsRequest(topics=(topic,), timeout=milliseconds(self.timeout_ms))

    def outcome(self, message: Any, version: int) -> tuple[int, str]:
        check([topic.name for topic in message.topics] == [self.topic], "no or unrequested topics")
        (topic,) = message.topics
        return topic.error_code, printable(topic.error_message or "")


@dataclass(frozen=True, slots=True)
class DescribeConfigsRequest(BrokerRequest[Mapping[str, str]]):
    """The configuration of a topic, from any broker, or of a broker, from itself. The result lacks secret values.

    Attributes:
        names: of the values; empty for all.
    """

    api = DESCRIBE_CONFIGS
    resource_type: int
    resource: str
    names: tuple[str, ...] = ()

    def encode(self, version: int) -> Any:
        schema = request_schema(DESCRIBE_CONFIGS, version)
        resource = schema.DescribeConfigsResource(
            resource_type=self.resource_type, resource_name=self.resource, configuration_keys=self.names or None
        )
        return schema.DescribeConfigsRequest(resources=(resource,))

    def outcome(self, message: Any, version: int) -> tuple[int, dict[str, str]]:
        found = [(result.resource_type, result.resource_name) for result in message.results]
        check(found == [(self.resource_type, self.resource)], "no or unrequested configurations")
        (result,) = message.results
        config = {str(entry.name): str(entry.value) for entry in result.configs if entry.value is not None}
        return result.error_code, config
