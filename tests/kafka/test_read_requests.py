"""Real brokers respond to Metadata, Fetch, ListOffsets and OffsetForLeaderEpoch as the fake network does, which unit
tests rely on, and to each version of each API that this package speaks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from pyspark_kafka_meta.kafka.network.connection import Connection, ConnectionSettings
from pyspark_kafka_meta.kafka.network.kafka_network import KafkaNetwork
from pyspark_kafka_meta.kafka.protocol.apis import Api
from pyspark_kafka_meta.model import TopicPartition
from tests.kafka.cluster_tools import Cluster, first_address, poll_until
from tests.read_cases import BATCH_SIZES, CASES, PATIENCE_S, Described, Fetched, Listed, Log
from tests.unit.kafka.protocol.responses import REQUESTS, SPOKEN, spoken

pytestmark = pytest.mark.kafka

SETTINGS = ConnectionSettings("kafkameta-tests", connect_timeout_ms=30_000, max_frame_bytes=1 << 24)


@pytest.fixture(scope="module")
def log(kafka: Cluster, make_topic: Callable[..., str], produce: Callable[..., list[int]]) -> Iterator[Log]:
    topic = make_topic()
    for size in BATCH_SIZES:  # each flush sends one batch
        produce(topic, ["v"] * size, partition=0, **{"linger.ms": 60_000})
    with closing(KafkaNetwork(SETTINGS)) as network:
        known = network.metadata(first_address(kafka.bootstrap_servers), [topic], time.monotonic() + PATIENCE_S)
        (entry,) = known.topics
        (partition,) = entry.partitions
        brokers = {broker.node_id: broker for broker in known.brokers}
        leader = brokers.pop(partition.leader_id)
        assert entry.topic_id is not None
        yield Log(
            network,
            time.monotonic,
            TopicPartition(topic, 0),
            entry.topic_id,
            leader,
            next(iter(brokers.values())),
            partition.leader_epoch,
        )


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_brokers_respond_as_in_the_table(log: Log, case: Fetched | Listed | Described) -> None:
    def seen() -> tuple[int, int]:
        return case.of(log)

    # A follower or another broker may hear of the topic a moment later.
    poll_until(lambda: seen() == case.expected)


@pytest.mark.parametrize(("api", "version"), SPOKEN, ids=spoken)
def test_a_broker_responds_to_each_version_of_each_api(kafka: Cluster, api: Api, version: int) -> None:
    """The response is walked and read to its end."""
    deadline = time.monotonic() + PATIENCE_S
    with closing(Connection(first_address(kafka.bootstrap_servers), SETTINGS, deadline)) as connection:
        exchange = connection.call(api, REQUESTS[api](version), deadline)

    assert exchange.api_version == version
    assert exchange.response_bytes > 0
