"""The metadata of topics that are written."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from pyspark_kafka_meta.errors import BrokerError
from pyspark_kafka_meta.kafka.protocol.error_codes import broker_error
from pyspark_kafka_meta.model import TopicPartition

if TYPE_CHECKING:
    from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient


def ask_partitions(
    client: KafkaClient, topics: Collection[str], max_block_ms: int, expected: Collection[TopicPartition] = ()
) -> None:
    """Update the cached metadata of topics, within max.block.ms.

    Raises:
        UnknownTopicError, BrokerError, ConnectError: as `KafkaClient.partitions`.
    """
    try:
        client.partitions(topics, client.clock() + max_block_ms / 1000, expected)
    except BrokerError as error:
        errors = client.cache.snapshot.topic_errors
        topic = min(topic for topic in topics if errors.get(topic) == error.code)
        raise broker_error(f"topic {topic} cannot be written", error.code, topic, "WRITE") from None
