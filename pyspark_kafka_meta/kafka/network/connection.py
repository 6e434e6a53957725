"""A connection to a broker: TLS, ApiVersions, SASL, then requests. Every step has a deadline.

Sending never waits: bytes that the socket does not take are sent by `flush`. Between `send` and `receive`, the response
waits in the kernel's buffer. Any error closes the connection for good.
"""

from __future__ import annotations

import errno
import itertools
import math
import random
import ssl
import time
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark_kafka_meta.errors import (
    AuthenticationError,
    ConnectError,
    KafkaMetaError,
    ProtocolError,
    RefusedRequestError,
    RequestTimeoutError,
    RequestTooLargeError,
    TlsError,
    UnsupportedBrokerError,
)
from pyspark_kafka_meta.kafka.network import connection_diagnosis as diagnosis
from pyspark_kafka_meta.kafka.network.connection_diagnosis import FRAME_SLACK_BYTES, versions_request
from pyspark_kafka_meta.kafka.network.security import tls
from pyspark_kafka_meta.kafka.network.security.sasl_login import log_in
from pyspark_kafka_meta.kafka.network.sockets import (
    TOO_MANY_CONNECTIONS,
    FailedAddresses,
    connect,
    is_readable,
    notice_dead_peers,
    remaining_s,
)
from pyspark_kafka_meta.kafka.protocol import frame_codec
from pyspark_kafka_meta.kafka.protocol.apis import API_VERSIONS, FETCH, METADATA, Api, Exchange
from pyspark_kafka_meta.kafka.protocol.frame_codec import LENGTH_BYTES
from pyspark_kafka_meta.kafka.records.reusable_buffer import ReusableBuffer
from pyspark_kafka_meta.model import Address
from pyspark_kafka_meta.options import PLAINTEXT, ClientOptions, SecurityOptions

LOGIN_AGAIN_AT = (0.85, 0.95)
"""Shares of a session's lifetime between which it is renewed, as Kafka's `SaslClientAuthenticator` does."""
SILENCE_S = 5.0
"""A broker that pauses for longer within a response counts as hung: no other response is received meanwhile."""
CORRELATION_ID_BYTES = 4


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """The options of a connection.

    Attributes:
        max_frame_bytes: limit of a response beyond the records that its request asks for.
        limits_unacknowledged: as in `sockets.connect`.
        failed_addresses: of all connections of the client.
        closed_on: bytes of the last large request that a broker closed a connection on, by address.
    """

    client_id: str
    connect_timeout_ms: int
    max_frame_bytes: int
    security: SecurityOptions = PLAINTEXT
    limits_unacknowledged: bool = True
    failed_addresses: FailedAddresses = field(default_factory=FailedAddresses, compare=False)
    closed_on: dict[Address, int] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, options: ClientOptions) -> ConnectionSettings:
        return cls(options.client_id, options.connection_setup_timeout_ms, FRAME_SLACK_BYTES, options.security)


@dataclass(slots=True)
class _InFlight:
    api: Api
    version: int
    correlation_id: int
    request_bytes: int
    unsent: deque[memoryview]
    sent_at: float = field(init=False)

    def on_sent(self, count: int) -> None:
        """`count` bytes of the first unsent part are sent."""
        part = self.unsent.popleft()
        if count < len(part):
            self.unsent.appendleft(part[count:])
        self.sent_at = time.monotonic()


