"""One broker, one blocking socket, a deadline on every step: TLS, ApiVersions, SASL, then requests and answers.

There is no thread and no event loop: a request is sent, other work is done, the answer is received. What the broker
sends in between waits in the kernel's buffer. After any error the connection is closed and of no further use.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import math
import random
import socket
import ssl
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pyspark_kafka_meta.errors import (
    AuthenticationError,
    ConnectError,
    KafkaMetaError,
    ProtocolError,
    RequestTimeoutError,
    ResponseTooLargeError,
    TlsError,
    UnsupportedBrokerError,
)
from pyspark_kafka_meta.model import Address
from pyspark_kafka_meta.options import ClientOptions, SecurityOptions
from pyspark_kafka_meta.options.security_options import PLAINTEXT
from pyspark_kafka_meta.reused_memory import ReusedMemory
from pyspark_kafka_meta.wire import codec
from pyspark_kafka_meta.wire.codec import API_VERSIONS, LENGTH_BYTES, Api, Exchange
from pyspark_kafka_meta.wire.security import tls
from pyspark_kafka_meta.wire.security.sasl_login import log_in, login_is_wanted
from pyspark_kafka_meta.wire.sockets import connect, is_readable, remaining_s

LOGIN_AGAIN_AT = (0.85, 0.95)
"""Shares of a session's lifetime between which it is renewed, as Kafka's `SaslClientAuthenticator` does."""
SILENCE_S = 5.0
"""A broker that sends nothing for this long in the middle of an answer counts as hung: meanwhile no other is heard."""
FRAME_SLACK_BYTES = 64 * 1024 * 1024
"""Above fetch.max.bytes: the first record batch of an answer is sent whole, however large (KIP-74)."""
CORRELATION_ID_BYTES = 4
HTTP = b"HTTP"
"""How an answer of an HTTP server begins. No frame is of such a size."""
PROBE_S = 1.0
"""No other is heard either while it is found out why a broker hung up or sent garbage, which only makes for a better
error."""


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """What a connection needs to know of the options. `max_frame_bytes` bounds what one answer may claim to hold."""

    client_id: str
    connect_timeout_ms: int
    max_frame_bytes: int
    security: SecurityOptions = PLAINTEXT

    @classmethod
    def of(cls, options: ClientOptions) -> ConnectionSettings:
        """Those of a client's options."""
        max_frame_bytes = max(options.fetch_max_bytes, options.max_partition_fetch_bytes) + FRAME_SLACK_BYTES
        return cls(options.client_id, options.connection_setup_timeout_ms, max_frame_bytes, options.security)


class _InFlight(NamedTuple):
    api: Api
    version: int
    correlation_id: int
    request_bytes: int
    sent_at: float


