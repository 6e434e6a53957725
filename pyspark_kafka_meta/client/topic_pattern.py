"""`MatchingWire`: Metadata of all topics, of which only those that match a pattern are passed on.

Follows Spark's `ConsumerStrategy`, which accepts a part of a name, unlike Kafka's consumer.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

from pyspark_kafka_meta.kafka_errors import UNKNOWN_TOPIC_OR_PARTITION
from pyspark_kafka_meta.metadata.cache import MetadataWire
from pyspark_kafka_meta.model import Address, MetadataResponse, TopicMetadata


class MatchingWire:
    """What a cache asks through, so that topics with a match of `pattern` in their name come into it by themselves."""

    def __init__(self, wire: MetadataWire, pattern: str) -> None:
        self._wire = wire
        self._matches = re.compile(pattern).search
        self._topics: frozenset[str] = frozenset()  # asked for by the request under way

    def send_metadata(self, address: Address, topics: Collection[str] | None, deadline: float) -> None:
        """Ask for all topics."""
        self._topics = frozenset(topics or ())
        self._wire.send_metadata(address, None, deadline)

    def receive_metadata(self, deadline: float) -> MetadataResponse | None:
        """The topics that match. Topics asked for that the answer lacks come as unknown, as if asked for by name."""
        answer = self._wire.receive_metadata(deadline)
        if answer is None:
            return None
        found = tuple(one for one in answer.topics if not one.is_internal and self._matches(one.name))
        lacking = sorted(self._topics - {one.name for one in found})
        unknown = tuple(TopicMetadata(name, None, (), UNKNOWN_TOPIC_OR_PARTITION) for name in lacking)
        return replace(answer, topics=found + unknown)
