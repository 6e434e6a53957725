"""`ConsumerGroup`: lists and alters the committed offsets of a consumer group, without joining it.

Through confluent-kafka's AdminClient (KIP-396), so that tools for consumer lag see a query's progress.
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
from pyspark_kafka_meta.kafka.network.security.librdkafka_config import new_client
from pyspark_kafka_meta.kafka.network.security.sasl_login import redacted
from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.options import ClientOptions

COORDINATOR_TIMEOUT_S = 10.0
COMMIT_TIMEOUT_S = 5.0
"""Bound of a micro-batch's wait for a commit that only tools read."""
COORDINATOR_BACKOFF_S = 0.2
NO_COORDINATOR_CODES = frozenset({14, 15, 16})
"""COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE and NOT_COORDINATOR."""


class ConsumerGroup:
    """One group. Keeps its admin client, because a new client takes 50 ms to find the group's coordinator."""

    def __init__(self, options: ClientOptions, name: str) -> None:
        self._options = options
        self._name = name
        self._admin: AdminClient | None = None

    def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The committed offsets of `partitions`, without partitions that have none.

        Raises:
            BrokerError: the group may not be read, or no broker responded in time.
            OptionError: the security options are not valid.
        """
        requested = [GroupPartition(*partition) for partition in sorted(partitions)]
        request = ConsumerGroupTopicPartitions(self._name, requested or None)
        listed = self._request(
            "listed",
            lambda admin, _: admin.list_consumer_group_offsets([request], request_timeout=self._timeout_s),
            COORDINATOR_TIMEOUT_S,
        )
        known = {TopicPartition(found.topic, found.partition): found.offset for found in listed if found.offset >= 0}
        return {partition: offset for partition, offset in known.items() if partition in partitions}

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Set the committed offsets of the group.

        Raises:
            BrokerError: the commit was refused, as while the group has members, or no broker responded in time.
            OptionError: the security options are not valid.
        """
        committed = [GroupPartition(*partition, offset) for partition, offset in sorted(offsets.items())]
        request = ConsumerGroupTopicPartitions(self._name, committed)
        self._request(
            "committed",
            lambda admin, left_s: admin.alter_consumer_group_offsets([request], request_timeout=left_s),
            min(self._timeout_s, COMMIT_TIMEOUT_S),
        )

    def _request(
        self, verb: str, send: Callable[[AdminClient, float], Mapping[str, Future[Any]]], timeout_s: float
    ) -> list[GroupPartition]:
        """Send the request again while the group's coordinator is being created or moved.

        Args:
            send: takes the client and the seconds that are left.
        """
        deadline = time.monotonic() + timeout_s
        if self._admin is None:
            settings = {"client.id": self._options.client_id}
            self._admin = new_client(AdminClient, self._options.bootstrap_servers, self._options.security, settings)
        self._admin.poll(0)  # forwards the log messages of librdkafka
        while True:
            try:
                response = send(self._admin, max(deadline - time.monotonic(), 0.1))[self._name].result()
                partitions: list[GroupPartition] = response.topic_partitions
                errors = [partition.error for partition in partitions if partition.error is not None]
                if not errors:
                    return partitions
                error = errors[0]
            except KafkaException as exception:
                error = exception.args[0]
            if error.code() not in NO_COORDINATOR_CODES or time.monotonic() >= deadline:
                self._admin = None  # its keys or passwords may be outdated
                text = redacted(error.str(), self._options.security)
                raise BrokerError(
                    f"the offsets of consumer group {self._name} could not be {verb}: {text}. {_advice(error.code())}",
                    error.code(),
                )
            time.sleep(COORDINATOR_BACKOFF_S)

    @property
    def _timeout_s(self) -> float:
        return self._options.default_api_timeout_ms / 1000


def _advice(code: int) -> str:
    if code in NO_COORDINATOR_CODES:
        return (
            "No broker coordinates the group: check that as many brokers are up as offsets.topic.replication.factor of "
            "the brokers says"
        )
    return "Check that the group may be read and written, and has no members"
