"""Real brokers respond to Metadata, Fetch, ListOffsets, OffsetForLeaderEpoch, Produce and InitProducerId as the fake
cluster does, which unit tests rely on, and to each version of each API that this package speaks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from uuid import UUID, uuid4

import pytest

from pyspark_kafka_meta.kafka.network.connection import Connection, ConnectionSettings
from pyspark_kafka_meta.kafka.network.kafka_network import KafkaNetwork
from pyspark_kafka_meta.kafka.protocol.apis import Api, ApiResponse
from pyspark_kafka_meta.kafka.protocol.produce import (
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
)
from pyspark_kafka_meta.kafka.protocol.transactions import ProducerIdRequest
from pyspark_kafka_meta.model import Broker, PartitionMetadata, TopicMetadata, TopicPartition
from tests.kafka.cluster_tools import Cluster, first_address, log_ends, poll_until
from tests.produce_cases import CASES, Sent, idempotent
from tests.read_cases import BATCH_SIZES, Described, Fetched, Listed, Log
from tests.read_cases import CASES as READ_CASES
from tests.unit.kafka.protocol.responses import REQUESTS, SPOKEN, spoken
from tests.unit.logs import batch

pytestmark = pytest.mark.kafka
PATIENCE_S = 30.0
IN_FLIGHT = 5
COORDINATOR_LOAD_IN_PROGRESS = 14

MakeTopic = Callable[..., str]


class Producing:
    """A producer to partition 0 of a topic."""

    def __init__(self, network: KafkaNetwork, brokers: tuple[Broker, ...], topic: TopicMetadata) -> None:
        self._network, self._topic, self.brokers = network, topic, {broker.node_id: broker for broker in brokers}
        assert topic.topic_id is not None
        self.topic_id: UUID = topic.topic_id

    @property
    def log(self) -> PartitionMetadata:
        return self._topic.partitions[0]

    def producer_id(self) -> int:
        [producer_id] = poll_until(self._request_producer_id)
        return producer_id

    def _request_producer_id(self) -> list[int]:
        """Empty while the broker waits for the controller's next block of ids (COORDINATOR_LOAD_IN_PROGRESS)."""
        node_id = self.log.leader_id
        self._network.transactions.send(self.brokers[node_id], ProducerIdRequest(), time.monotonic() + PATIENCE_S)
        response = self._network.transactions.receive([node_id], time.monotonic() + PATIENCE_S)
        assert isinstance(response, ApiResponse), response
        assert (response.error_code, response.result.epoch) in ((0, 0), (COORDINATOR_LOAD_IN_PROGRESS, -1))
        return [response.result.producer_id] if response.error_code == 0 else []

    def produce(self, topic_id: UUID | None, *batches: bytes, node_id: int | None = None) -> list[ProducedPartition]:
        """The results of one request for each batch, all in flight at the same time."""
        broker = self.brokers[self.log.leader_id if node_id is None else node_id]
        for records in batches:
            entry = ProducePartition(TopicPartition(self._topic.name, 0), topic_id, records)
            self._network.produce.send(broker, ProduceRequest((entry,), -1, 10_000), time.monotonic() + PATIENCE_S)
        return [self._received(broker.node_id) for _ in batches]

    def _received(self, node_id: int) -> ProducedPartition:
        response = self._network.produce.receive([node_id], time.monotonic() + PATIENCE_S)
        assert isinstance(response, ProduceResponse), response
        [partition] = response.partitions
        return partition


@pytest.fixture
def producing(kafka: Cluster, make_topic: MakeTopic) -> Iterator[Callable[..., Producing]]:
    """Creates a topic with one partition and this config."""
    settings = ConnectionSettings("test", connect_timeout_ms=10_000, max_frame_bytes=1 << 20)
    with contextlib.closing(KafkaNetwork(settings)) as network:

        def create(**config: str) -> Producing:
            topic = make_topic(config={name.replace("_", "."): value for name, value in config.items()})
            log_ends(kafka.bootstrap_servers, topic)  # the leader leads
            known = network.metadata(first_address(kafka.bootstrap_servers), [topic], time.monotonic() + PATIENCE_S)
            return Producing(network, known.brokers, known.topics[0])

        yield create


def outcomes(results: list[ProducedPartition]) -> list[tuple[int, int]]:
    return [(result.error_code, result.base_offset) for result in results]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_leader_accepts_each_batch_once_in_order(producing: Callable[..., Producing], case: tuple[Sent, ...]) -> None:
    to = producing()
    producer_id = to.producer_id()
    results = [to.produce(to.topic_id, sent.batch(producer_id))[0] for sent in case]

    assert outcomes(results) == [(sent.code, sent.base_offset) for sent in case]


def test_pipelined_megabytes_are_appended_in_their_order(producing: Callable[..., Producing]) -> None:
    to = producing(max_message_bytes="3000000")
    producer_id = to.producer_id()
    batches = [idempotent(producer_id, number, 0, [str(number) * 1_000_000]) for number in range(IN_FLIGHT)]

    assert outcomes(to.produce(to.topic_id, *batches)) == [(0, number) for number in range(IN_FLIGHT)]
    assert outcomes(to.produce(to.topic_id, *batches)) == [(0, number) for number in range(IN_FLIGHT)]


def test_broker_that_is_not_the_leader_names_the_leader(producing: Callable[..., Producing]) -> None:
    to = producing()
    other = next(node_id for node_id in to.brokers if node_id != to.log.leader_id)
    [refused] = to.produce(to.topic_id, batch(["a"]), node_id=other)

    assert outcomes([refused]) == [(6, -1)]
    assert refused.leader_hint is not None
    assert (refused.leader_hint.leader_id, refused.leader_hint.leader_epoch) == (to.log.leader_id, to.log.leader_epoch)
    assert refused.leader_hint.broker == to.brokers[to.log.leader_id]


def test_topic_is_named_by_id_or_by_name(producing: Callable[..., Producing]) -> None:
    to = producing()

    assert outcomes(to.produce(uuid4(), batch(["a"]))) == [(100, -1)]
    assert outcomes(to.produce(None, batch(["a"]))) == [(0, 0)]
    assert outcomes(to.produce(to.topic_id, batch(["a"]))) == [(0, 1)]


def test_batch_above_the_limit_of_its_topic_is_too_large(producing: Callable[..., Producing]) -> None:
    to = producing(max_message_bytes="100")

    assert outcomes(to.produce(to.topic_id, batch(["a" * 100]), batch(["a"]))) == [(10, -1), (0, 0)]


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


@pytest.mark.parametrize("case", READ_CASES.values(), ids=READ_CASES)
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
