"""Requests to the brokers of a test cluster: which brokers are live, which topics they know, new topics."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing

from pyspark_kafka_meta.errors import ClusterError, KafkaMetaError
from pyspark_kafka_meta.events.origin import cli_origin
from pyspark_kafka_meta.events.publisher import client_without_events
from pyspark_kafka_meta.kafka.client.cluster_admin import ClusterAdmin
from pyspark_kafka_meta.kafka.network.connection import ConnectionSettings
from pyspark_kafka_meta.kafka.network.kafka_network import KafkaNetwork
from pyspark_kafka_meta.model import Address, MetadataResponse
from pyspark_kafka_meta.options import ClientOptions

METADATA_TIMEOUT_S = 2.0
CLIENT_ID = "kafkameta-testing"


def live_brokers(address: Address) -> set[int]:
    """The live brokers according to the broker at `address`; none if it does not respond."""
    response = _metadata(address, ())
    return {broker.node_id for broker in response.brokers} if response else set()


def knows_topic(address: Address, topic: str, partitions: int) -> bool:
    """Whether the broker at `address` knows a leader of each of the topic's partitions."""
    response = _metadata(address, [topic])
    found = [partition for entry in (response.topics if response else ()) for partition in entry.partitions]
    return sum(partition.leader_id >= 0 for partition in found) == partitions


def _metadata(address: Address, topics: Collection[str]) -> MetadataResponse | None:
    settings = ConnectionSettings(CLIENT_ID, connect_timeout_ms=1000, max_frame_bytes=1 << 20)
    with closing(KafkaNetwork(settings)) as network:
        try:
            return network.metadata(address, topics, time.monotonic() + METADATA_TIMEOUT_S)
        except KafkaMetaError:
            return None


def create_topic(
    servers: Sequence[Address], topic: str, partitions: int, replicas: int, config: Mapping[str, str]
) -> None:
    """Create a topic. Does not wait until every broker knows it.

    Raises:
        ClusterError: it exists, or the cluster refuses it or does not respond.
    """
    given = {"kafka.bootstrap.servers": ",".join(map(str, servers)), "kafka.client.id": CLIENT_ID}
    with closing(client_without_events(ClientOptions.parse(given), cli_origin())) as client:
        try:
            is_new = ClusterAdmin(client).create_topic(topic, partitions, replicas, config)
        except KafkaMetaError as error:
            raise ClusterError(str(error)) from error
    if not is_new:
        raise ClusterError(f"Topic {topic} exists: choose another name, or none for a new name.")
