"""KafkaWire keeps connections to brokers and closes all others."""

from __future__ import annotations

import selectors
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from pyspark_kafka_meta.errors import ConnectError
from pyspark_kafka_meta.kafka.network import in_flight_requests, kafka_wire, sockets
from pyspark_kafka_meta.kafka.network.connection import Connection, ConnectionSettings
from pyspark_kafka_meta.kafka.network.kafka_wire import KafkaWire
from pyspark_kafka_meta.kafka.protocol.fetch import FetchPartition, FetchRequest
from pyspark_kafka_meta.kafka.protocol.list_offsets import OffsetsRequest, OffsetsResponse
from pyspark_kafka_meta.kafka.protocol.produce import ProducePartition, ProduceRequest, ProduceResponse
from pyspark_kafka_meta.kafka.protocol.requests import RequestFailure
from pyspark_kafka_meta.kafka.protocol.transactions import ProducerIdRequest, ProducerIdResponse
from pyspark_kafka_meta.kafka.records.batches import write_batch
from pyspark_kafka_meta.model import NO_PRODUCER, Address, Broker
from pyspark_kafka_meta.testing import MockCluster
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

    for module in (kafka_wire, in_flight_requests):
        monkeypatch.setattr(module, "Connection", Noted)
    return opened


@pytest.fixture
def wire() -> Iterator[KafkaWire]:
    with closing(KafkaWire(ConnectionSettings("tests", connect_timeout_ms=5000, max_frame_bytes=1 << 20))) as made:
        yield made


def test_connection_to_where_no_broker_is_any_more_is_closed(
    mock_cluster: MockCluster, wire: KafkaWire, opened: list[Connection]
) -> None:
    alias = Address("localhost", int(mock_cluster.bootstrap_servers.split(",")[0].rpartition(":")[2]))
    answer = wire.metadata(alias, (), time.monotonic() + 10)
    assert alias not in {broker.address for broker in answer.brokers}
    for broker in (Broker(9, alias), answer.brokers[0]):
        wire.offsets.send(broker, OffsetsRequest((), False), time.monotonic() + 10)
        assert isinstance(wire.offsets.receive([broker.node_id], time.monotonic() + 10), OffsetsResponse)
    assert [connection.fileno() >= 0 for connection in opened] == [True, True]
    for broker in answer.brokers:
        wire.metadata(broker.address, (), time.monotonic() + 10)

    assert [connection.fileno() >= 0 for connection in opened] == [False, True, True, True]
    wire.close()
    assert not any(connection.fileno() >= 0 for connection in opened)


def test_a_broker_has_three_connections_at_most_whatever_it_is_asked(
    mock_cluster: MockCluster, wire: KafkaWire, opened: list[Connection]
) -> None:
    mock_cluster.create_topic("t", partitions=1)
    host, port = mock_cluster.bootstrap_servers.split(",")[0].split(":")
    address = Address(host, int(port))
    answer = wire.metadata(address, ["t"], time.monotonic() + 10)
    (broker,) = (broker for broker in answer.brokers if broker.address == address)
    (topic,) = answer.topics
    part = FetchPartition(T0, topic.topic_id, 0, topic.partitions[0].leader_epoch, -1, 100)
    for _ in range(3):
        deadline = time.monotonic() + 10
        wire.fetch.send(broker, FetchRequest((part,), 0, 1, 100, False), deadline)
        wire.offsets.send(broker, OffsetsRequest((), False), deadline)
        wire.metadata(address, ["t"], deadline)
        assert wire.offsets.receive([broker.node_id], deadline) is not None
        assert wire.fetch.receive([broker.node_id], deadline) is not None

    assert len(opened) <= 3