class Connection:
    """An open connection whose broker has sent its API versions and accepted the login, if there is one."""

    def __init__(
        self, address: Address, settings: ConnectionSettings, deadline: float, *, is_probe: bool = False
    ) -> None:
        """`is_probe`: whether errors are without a diagnosis."""
        self.address = address
        self._settings = settings
        self._correlation_ids = itertools.count(1)
        self._in_flight: deque[_InFlight] = deque()
        self._versions: dict[int, tuple[int, int]] = {}
        self._login_due = math.inf
        self._is_new = True  # no response but ApiVersions was received
        self._is_probe = is_probe
        self._limits_unacknowledged = settings.limits_unacknowledged
        deadline = min(deadline, time.monotonic() + settings.connect_timeout_ms / 1000)
        context = tls.tls_context(settings.security) if settings.security.uses_tls else None
        failed = settings.failed_addresses
        self._socket, self._target = connect(address, deadline, failed, settings.limits_unacknowledged)
        try:
            if context is not None:
                self._socket = self._encrypted(context, deadline)
            self._request_versions(deadline)
            if settings.security.uses_sasl:
                self._log_in(deadline)
        except KafkaMetaError as error:
            self.abandon()
            if isinstance(error, RequestTimeoutError):
                raise ConnectError(
                    f"{address} accepts connections but does not answer: is it a Kafka broker?"
                ) from error
            raise

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def abandon(self) -> None:
        """Close a connection that failed: the next one to this host begins with another of its addresses."""
        self.close()
        self._settings.failed_addresses.add(self.address, self._target)

    def is_usable(self) -> bool:
        """False once the broker closed an idle connection or sent unrequested bytes, or with a request in flight: its
        response would be taken for the response to the next request."""
        if self._socket.fileno() < 0 or self._in_flight or self.has_buffered_bytes():
            return False
        return not is_readable(self._socket)

    def limit_unacknowledged(self, is_limited: bool) -> None:
        """Change `ConnectionSettings.limits_unacknowledged` of this connection alone."""
        if is_limited != self._limits_unacknowledged:
            notice_dead_peers(self._socket, is_limited)
            self._limits_unacknowledged = is_limited

    def has_buffered_bytes(self) -> bool:
        """Whether bytes of a response were decrypted with the response before: no selector sees them."""
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    def has_unsent_bytes(self) -> bool:
        """Whether `flush` has something to send once the socket is writable."""
        return bool(self._in_flight and self._in_flight[-1].unsent)

    def login_is_due(self) -> bool:
        """Whether the session is about to end (KIP-368). With no request in flight, `send` renews it first, which waits
        for the broker and for a token."""
        return time.monotonic() >= self._login_due

    def version(self, api: Api) -> int:
        """The newest version of `api` that both sides support. Raises UnsupportedBrokerError: no version is supported
        by both."""
        oldest, newest = self._versions.get(api.key, (0, -1))
        version = min(api.max_version, newest)
        if version < max(api.min_version, oldest):
            offer = f"{api.title} v{oldest} to v{newest}, needed is v{api.min_version} to v{api.max_version}"
            offer = offer if api.key in self._versions else f"no {api.title}"
            raise UnsupportedBrokerError(
                f"{self.address} offers {offer}: use brokers of Apache Kafka {api.since} or later"
            )
        return version

    def call(self, api: Api, message: Any, deadline: float) -> Exchange:
        """Send `message` and wait for its response."""
        self.send(api, message, deadline)
        self.flush(deadline)
        return self.receive(deadline)

    def send(self, api: Api, message: Any, deadline: float) -> None:
        """Send as much of `message` as the socket takes at once; a due login comes first, by `deadline`. `receive`
        returns responses in the order of requests."""
        if self.login_is_due() and not self._in_flight:
            self._log_in(deadline)
        correlation_id = next(self._correlation_ids) & 0x7FFFFFFF
        frame = frame_codec.encode(message, correlation_id, self._settings.client_id)
        size = sum(map(len, frame))
        self._in_flight.append(_InFlight(api, message.__version__, correlation_id, size, deque(frame)))
        self.flush()

    def flush(self, deadline: float | None = None) -> None:
        """Send what is unsent by `deadline`. Without it, only as much as the socket takes at once."""
        for request in self._in_flight:
            while request.unsent:
                try:
                    self._socket.settimeout(0 if deadline is None else remaining_s(deadline))
                    request.on_sent(self._socket.send(request.unsent[0]))
                except OSError as error:
                    if deadline is None and isinstance(error, BlockingIOError | ssl.SSLWantWriteError):
                        return
                    read_by_broker = self._in_flight[0].request_bytes
                    raise self._failure(error, f"sending {request.api.title}", read_by_broker) from error

    def receive(
        self, deadline: float, memory: ReusableBuffer | None = None, has_begun: bool = False, max_records_bytes: int = 0
    ) -> Exchange:
        """The response to the oldest in-flight request, in `memory` or in new memory.

        Args:
            has_begun: whether poll reported a first byte (with TLS: of the first record). From then on, the broker may
                not pause for longer than `SILENCE_S`.
            max_records_bytes: the records that the request may ask for.
        """
        request = self._in_flight.popleft()
        what = f"waiting for its {request.api.title} response"
        silence_s = SILENCE_S if has_begun else math.inf
        prefix = self._receive_exactly(LENGTH_BYTES, deadline, what, silence_s, request_bytes=request.request_bytes)
        size = int.from_bytes(prefix, "big", signed=True)
        accepted = self._settings.max_frame_bytes + max_records_bytes
        if not LENGTH_BYTES <= size <= accepted:
            is_response = request.api.key == FETCH.key and size > accepted
            is_response = is_response and self._is_next(request.correlation_id, deadline)
            self.close()
            title = request.api.title
            raise diagnosis.size_error(self.address, title, bytes(prefix), accepted, is_response=is_response)
        frame = self._receive_exactly(size, deadline, what, SILENCE_S, memory)
        received_at = time.monotonic()
        try:
            message, records = frame_codec.decode(request.api, request.version, request.correlation_id, frame)
        except ProtocolError as error:
            self.close()
            raise ProtocolError(f"{self.address}: {error}") from error
        if request.unsent:
            self.close()
            raise ProtocolError(f"{self.address} answered {request.api.title} before it had the whole request")
        self._is_new = self._is_new and request.api is API_VERSIONS
        return Exchange(
            message,
            records,
            request.version,
            request.correlation_id,
            request.request_bytes,
            size + LENGTH_BYTES,
            (received_at - request.sent_at) * 1000,
        )

    def _is_next(self, correlation_id: int, deadline: float) -> bool:
        """Whether the size before belongs to a response."""
        try:
            received = self._receive_exactly(
                CORRELATION_ID_BYTES, deadline, "waiting for a correlation id", diagnosis.PROBE_S
            )
        except KafkaMetaError:
            return False
        return int.from_bytes(received, "big") == correlation_id

    def _encrypted(self, context: ssl.SSLContext, deadline: float) -> ssl.SSLSocket:
        try:
            return tls.handshake(self._socket, self.address, context, deadline)
        except ConnectError:
            if not self._is_probe and diagnosis.expects_no_tls(self._probe, deadline):
                protocols = "PLAINTEXT or SASL_PLAINTEXT"
                raise TlsError(
                    f"{self.address} does not speak TLS: set kafka.security.protocol to {protocols}"
                ) from None
            raise

    def _is_refused_size(self, size: int) -> bool:
        before = self._settings.closed_on.get(self.address)
        if size > diagnosis.SMALL_REQUEST_BYTES:
            self._settings.closed_on[self.address] = size
        return diagnosis.refuses_size(self._probe, self._settings.security, size, before)

    def is_closed_at(self, size: int, deadline: float) -> bool:
        """As `connection_diagnosis.Probe`."""
        try:
            self._socket.settimeout(remaining_s(deadline))
            self._socket.sendall((size - LENGTH_BYTES).to_bytes(LENGTH_BYTES, "big"))
            self._receive_exactly(LENGTH_BYTES, deadline, "waiting for nothing", math.inf)
        except RequestTimeoutError:
            return False
        except (OSError, ConnectError):
            return True
        return False

    def _probe(self, security: SecurityOptions, deadline: float) -> Connection:
        """Another connection to this port."""
        return Connection(self.address, replace(self._settings, security=security), deadline, is_probe=True)

    def _log_in(self, deadline: float) -> None:
        self._login_due = math.inf
        try:
            lifetime_ms = log_in(self, self._settings.security, deadline)
        except KafkaMetaError:
            self.close()
            raise
        if lifetime_ms > 0:
            self._login_due = time.monotonic() + lifetime_ms / 1000 * random.uniform(*LOGIN_AGAIN_AT)

    def _request_versions(self, deadline: float) -> None:
        response = self.call(API_VERSIONS, versions_request(), deadline).message
        if response.error_code != 0:
            raise UnsupportedBrokerError(f"{self.address} refused ApiVersions with error {int(response.error_code)}")
        self._versions = {entry.api_key: (entry.min_version, entry.max_version) for entry in response.api_keys}
        if METADATA.key not in self._versions:
            raise UnsupportedBrokerError(
                f"{self.address} offers no Metadata, as a KRaft controller: use the addresses of brokers in "
                "kafka.bootstrap.servers"
            )

    def _receive_exactly(
        self,
        size: int,
        deadline: float,
        what: str,
        silence_s: float,
        memory: ReusableBuffer | None = None,
        request_bytes: int = 0,
    ) -> memoryview:
        # The memory is not touched until bytes arrive: a false length costs address space only.
        buffer = (memory or ReusableBuffer()).of(size)
        received = 0
        while received < size:
            try:
                # After the deadline, read only what has arrived: 0 makes the socket non-blocking.
                self._socket.settimeout(max(min(deadline - time.monotonic(), silence_s), 0))
                count = self._socket.recv_into(buffer[received:])
            except OSError as error:
                raise self._failure(error, what, request_bytes) from error
            if count == 0:
                raise self._failure(None, what, request_bytes, deadline)
            received += count
        return buffer.toreadonly()

    def _failure(
        self, error: OSError | None, what: str, request_bytes: int, deadline: float = math.inf
    ) -> KafkaMetaError:
        """The error of a lost connection; without an OSError, of one that the broker has closed."""
        security, is_diagnosed = self._settings.security, self._is_new and not self._is_probe
        if error is None and is_diagnosed and self._versions and not security.uses_sasl:
            self.close()
            if diagnosis.expects_login(self._probe, security, deadline):
                return AuthenticationError(
                    f"{self.address} requires a SASL login: set kafka.security.protocol to SASL_{security.protocol}, "
                    "and kafka.sasl.mechanism"
                )
        self.abandon()
        # The kernel also reports a lost connection as TimeoutError.
        is_lost = error is not None and error.errno == errno.ETIMEDOUT
        if not is_lost and isinstance(error, TimeoutError | BlockingIOError | ssl.SSLWantReadError):
            return RequestTimeoutError(f"{self.address} did not answer in time while {what}")
        # With TLS 1.3, a broker refuses a client certificate after the handshake. A later alert means damaged bytes.
        if self._is_new and isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or ""):
            return tls.failure(self.address, error)
        reason = "closed the connection" if error is None else f"broke the connection ({error.strerror or error})"
        closed = f"{self.address} {reason} while {what}"
        if self._versions:
            if not self._is_probe and self._is_refused_size(request_bytes):
                return RequestTooLargeError(
                    f"{closed}: a request of {request_bytes} bytes, more than socket.request.max.bytes of the broker. "
                    "Raise it, or set kafka.max.request.size and kafka.batch.size to less if the request writes records"
                )
            return ConnectError(closed)
        failed = self._settings.failed_addresses
        if is_diagnosed and not security.uses_tls and diagnosis.expects_tls(self.address, failed):
            return RefusedRequestError(
                f"{closed}, as servers do that expect TLS: set kafka.security.protocol to SSL or SASL_SSL. Else "
                f"{TOO_MANY_CONNECTIONS}"
            )
        return ConnectError(f"{closed}: {TOO_MANY_CONNECTIONS}")
