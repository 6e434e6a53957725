"""Listeners on free local ports whose behavior on each connection a test defines: with TLS, with a SASL login, and with
frames of Kafka's responses."""

from __future__ import annotations

import socket
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

from cryptography.hazmat.primitives import serialization
from kio.schema.api_versions.v2.response import ApiVersion, ApiVersionsResponse
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v16 import response as fetch
from kio.schema.metadata.v12 import response as metadata
from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest
from kio.schema.sasl_authenticate.v2.response import SaslAuthenticateResponse
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest
from kio.schema.sasl_handshake.v1.response import SaslHandshakeResponse
from kio.serial import entity_reader
from kio.static.primitive import i16, i64Timedelta

from pyspark_kafka_meta.kafka.protocol.apis import (
    API_VERSIONS,
    FETCH,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    METADATA,
    PRODUCE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
)
from pyspark_kafka_meta.kafka.protocol.frame_codec import milliseconds
from pyspark_kafka_meta.model import Address
from pyspark_kafka_meta.testing.listener_security import Credentials
from tests.unit.kafka.protocol.responses import payload
from tests.unit.kafka.records import handmade

Behaviour = Callable[[socket.socket], None]
APIS = (API_VERSIONS, METADATA, LIST_OFFSETS, FETCH, PRODUCE, INIT_PRODUCER_ID, SASL_HANDSHAKE, SASL_AUTHENTICATE)


@contextmanager
def scripted_broker(behave: Behaviour, host: str = "127.0.0.1", port: int = 0) -> Iterator[Address]:
    """Runs `behave` in a thread on each accepted connection until the test ends. Port 0 is any free port."""
    with socket.create_server((host, port)) as listener:
        serving = threading.Thread(target=_serve, args=(listener, behave), daemon=True)
        serving.start()
        try:
            yield Address(host, listener.getsockname()[1])
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            serving.join(30)  # or it may accept on the file descriptor of the next listener


@contextmanager
def black_hole(host: str = "127.0.0.1", port: int = 0) -> Iterator[Address]:
    """An address that responds to no packet: a listener with a full backlog."""
    with socket.create_server((host, port), backlog=0) as listener, ExitStack() as queue:
        for _ in range(4):
            waiting = queue.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield Address(host, listener.getsockname()[1])


def read_request(peer: socket.socket) -> tuple[int, int, int]:
    """Api key, version and correlation id of the next request."""
    request = read_frame(peer)
    return tuple(int.from_bytes(request[a:b], "big") for a, b in ((0, 2), (2, 4), (4, 8)))  # type: ignore[return-value]


def read_message(peer: socket.socket, kind: Any) -> tuple[int, Any]:
    """Correlation id and message of the next request, which is a `kind`."""
    request = read_frame(peer)
    header, size = entity_reader(kind.__header_schema__)(request, 0)
    return header.correlation_id, entity_reader(kind)(request, size)[0]


def frame(message: Any, correlation_id: int) -> bytes:
    """A whole response frame."""
    body = payload(message, correlation_id)
    return len(body).to_bytes(4, "big") + body


def send_versions(peer: socket.socket, **newest: int) -> None:
    """Respond to the ApiVersions request that opens each connection; `newest` lowers what is offered, by API name."""
    _, _, correlation_id = read_request(peer)
    offered = tuple(
        ApiVersion(api_key=i16(api.key), min_version=i16(0), max_version=i16(newest.get(api.name, api.max_version)))
        for api in APIS
    )
    message = ApiVersionsResponse(error_code=ErrorCode.none, api_keys=offered, throttle_time=milliseconds(0))
    peer.sendall(frame(message, correlation_id))


def _serve(listener: socket.socket, behave: Behaviour) -> None:
    while True:
        try:
            peer, _ = listener.accept()
        except OSError:
            return
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as brokers do: no part of a response waits
        threading.Thread(target=_converse, args=(peer, behave), daemon=True).start()


def _converse(peer: socket.socket, behave: Behaviour) -> None:
    with peer:
        try:
            behave(peer)
            while peer.recv(4096):  # stay, silent, until the client goes
                pass
        except OSError:
            pass


def read_frame(peer: socket.socket) -> bytes:
    """The next request, without its length."""
    return _exactly(peer, int.from_bytes(_exactly(peer, 4), "big"))


