"""Scripted brokers that speak TLS, and that ask for a SASL login."""

from __future__ import annotations

import socket
import ssl
import tempfile
from collections.abc import Callable
from datetime import timedelta

from kio.schema.errors import ErrorCode
from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest
from kio.schema.sasl_authenticate.v2.response import SaslAuthenticateResponse
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest
from kio.schema.sasl_handshake.v1.response import SaslHandshakeResponse
from kio.static.primitive import i64Timedelta
from scripted_broker import Behaviour, frame, read_message

from pyspark_kafka_meta.testing.certificates import Credentials

Answer = Callable[[bytes], bytes | None]
"""What a broker answers to authentication bytes; None refuses the login."""


def over_tls(credentials: Credentials, behave: Behaviour, client_authority: str | None = None) -> Behaviour:
    """`behave` behind TLS. With `client_authority`, clients must show a certificate from it."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=client_authority)
    if client_authority is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(credentials.key + credentials.certificate)
        file.flush()
        context.load_cert_chain(file.name)

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


def authenticate(peer: socket.socket, *answers: Answer, lifetime_ms: int = 0, refusal: str = "no") -> list[bytes]:
    """Answer so many SaslAuthenticate requests. Returns the bytes that came."""
    received = []
    for answer in answers:
        correlation_id, request = read_message(peer, SaslAuthenticateRequest)
        received.append(request.auth_bytes)
        auth_bytes = answer(request.auth_bytes)
        response = SaslAuthenticateResponse(
            error_code=ErrorCode.none if auth_bytes is not None else ErrorCode.sasl_authentication_failed,
            error_message=None if auth_bytes is not None else refusal,
            auth_bytes=auth_bytes or b"",
            session_lifetime=i64Timedelta.parse(timedelta(milliseconds=lifetime_ms)),
        )
        peer.sendall(frame(response, correlation_id))
    return received
