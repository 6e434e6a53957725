"""A listener on a free local port whose behavior on each connection a test defines."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kio.schema.api_versions.v2.response import ApiVersion, ApiVersionsResponse
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader
from kio.static.primitive import i16

from pyspark_kafka_meta.kafka.protocol.frame_codec import (
    API_VERSIONS,
    FETCH,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    METADATA,
    PRODUCE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    milliseconds,
)
from pyspark_kafka_meta.model import Address
from tests.unit.kafka.protocol.responses import payload

Behaviour = Callable[[socket.socket], None]
APIS = (
    API_VERSIONS,
    METADATA,
    LIST_OFFSETS,
    FETCH,
    PRODUCE,
    INIT_PRODUCER_ID,
    SASL_HANDSHAKE,
    SASL_AUTHENTICATE,
)


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
