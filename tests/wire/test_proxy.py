"""TcpProxy plays bad networks in front of a socket."""

from __future__ import annotations

import contextlib
import errno
import socket
import sys

import pytest

from pyspark_kafka_meta.model import Address
from tests.tcp_proxy import Network, TcpProxy


def connected(proxy: TcpProxy) -> socket.socket:
    return socket.create_connection((proxy.address.host, proxy.address.port))


def test_a_connection_that_is_reset_does_not_get_to_the_broker() -> None:
    with socket.create_server(("127.0.0.1", 0)) as broker, TcpProxy() as proxy:
        broker.settimeout(60)
        proxy.target = Address(*broker.getsockname())
        proxy.network = Network.RESETS
        for _ in range(20):
            with connected(proxy) as client, contextlib.suppress(ConnectionError):
                assert client.recv(1) == b""
        proxy.network = Network.GOOD
        with connected(proxy) as client:
            client.sendall(b"hello")
            first, _ = broker.accept()
            with first:
                first.settimeout(60)
                assert first.recv(5) == b"hello"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux filters packets for a socket")
def test_a_forgotten_connection_acknowledges_nothing_and_a_new_one_is_passed_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as broker, TcpProxy() as proxy:
        broker.settimeout(60)
        proxy.target = Address(*broker.getsockname())
        with connected(proxy) as client:
            client.sendall(b"hello")
            first, _ = broker.accept()
            with first:
                assert first.recv(5) == b"hello"
                proxy.forget_connections()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 300)
                client.sendall(b"again")
                with pytest.raises(TimeoutError) as raised:
                    client.recv(1)
                assert raised.value.errno == errno.ETIMEDOUT
        with connected(proxy) as client:
            client.sendall(b"hello")
            second, _ = broker.accept()
            with second:
                assert second.recv(5) == b"hello"
