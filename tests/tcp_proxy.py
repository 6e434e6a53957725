"""`TcpProxy`: a bad network in front of one broker, which holds, delays, cuts, half-closes, drips or drops data.

Brokers must advertise the proxies' ports (`LocalKafka(advertised_ports=...)`), or clients connect past the proxies.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
import threading
from collections.abc import Callable
from enum import Enum, auto
from typing import Self, TypeAlias

from pyspark_kafka_meta.model import Address
from pyspark_kafka_meta.testing.kafka_config import HOST
from pyspark_kafka_meta.testing.kafka_node import free_ports

Watcher: TypeAlias = Callable[[bytes], None]

CHUNK_BYTES = 65_536
CONNECT_TIMEOUT_S = 5.0
SLOW_S = 0.5
DRIP_S = 0.02
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_SO_ATTACH_FILTER = 26
_BPF_RETURN_0 = struct.pack("HBBI", 0x06, 0, 0, 0)
"""A packet filter (BPF) with one instruction: keep 0 bytes of each packet."""


class Network(Enum):
    """Faults of connections and of the data sent over them."""

    GOOD = auto()
    HOLDS_ALL = auto()
    """No data arrive, in either direction, until the fault ends: packets are lost and sent again."""
    HOLDS_RESPONSES = auto()
    """Requests arrive, responses do not."""
    SLOW = auto()
    """Each chunk of a response takes `SLOW_S` longer."""
    DRIPS = auto()
    """Responses arrive byte by byte, `DRIP_S` apart."""
    CUTS = auto()
    """Half of a response arrives, then the connection is reset."""
    HALF_CLOSES = auto()
    """Half of a response arrives, then the end of the stream; requests are still accepted."""
    RESETS = auto()
    """Connections are reset when they are opened or used."""


class TcpProxy:
    """Listens inside `with`, on the loopback address, and forwards to `target`.

    Args:
        watch: called for each connection; returns a function that gets each chunk from the client, in a thread.

    Attributes:
        address: of the proxy.
        target: of the broker; set it before the first connection.
    """

    def __init__(self, watch: Callable[[], Watcher] | None = None) -> None:
        (port,) = free_ports(1)
        self.address = Address(HOST, port)
        self.target = Address(HOST, 0)
        self._watch = watch
        self._network = Network.GOOD
        self._changed = threading.Condition()
        self._is_closed = False
        self._sockets: set[socket.socket] = set()
        self._listener = socket.create_server((HOST, port))

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            ends = tuple(self._sockets)
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in ends:
            _reset(end)

    @property
    def network(self) -> Network:
        return self._network

    @network.setter
    def network(self, network: Network) -> None:
        """For the data sent from now on, over all connections."""
        with self._changed:
            self._network = network
            self._changed.notify_all()

    def forget_connections(self) -> None:
        """Drop all packets of the existing connections, like a NAT that has lost its state: no packet is acknowledged,
        and no connection is closed. New connections are forwarded. Linux only."""
        drop_all = ctypes.create_string_buffer(_BPF_RETURN_0, len(_BPF_RETURN_0))
        program = struct.pack("HL", 1, ctypes.addressof(drop_all))
        for end in tuple(self._sockets):
            end.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            if self._network is Network.RESETS:
                _reset(client)
                return
            broker = socket.create_connection((self.target.host, self.target.port), CONNECT_TIMEOUT_S)
            broker.settimeout(None)
            for end in (client, broker):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with broker:
                self._sockets |= {client, broker}
                watcher = self._watch() if self._watch is not None else None
                requests = threading.Thread(target=self._forward, args=(client, broker, False, watcher), daemon=True)
                requests.start()
                self._forward(broker, client, True)
                requests.join()
                self._sockets -= {client, broker}

    def _forward(
        self, source: socket.socket, sink: socket.socket, is_response: bool, watcher: Watcher | None = None
    ) -> None:
        try:
            while chunk := source.recv(CHUNK_BYTES):
                if watcher is not None:
                    watcher(chunk)
                self._send(chunk, sink, is_response)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            for end in (source, sink):
                _reset(end)

    def _send(self, chunk: bytes, sink: socket.socket, is_response: bool) -> None:
        network = self._wait_while_held(is_response)
        if network is Network.RESETS:
            raise ConnectionError
        if not is_response or network is Network.GOOD:
            sink.sendall(chunk)
        elif network is Network.SLOW:
            self._pause(SLOW_S)
            sink.sendall(chunk)
        elif network is Network.DRIPS:
            for at in range(len(chunk)):
                self._pause(DRIP_S if self._network is Network.DRIPS else 0)
                sink.sendall(chunk[at : at + 1])
        else:
            sink.sendall(chunk[: len(chunk) // 2])
            if network is Network.CUTS:
                raise ConnectionError
            sink.shutdown(socket.SHUT_WR)

    def _wait_while_held(self, is_response: bool) -> Network:
        holding = {Network.HOLDS_ALL} | ({Network.HOLDS_RESPONSES} if is_response else set())
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._network not in holding)
            if self._is_closed:
                raise ConnectionError
            return self._network

    def _pause(self, seconds: float) -> None:
        with self._changed:
            if self._changed.wait_for(lambda: self._is_closed, seconds):
                raise ConnectionError


def _reset(end: socket.socket) -> None:
    """Reset the connection, and wake the thread that waits for data."""
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        end.shutdown(socket.SHUT_RDWR)
