"""Brokers that close connections because they have too many of them."""

from __future__ import annotations

import socket
import struct
import time
import warnings
from itertools import count

import pytest

from pyspark_kafka_meta.errors import ConnectError
from pyspark_kafka_meta.kafka.network.connection import Connection, ConnectionSettings
from pyspark_kafka_meta.options import ClientOptions
from tests.wire.scripted_broker import Behaviour, read_request, scripted_broker, send_versions

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
