"""The metadata of topics that are written."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING

from pyspark_kafka_meta.errors import BrokerError, UnknownTopicError
from pyspark_kafka_meta.kafka.client.cluster_admin import ClusterAdmin
from pyspark_kafka_meta.kafka.protocol.error_codes import TOPIC_AUTHORIZATION_FAILED, broker_error
from pyspark_kafka_meta.model import RefreshReason, TopicPartition
from pyspark_kafka_meta.options import SinkOptions

if TYPE_CHECKING:
    from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient

logger = logging.getLogger(__name__)


def create_if_missing(client: KafkaClient, options: SinkOptions) -> None:
    """Create the topic of the option topic, unless it exists, and wait until brokers know it, within max.block.ms.
    Others may create it meanwhile.

    Raises:
        BrokerError, UnsupportedBrokerError: the cluster refuses it.
        ConnectError, UnknownTopicError, AuthorizationError: as `wait_for_new_topic`.
    """
    assert options.topic is not None, "createTopics needs it"
    deadline = client.clock() + options.producer.max_block_ms / 1000
    client.cache.track([options.topic])
    client.cache.refresh(RefreshReason.NEW_TOPIC, deadline)
    if client.cache.snapshot.partitions(options.topic):
        return
    partitions, replicas = options.new_topic_partitions or -1, options.new_topic_replicas or -1
    try:
        is_new = ClusterAdmin(client).create_topic(options.topic, partitions, replicas, dict(options.new_topic_config))
    except BrokerError as error:
        advice = "Correct the options newTopic..., allow this user CREATE and WRITE on it, or create it yourself"
        raise BrokerError(f"{error}. {advice}", error.code) from None
    if is_new:
        logger.warning("created topic %s, because createTopics is true", options.topic)
    wait_for_new_topic(client, options.topic, deadline)


def wait_for_new_topic(client: KafkaClient, topic: str, deadline: float) -> None:
    """Wait until the broker that is asked knows a topic that was just created.

    Raises:
        ConnectError, UnknownTopicError: no broker responds, or none knows it in time.
        AuthorizationError: this user may create it, but not write it.
    """
    failures = 0
    while not client.cache.snapshot.partitions(topic):
        failures += 1
        client.sleep(client.backoff_s(failures))
        if client.clock() >= deadline:
            raise UnknownTopicError(f"no broker knows topic {topic}, which was just created: start the query again")
        client.cache.refresh(RefreshReason.NEW_TOPIC, deadline)
        if client.cache.snapshot.topic_errors.get(topic) == TOPIC_AUTHORIZATION_FAILED:
            problem = f"topic {topic} was created, but cannot be written"
            raise broker_error(problem, TOPIC_AUTHORIZATION_FAILED, topic, "WRITE")


def ask_partitions(
    client: KafkaClient, topics: Collection[str], max_block_ms: int, expected: Collection[TopicPartition] = ()
) -> None:
    """Update the cached metadata of topics, within max.block.ms. Raises UnknownTopicError, BrokerError, ConnectError:
    as `KafkaClient.partitions`."""
    try:
        client.partitions(topics, client.clock() + max_block_ms / 1000, expected)
    except BrokerError as error:
        errors = client.cache.snapshot.topic_errors
        topic = min(topic for topic in topics if errors.get(topic) == error.code)
        raise broker_error(f"topic {topic} cannot be written", error.code, topic, "WRITE") from None
