"""Operations on a cluster that fault tests need: create topics, move replicas, hold elections, set quotas and ACLs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar
from uuid import UUID

from confluent_kafka import ElectionType, KafkaException
from confluent_kafka import TopicPartition as Partition
from confluent_kafka.admin import AclBinding, AdminClient, NewTopic
from kio.schema.alter_client_quotas.v0 import request as quotas
from kio.schema.alter_partition_reassignments.v0 import request as reassignments
from kio.schema.describe_acls.v2 import request as acls
from kio.schema.types import BrokerId, TopicName
from kio.schema.update_features.v1 import request as features
from kio.static.primitive import f64, i8, i16, i32

from pyspark_kafka_meta.errors import KafkaMetaError
from pyspark_kafka_meta.events.event import Origin, Role
from pyspark_kafka_meta.events.publisher import client_without_events
from pyspark_kafka_meta.kafka.network.connection import Connection, ConnectionSettings
from pyspark_kafka_meta.kafka.network.kafka_network import KafkaNetwork
from pyspark_kafka_meta.kafka.protocol.apis import Api
from pyspark_kafka_meta.kafka.protocol.list_offsets import LATEST_TIMESTAMP
from pyspark_kafka_meta.model import Address, TopicMetadata, TopicPartition, TransactionVersion
from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.testing import LocalKafka

ALTER_CLIENT_QUOTAS = Api("alter_client_quotas", 49, 0, 0)
ALTER_PARTITION_REASSIGNMENTS = Api("alter_partition_reassignments", 45, 0, 0)
DESCRIBE_ACLS = Api("describe_acls", 29, 2, 2)
UPDATE_FEATURES = Api("update_features", 57, 1, 1)
UPGRADE, SAFE_DOWNGRADE = i8(1), i8(2)
ELECTION_MS = 10_000
POLL_S = 0.1
TIMEOUT_S = 30
"""Of a request."""
SETTINGS = ConnectionSettings("kafkameta-tests", connect_timeout_ms=10_000, max_frame_bytes=1 << 24)

T = TypeVar("T")


class Cluster(Protocol):
    """What tests need that change topics. A `LocalKafka` has more, for tests that break brokers."""

    @property
    def bootstrap_servers(self) -> str: ...

    @property
    def admin_servers(self) -> str: ...

    @property
    def broker_ids(self) -> tuple[int, ...]: ...

    def address(self, broker_id: int) -> Address: ...


@dataclass(frozen=True, slots=True)
class RemoteCluster:
    """A cluster of another process."""

    bootstrap_servers: str

    @property
    def admin_servers(self) -> str:
        return self.bootstrap_servers

    @property
    def broker_ids(self) -> tuple[int, ...]:
        return tuple(sorted(self._brokers()))

    def address(self, broker_id: int) -> Address:
        broker = self._brokers()[broker_id]
        return Address(broker.host, broker.port)

    def _brokers(self) -> dict[int, Any]:
        return admin(self).list_topics(timeout=TIMEOUT_S).brokers


def poll_until(condition: Callable[[], T | None], timeout_s: float = 120) -> T:
    deadline = time.monotonic() + timeout_s
    while not (result := condition()):
        assert time.monotonic() < deadline, f"still {result!r} after {timeout_s} s"
        time.sleep(POLL_S)
    return result


def first_address(bootstrap_servers: str) -> Address:
    host, _, port = bootstrap_servers.split(",")[0].rpartition(":")
    return Address(host, int(port))


def topic_on_each_broker(bootstrap_servers: str, topic: str) -> list[TopicMetadata | None]:
    """The metadata of a topic in each broker's own response. KafkaMetaError if a broker does not respond."""
    with closing(KafkaNetwork(SETTINGS)) as network:
        first = network.metadata(first_address(bootstrap_servers), [topic], time.monotonic() + TIMEOUT_S)
        responses = [
            network.metadata(broker.address, [topic], time.monotonic() + TIMEOUT_S) for broker in first.brokers
        ]
    return [next((entry for entry in response.topics if entry.name == topic), None) for response in responses]


