"""KafkaNetwork keeps connections to brokers and closes all others."""

from __future__ import annotations

import selectors
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from pyspark_kafka_meta.errors import ConnectError
from pyspark_kafka_meta.events.event import Origin, Role
from pyspark_kafka_meta.kafka.network import in_flight_requests, kafka_network, sockets
from pyspark_kafka_meta.kafka.network.connection import Connection, ConnectionSettings
from pyspark_kafka_meta.kafka.network.kafka_network import KafkaNetwork
from pyspark_kafka_meta.kafka.protocol.apis import ApiResponse
from pyspark_kafka_meta.kafka.protocol.fetch import FetchPartition, FetchRequest
from pyspark_kafka_meta.kafka.protocol.list_offsets import OffsetsRequest, OffsetsResponse
from pyspark_kafka_meta.kafka.protocol.network_interface import RequestFailure
from pyspark_kafka_meta.kafka.protocol.produce import ProducePartition, ProduceRequest, ProduceResponse
from pyspark_kafka_meta.kafka.protocol.transactions import ProducerIdRequest
from pyspark_kafka_meta.kafka.records.batches import write_batch
from pyspark_kafka_meta.model import NO_PRODUCER, Address, Broker
from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.spark import client_pool
from pyspark_kafka_meta.spark.client_pool import ClientPool
from pyspark_kafka_meta.testing import MockCluster
from tests.kafka.cluster_tools import first_address
from tests.partitions import T0
from tests.tcp_proxy import TcpProxy

UNACKNOWLEDGED_MS = 300


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Connection]:
    """All connections that the test opens."""
    opened: list[Connection] = []

    class Noted(Connection):
        def __init__(self, address: Address, settings: ConnectionSettings, deadline: float) -> None:
            super().__init__(address, settings, deadline)
            opened.append(self)

    for module in (kafka_network, in_flight_requests):
        monkeypatch.setattr(module, "Connection", Noted)
    return opened


@pytest.fixture
def network() -> Iterator[KafkaNetwork]:
    with closing(KafkaNetwork(ConnectionSettings("tests", connect_timeout_ms=60_000, max_frame_bytes=1 << 20))) as made:
        yield made


def test_connection_to_where_no_broker_is_any_more_is_closed(
    mock_cluster: MockCluster, network: KafkaNetwork, opened: list[Connection]
) -> None:
    alias = Address("localhost", first_address(mock_cluster.bootstrap_servers).port)
    response = network.metadata(alias, (), time.monotonic() + 60)
    assert alias not in {broker.address for broker in response.brokers}
    for broker in (Broker(9, alias), response.brokers[0]):
        network.offsets.send(broker, OffsetsRequest((), False), time.monotonic() + 60)
        assert isinstance(network.offsets.receive([broker.node_id], time.monotonic() + 60), ApiResponse)
    assert [connection.fileno() >= 0 for connection in opened] == [True, True]
    for broker in response.brokers:
        network.metadata(broker.address, (), time.monotonic() + 60)

    assert [connection.fileno() >= 0 for connection in opened] == [False, True, True, True]
    network.close()
    assert not any(connection.fileno() >= 0 for connection in opened)


def test_a_broker_has_three_connections_at_most_whatever_it_is_asked(
    mock_cluster: MockCluster, network: KafkaNetwork, opened: list[Connection]
) -> None:
    mock_cluster.create_topic("t", partitions=1)
    address = first_address(mock_cluster.bootstrap_servers)
    response = network.metadata(address, ["t"], time.monotonic() + 60)
    (broker,) = (broker for broker in response.brokers if broker.address == address)
    (topic,) = response.topics
    part = FetchPartition(T0, topic.topic_id, 0, topic.partitions[0].leader_epoch, -1, 100)
    for _ in range(3):
        deadline = time.monotonic() + 60
        network.fetch.send(broker, FetchRequest((part,), 0, 1, 100, False), deadline)
        network.offsets.send(broker, OffsetsRequest((), False), deadline)
        network.metadata(address, ["t"], deadline)
        assert network.offsets.receive([broker.node_id], deadline) is not None
        assert network.fetch.receive([broker.node_id], deadline) is not None

    assert len(opened) <= 3


