"""`TopicPatternWire`: requests Metadata of all topics, and passes on the topics that match subscribePattern.

Follows Spark's `ConsumerStrategy`, which matches a part of a name, unlike Kafka's consumer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from pyspark_kafka_meta.kafka.metadata.cache import MetadataWire
from pyspark_kafka_meta.kafka.protocol.error_codes import UNKNOWN_TOPIC_OR_PARTITION
from pyspark_kafka_meta.model import Address, MetadataResponse, TopicMetadata


class TopicPatternWire:
    """The wire of a cache that discovers topics whose names `matches` accepts."""

    def __init__(self, wire: MetadataWire, matches: Callable[[str], bool]) -> None:
        self._wire = wire
        self._matches = matches
        self._topics: frozenset[str] = frozenset()  # of the in-flight request

    def send_metadata(self, address: Address, topics: Collection[str] | None, deadline: float) -> None:
        """Request all topics."""
        self._topics = frozenset(topics or ())
        self._wire.send_metadata(address, None, deadline)

    def receive_metadata(self, deadline: float) -> MetadataResponse | None:
        """The matching topics. Requested topics that are missing are added as unknown, as in a request by name."""
        answer = self._wire.receive_metadata(deadline)
        if answer is None:
            return None
        found = tuple(topic for topic in answer.topics if not topic.is_internal and self._matches(topic.name))
        missing = sorted(self._topics - {topic.name for topic in found})
        unknown = tuple(TopicMetadata(name, None, (), UNKNOWN_TOPIC_OR_PARTITION) for name in missing)
        return replace(answer, topics=found + unknown)