def all_brokers_know(bootstrap_servers: str, topic: str, partitions: int, old_id: UUID | None = None) -> bool:
    """Whether each broker reports a leader for this many partitions of a topic whose id is not `old_id`."""
    try:
        entries = topic_on_each_broker(bootstrap_servers, topic)
    except KafkaMetaError:  # the broker starts, or is slow
        return False
    return all(
        entry is not None
        and sum(partition.leader_id >= 0 for partition in entry.partitions) == partitions
        and (old_id is None or entry.topic_id != old_id)
        for entry in entries
    )


def no_broker_knows(bootstrap_servers: str, topic: str) -> bool:
    """Whether each broker has forgotten a deleted topic."""
    try:
        entries = topic_on_each_broker(bootstrap_servers, topic)
    except KafkaMetaError:  # the broker is slow
        return False
    return not any(entry.partitions for entry in entries if entry is not None)


def log_ends(bootstrap_servers: str, topic: str, read_committed: bool = False) -> dict[TopicPartition, int]:
    """The end of each partition, up to which all in-sync replicas have the records; with `read_committed` the start of
    the first open transaction before it. Waits until the leaders lead: brokers name them a moment before."""
    options = ClientOptions.parse({"kafka.bootstrap.servers": bootstrap_servers})
    with closing(client_without_events(options, Origin(role=Role.CLI))) as client:
        latest = dict.fromkeys(client.partitions([topic], client.api_deadline()), LATEST_TIMESTAMP)
        found = client.list_offsets(latest, client.api_deadline(), read_committed)
    return {partition: each.offset for partition, each in found.items()}


def is_readable(bootstrap_servers: str, topic: str) -> bool:
    """Whether no transaction holds read_committed readers back: neither an open one, nor one whose markers are still to
    come. A coordinator acknowledges the end of a transaction before they are in the logs."""
    return log_ends(bootstrap_servers, topic, read_committed=True) == log_ends(bootstrap_servers, topic)


def admin(cluster: Cluster, **config: int) -> AdminClient:
    """Keep the client in a variable: its requests are cancelled when it is collected."""
    return AdminClient({"bootstrap.servers": cluster.admin_servers, "log_level": 0, **config})


def create_topic(
    cluster: Cluster, topic: str, replicas: Sequence[Sequence[int]], config: Mapping[str, str] | None = None
) -> None:
    """Create a topic with these replicas of each partition, and wait until every broker knows it. The first replica
    leads."""
    assignment = [list(ids) for ids in replicas]
    request = NewTopic(topic, len(assignment), replica_assignment=assignment, config=dict(config or {}))
    client = admin(cluster)
    client.create_topics([request])[topic].result(60)
    poll_until(lambda: all_brokers_know(cluster.admin_servers, topic, len(assignment)))


def delete_topic(cluster: Cluster, topic: str) -> None:
    """Delete a topic, and wait until every broker has forgotten it."""
    client = admin(cluster)
    client.delete_topics([topic])[topic].result(60)
    poll_until(lambda: no_broker_knows(cluster.admin_servers, topic))


def partition_state(cluster: Cluster, topic: str, partition: int) -> Any:
    """confluent_kafka's PartitionMetadata from any broker."""
    return admin(cluster).list_topics(topic, timeout=30).topics[topic].partitions[partition]


def in_sync(cluster: Cluster, topic: str, replicas: int) -> bool:
    """Whether every partition of the topic has this many in-sync replicas."""
    partitions = admin(cluster).list_topics(topic, timeout=30).topics[topic].partitions
    return bool(partitions) and all(len(partition.isrs) == replicas for partition in partitions.values())


def elect_leader(
    cluster: Cluster, topic: str, partition: int, leader: int, kind: ElectionType = ElectionType.PREFERRED
) -> None:
    """Hold elections until this replica leads: the first ones fail while it is not in sync yet."""

    def leads() -> bool:
        elect(cluster, [Partition(topic, partition)], kind)
        return bool(partition_state(cluster, topic, partition).leader == leader)

    poll_until(leads)


