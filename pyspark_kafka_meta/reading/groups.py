"""A consumer group's committed offsets, asked for and set from outside: nobody joins the group.

Through confluent-kafka's AdminClient (KIP-396), so that tools which watch a group's lag see a query's progress.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException
from confluent_kafka import TopicPartition as GroupPartition
from confluent_kafka.admin import AdminClient

from pyspark_kafka_meta.errors import BrokerError
from pyspark_kafka_meta.metadata.model import TopicPartition
from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.wire.security.librdkafka import new_client
from pyspark_kafka_meta.wire.security.login import shown

COORDINATOR_PATIENCE_S = 10.0
COMMIT_PATIENCE_S = 5.0
"""So long a micro-batch may wait for a commit that only tools look at."""
COORDINATOR_PAUSE_S = 0.2
NO_COORDINATOR_CODES = frozenset({14, 15, 16})
"""COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE and NOT_COORDINATOR."""


def committed_offsets(
    options: ClientOptions, group: str, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """Of `partitions`, those for which the group has committed an offset, and the next one that it would read.

    Raises:
        BrokerError: the group may not be looked at, or nobody answered in time.
        OptionError: no client can be made with the security options.
    """
    asked = [GroupPartition(one.topic, one.partition) for one in sorted(partitions)]
    request = ConsumerGroupTopicPartitions(group, asked or None)
    answer = _ask(
        options,
        f"offsets of consumer group {group} could not be asked for",
        lambda admin: admin.list_consumer_group_offsets([request], request_timeout=_timeout_s(options))[group],
        COORDINATOR_PATIENCE_S,
    )
    known = {TopicPartition(one.topic, one.partition): one.offset for one in answer if one.offset >= 0}
    return {one: offset for one, offset in known.items() if one in partitions}


def commit_offsets(options: ClientOptions, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Set what the group has read.

    Raises:
        BrokerError: it was refused, as it is while the group has members, or nobody answered in time.
        OptionError: no client can be made with the security options.
    """
    wanted = [GroupPartition(one.topic, one.partition, offset) for one, offset in sorted(offsets.items())]
    request = ConsumerGroupTopicPartitions(group, wanted)
    timeout_s = min(_timeout_s(options), COMMIT_PATIENCE_S)
    _ask(
        options,
        f"offsets of consumer group {group} could not be committed",
        lambda admin: admin.alter_consumer_group_offsets([request], request_timeout=timeout_s)[group],
        timeout_s,
    )


def _ask(
    options: ClientOptions, problem: str, ask: Callable[[AdminClient], Any], patience_s: float
) -> list[GroupPartition]:
    """Again for a while where the group's coordinator is only being made or moved."""
    admin, deadline = _admin(options), time.monotonic() + patience_s
    while True:
        try:
            found: list[GroupPartition] = ask(admin).result().topic_partitions
            failed = [one.error for one in found if one.error is not None]
            if not failed:
                return found
            error = failed[0]
        except KafkaException as refusal:
            error = refusal.args[0]
        if error.code() not in NO_COORDINATOR_CODES or time.monotonic() >= deadline:
            said = shown(error.str(), options.security)
            raise BrokerError(
                f"the {problem}: {said}. Check that the group may be read and written, and has no members",
                error.code(),
            )
        time.sleep(COORDINATOR_PAUSE_S)


def _admin(options: ClientOptions) -> AdminClient:
    """Keep it in a variable: its requests end with it."""
    return new_client(AdminClient, options.bootstrap_servers, options.security, {"client.id": options.client_id})


def _timeout_s(options: ClientOptions) -> float:
    return options.default_api_timeout_ms / 1000
