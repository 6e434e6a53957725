"""A consumer group's committed offsets, asked for and set from outside, without joining the group.

Through confluent-kafka's AdminClient (KIP-396), so that tools which watch a group's lag see a query's progress.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException
from confluent_kafka import TopicPartition as GroupPartition
from confluent_kafka.admin import AdminClient

from pyspark_kafka_meta.errors import BrokerError
from pyspark_kafka_meta.kafka_errors import COORDINATOR_UNAVAILABLE
from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.wire.security.librdkafka_config import new_client
from pyspark_kafka_meta.wire.security.sasl_login import shown

COORDINATOR_PATIENCE_S = 10.0
COMMIT_PATIENCE_S = 5.0
"""How long a micro-batch may wait for a commit that only tools look at."""
COORDINATOR_PAUSE_S = 0.2


class ConsumerGroup:
    """One group, asked by a client that is kept: a new one takes 50 ms to find the group's coordinator."""

    def __init__(self, options: ClientOptions, name: str) -> None:
        self._options = options
        self._name = name
        self._admin: AdminClient | None = None

    def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The next offset that the group would read in each of `partitions` for which it has committed one.

        Raises:
            BrokerError: the group may not be looked at, or nobody answered in time.
            OptionError: no client can be made with the security options.
        """
        asked = [GroupPartition(one.topic, one.partition) for one in sorted(partitions)]
        request = ConsumerGroupTopicPartitions(self._name, asked or None)
        answer = self._ask(
            "asked for",
            lambda admin, _: admin.list_consumer_group_offsets([request], request_timeout=self._timeout_s),
            COORDINATOR_PATIENCE_S,
        )
        known = {TopicPartition(one.topic, one.partition): one.offset for one in answer if one.offset >= 0}
        return {one: offset for one, offset in known.items() if one in partitions}

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Set what the group has read.

        Raises:
            BrokerError: it was refused, as it is while the group has members, or nobody answered in time.
            OptionError: no client can be made with the security options.
        """
        wanted = [GroupPartition(one.topic, one.partition, offset) for one, offset in sorted(offsets.items())]
        request = ConsumerGroupTopicPartitions(self._name, wanted)
        self._ask(
            "committed",
            lambda admin, left_s: admin.alter_consumer_group_offsets([request], request_timeout=left_s),
            min(self._timeout_s, COMMIT_PATIENCE_S),
        )

    def _ask(
        self, what: str, ask: Callable[[AdminClient, float], Mapping[str, Future[Any]]], patience_s: float
    ) -> list[GroupPartition]:
        """Again for a while where the group's coordinator is only being made or moved.

        Args:
            ask: given the client and how much of the patience is left, in seconds.
        """
        deadline = time.monotonic() + patience_s
        if self._admin is None:
            settings = {"client.id": self._options.client_id}
            self._admin = new_client(AdminClient, self._options.bootstrap_servers, self._options.security, settings)
        self._admin.poll(0)  # hands on what librdkafka has logged since the last time
        while True:
            try:
                answer = ask(self._admin, max(deadline - time.monotonic(), 0.1))[self._name].result()
                found: list[GroupPartition] = answer.topic_partitions
                failed = [one.error for one in found if one.error is not None]
                if not failed:
                    return found
                error = failed[0]
            except KafkaException as refusal:
                error = refusal.args[0]
            if error.code() not in COORDINATOR_UNAVAILABLE or time.monotonic() >= deadline:
                self._admin = None  # a key or a password may have changed since it was made
                said = shown(error.str(), self._options.security)
                raise BrokerError(
                    f"the offsets of consumer group {self._name} could not be {what}: {said}. Check that the group may "
                    "be read and written, and has no members",
                    error.code(),
                )
            time.sleep(COORDINATOR_PAUSE_S)

    @property
    def _timeout_s(self) -> float:
        return self._options.default_api_timeout_ms / 1000
