"""Why a broker closed a new connection, or sends what is no response: its reason in the error, if it can be found.

A broker closes a connection without a word if the client lacks TLS or a login, and also while it shuts down. Which of
them it was, another connection to the same port shows: a probe, for `PROBE_S` at most. Probes are for connections
without a response so far, and not for a connection that is a probe itself.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any, Protocol, TypeAlias

from pyspark_kafka_meta.errors import KafkaMetaError, ProtocolError, ResponseTooLargeError, TlsError
from pyspark_kafka_meta.kafka.network.security import tls
from pyspark_kafka_meta.kafka.network.security.sasl_login import Caller, login_is_required
from pyspark_kafka_meta.kafka.network.sockets import FailedAddresses, connect, is_readable, remaining_s
from pyspark_kafka_meta.kafka.protocol import frame_codec
from pyspark_kafka_meta.kafka.protocol.apis import API_VERSIONS
from pyspark_kafka_meta.model import Address
from pyspark_kafka_meta.options import PLAINTEXT, SecurityOptions

PROBE_S = 1.0
REFUSAL_S = 0.5
"""A broker that refuses a connection closes it by then, without waiting for a request."""
FRAME_SLACK_BYTES = 64 * 1024 * 1024
"""Maximum size of a response beyond the records that the request asks for: a broker sends the first record batch of a
response whole, however large (KIP-74)."""
SMALL_REQUEST_BYTES = 16 * 1024
"""No broker refuses a request of this size."""
HTTP = b"HTTP"
"""First bytes of an HTTP response. No frame has such a size."""


class Probe(Caller, Protocol):
    """An open connection."""

    def is_closed_at(self, size: int, deadline: float) -> bool:
        """Whether the broker closes it at a request of this size, of which it gets the length alone."""

    def close(self) -> None: ...


def versions_request() -> Any:
    """Every broker since 2.0 supports v2, which returns everything needed here."""
    return frame_codec.request_schema(API_VERSIONS, API_VERSIONS.max_version).ApiVersionsRequest()


OpenProbe: TypeAlias = Callable[[SecurityOptions, float], Probe]


def expects_no_tls(open_probe: OpenProbe, deadline: float) -> bool:
    """Whether the port speaks without TLS."""
    return _probed(open_probe, PLAINTEXT, deadline, lambda *_: True) is True


def expects_login(open_probe: OpenProbe, security: SecurityOptions, deadline: float) -> bool:
    return _probed(open_probe, security, deadline, login_is_required) is True


def refuses_size(open_probe: OpenProbe, security: SecurityOptions, size: int, size_before: int | None) -> bool:
    """Whether a request is larger than the port accepts: the broker closes the connection once it knows the size.

    Args:
        size: bytes of a request on which a connection was closed.
        size_before: of the last one before it, at this broker. Only the second in a row is looked into.
    """
    if size <= SMALL_REQUEST_BYTES or size_before is None or size < size_before:
        return False

    def closes_at(size: int) -> bool | None:
        return _probed(open_probe, security, math.inf, lambda probe, until: probe.is_closed_at(size, until))

    return closes_at(size) is True and closes_at(SMALL_REQUEST_BYTES) is False


def _probed(
    open_probe: OpenProbe, security: SecurityOptions, deadline: float, look: Callable[[Probe, float], bool]
) -> bool | None:
    """What a look at a probe shows; None if the port accepts no connection."""
    deadline = min(deadline, time.monotonic() + PROBE_S)
    try:
        with closing(open_probe(security, deadline)) as probe:
            return look(probe, deadline)
    except KafkaMetaError:
        return None


def expects_tls(address: Address, failed: FailedAddresses) -> bool:
    """Whether the peer keeps a silent connection, but closes it at the first request, as TLS servers do. A broker with
    too many connections closes silent ones, too; one that restarts accepts none, or responds."""
    deadline = time.monotonic() + PROBE_S
    try:
        probe, _ = connect(address, deadline, failed)
    except KafkaMetaError:
        return False
    with probe:
        if is_readable(probe, REFUSAL_S):
            return False
        try:
            probe.settimeout(remaining_s(deadline))
            probe.sendall(b"".join(frame_codec.encode(versions_request(), 0, "")))
            return not probe.recv(1)
        except OSError as error:
            return isinstance(error, ConnectionError)


def size_error(address: Address, title: str, prefix: bytes, accepted: int, *, is_response: bool) -> KafkaMetaError:
    """The error of a response whose size is out of bounds.

    Args:
        prefix: the bytes in place of the size.
        is_response: whether the response to a Fetch follows it.
    """
    size = int.from_bytes(prefix, "big", signed=True)
    if prefix.startswith(tls.ALERT_RECORD):
        return TlsError(f"{address} speaks TLS: set kafka.security.protocol to SSL or SASL_SSL")
    if prefix == HTTP:
        return ProtocolError(f"{address} speaks HTTP, not the Kafka protocol: check the host and port of the broker")
    if is_response:
        return ResponseTooLargeError(
            f"{address} answered {title} with {size} bytes, more than the limit of {accepted} (kafka.fetch.max.bytes "
            "and 64 MiB for a large record batch): raise kafka.fetch.max.bytes to "
            f"{size - FRAME_SLACK_BYTES} or more"
        )
    return ProtocolError(
        f"{address} announced {size} bytes, the limit is {accepted}: it does not speak the Kafka protocol; check the "
        "host and port of the broker"
    )