def test_requests_that_are_sent_one_after_the_other_share_a_connection(
    mock_cluster: MockCluster, wire: KafkaWire, opened: list[Connection]
) -> None:
    """As a planner sends them, and the driver of exactly-once writes."""
    host, port = mock_cluster.bootstrap_servers.split(",")[0].split(":")
    address = Address(host, int(port))
    deadline = time.monotonic() + 10
    answer = wire.metadata(address, (), deadline)
    (broker,) = (broker for broker in answer.brokers if broker.address == address)
    for _ in range(2):
        wire.offsets.send(broker, OffsetsRequest((), False), deadline)
        assert isinstance(wire.offsets.receive([broker.node_id], deadline), OffsetsResponse)
        wire.transactions.send(broker, ProducerIdRequest(), deadline)
        assert isinstance(wire.transactions.receive([broker.node_id], deadline), ProducerIdResponse)
        wire.metadata(address, (), deadline)

    assert len(opened) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="reads an option of Linux")
def test_a_shared_connection_has_the_limit_of_the_request_that_uses_it(
    mock_cluster: MockCluster, wire: KafkaWire, opened: list[Connection]
) -> None:
    """A Produce may wait for as long as a broker reads no requests."""
    mock_cluster.create_topic("t", partitions=1)
    host, port = mock_cluster.bootstrap_servers.split(",")[0].split(":")
    deadline = time.monotonic() + 10
    answer = wire.metadata(Address(host, int(port)), ["t"], deadline)
    (broker,) = (broker for broker in answer.brokers if broker.address == Address(host, int(port)))
    part = ProducePartition(T0, answer.topics[0].topic_id, write_batch(b"", 0, 0, 0, NO_PRODUCER, -1, 0))
    limits_ms = []
    for _ in range(2):
        wire.produce.send(broker, ProduceRequest((part,), -1, 1000), deadline)
        assert isinstance(wire.produce.receive([broker.node_id], deadline), ProduceResponse)
        limits_ms.append(opened[0]._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
        wire.metadata(broker.address, ["t"], deadline)
        limits_ms.append(opened[0]._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))

    assert limits_ms == [0, 5_000, 0, 5_000]
    assert len(opened) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux filters packets for a socket")
def test_connection_that_the_network_forgot_is_given_up_long_before_the_request_timeout(
    mock_cluster: MockCluster, wire: KafkaWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sockets.TCP_OPTIONS, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)
    host, port = mock_cluster.bootstrap_servers.split(",")[0].split(":")
    with TcpProxy() as proxy:
        proxy.target = Address(host, int(port))
        broker = Broker(1, proxy.address)

        def ask() -> OffsetsResponse | RequestFailure | None:
            wire.offsets.send(broker, OffsetsRequest((), False), time.monotonic() + 10)
            return wire.offsets.receive([1], time.monotonic() + 10)

        assert isinstance(ask(), OffsetsResponse)
        proxy.forget_connections()
        began = time.monotonic()
        failure = ask()
        lasted_s = time.monotonic() - began

        assert isinstance(failure, RequestFailure)
        assert type(failure.error) is ConnectError, "a RequestTimeoutError would lower max_bytes"
        assert "broke the connection (Connection timed out)" in str(failure.error)
        assert lasted_s < 10 * UNACKNOWLEDGED_MS / 1000
        assert isinstance(ask(), OffsetsResponse), "over a new connection"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux filters packets for a socket")
def test_idle_connection_that_the_network_forgot_is_not_used_again(
    mock_cluster: MockCluster, wire: KafkaWire, opened: list[Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    for option, value in {socket.TCP_KEEPIDLE: 1, socket.TCP_KEEPINTVL: 1, socket.TCP_USER_TIMEOUT: 300}.items():
        monkeypatch.setitem(sockets.TCP_OPTIONS, option, value)
    host, port = mock_cluster.bootstrap_servers.split(",")[0].split(":")
    with TcpProxy() as proxy:
        proxy.target = Address(host, int(port))
        wire.offsets.send(Broker(1, proxy.address), OffsetsRequest((), False), time.monotonic() + 10)
        assert isinstance(wire.offsets.receive([1], time.monotonic() + 10), OffsetsResponse)
        proxy.forget_connections()
        with selectors.PollSelector() as selector:
            selector.register(opened[0], selectors.EVENT_READ)
            assert selector.select(10)

        assert not opened[0].is_usable()
