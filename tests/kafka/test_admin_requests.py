"""Real brokers respond to the requests for groups, topics and configuration as the fake cluster does, which unit tests
rely on; confluent-kafka sees the same."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Named

from pyspark_kafka_meta.errors import BrokerError, ConnectError, UnsupportedBrokerError
from pyspark_kafka_meta.kafka.client.cluster_admin import ClusterAdmin
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.network.connection import Connection, ConnectionSettings
from pyspark_kafka_meta.kafka.protocol.apis import Api
from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.options import ClientOptions
from tests.kafka.cluster_tools import Cluster, all_brokers_know, poll_until
from tests.unit.scene import RecordingPublisher

pytestmark = pytest.mark.kafka
UNKNOWN_MEMBER_ID = 25
CONSUMER_GROUP_HEARTBEAT = Api("consumer_group_heartbeat", 68, 1, 1, since="4.0")
"""Kafka 3.9 offers version 0 alone, and has no groups of KIP-848 by default."""


@pytest.fixture
def client(kafka: Cluster) -> Iterator[KafkaClient]:
    options = ClientOptions.parse({"kafka.bootstrap.servers": kafka.bootstrap_servers})
    with contextlib.closing(KafkaClient(options, RecordingPublisher([]))) as made:
        yield made


@pytest.fixture
def admin(client: KafkaClient) -> ClusterAdmin:
    return ClusterAdmin(client)


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex}"


def consumer(kafka: Cluster, group: str, **settings: Any) -> Consumer:
    return Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": group, "log_level": 0, **settings})


def test_offsets_of_a_group_are_a_consumers(client: KafkaClient, kafka: Cluster, topic: str, group: str) -> None:
    partitions = [TopicPartition(topic, number) for number in range(3)]
    poll_until(lambda: overwritten(client, group, partitions[1]))  # the first group of a new cluster
    assert client.groups.committed(f"{group}-other", partitions) == {}
    client.groups.commit(group, {partitions[0]: 7, partitions[2]: 0})
    assert client.groups.committed(group, partitions) == {partitions[0]: 7, partitions[1]: 1, partitions[2]: 0}
    assert client.groups.committed(group, partitions[:1]) == {partitions[0]: 7}
    with contextlib.closing(consumer(kafka, group)) as theirs:
        found = theirs.committed([Named(*partition) for partition in partitions], timeout=30)
        assert [each.offset for each in found] == [7, 1, 0]
        theirs.commit(offsets=[Named(topic, 1, 9)], asynchronous=False)
    assert client.groups.committed(group, partitions) == {partitions[0]: 7, partitions[1]: 9, partitions[2]: 0}


def test_offsets_are_committed_but_for_a_topic_that_does_not_exist(client: KafkaClient, topic: str, group: str) -> None:
    there, missing = TopicPartition(topic, 0), TopicPartition(f"missing-{uuid.uuid4().hex}", 0)
    poll_until(lambda: overwritten(client, group, there))

    assert client.groups.commit(group, {missing: 5, there: 7}) == {missing.topic}
    assert client.groups.committed(group, [there]) == {there: 7}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_group_with_members_is_kept(client: KafkaClient, kafka: Cluster, topic: str, group: str, protocol: str) -> None:
    if protocol == "consumer" and not offers(client, CONSUMER_GROUP_HEARTBEAT):
        pytest.skip("these brokers have no groups of KIP-848")
    partition = TopicPartition(topic, 0)
    with contextlib.closing(consumer(kafka, group, **{"group.protocol": protocol})) as member:
        member.subscribe([topic])
        poll_until(lambda: (member.poll(0.1), member.assignment())[1])
        member.commit(offsets=[Named(topic, 0, 5)], asynchronous=False)
        with pytest.raises(BrokerError, match="has no members") as refused:
            client.groups.commit(group, {partition: 1})
        assert refused.value.code == UNKNOWN_MEMBER_ID
        assert client.groups.committed(group, [partition]) == {partition: 5}
    poll_until(lambda: overwritten(client, group, partition))


def offers(client: KafkaClient, api: Api) -> bool:
    settings, deadline = ConnectionSettings.of(client.options), time.monotonic() + 10
    with (
        contextlib.closing(Connection(client.options.bootstrap_servers[0], settings, deadline)) as connection,
        contextlib.suppress(UnsupportedBrokerError),
    ):
        return connection.version(api) >= api.min_version
    return False


def overwritten(client: KafkaClient, group: str, partition: TopicPartition) -> bool:
    """Whether the group takes another offset, once it has a coordinator and its member has left."""
    with contextlib.suppress(BrokerError, ConnectError):
        client.groups.commit(group, {partition: 1})
        return client.groups.committed(group, [partition]) == {partition: 1}
    return False


def test_topic_is_created_once_as_described(client: KafkaClient, admin: ClusterAdmin, kafka: Cluster) -> None:
    name = f"made-{uuid.uuid4().hex}"
    admin.create_topic(name, 1, 2, {"cleanup.policy": "compact", "segment.bytes": "1048576"})
    poll_until(lambda: all_brokers_know(kafka.bootstrap_servers, name, partitions=1))
    admin.create_topic(name, 1, 1, {"cleanup.policy": "delete"})
    config = admin.topic_config(name)

    assert (config["cleanup.policy"], config["segment.bytes"]) == ("compact", "1048576")
    assert client.cleanup_policy(name) == "compact"
    (partition,) = client.partitions([name], client.api_deadline())
    assert len(client.cache.snapshot.topics[name].partitions[partition.partition].replicas) == 2


def test_topic_that_cannot_be_created_is_an_error_with_the_brokers_words(admin: ClusterAdmin) -> None:
    with pytest.raises(BrokerError, match=r"could not be created: INVALID_REPLICATION_FACTOR.*99"):
        admin.create_topic(f"made-{uuid.uuid4().hex}", 1, 99, {})


def test_configuration_of_a_missing_topic_is_empty(client: KafkaClient, admin: ClusterAdmin, topic: str) -> None:
    missing = f"missing-{uuid.uuid4().hex}"

    assert admin.topic_config(missing) == {}
    assert (client.cleanup_policy(missing), client.cleanup_policy(topic)) == (None, "delete")


def test_limit_of_transactions_is_that_of_the_brokers(client: KafkaClient, admin: ClusterAdmin) -> None:
    client.partitions([], client.api_deadline())

    assert admin.transaction_max_timeout_ms() == 900_000
