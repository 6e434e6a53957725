"""Brokers that close connections: with too many of them, or on a request larger than socket.request.max.bytes."""

from __future__ import annotations

import socket
import struct
import time
import warnings
from collections.abc import Callable
from contextlib import closing, suppress
from itertools import count

import pytest

from pyspark_kafka_meta.errors import ConnectError, KafkaMetaError, RequestTooLargeError
from pyspark_kafka_meta.kafka.network import connection
from pyspark_kafka_meta.kafka.network.connection import Connection, ConnectionSettings
from pyspark_kafka_meta.kafka.network.kafka_network import KafkaNetwork
from pyspark_kafka_meta.model import Address
from pyspark_kafka_meta.options import ClientOptions
from tests.wire.scripted_broker import Behaviour, metadata_frame, read_request, scripted_broker, send_versions

ADVICE = r"too many \(max\.connections\.per\.ip, max\.connections\): run fewer tasks at a time, or raise the limit"


def close(peer: socket.socket) -> None:
    peer.close()


def reset(peer: socket.socket) -> None:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
@pytest.mark.parametrize("refuse", [close, reset])
def test_a_connection_that_is_closed_before_any_response_names_the_limits(refuse: Behaviour, protocol: str) -> None:
    options = ClientOptions.parse({"kafka.bootstrap.servers": "h:1", "kafka.security.protocol": protocol})
    with warnings.catch_warnings(), scripted_broker(refuse) as address:
        # Python's own wrap_socket drops the new socket unclosed if the peer has reset the connection by then.
        warnings.filterwarnings("ignore", "unclosed <ssl.SSLSocket", ResourceWarning)
        with pytest.raises(ConnectError, match=ADVICE) as refused:
            Connection(address, ConnectionSettings.of(options), time.monotonic() + 60)
    assert "kafka.security.protocol" not in str(refused.value)


def test_a_broker_that_went_away_with_the_first_request_and_responds_to_the_next_is_not_taken_for_a_tls_port() -> None:
    opened = count()

    def restart(peer: socket.socket) -> None:
        if next(opened):
            send_versions(peer)
        else:
            read_request(peer)
            peer.close()

    options = ClientOptions.parse({"kafka.bootstrap.servers": "h:1"})
    with scripted_broker(restart) as address, pytest.raises(ConnectError, match=ADVICE) as refused:
        Connection(address, ConnectionSettings.of(options), time.monotonic() + 60)
    assert "kafka.security.protocol" not in str(refused.value)


LIMIT = 50_000
LARGE = [f"topic-{number:05d}" for number in range(5_000)]
"""Topics of a Metadata request above the limit."""
PROBE_S = 1.0
"""Waited for once, by the probe that is not refused. A busy machine must refuse the other in this time."""


@pytest.fixture(autouse=True)
def patient_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PROBE_S", PROBE_S)


def refusing(limit: int, accepted: list[socket.socket]) -> Behaviour:
    """As Kafka's `NetworkReceive`: it closes the connection once it has read the size."""

    def behave(peer: socket.socket) -> None:
        accepted.append(peer)
        send_versions(peer, metadata=12)
        while size := int.from_bytes(peer.recv(4, socket.MSG_WAITALL), "big"):
            if size > limit:
                peer.shutdown(socket.SHUT_RDWR)
                return
            request = peer.recv(size, socket.MSG_WAITALL)
            peer.sendall(metadata_frame(int.from_bytes(request[4:8], "big")))

    return behave


def ask_twice(address: Address, topics: list[str]) -> KafkaMetaError | None:
    """The last error of two equal requests of one client."""
    error: KafkaMetaError | None = None
    with closing(KafkaNetwork(ConnectionSettings("test", 60_000, max_frame_bytes=1 << 20))) as network:
        for _ in range(2):
            with suppress(ConnectError):
                try:
                    network.metadata(address, topics, time.monotonic() + 60)
                except RequestTooLargeError as raised:
                    error = raised
    return error


def test_a_request_that_is_refused_twice_for_its_size_names_size_and_setting() -> None:
    began = time.monotonic()
    with scripted_broker(refusing(LIMIT, [])) as address:
        error = ask_twice(address, LARGE)

    assert str(error).startswith(f"{address} closes the connection at a Metadata request of 145024 bytes, ")
    assert "socket.request.max.bytes of the broker: raise it, or set kafka.max.request.size" in str(error)
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("behave", "topics", "connections"),
    [
        (lambda accepted: refusing(1 << 20, accepted), LARGE, 1),  # a limit above the request
        (lambda accepted: hanging_up(accepted), LARGE, 6),  # two requests, each with a look for a login; two probes
        (lambda accepted: hanging_up(accepted), [], 4),  # no broker refuses a small request
        (lambda accepted: shutting_down(accepted), LARGE, 7),  # and a silent one, to tell a refusal from a TLS port
    ],
)
def test_a_connection_that_is_closed_for_another_reason_is_a_lost_connection(
    behave: Callable[[list[socket.socket]], Behaviour], topics: list[str], connections: int
) -> None:
    accepted: list[socket.socket] = []
    with scripted_broker(behave(accepted)) as address:
        assert ask_twice(address, topics) is None
    assert len(accepted) <= connections


def shutting_down(accepted: list[socket.socket]) -> Behaviour:
    """It closes five connections on their first request, and all later ones at once."""

    def behave(peer: socket.socket) -> None:
        if len(accepted) < 5:
            hanging_up(accepted)(peer)
        else:
            accepted.append(peer)
            peer.close()

    return behave


def hanging_up(accepted: list[socket.socket]) -> Behaviour:
    """It closes every connection on its first request."""

    def behave(peer: socket.socket) -> None:
        accepted.append(peer)
        send_versions(peer, metadata=12)
        peer.recv(4, socket.MSG_WAITALL)
        peer.shutdown(socket.SHUT_RDWR)

    return behave
