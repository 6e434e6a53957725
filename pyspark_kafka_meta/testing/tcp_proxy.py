"""`TcpProxy`: a bad network in front of one broker, which holds, delays, cuts, half-closes, drips or drops what passes.

Brokers must advertise the proxies' ports (`LocalKafka(advertised_ports=...)`), or clients pass them by.
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
from pyspark_kafka_meta.testing.free_ports import free_ports
from pyspark_kafka_meta.testing.kafka_config import HOST

Watcher: TypeAlias = Callable[[bytes], None]

CHUNK_BYTES = 65_536
CONNECT_TIMEOUT_S = 5.0
SLOW_S = 0.5
DRIP_S = 0.02
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_SO_ATTACH_FILTER = 26
_BPF_RETURN_0 = struct.pack("HBBI", 0x06, 0, 0, 0)
"""A packet filter (BPF) of one instruction: keep 0 bytes of each packet."""


class Network(Enum):
    """What happens to connections and to what is sent over them."""

    GOOD = auto()
    HOLDS_ALL = auto()
    """Nothing arrives, either way, until the network is better: packets are lost, and sent again."""
    HOLDS_ANSWERS = auto()
    """Requests arrive and answers do not."""
    SLOW = auto()
    """Each piece of an answer takes `SLOW_S` more."""
    DRIPS = auto()
    """Answers come a byte at a time, `DRIP_S` apart."""
    CUTS = auto()
    """Half of an answer arrives, then the connection is reset."""
    HALF_CLOSES = auto()
    """Half of an answer arrives, then its end; requests are still taken."""
    RESETS = auto()
    """Connections are reset as soon as they are made, or used."""


class TcpProxy:
    """Listens inside `with`, on this machine alone, and passes on to `target`.

    Args:
        watch: asked for something that takes what a client sends, piece by piece, for each connection; in threads.

    Attributes:
        address: where it listens.
        target: where to; to be set before the first connection.
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
            _hang_up(end)

    @property
    def network(self) -> Network:
        return self._network

    @network.setter
    def network(self, network: Network) -> None:
        """For all connections, from what is sent next on."""
        with self._changed:
            self._network = network
            self._changed.notify_all()

    def forget_connections(self) -> None:
        """Drop whatever is sent over the connections there are, as a NAT does that forgot them: it is not acknowledged,
        and nobody hangs up. New connections are passed on. On Linux only."""
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
                _hang_up(client)
                return
            broker = socket.create_connection((self.target.host, self.target.port), CONNECT_TIMEOUT_S)
            broker.settimeout(None)
            for end in (client, broker):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with broker:
                self._sockets |= {client, broker}
                look = self._watch() if self._watch is not None else None
                requests = threading.Thread(target=self._pass_on, args=(client, broker, False, look), daemon=True)
                requests.start()
                self._pass_on(broker, client, True)
                requests.join()
                self._sockets -= {client, broker}

    def _pass_on(
        self, source: socket.socket, sink: socket.socket, is_answer: bool, look: Watcher | None = None
    ) -> None:
        try:
            while chunk := source.recv(CHUNK_BYTES):
                if look is not None:
                    look(chunk)
                self._send(chunk, sink, is_answer)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            for end in (source, sink):
                _hang_up(end)

    def _send(self, chunk: bytes, sink: socket.socket, is_answer: bool) -> None:
        network = self._wait_to_pass(is_answer)
        if network is Network.RESETS:
            raise ConnectionError
        if not is_answer or network is Network.GOOD:
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

    def _wait_to_pass(self, is_answer: bool) -> Network:
        holding = {Network.HOLDS_ALL} | ({Network.HOLDS_ANSWERS} if is_answer else set())
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._network not in holding)
            if self._is_closed:
                raise ConnectionError
            return self._network

    def _pause(self, seconds: float) -> None:
        with self._changed:
            if self._changed.wait_for(lambda: self._is_closed, seconds):
                raise ConnectionError


def _hang_up(end: socket.socket) -> None:
    """Reset rather than close, and wake the thread that waits for it."""
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        end.shutdown(socket.SHUT_RDWR)