class Connection:
    """An open connection whose broker has sent its API versions and accepted the login, if there is one."""

    def __init__(self, address: Address, settings: ConnectionSettings, deadline: float) -> None:
        self.address = address
        self._settings = settings
        self._correlation_ids = itertools.count(1)
        self._in_flight: deque[_InFlight] = deque()
        self._versions: dict[int, tuple[int, int]] = {}
        self._login_due = math.inf
        self._is_new = True  # nothing but the API versions has been answered
        deadline = min(deadline, time.monotonic() + settings.connect_timeout_ms / 1000)
        self._socket = self._open(deadline)
        try:
            self._ask_versions(deadline)
            if settings.security.uses_sasl:
                self._log_in(deadline)
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
        """False once the broker has closed an idle connection. Bytes that were not asked for also end it, and a request
        whose caller has gone: its answer would be taken for that of the next."""
        if self._socket.fileno() < 0 or self._in_flight:
            return False
        return not is_readable(self._socket)

    def login_is_due(self) -> bool:
        """Whether `send` will renew the session first, which waits for the broker, and for a token."""
        return time.monotonic() >= self._login_due and not self._in_flight

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
        """Send `message`; its answer comes by `receive`, in the order of sending. A session that is about to end is
        renewed first (KIP-368)."""
        if self.login_is_due():
            self._log_in(deadline)
        correlation_id = next(self._correlation_ids) & 0x7FFFFFFF
        frame = codec.encode(message, correlation_id, self._settings.client_id)
        try:
            self._socket.settimeout(remaining_s(deadline))
            self._socket.sendall(frame)
        except OSError as error:
            raise self._failure(error, f"sending {api.title}") from error
        self._in_flight.append(_InFlight(api, message.__version__, correlation_id, len(frame), time.monotonic()))

    def receive(self, deadline: float, memory: ReusedMemory | None = None, has_begun: bool = False) -> Exchange:
        """The answer to the oldest request under way, in fresh memory or in this.

        Args:
            has_begun: whether poll has reported a first byte, over TLS of the first part of a record: the peer may not
                be silent for longer than `SILENCE_S` any more.
        """
        request = self._in_flight.popleft()
        what = f"waiting for its {request.api.title} answer"
        prefix = self._receive_exactly(LENGTH_BYTES, deadline, what, SILENCE_S if has_begun else math.inf)
        size = int.from_bytes(prefix, "big", signed=True)
        if not LENGTH_BYTES <= size <= self._settings.max_frame_bytes:
            error = self._refusal(request, bytes(prefix), deadline)
            self.close()
            raise error
        frame = self._receive_exactly(size, deadline, what, SILENCE_S, memory)
        received_at = time.monotonic()
        try:
            message, records = codec.decode(request.api, request.version, request.correlation_id, frame)
        except ProtocolError as error:
            self.close()
            raise ProtocolError(f"{self.address}: {error}") from error
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

    def _refusal(self, request: _InFlight, prefix: bytes, deadline: float) -> KafkaMetaError:
        """What to say of an answer that begins with a size out of bounds."""
        size, accepted = int.from_bytes(prefix, "big", signed=True), self._settings.max_frame_bytes
        if prefix.startswith(tls.ALERT_RECORD):
            return TlsError(f"{self.address} speaks TLS: set kafka.security.protocol to SSL or SASL_SSL")
        if prefix == HTTP:
            return ProtocolError(
                f"{self.address} speaks HTTP, not the Kafka protocol: check the host and port of the broker"
            )
        if size > accepted and self._is_correlation_id_next(request.correlation_id, deadline):
            return ResponseTooLargeError(
                f"{self.address} answered {request.api.title} with {size} bytes, more than the {accepted} accepted, "
                "which are kafka.fetch.max.bytes and 64 MiB for a large record batch: raise kafka.fetch.max.bytes to "
                f"{size - FRAME_SLACK_BYTES} or more"
            )
        return ProtocolError(
            f"{self.address} announced {size} bytes where {accepted} are accepted: it does not speak the Kafka "
            "protocol; check the host and port of the broker"
        )

    def _is_correlation_id_next(self, correlation_id: int, deadline: float) -> bool:
        """Whether the size before is no garbage."""
        with contextlib.suppress(KafkaMetaError):
            received = self._receive_exactly(CORRELATION_ID_BYTES, deadline, "waiting for a correlation id", PROBE_S)
            return int.from_bytes(received, "big") == correlation_id
        return False

    def _open(self, deadline: float) -> socket.socket:
        security = self._settings.security
        context = tls.tls_context(security) if security.uses_tls else None
        connection = connect(self.address, deadline)
        if context is None:
            return connection
        try:
            return tls.handshake(connection, self.address, context, deadline)
        except ConnectError:
            if self._answers_without_tls(deadline):
                protocols = "PLAINTEXT or SASL_PLAINTEXT"
                raise TlsError(
                    f"{self.address} does not speak TLS: set kafka.security.protocol to {protocols}"
                ) from None
            raise

    def _answers_without_tls(self, deadline: float) -> bool:
        """A broker that gets TLS where it wants none just hangs up, as one that is going down does: this finds out."""
        try:
            Connection(self.address, replace(self._settings, security=PLAINTEXT), deadline).close()
        except KafkaMetaError:
            return False
        return True

    def _wants_login(self, deadline: float) -> bool:
        """A broker that wants a login first just hangs up, as one that is going down does: this finds out."""
        if not self._is_new or not self._versions or self._settings.security.uses_sasl:
            return False
        self.close()
        deadline = min(deadline, time.monotonic() + PROBE_S)
        try:
            with contextlib.closing(Connection(self.address, self._settings, deadline)) as probe:
                probe._is_new = False  # so that it does not start one more probe
                return login_is_wanted(probe, deadline)
        except KafkaMetaError:
            return False

    def _log_in(self, deadline: float) -> None:
        self._login_due = math.inf
        try:
            lifetime_ms = log_in(self, self._settings.security, deadline)
        except KafkaMetaError:
            self.close()
            raise
        if lifetime_ms > 0:
            self._login_due = time.monotonic() + lifetime_ms / 1000 * random.uniform(*LOGIN_AGAIN_AT)

    def _ask_versions(self, deadline: float) -> None:
        # v2 is understood by every broker since 2.0; nothing is needed that v2 does not return.
        request = codec.request_schema(API_VERSIONS, API_VERSIONS.max_version).ApiVersionsRequest()
        answer = self.call(API_VERSIONS, request, deadline).message
        if answer.error_code != 0:
            raise UnsupportedBrokerError(f"{self.address} refused ApiVersions with error {int(answer.error_code)}")
        self._versions = {entry.api_key: (entry.min_version, entry.max_version) for entry in answer.api_keys}

    def _receive_exactly(
        self, size: int, deadline: float, what: str, silence_s: float, memory: ReusedMemory | None = None
    ) -> memoryview:
        # It is not touched until bytes arrive, so a lying length costs address space only.
        buffer = (memory or ReusedMemory()).of(size)
        received = 0
        while received < size:
            try:
                # After the deadline what has arrived is read, and nothing is waited for: 0 makes it non-blocking.
                self._socket.settimeout(max(min(deadline - time.monotonic(), silence_s), 0))
                count = self._socket.recv_into(buffer[received:])
            except OSError as error:
                raise self._failure(error, what) from error
            if count == 0:
                if self._wants_login(deadline):
                    raise AuthenticationError(
                        f"{self.address} wants a SASL login: set kafka.security.protocol to "
                        f"SASL_{self._settings.security.protocol}, and kafka.sasl.mechanism"
                    )
                raise self._failure(None, what)
            received += count
        return buffer.toreadonly()

    def _failure(self, error: OSError | None, what: str) -> KafkaMetaError:
        self.close()
        # The kernel gives up a connection with a TimeoutError, too.
        is_given_up = error is not None and error.errno == errno.ETIMEDOUT
        if not is_given_up and isinstance(error, TimeoutError | BlockingIOError | ssl.SSLWantReadError):
            return RequestTimeoutError(f"{self.address} did not answer in time while {what}")
        # With TLS 1.3 a client certificate is refused after the handshake. Later on, bytes were damaged on their way.
        if self._is_new and isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or ""):
            return tls.failure(self.address, error)
        reason = "closed the connection" if error is None else f"broke the connection ({error.strerror or error})"
        return ConnectError(f"{self.address} {reason} while {what}")
