"""One broker, one blocking socket, a deadline on every step.

There is no thread and no event loop: a request is sent, other work is done, the answer is received. What the broker
sends in between waits in the kernel's buffer. After any error the connection is closed and of no further use.
"""

from __future__ import annotations

import itertools
import queue
import selectors
import socket
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pyspark_kafka_meta.errors import (
    ConnectError,
    KafkaMetaError,
    ProtocolError,
    RequestTimeoutError,
    UnsupportedBrokerError,
)
from pyspark_kafka_meta.metadata.model import Address
from pyspark_kafka_meta.wire import codec
from pyspark_kafka_meta.wire.codec import API_VERSIONS, LENGTH_BYTES, Api


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """What a connection needs to know of the options. `max_frame_bytes` bounds what one answer may claim to hold."""

    client_id: str
    connect_timeout_ms: int
    max_frame_bytes: int


class Exchange(NamedTuple):
    """One request and its answer. Sizes include the length prefix; latency is from last byte sent to last received."""

    message: Any
    api_version: int
    correlation_id: int
    request_bytes: int
    response_bytes: int
    latency_ms: float


class _InFlight(NamedTuple):
    api: Api
    version: int
    correlation_id: int
    request_bytes: int
    sent_at: float


class Connection:
    """An open connection whose broker has told its API versions."""

    def __init__(self, address: Address, settings: ConnectionSettings, deadline: float) -> None:
        self.address = address
        self._settings = settings
        self._correlation_ids = itertools.count(1)
        self._in_flight: deque[_InFlight] = deque()
        self._versions: dict[int, tuple[int, int]] = {}
        deadline = min(deadline, time.monotonic() + settings.connect_timeout_ms / 1000)
        self._socket = _connect(address, deadline)
        try:
            self._ask_versions(deadline)
        except KafkaMetaError as error:
            self.close()
            if isinstance(error, RequestTimeoutError):
                raise ConnectError(
                    f"{address} accepts connections but does not answer: is it a Kafka broker?"
                ) from error
            raise

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def is_usable(self) -> bool:
        """False once the broker has closed an idle connection. Bytes that nobody asked for also end it."""
        if self._socket.fileno() < 0:
            return False
        return bool(self._in_flight) or not _is_readable(self._socket)

    def version(self, api: Api, at_most: int | None = None) -> int:
        """The newest version of `api` that both sides speak.

        Raises:
            UnsupportedBrokerError: there is none.
        """
        ours = api.max_version if at_most is None else min(api.max_version, at_most)
        oldest, newest = self._versions.get(api.key, (0, -1))
        version = min(ours, newest)
        if version < max(api.min_version, oldest):
            raise UnsupportedBrokerError(
                f"{self.address} offers {api.title} v{oldest} to v{newest}, needed is v{api.min_version} to v{ours}: "
                "use brokers of Apache Kafka 2.7 or later"
            )
        return version

    def call(self, api: Api, message: Any, deadline: float) -> Exchange:
        """Send `message` and wait for its answer."""
        self.send(api, message, deadline)
        return self.receive(deadline)

    def send(self, api: Api, message: Any, deadline: float) -> None:
        """Send `message`; its answer comes by `receive`, in the order of sending."""
        correlation_id = next(self._correlation_ids) & 0x7FFFFFFF
        frame = codec.encode(message, correlation_id, self._settings.client_id)
        self._set_timeout(deadline)
        try:
            self._socket.sendall(frame)
        except OSError as error:
            raise self._failure(error, f"sending {api.title}") from error
        self._in_flight.append(_InFlight(api, message.__version__, correlation_id, len(frame), time.monotonic()))

    def receive(self, deadline: float) -> Exchange:
        """The answer to the oldest request under way."""
        request = self._in_flight.popleft()
        what = f"waiting for its {request.api.title} answer"
        size = int.from_bytes(self._receive_exactly(LENGTH_BYTES, deadline, what), "big", signed=True)
        if not LENGTH_BYTES <= size <= self._settings.max_frame_bytes:
            self.close()
            raise ProtocolError(
                f"{self.address} announced {size} bytes where {self._settings.max_frame_bytes} are accepted: "
                "if it is a Kafka broker and holds such large records, raise kafka.fetch.max.bytes"
            )
        frame = self._receive_exactly(size, deadline, what)
        received_at = time.monotonic()
        try:
            message = codec.decode(request.api, request.version, request.correlation_id, frame)
        except ProtocolError as error:
            self.close()
            raise ProtocolError(f"{self.address}: {error}") from error
        return Exchange(
            message,
            request.version,
            request.correlation_id,
            request.request_bytes,
            size + LENGTH_BYTES,
            (received_at - request.sent_at) * 1000,
        )

    def _ask_versions(self, deadline: float) -> None:
        # v2 is understood by every broker since 2.0; newer ones are asked for nothing that v2 does not tell.
        request = codec.request_schema(API_VERSIONS, API_VERSIONS.max_version).ApiVersionsRequest()
        answer = self.call(API_VERSIONS, request, deadline).message
        if answer.error_code != 0:
            raise UnsupportedBrokerError(f"{self.address} refused ApiVersions with error {int(answer.error_code)}")
        self._versions = {entry.api_key: (entry.min_version, entry.max_version) for entry in answer.api_keys}

    def _receive_exactly(self, size: int, deadline: float, what: str) -> memoryview:
        # numpy's empty buffer is not touched until bytes arrive, so a lying length costs address space only.
        buffer = np.empty(size, dtype=np.uint8).data
        received = 0
        while received < size:
            self._set_timeout(deadline)
            try:
                count = self._socket.recv_into(buffer[received:])
            except OSError as error:
                raise self._failure(error, what) from error
            if count == 0:
                raise self._failure(None, what)
            received += count
        return buffer.toreadonly()

    def _set_timeout(self, deadline: float) -> None:
        # A timeout of 0 would make the socket non-blocking; a passed deadline gets one last short look instead.
        self._socket.settimeout(max(deadline - time.monotonic(), 0.001))

    def _failure(self, error: OSError | None, what: str) -> KafkaMetaError:
        self.close()
        if isinstance(error, TimeoutError):
            return RequestTimeoutError(f"{self.address} did not answer in time while {what}")
        reason = "closed the connection" if error is None else f"broke the connection ({error.strerror or error})"
        return ConnectError(f"{self.address} {reason} while {what}")


