"""A consumer group's committed offsets, asked for and set from outside: nobody joins the group.

Through confluent-kafka's AdminClient (KIP-396), so that tools which watch a group's lag see a query's progress.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException
from confluent_kafka import TopicPartition as GroupPartition
from confluent_kafka.admin import AdminClient

from pyspark_kafka_meta.errors import BrokerError
from pyspark_kafka_meta.metadata.model import TopicPartition
from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.wire.security.librdkafka import librdkafka_settings


def committed_offsets(
    options: ClientOptions, group: str, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """Of `partitions`, those for which the group has committed an offset, and the next one that it would read.

    Raises:
        BrokerError: the group may not be looked at, or nobody answered in time.
    """
    asked = [GroupPartition(one.topic, one.partition) for one in sorted(partitions)]
    request = ConsumerGroupTopicPartitions(group, asked or None)
    admin = _admin(options)
    future = admin.list_consumer_group_offsets([request], request_timeout=_timeout_s(options))[group]
    try:
        answer = future.result().topic_partitions
    except KafkaException as error:
        raise _refused("asked for", group, error) from None
    known = {TopicPartition(one.topic, one.partition): one.offset for one in answer if one.offset >= 0}
    return {one: offset for one, offset in known.items() if one in partitions}


def commit_offsets(options: ClientOptions, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Set what the group has read.

    Raises:
        BrokerError: it was refused, as it is while the group has members, or nobody answered in time.
    """
    wanted = [GroupPartition(one.topic, one.partition, offset) for one, offset in sorted(offsets.items())]
    request = ConsumerGroupTopicPartitions(group, wanted)
    admin = _admin(options)
    future = admin.alter_consumer_group_offsets([request], request_timeout=_timeout_s(options))[group]
    try:
        failed = [one.error for one in future.result().topic_partitions if one.error is not None]
    except KafkaException as error:
        raise _refused("committed to", group, error) from None
    if failed:
        raise _refused("committed to", group, KafkaException(failed[0]))


def _admin(options: ClientOptions) -> AdminClient:
    """Keep it in a variable: its requests end with it."""
    return AdminClient(
        {"client.id": options.client_id, **librdkafka_settings(options.security, options.bootstrap_servers)}
    )


def _timeout_s(options: ClientOptions) -> float:
    return options.default_api_timeout_ms / 1000


def _refused(what: str, group: str, error: KafkaException) -> BrokerError:
    cause = error.args[0]
    return BrokerError(
        f"the offsets of consumer group {group} could not be {what}: {cause.str()}. Check that it may be read and "
        "written, and that it has no members",
        cause.code(),
    )
