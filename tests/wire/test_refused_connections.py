"""Brokers that close connections: with too many of them, or on a request larger than socket.request.max.bytes."""

from __future__ import annotations

import re
import socket
import struct
import time
import warnings
from collections.abc import Callable
from contextlib import closing
from itertools import count

import pytest

from pyspark_kafka_meta.errors import ConnectError, RequestTooLargeError
from pyspark_kafka_meta.kafka.network import connection_diagnosis
from pyspark_kafka_meta.kafka.network.connection import Connection, ConnectionSettings
from pyspark_kafka_meta.kafka.network.kafka_network import KafkaNetwork
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
IS_TOO_LARGE = r"a request of 145024 bytes, more than socket\.request\.max\.bytes .* set kafka\.max\.request\.size"


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


def shutting_down(accepted: list[socket.socket]) -> Behaviour:
    """It closes five connections on their first request, and all later ones at once."""
    refuse = refusing(0, accepted)

    def behave(peer: socket.socket) -> None:
        if len(accepted) < 5:
            refuse(peer)
        else:
            accepted.append(peer)
            peer.close()

    return behave


@pytest.mark.parametrize(
    ("behave", "topics", "expected", "connections"),
    [
        (lambda accepted: refusing(LIMIT, accepted), LARGE, RequestTooLargeError, 6),
        (lambda accepted: refusing(1 << 20, accepted), LARGE, None, 1),  # a limit above the request
        (lambda accepted: refusing(0, accepted), LARGE, ConnectError, 6),  # each looks for a login; two probes
        (lambda accepted: refusing(0, accepted), [], ConnectError, 4),  # no broker refuses a small request
        (shutting_down, LARGE, ConnectError, 7),  # and a silent one, to tell a refusal from a TLS port
    ],
)
def test_second_large_request_that_is_refused_for_its_size_names_size_and_setting(
    behave: Callable[[list[socket.socket]], Behaviour],
    topics: list[str],
    expected: type[Exception] | None,
    connections: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_diagnosis, "PROBE_S", 1.0)  # waited for once, by the probe that is not refused
    accepted: list[socket.socket] = []
    errors: list[type[Exception] | None] = []
    with (
        scripted_broker(behave(accepted)) as address,
        closing(KafkaNetwork(ConnectionSettings("test", 60_000, max_frame_bytes=1 << 20))) as network,
    ):
        for _ in range(2):
            try:
                network.metadata(address, topics, time.monotonic() + 60)
                errors.append(None)
            except (ConnectError, RequestTooLargeError) as error:
                errors.append(type(error))
                assert (re.search(IS_TOO_LARGE, str(error)) is not None) is isinstance(error, RequestTooLargeError)
    assert errors == [expected and ConnectError, expected]
    assert len(accepted) <= connections