def _is_readable(connection: socket.socket) -> bool:
    """Whether bytes, or the peer's goodbye, have arrived."""
    with selectors.DefaultSelector() as selector:  # select() itself fails in processes with over 1024 open files
        selector.register(connection, selectors.EVENT_READ)
        return bool(selector.select(0))


def _connect(address: Address, deadline: float) -> socket.socket:
    """A connected socket to the first of the host's addresses that accepts, each given its share of the time left."""
    failures = []
    candidates = _resolve(address, deadline)
    for index, (family, target) in enumerate(candidates):
        share = (deadline - time.monotonic()) / (len(candidates) - index)
        try:
            connection = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:  # an address family that this host does not speak, or no file left to open
            failures.append(error.strerror or str(error))
            continue
        try:
            connection.settimeout(max(share, 0.001))
            connection.connect(target)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            return connection
        except OSError as error:
            connection.close()
            failures.append("no answer in time" if isinstance(error, TimeoutError) else error.strerror or str(error))
    raise ConnectError(f"cannot connect to {address}: {', '.join(dict.fromkeys(failures))}")


def _resolve(address: Address, deadline: float) -> list[tuple[int, Any]]:
    """Socket families and addresses of a host name. The system's resolver knows no deadline, so it runs in a thread
    that is left behind when the time is up."""
    answers: queue.SimpleQueue[list[tuple[int, Any]] | OSError | UnicodeError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
            answers.put(list(dict.fromkeys((family, target) for family, _, _, _, target in found)))
        except (OSError, UnicodeError) as error:  # the latter: no host name at all
            answers.put(error)

    threading.Thread(target=ask, daemon=True, name="kafkameta-resolve").start()
    try:
        answer = answers.get(timeout=max(deadline - time.monotonic(), 0.001))
    except queue.Empty:
        raise ConnectError(f"cannot connect to {address}: its name was not resolved in time") from None
    if isinstance(answer, OSError | UnicodeError):
        reason = getattr(answer, "strerror", None) or answer
        raise ConnectError(f"cannot connect to {address}: {reason}") from answer
    return answer
