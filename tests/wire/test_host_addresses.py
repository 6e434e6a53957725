"""A host name with two addresses, of which the first fails in some way: what connections after the first cost."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from typing import Any

import pytest

from pyspark_kafka_meta.errors import ConnectError, KafkaMetaError, TlsError
from pyspark_kafka_meta.events.event import Origin, Role
from pyspark_kafka_meta.events.publisher import client_without_events
from pyspark_kafka_meta.kafka.network.connection import Connection, ConnectionSettings
from pyspark_kafka_meta.kafka.network.kafka_network import KafkaNetwork
from pyspark_kafka_meta.kafka.protocol.apis import ApiResponse
from pyspark_kafka_meta.kafka.protocol.list_offsets import LATEST_TIMESTAMP, OffsetQuery, OffsetsRequest
from pyspark_kafka_meta.model import Address, Broker, TopicPartition
from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.testing.mock_cluster import MockCluster
from tests.kafka.cluster_tools import first_address
from tests.wire.scripted_broker import black_hole, scripted_broker, send_versions

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8 as loopback")

NAME = "kafka.example"
FIRST, SECOND = "127.0.0.2", "127.0.0.1"
SETUP_S = 0.5
"""Of a connection. A busy machine must set up a good one in this time."""
PATIENCE_S = 60.0

Accepted = list[socket.socket]
Fault = Callable[[int, Accepted], AbstractContextManager[object]]
"""What listens at the first address and this port, and notes the connections that it accepts."""


def peer(behave: Callable[[socket.socket], object]) -> Fault:
    def listen(port: int, accepted: Accepted) -> AbstractContextManager[object]:
        def noted(connection: socket.socket) -> None:
            accepted.append(connection)
            behave(connection)

        return scripted_broker(noted, FIRST, port)

    return listen


def lost_packets(port: int, accepted: Accepted) -> AbstractContextManager[object]:
    return black_hole(FIRST, port)


@contextmanager
def nothing(port: int, accepted: Accepted) -> Iterator[None]:
    """Connections are refused."""
    yield


silent, closing_at_once, silent_later = peer(lambda _: None), peer(socket.socket.close), peer(send_versions)


@pytest.fixture
def port(mock_cluster: MockCluster) -> int:
    """Of a broker at the second address, with topic t."""
    mock_cluster.create_topic("t", 1, 1)
    return first_address(mock_cluster.bootstrap_servers).port


@pytest.fixture(autouse=True)
def resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.getaddrinfo

    def resolve(host: str, port: int, *arguments: Any, **settings: Any) -> Any:
        if host != NAME:
            return real(host, port, *arguments, **settings)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in (FIRST, SECOND)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


def options(port: int, **others: str) -> ClientOptions:
    given = {
        "kafka.bootstrap.servers": f"{NAME}:{port}",
        "kafka.socket.connection.setup.timeout.ms": str(int(SETUP_S * 1000)),
        "kafka.retry.backoff.ms": "10",
    }
    return ClientOptions.parse({**given, **others})


def patient(settings: ConnectionSettings) -> ConnectionSettings:
    return replace(settings, connect_timeout_ms=int(PATIENCE_S * 1000))


def end_offset(network: KafkaNetwork, port: int, timeout_s: float) -> int:
    """Of t-0, from the broker that advertises the name. Raises what the request fails with."""
    request = OffsetsRequest((OffsetQuery(TopicPartition("t", 0), LATEST_TIMESTAMP),))
    network.offsets.send(Broker(1, Address(NAME, port)), request, time.monotonic() + timeout_s)
    response = network.offsets.receive([1], time.monotonic() + PATIENCE_S)
    if not isinstance(response, ApiResponse):
        assert response is not None
        raise response.error
    return response.result[TopicPartition("t", 0)].offset


@pytest.mark.parametrize("fault", [silent, closing_at_once, silent_later, lost_packets, nothing])
def test_client_bootstraps_from_the_second_address_of_a_name(fault: Fault, port: int) -> None:
    accepted: Accepted = []
    timeouts = {"kafka.request.timeout.ms": "1000", "kafka.default.api.timeout.ms": "60000"}
    client = client_without_events(options(port, **timeouts), Origin(role=Role.CLI))
    with fault(port, accepted), closing(client):
        assert client.partitions(["t"], client.api_deadline()) == [TopicPartition("t", 0)]
    assert len(accepted) <= 1


@pytest.mark.parametrize("fault", [silent, closing_at_once, silent_later])
def test_request_to_an_advertised_name_fails_once_and_then_goes_to_the_second_address(fault: Fault, port: int) -> None:
    accepted: Accepted = []
    settings = ConnectionSettings.of(options(port))
    with fault(port, accepted):
        with closing(KafkaNetwork(settings)) as network, pytest.raises(KafkaMetaError):
            end_offset(network, port, 2 * SETUP_S)
        with closing(KafkaNetwork(patient(settings))) as network:  # remembers the same addresses
            for _ in range(3):
                assert end_offset(network, port, PATIENCE_S) == 0
                network._idle.close_except(())  # the next request opens a connection
            assert network.metadata(Address(NAME, port), ["t"], time.monotonic() + PATIENCE_S).topics
    assert len(accepted) == 1


def test_only_the_first_connection_waits_for_a_lossy_address(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = replace(ConnectionSettings.of(options(port)), connect_timeout_ms=2_000)
    tried, connect = list[str](), socket.socket.connect

    def note(connection: socket.socket, target: tuple[str, int]) -> None:
        tried.append(target[0])
        connect(connection, target)

    with lost_packets(port, []):
        monkeypatch.setattr(socket.socket, "connect", note)
        started = time.monotonic()
        for _ in range(3):
            Connection(Address(NAME, port), settings, time.monotonic() + PATIENCE_S).close()
    assert tried == [FIRST, SECOND, SECOND, SECOND]
    assert time.monotonic() - started >= 1, "the share of the first address"


def test_address_that_does_not_finish_the_tls_handshake_is_left(port: int) -> None:
    settings = ConnectionSettings.of(options(port, **{"kafka.security.protocol": "SSL"}))
    with silent(port, []):
        with pytest.raises(ConnectError, match="did not finish the TLS handshake in time"):
            Connection(Address(NAME, port), settings, time.monotonic() + SETUP_S)
        with pytest.raises(TlsError, match="does not speak TLS"):  # as the second address
            Connection(Address(NAME, port), patient(settings), time.monotonic() + PATIENCE_S)


def test_clients_do_not_share_what_they_remember(port: int) -> None:
    accepted: Accepted = []
    with closing_at_once(port, accepted):
        for _ in range(2):
            settings = patient(ConnectionSettings.of(options(port)))
            with pytest.raises(ConnectError):
                Connection(Address(NAME, port), settings, time.monotonic() + PATIENCE_S)
    assert len(accepted) == 2