def elect(cluster: Cluster, partitions: list[Partition] | None, kind: ElectionType = ElectionType.PREFERRED) -> None:
    """Hold an election in these partitions, or in all. It may keep the leader, or not end in time.

    A controller with ZooKeeper responds when its metadata names the elected leader (DelayedElectLeader in Kafka). It
    never does if that one has lost its session meanwhile.
    """
    # elect_leaders refuses its own time limits: SystemError in confluent-kafka 2.16.1.
    client = admin(cluster, **{"socket.timeout.ms": ELECTION_MS})
    with suppress(KafkaException):
        client.elect_leaders(kind, partitions).result(TIMEOUT_S)


def reassign(cluster: Cluster, topic: str, partition: int, replicas: Sequence[int]) -> None:
    """Start a reassignment to these replicas, of which the first is the preferred leader. Does not wait for its end."""
    entry = reassignments.ReassignablePartition(partition_index=i32(partition), replicas=tuple(map(BrokerId, replicas)))
    request = reassignments.AlterPartitionReassignmentsRequest(
        topics=(reassignments.ReassignableTopic(name=TopicName(topic), partitions=(entry,)),)
    )
    response = _send_to_controller(cluster, ALTER_PARTITION_REASSIGNMENTS, request)
    partitions = [partition for topic_response in response.responses for partition in topic_response.partitions]
    assert not any(part.error_code for part in (response, *partitions)), response


def set_quota(cluster: Cluster, user: str, name: str, bytes_per_s: float | None) -> None:
    """Set a quota of a user, such as consumer_byte_rate. None removes the quota."""
    entity = quotas.EntityData(entity_type="user", entity_name=user)
    change = quotas.OpData(key=name, value=f64(float(bytes_per_s or 0)), remove=bytes_per_s is None)
    entry = quotas.EntryData(entity=(entity,), ops=(change,))
    request = quotas.AlterClientQuotasRequest(entries=(entry,), validate_only=False)
    response = _send_to_controller(cluster, ALTER_CLIENT_QUOTAS, request)
    assert not any(entry.error_code for entry in response.entries), response


def create_acls(cluster: LocalKafka, bindings: Sequence[AclBinding]) -> None:
    """Create ACLs, and wait until every broker applies them."""
    client = admin(cluster)
    for future in client.create_acls(list(bindings)).values():
        future.result(60)
    addresses = [cluster._plain_address(broker_id) for broker_id in cluster.broker_ids]
    poll_until(lambda: all(_applies(address, binding) for address in addresses for binding in bindings))


def _applies(broker: Address, binding: Any) -> bool:  # an AclBinding, whose attributes are enums once it is made
    request = acls.DescribeAclsRequest(
        resource_type_filter=i8(binding.restype.value),
        resource_name_filter=binding.name,
        pattern_type_filter=i8(binding.resource_pattern_type.value),
        principal_filter=binding.principal,
        host_filter=binding.host,
        operation=i8(binding.operation.value),
        permission_type=i8(binding.permission_type.value),
    )
    return bool(_call(broker, DESCRIBE_ACLS, request).resources)


def finalize_transaction_version(cluster: Cluster, version: TransactionVersion) -> None:
    """Upgrade or downgrade transaction.version, as `kafka-features` does, at the only broker of a cluster."""
    update = features.FeatureUpdateKey(
        feature="transaction.version",
        max_version_level=i16(version),
        upgrade_type=UPGRADE if version is TransactionVersion.V2 else SAFE_DOWNGRADE,
    )
    request = features.UpdateFeaturesRequest(feature_updates=(update,))
    response = _send_to_controller(cluster, UPDATE_FEATURES, request)
    assert response.error_code == 0, response


def _send_to_controller(cluster: Cluster, api: Api, request: Any) -> Any:
    """The response of the controller, or of a broker that forwards to the controller."""

    def controller() -> Address | None:
        """None while there is none: it has just lost its session."""
        with closing(KafkaNetwork(SETTINGS)) as network:
            found = network.metadata(first_address(cluster.admin_servers), (), time.monotonic() + TIMEOUT_S)
        return next((broker.address for broker in found.brokers if broker.node_id == found.controller_id), None)

    return _call(poll_until(controller), api, request)


def _call(broker: Address, api: Api, request: Any) -> Any:
    deadline = time.monotonic() + TIMEOUT_S
    with closing(Connection(broker, SETTINGS, deadline)) as connection:
        return connection.call(api, request, deadline).message