def test_worker_without_a_task_closes_its_connections_and_opens_them_for_the_next_task(
    mock_cluster: MockCluster,
    opened: list[Connection],
    monkeypatch: pytest.MonkeyPatch,
    wait_for: Callable[..., object],
) -> None:
    monkeypatch.setattr(client_pool, "KEEP_CONNECTIONS_S", 0.2)
    options = ClientOptions.parse({"kafka.bootstrap.servers": mock_cluster.bootstrap_servers})
    address, pool = options.bootstrap_servers[0], ClientPool()
    for _ in range(2):  # a wake-up is not lost after the first one
        with pool.client(options, None, Origin(role=Role.READER)) as client:
            client.network.send_metadata(address, (), time.monotonic() + 60)
            assert client.network.receive_metadata(time.monotonic() + 60) is not None
            assert opened[-1].is_usable()
        wait_for(lambda: not any(connection.fileno() >= 0 for connection in opened))

    assert len(opened) == 2


def test_requests_that_are_sent_one_after_the_other_share_a_connection(
    mock_cluster: MockCluster, network: KafkaNetwork, opened: list[Connection]
) -> None:
    """As a planner sends them, and the driver of exactly-once writes."""
    address = first_address(mock_cluster.bootstrap_servers)
    deadline = time.monotonic() + 60
    response = network.metadata(address, (), deadline)
    (broker,) = (broker for broker in response.brokers if broker.address == address)
    for _ in range(2):
        network.offsets.send(broker, OffsetsRequest((), False), deadline)
        assert isinstance(network.offsets.receive([broker.node_id], deadline), ApiResponse)
        network.transactions.send(broker, ProducerIdRequest(), deadline)
        assert isinstance(network.transactions.receive([broker.node_id], deadline), ApiResponse)
        network.metadata(address, (), deadline)

    assert len(opened) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="reads an option of Linux")
def test_a_shared_connection_has_the_limit_of_the_request_that_uses_it(
    mock_cluster: MockCluster, network: KafkaNetwork, opened: list[Connection]
) -> None:
    """A Produce may wait for as long as a broker reads no requests."""
    mock_cluster.create_topic("t", partitions=1)
    address, deadline = first_address(mock_cluster.bootstrap_servers), time.monotonic() + 60
    response = network.metadata(address, ["t"], deadline)
    (broker,) = (broker for broker in response.brokers if broker.address == address)
    part = ProducePartition(T0, response.topics[0].topic_id, write_batch(b"", 0, 0, 0, NO_PRODUCER, -1, 0))
    limits_ms = []
    for _ in range(2):
        network.produce.send(broker, ProduceRequest((part,), -1, 1000), deadline)
        assert isinstance(network.produce.receive([broker.node_id], deadline), ProduceResponse)
        limits_ms.append(opened[0]._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
        network.metadata(broker.address, ["t"], deadline)
        limits_ms.append(opened[0]._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))

    assert limits_ms == [0, 5_000, 0, 5_000]
    assert len(opened) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux filters packets for a socket")
def test_connection_that_the_network_forgot_is_given_up_long_before_the_request_timeout(
    mock_cluster: MockCluster, network: KafkaNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sockets.TCP_OPTIONS, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)
    with TcpProxy() as proxy:
        proxy.target = first_address(mock_cluster.bootstrap_servers)
        broker = Broker(1, proxy.address)

        def ask() -> OffsetsResponse | RequestFailure | None:
            network.offsets.send(broker, OffsetsRequest((), False), time.monotonic() + 30)
            return network.offsets.receive([1], time.monotonic() + 30)

        assert isinstance(ask(), ApiResponse)
        proxy.forget_connections()
        began = time.monotonic()
        failure = ask()
        lasted_s = time.monotonic() - began

        assert isinstance(failure, RequestFailure)
        assert type(failure.error) is ConnectError, "a RequestTimeoutError would lower max_bytes"
        assert "broke the connection (Connection timed out)" in str(failure.error)
        assert lasted_s < 20
        assert isinstance(ask(), ApiResponse), "over a new connection"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux filters packets for a socket")
def test_idle_connection_that_the_network_forgot_is_not_used_again(
    mock_cluster: MockCluster, network: KafkaNetwork, opened: list[Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    for option, value in {socket.TCP_KEEPIDLE: 1, socket.TCP_KEEPINTVL: 1, socket.TCP_USER_TIMEOUT: 300}.items():
        monkeypatch.setitem(sockets.TCP_OPTIONS, option, value)
    with TcpProxy() as proxy:
        proxy.target = first_address(mock_cluster.bootstrap_servers)
        network.offsets.send(Broker(1, proxy.address), OffsetsRequest((), False), time.monotonic() + 60)
        assert isinstance(network.offsets.receive([1], time.monotonic() + 60), ApiResponse)
        proxy.forget_connections()
        with selectors.PollSelector() as selector:
            selector.register(opened[0], selectors.EVENT_READ)
            assert selector.select(60)

        assert not opened[0].is_usable()
