"""Scripted brokers that speak TLS, and that ask for a SASL login."""

from __future__ import annotations

import socket
import ssl
import tempfile
from collections.abc import Callable
from datetime import timedelta

from cryptography.hazmat.primitives import serialization
from kio.schema.errors import ErrorCode
from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest
from kio.schema.sasl_authenticate.v2.response import SaslAuthenticateResponse
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest
from kio.schema.sasl_handshake.v1.response import SaslHandshakeResponse
from kio.static.primitive import i64Timedelta

from pyspark_kafka_meta.testing.listener_security import Credentials
from tests.wire.scripted_broker import Behaviour, frame, read_message, send_versions

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