def _exactly(peer: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        part = peer.recv(size - len(received))
        if not part:
            raise ConnectionError("the client went away")
        received += part
    return received


TOPIC_ID = UUID(int=7)
ROW = handmade.batch([handmade.Row(0)])


def fetch_frame(correlation_id: int, *partitions: int, records: bytes = ROW, code: ErrorCode = ErrorCode.none) -> bytes:
    entries = tuple(
        fetch.PartitionData(
            partition_index=partition, error_code=code, high_watermark=1, aborted_transactions=None, records=records
        )
        for partition in partitions
    )
    topic = fetch.FetchableTopicResponse(topic_id=TOPIC_ID, partitions=entries)
    message = fetch.FetchResponse(
        throttle_time=milliseconds(0), error_code=ErrorCode.none, session_id=0, responses=(topic,)
    )
    return frame(message, correlation_id)


def metadata_frame(correlation_id: int, **fields: object) -> bytes:
    """Without brokers and topics, but for these fields."""
    values = {"brokers": (), "topics": (), "throttle_time": milliseconds(0)} | fields
    return frame(metadata.MetadataResponse(**values), correlation_id)


def leader_frame(correlation_id: int, peer: socket.socket) -> bytes:
    """Metadata of topic t with one partition, whose leader is the responding broker."""
    host, port = peer.getsockname()
    partition = metadata.MetadataResponsePartition(
        error_code=ErrorCode.none,
        partition_index=0,
        leader_id=1,
        leader_epoch=0,
        replica_nodes=(1,),
        isr_nodes=(1,),
        offline_replicas=(),
    )
    topic = metadata.MetadataResponseTopic(
        error_code=ErrorCode.none, name="t", topic_id=TOPIC_ID, partitions=(partition,)
    )
    broker = metadata.MetadataResponseBroker(node_id=1, host=host, port=port)
    return metadata_frame(correlation_id, brokers=(broker,), topics=(topic,))


def send_metadata(peer: socket.socket, **fields: object) -> None:
    """Respond to the next request."""
    _, _, correlation_id = read_request(peer)
    peer.sendall(metadata_frame(correlation_id, **fields))


def serve_metadata(peer: socket.socket, **fields: object) -> None:
    send_versions(peer, metadata=12)
    send_metadata(peer, **fields)


Respond = Callable[[bytes], bytes | None]
"""The response of a broker to authentication bytes; None refuses the login."""


def present(context: ssl.SSLContext, credentials: Credentials) -> None:
    """Let a context show this certificate."""
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(credentials.key + credentials.certificate)
        file.flush()
        context.load_cert_chain(file.name)


def over_tls(credentials: Credentials, behave: Behaviour, client_authority: str | None = None) -> Behaviour:
    """`behave` behind TLS. With `client_authority`, clients must show a certificate from it."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=client_authority)
    if client_authority is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    present(context, credentials)

    def encrypted(peer: socket.socket) -> None:
        with context.wrap_socket(peer, server_side=True) as connection:
            behave(connection)
            while connection.recv(4096):
                pass

    return encrypted


def agree_on_mechanism(
    peer: socket.socket, offered: tuple[str, ...] = ("PLAIN",), error: ErrorCode = ErrorCode.none
) -> str:
    correlation_id, request = read_message(peer, SaslHandshakeRequest)
    peer.sendall(frame(SaslHandshakeResponse(error_code=error, mechanisms=offered), correlation_id))
    return str(request.mechanism)


def authenticate(peer: socket.socket, *responses: Respond, lifetime_ms: int = 0, refusal: str = "no") -> list[bytes]:
    """Respond to so many SaslAuthenticate requests. Returns the bytes that came."""
    received = []
    for respond in responses:
        correlation_id, request = read_message(peer, SaslAuthenticateRequest)
        received.append(request.auth_bytes)
        auth_bytes = respond(request.auth_bytes)
        response = SaslAuthenticateResponse(
            error_code=ErrorCode.none if auth_bytes is not None else ErrorCode.sasl_authentication_failed,
            error_message=None if auth_bytes is not None else refusal,
            auth_bytes=auth_bytes or b"",
            session_lifetime=i64Timedelta.parse(timedelta(milliseconds=lifetime_ms)),
        )
        peer.sendall(frame(response, correlation_id))
    return received


def parrot(secret: str) -> Behaviour:
    """Refuses each login with an error that has its secret and text that would forge a log line."""

    def behave(peer: socket.socket) -> None:
        send_versions(peer, metadata=12)
        agree_on_mechanism(peer)
        authenticate(peer, lambda _: None, refusal=f"{secret}? \x1b[31m\r\nFATAL forged line")

    return behave


def encrypted_key(credentials: Credentials, password: str) -> str:
    key = serialization.load_pem_private_key(credentials.key.encode(), None)
    encryption = serialization.BestAvailableEncryption(password.encode())
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption).decode()
