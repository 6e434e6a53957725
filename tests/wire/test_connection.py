"""Connections to peers that misbehave, and readers of brokers that send wrong, many or slow responses: every step ends
by its deadline, with an error that says what happened, and without a storm."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12.response import MetadataResponseBroker

from pyspark_kafka_meta.errors import (
    BrokerError,
    ConnectError,
    CorruptBatchError,
    KafkaMetaError,
    ProtocolError,
    ReadTimeoutError,
    RequestTimeoutError,
    ResponseTooLargeError,
    UnknownHostError,
    UnsupportedBrokerError,
)
from pyspark_kafka_meta.events.event import Origin, Role
from pyspark_kafka_meta.events.publisher import EventPublisher
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.network.connection import Connection, ConnectionSettings
from pyspark_kafka_meta.kafka.network.kafka_network import KafkaNetwork
from pyspark_kafka_meta.kafka.protocol.apis import METADATA
from pyspark_kafka_meta.kafka.protocol.frame_codec import LENGTH_BYTES
from pyspark_kafka_meta.kafka.protocol.metadata import MetadataRequest
from pyspark_kafka_meta.model import NO_EPOCH, Address, MetadataResponse, OffsetRange, TopicPartition
from pyspark_kafka_meta.options import ClientOptions, SourceOptions
from pyspark_kafka_meta.read.fetching.task_reader import TaskReader
from pyspark_kafka_meta.testing.listener_security import CertificateAuthority
from tests.unit.kafka.records import handmade
from tests.wire.scripted_broker import (
    TOPIC_ID,
    Behaviour,
    fetch_frame,
    leader_frame,
    metadata_frame,
    over_tls,
    read_request,
    scripted_broker,
    send_versions,
    serve_metadata,
)

SETTINGS = ConnectionSettings(client_id="test", connect_timeout_ms=30_000, max_frame_bytes=1_000_000)
PATIENCE_S = 30.0
SHORT_S = 0.5
"""For peers of which no whole response comes."""


def ask(address: Address, timeout_s: float = PATIENCE_S, topics: tuple[str, ...] = ()) -> MetadataResponse:
    network = KafkaNetwork(SETTINGS)
    try:
        return network.metadata(address, topics, time.monotonic() + timeout_s)
    finally:
        network.close()


def soon(timeout_s: float) -> float:
    return time.monotonic() + timeout_s


def broker(node_id: int = 1, host: str = "localhost", port: int = 9092) -> MetadataResponseBroker:
    return MetadataResponseBroker(node_id=node_id, host=host, port=port)


def test_a_good_response_is_read() -> None:
    with scripted_broker(lambda peer: serve_metadata(peer, brokers=(broker(4, "kafka-4", 29092),))) as address:
        response = ask(address)
    assert [(one.node_id, str(one.address)) for one in response.brokers] == [(4, "kafka-4:29092")]
    assert response.api_version == 12
    assert response.correlation_id == 2


def test_a_refused_connection_names_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConnectError, match=f"cannot connect to 127.0.0.1:{port}: Connection refused"):
        ask(Address("127.0.0.1", port))


def test_an_unknown_host_name_is_an_error_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> NoReturn:  # name servers that are away take half a minute
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(UnknownHostError, match=r"cannot connect to kafka\.invalid:9092"):
        ask(Address("kafka.invalid", 9092))


@pytest.mark.parametrize("host", ["broker..local", "x" * 64 + ".example"])
def test_what_is_no_host_name_is_refused_at_once(host: str) -> None:
    started = time.monotonic()
    with pytest.raises(UnknownHostError, match=f"cannot connect to {host}"):
        ask(Address(host, 9092))
    assert time.monotonic() - started < PATIENCE_S / 2


def test_an_address_family_that_the_host_lacks_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.socket

    def no_ipv6(family: int = -1, *arguments: object, **settings: object) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(97, "Address family not supported by protocol")
        return real(family, *arguments, **settings)

    with scripted_broker(serve_metadata) as address:
        both = [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", address.port, 0, 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", address.port)),
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
        monkeypatch.setattr(socket, "socket", no_ipv6)
        assert ask(Address("localhost", address.port)).brokers == ()


@pytest.mark.parametrize(
    ("behave", "error", "text"),
    [
        pytest.param(lambda peer: peer.close(), ConnectError, "closed the connection|broke", id="closes at once"),
        pytest.param(
            lambda peer: peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
            ProtocolError,
            "speaks HTTP, not the Kafka protocol: check the host and port",
            id="HTTP",
        ),
        pytest.param(lambda peer: peer.sendall(b"\xff" * 8), ProtocolError, "-1 bytes", id="negative length"),
        pytest.param(
            lambda peer: (send_versions(peer), peer.sendall(metadata_frame(99))),
            ProtocolError,
            "answered request 99 instead of 2",
            id="another request's response",
        ),
        pytest.param(
            lambda peer: (send_versions(peer), peer.sendall(b"\0\0\0\x06" + b"\0\0\0\x02\0\xff")),
            ProtocolError,
            "cannot be read",
            id="garbage",
        ),
        pytest.param(
            lambda peer: send_versions(peer, metadata=8),
            UnsupportedBrokerError,
            r"Kafka 2\.7 or later",
            id="old broker",
        ),
    ],
)
def test_a_misbehaving_peer_ends_in_an_error_at_once(behave: object, error: type[KafkaMetaError], text: str) -> None:
    started = time.monotonic()
    with scripted_broker(behave) as address, pytest.raises(error, match=text):
        ask(address)
    assert time.monotonic() - started < PATIENCE_S / 2


@pytest.mark.parametrize(
    ("behave", "error", "text"),
    [
        pytest.param(lambda peer: None, ConnectError, "does not answer: is it a Kafka broker", id="silent peer"),
        pytest.param(
            lambda peer: send_versions(peer), RequestTimeoutError, "did not answer Metadata", id="silent later"
        ),
        pytest.param(
            lambda peer: (send_versions(peer), peer.sendall((50).to_bytes(4, "big") + b"\0")),
            RequestTimeoutError,
            "did not answer in time",
            id="response cut off",
        ),
    ],
)
def test_a_silent_peer_ends_in_a_typed_error_in_time(behave: object, error: type[KafkaMetaError], text: str) -> None:
    started = time.monotonic()
    with scripted_broker(behave) as address, pytest.raises(error, match=text):
        ask(address, SHORT_S)
    assert time.monotonic() - started < PATIENCE_S


def test_one_byte_at_a_time_does_not_outlast_the_deadline() -> None:
    def drip(peer: socket.socket) -> None:
        send_versions(peer)
        for byte in (1000).to_bytes(4, "big") + b"\0" * 1000:
            peer.sendall(bytes([byte]))
            peer.settimeout(0.01)
            try:
                peer.recv(1)
            except TimeoutError:
                continue

    started = time.monotonic()
    with scripted_broker(drip) as address, pytest.raises(RequestTimeoutError):
        ask(address, SHORT_S)
    assert time.monotonic() - started < PATIENCE_S


@contextmanager
def connection_with_request(behave: Behaviour, protocol: str) -> Iterator[Connection]:
    """A connection, with TLS or without, that has sent a Metadata request to a peer with this behavior."""
    options = {"kafka.bootstrap.servers": "h:1", "kafka.security.protocol": protocol}
    if protocol == "SSL":
        authority = CertificateAuthority()
        options["kafka.ssl.truststore.certificates"] = authority.certificate
        behave = over_tls(authority.issue("broker", ["127.0.0.1"]), behave)
    settings = replace(SETTINGS, security=ClientOptions.parse(options).security)
    with scripted_broker(behave) as address, closing(Connection(address, settings, soon(PATIENCE_S))) as connection:
        connection.send(METADATA, MetadataRequest(()).encode(12), soon(PATIENCE_S))
        yield connection


def begin_response(peer: socket.socket) -> None:
    send_versions(peer, metadata=12)
    peer.sendall((100_000).to_bytes(4, "big"))


def test_bytes_that_keep_trickling_in_do_not_outlast_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.socket.recv_into

    def trickle(self: socket.socket, buffer: memoryview) -> int:
        """Adds a byte 0.3 ms after each poll. A thread would add it too late on a busy machine."""
        if len(buffer) <= LENGTH_BYTES:
            return real(self, buffer)
        if self.gettimeout() == 0:
            raise BlockingIOError
        time.sleep(0.0003)
        return 1

    with connection_with_request(begin_response, "PLAINTEXT") as connection:
        monkeypatch.setattr(socket.socket, "recv_into", trickle)
        started = time.monotonic()
        with pytest.raises(RequestTimeoutError, match="did not answer in time"):
            connection.receive(soon(0.2))
        assert time.monotonic() - started < PATIENCE_S / 2


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_a_response_that_is_not_all_there_when_its_deadline_has_passed_is_not_waited_for(protocol: str) -> None:
    with connection_with_request(begin_response, protocol) as connection:
        started = time.monotonic()
        with pytest.raises(RequestTimeoutError, match="did not answer in time"):
            connection.receive(soon(-1))
        assert time.monotonic() - started < PATIENCE_S / 2


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_a_response_that_is_all_there_is_read_though_its_deadline_has_passed(protocol: str) -> None:
    has_responded = threading.Event()

    def response(peer: socket.socket) -> None:
        serve_metadata(peer, brokers=tuple(broker(number, "x" * 255) for number in range(100)))  # two TLS records
        has_responded.set()

    with connection_with_request(response, protocol) as connection:
        assert has_responded.wait(PATIENCE_S)
        assert len(connection.receive(soon(-1)).message.brokers) == 100


def test_a_connection_that_the_broker_closed_while_idle_is_opened_again() -> None:
    closed = threading.Semaphore(0)

    def serve_once_and_close(peer: socket.socket) -> None:
        serve_metadata(peer)
        peer.shutdown(socket.SHUT_RDWR)
        closed.release()

    network = KafkaNetwork(SETTINGS)
    with scripted_broker(serve_once_and_close) as address:
        for _ in range(3):
            assert network.metadata(address, (), time.monotonic() + PATIENCE_S).brokers == ()
            assert closed.acquire(timeout=PATIENCE_S), "the connection was not opened anew"
    network.close()


POLL_TIMEOUT_S, REQUEST_TIMEOUT_S = 1.0, 0.5
DEADLINE_S = 60
"""At most 2 s, with a margin for a busy machine. A read that hangs never ends."""
RESPONSES = 3
"""After so many wrong ones, the clock of the client says that the read has taken too long."""
PAUSES_S, MAX_REQUESTS = 0.15, 40
"""From the first of these to the last: pauses begin with 0.1 s, and vary by a fifth. A hot loop makes hundreds."""
Respond = Callable[[socket.socket, int], None]
"""Sends the response of a Fetch request with this correlation id."""


@dataclass(slots=True)
class Clock:
    """Of a client: real time, and what a test adds."""

    passed_s: float = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.passed_s


def serving(respond: Respond) -> Behaviour:
    def behave(peer: socket.socket) -> None:
        send_versions(peer, metadata=12)
        while True:
            key, _, correlation_id = read_request(peer)
            if key == METADATA.key:
                peer.sendall(leader_frame(correlation_id, peer))
            else:
                respond(peer, correlation_id)

    return behave


def read(address: Address, fetch_max_bytes: int = 50 << 20, clock: Callable[[], float] = time.monotonic) -> list[Any]:
    """One offset of t-0."""
    given = {
        "kafka.bootstrap.servers": str(address),
        "subscribe": "t",
        "kafka.request.timeout.ms": str(int(REQUEST_TIMEOUT_S * 1000)),
        "kafka.fetch.max.wait.ms": "100",
        "kafka.fetch.max.bytes": str(fetch_max_bytes),
        "kafka.default.api.timeout.ms": str(int(POLL_TIMEOUT_S * 1000)),
        "kafkaConsumer.pollTimeoutMs": str(int(POLL_TIMEOUT_S * 1000)),
    }
    options = SourceOptions.parse(given).for_batch()
    client = KafkaClient(options.client, EventPublisher((), Origin(role=Role.READER)), clock=clock)
    try:
        span = OffsetRange(TopicPartition("t", 0), TOPIC_ID, 0, 1, NO_EPOCH)
        return [row for table in TaskReader(client, options, ["value"]).read([span]) for row in table.to_pylist()]
    finally:
        client.close()


def flood(peer: socket.socket, correlation_id: int) -> None:
    while True:
        peer.sendall(bytes(1 << 20))


def send(make: Callable[[int], bytes]) -> Respond:
    return lambda peer, correlation_id: peer.sendall(make(correlation_id))


def refuse_by_an_unknown_code(correlation_id: int) -> bytes:
    """The protocol library does not encode codes that it does not know."""
    known = ErrorCode.share_session_limit_reached
    frame = fetch_frame(correlation_id, 0, code=known)
    return frame.replace(known.to_bytes(2, "big"), (4711).to_bytes(2, "big"))


BAD = handmade.batch([handmade.Row(0)])[:-1] + b"?"
HOSTILE: dict[str, tuple[Respond, type[KafkaMetaError], str]] = {
    "2 GB frame": (send(lambda _: b"\x7f\xff\xff\xff" + bytes(100)), ReadTimeoutError, "announced 2147483647 bytes"),
    "2 GB response": (
        send(lambda number: b"\x7f\xff\xff\xff" + number.to_bytes(4, "big")),
        ResponseTooLargeError,
        r"Fetch with 2147483647 bytes, more than the limit of 119537664 .*raise kafka\.fetch\.max\.bytes to 2080374783",
    ),
    "largest frame, never sent": (send(lambda _: (100 << 20).to_bytes(4, "big")), ReadTimeoutError, "did not answer"),
    "flood": (flood, ReadTimeoutError, "bytes"),
    "silence": (lambda *_: None, ReadTimeoutError, "did not answer"),
    "no partition": (send(lambda number: fetch_frame(number)), ReadTimeoutError, "UNKNOWN_SERVER_ERROR"),
    "unknown error code": (send(refuse_by_an_unknown_code), BrokerError, "t-0 cannot be read: error 4711"),
    "corrupt batch": (send(lambda number: fetch_frame(number, 0, records=BAD)), CorruptBatchError, "t-0 at offset 0"),
    "nothing, though there is something": (
        send(lambda number: fetch_frame(number, 0, records=b"")),
        ReadTimeoutError,
        "t-0 at offset 0",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_fetch_responses_end_in_a_typed_error_by_the_deadline(name: str) -> None:
    respond, kind, text = HOSTILE[name]
    clock, requested_at = Clock(), list[float]()

    def respond_until_time_is_over(peer: socket.socket, correlation_id: int) -> None:
        requested_at.append(time.monotonic())
        if len(requested_at) == RESPONSES:
            clock.passed_s += DEADLINE_S
        respond(peer, correlation_id)

    with scripted_broker(serving(respond_until_time_is_over)) as address:
        began = time.monotonic()
        with pytest.raises(kind, match=text):
            read(address, clock=clock)
        assert time.monotonic() - began < DEADLINE_S
    assert len(requested_at) < MAX_REQUESTS
    assert len(requested_at) < RESPONSES or requested_at[RESPONSES - 1] - requested_at[0] >= PAUSES_S


def test_a_response_may_be_64_mib_larger_than_the_records_its_fetch_asks_for() -> None:
    respond = send(lambda number: (70 << 20).to_bytes(4, "big") + number.to_bytes(4, "big"))
    with scripted_broker(serving(respond)) as address:
        limit, needed = 1000 + (64 << 20), (70 - 64) << 20
        with pytest.raises(
            ResponseTooLargeError, match=rf"limit of {limit} .*raise kafka\.fetch\.max\.bytes to {needed}"
        ):
            read(address, fetch_max_bytes=1000)
        with pytest.raises(ReadTimeoutError, match="did not answer"):  # the size is accepted
            read(address, fetch_max_bytes=needed)


def test_a_response_that_comes_twice_is_read_once() -> None:
    with scripted_broker(serving(send(lambda number: fetch_frame(number, 0) * 2))) as address:
        assert read(address) == [{"value": b"v"}]


def test_responses_that_come_twice_are_not_taken_for_those_of_the_next_request() -> None:
    def behave(peer: socket.socket) -> None:
        send_versions(peer, metadata=12)
        _, _, correlation_id = read_request(peer)
        peer.sendall(metadata_frame(correlation_id) * 2)

    with scripted_broker(behave) as address, closing(KafkaNetwork(SETTINGS)) as network:
        for _ in range(3):
            assert network.metadata(address, (), soon(PATIENCE_S)).topics == ()
