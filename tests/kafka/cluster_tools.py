"""What operators do to a cluster, as far as the faults need it: place topics, move replicas, hold elections, and wait
until it has come about."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any, TypeVar
from uuid import UUID

from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.alter_client_quotas.v0 import request as quotas
from kio.schema.alter_partition_reassignments.v0 import request as reassignments
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import f64, i32

from pyspark_kafka_meta.errors import KafkaMetaError
from pyspark_kafka_meta.model import Address, TopicMetadata
from pyspark_kafka_meta.testing import LocalKafka
from pyspark_kafka_meta.wire.codec import Api
from pyspark_kafka_meta.wire.connection import Connection, ConnectionSettings
from pyspark_kafka_meta.wire.kafka_wire import KafkaWire

ALTER_CLIENT_QUOTAS = Api("alter_client_quotas", 49, 0, 0)
ALTER_PARTITION_REASSIGNMENTS = Api("alter_partition_reassignments", 45, 0, 0)
POLL_S = 0.1

T = TypeVar("T")


def poll_until(condition: Callable[[], T], timeout_s: float = 30) -> T:
    deadline = time.monotonic() + timeout_s
    while not (result := condition()):
        assert time.monotonic() < deadline, f"still {result!r} after {timeout_s} s"
        time.sleep(POLL_S)
    return result


def as_brokers_know(bootstrap_servers: str, topic: str) -> list[TopicMetadata | None]:
    """What each broker, asked by itself, tells of a topic; KafkaMetaError if one does not answer."""
    host, port = bootstrap_servers.split(",")[0].rsplit(":", 1)
    wire = KafkaWire(ConnectionSettings("kafkameta-tests", connect_timeout_ms=5000, max_frame_bytes=1 << 24))
    try:
        first = wire.metadata(Address(host, int(port)), [topic], time.monotonic() + 10)
        answers = [wire.metadata(broker.address, [topic], time.monotonic() + 10) for broker in first.brokers]
    finally:
        wire.close()
    return [next((entry for entry in answer.topics if entry.name == topic), None) for answer in answers]


def all_brokers_know(bootstrap_servers: str, topic: str, partitions: int, but: UUID | None = None) -> bool:
    """Whether each broker names a leader for this many partitions, of a topic that is not the one with the id `but`."""
    try:
        told = as_brokers_know(bootstrap_servers, topic)
    except KafkaMetaError:  # it has not come up yet, or is slow
        return False
    return all(
        one is not None
        and sum(partition.leader_id >= 0 for partition in one.partitions) == partitions
        and (but is None or one.topic_id != but)
        for one in told
    )


def admin(cluster: LocalKafka) -> AdminClient:
    """Keep it in a variable: its requests end with it."""
    return AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})


def create_topic(
    cluster: LocalKafka, topic: str, replicas: Sequence[Sequence[int]], config: Mapping[str, str] | None = None
) -> None:
    """A topic with these replicas, by partition, that every broker knows; the first of each leads."""
    assignment = [list(one) for one in replicas]
    request = NewTopic(topic, len(assignment), replica_assignment=assignment, config=dict(config or {}))
    client = admin(cluster)
    client.create_topics([request])[topic].result(60)
    poll_until(lambda: all_brokers_know(cluster.admin_servers, topic, len(assignment)))


def delete_topic(cluster: LocalKafka, topic: str) -> None:
    client = admin(cluster)
    client.delete_topics([topic])[topic].result(60)


def partition_state(cluster: LocalKafka, topic: str, partition: int) -> Any:
    """confluent_kafka's PartitionMetadata, as some broker sees it."""
    return admin(cluster).list_topics(topic, timeout=30).topics[topic].partitions[partition]


def in_sync(cluster: LocalKafka, topic: str, replicas: int) -> bool:
    """Whether every partition of the topic has so many replicas in sync."""
    partitions = admin(cluster).list_topics(topic, timeout=30).topics[topic].partitions
    return all(len(one.isrs) == replicas for one in partitions.values())


def leads_once_elected(cluster: LocalKafka, topic: str, partition: int) -> int:
    """Hold an election for the preferred replica, and tell who leads then. Ask again where that is another one: the
    replica may not have been in sync yet."""
    elect(cluster, ElectionType.PREFERRED, topic, partition)
    return int(partition_state(cluster, topic, partition).leader)


def elect(cluster: LocalKafka, kind: ElectionType, topic: str, partition: int) -> None:
    """Hold an election; that the leader stays is no error."""
    client = admin(cluster)
    client.elect_leaders(kind, [TopicPartition(topic, partition)]).result(60)


def reassign(cluster: LocalKafka, topic: str, partition: int, replicas: Sequence[int]) -> None:
    """Give a partition these replicas, the first of which is preferred as its leader. Moves go on after this."""
    entry = reassignments.ReassignablePartition(partition_index=i32(partition), replicas=tuple(map(BrokerId, replicas)))
    request = reassignments.AlterPartitionReassignmentsRequest(
        topics=(reassignments.ReassignableTopic(name=TopicName(topic), partitions=(entry,)),)
    )
    answer = _ask(cluster, ALTER_PARTITION_REASSIGNMENTS, request)
    partitions = [one for each in answer.responses for one in each.partitions]
    assert not any(one.error_code for one in (answer, *partitions)), answer


def set_quota(cluster: LocalKafka, user: str, name: str, bytes_per_s: float | None) -> None:
    """Give a user a quota, such as consumer_byte_rate, or take it away."""
    entity = quotas.EntityData(entity_type="user", entity_name=user)
    change = quotas.OpData(key=name, value=f64(float(bytes_per_s or 0)), remove=bytes_per_s is None)
    entry = quotas.EntryData(entity=(entity,), ops=(change,))
    answer = _ask(cluster, ALTER_CLIENT_QUOTAS, quotas.AlterClientQuotasRequest(entries=(entry,), validate_only=False))
    assert not any(one.error_code for one in answer.entries), answer


def _ask(cluster: LocalKafka, api: Api, request: Any) -> Any:
    """What the controller answers, or the broker that forwards to it."""
    host, port = cluster.admin_servers.split(",")[0].split(":")
    settings = ConnectionSettings("kafkameta-tests", connect_timeout_ms=5000, max_frame_bytes=1 << 20)
    deadline = time.monotonic() + 10
    with closing(KafkaWire(settings)) as wire:
        answer = wire.metadata(Address(host, int(port)), (), deadline)
    [controller] = [one.address for one in answer.brokers if one.node_id == answer.controller_id]
    with closing(Connection(controller, settings, deadline)) as connection:
        return connection.call(api, request, deadline).message
