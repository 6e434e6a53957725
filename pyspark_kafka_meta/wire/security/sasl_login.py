"""The SASL login over an open connection: which mechanism, then its steps, then how long the session lasts.

Follows Kafka's `SaslClientAuthenticator`; KIP-152 for the errors, KIP-368 for the session's lifetime.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Protocol

from pyspark_kafka_meta.errors import AuthenticationError
from pyspark_kafka_meta.kafka_errors import ILLEGAL_SASL_STATE, UNSUPPORTED_SASL_MECHANISM
from pyspark_kafka_meta.model import Address
from pyspark_kafka_meta.options import SecurityOptions
from pyspark_kafka_meta.options.secret import HIDDEN
from pyspark_kafka_meta.wire import codec
from pyspark_kafka_meta.wire.codec import SASL_AUTHENTICATE, SASL_HANDSHAKE, Api
from pyspark_kafka_meta.wire.security import sasl_mechanisms
from pyspark_kafka_meta.wire.security.oauth_tokens import forget_token

MAX_ROUNDS = 10
MAX_SHOWN = 500


class Caller(Protocol):
    """The part of a `Connection` that a login needs."""

    address: Address

    def version(self, api: Api) -> int: ...

    def call(self, api: Api, message: Any, deadline: float) -> Any: ...


def log_in(connection: Caller, security: SecurityOptions, deadline: float) -> float:
    """Log in, again if need be. Returns the lifetime of the session in ms, 0 if it has no end.

    Raises:
        AuthenticationError: the broker refuses, or is not the one that it should be.
    """
    name = sasl_mechanisms.mechanism_name(security)
    _agree_on(name, connection, security, deadline)
    steps = sasl_mechanisms.steps(security, connection.address.host, deadline)
    version = connection.version(SASL_AUTHENTICATE)
    request = codec.request_schema(SASL_AUTHENTICATE, version).SaslAuthenticateRequest
    to_send, complaint = next(steps), b""
    token = to_send.decode(errors="replace").partition("auth=Bearer ")[2].partition("\1")[0]
    for _ in range(MAX_ROUNDS):
        answer = connection.call(SASL_AUTHENTICATE, request(auth_bytes=to_send), deadline).message
        if answer.error_code != 0:
            forget_token(security)
            said = shown(complaint.decode(errors="replace") or answer.error_message or "", security, token)
            raise AuthenticationError(
                f"{connection.address} refused the {name} login{f' ({said})' if said else ''}: check the credentials"
            )
        try:
            complaint = answer.auth_bytes if name == "OAUTHBEARER" else b""
            to_send = steps.send(answer.auth_bytes)
        except StopIteration:
            return float(getattr(answer, "session_lifetime", timedelta()) / timedelta(milliseconds=1))
    raise AuthenticationError(f"{connection.address} did not finish the {name} login in {MAX_ROUNDS} rounds")


def login_is_wanted(connection: Caller, deadline: float) -> bool:
    """Whether the broker takes logins on this port: without SASL, it is an error to begin one."""
    code: int = _shake_hands("PLAIN", connection, deadline).error_code
    return code != ILLEGAL_SASL_STATE


def shown(text: str, security: SecurityOptions, token: str = "") -> str:
    """A broker's words for an error or a log: without control characters, not too many, and never our own password or
    token."""
    password = security.sasl_password.reveal() if security.sasl_password is not None else ""
    for secret in filter(None, (password, token)):
        text = text.replace(secret, HIDDEN)
    return repr(text[:MAX_SHOWN])[1:-1]


def _shake_hands(name: str, connection: Caller, deadline: float) -> Any:
    version = connection.version(SASL_HANDSHAKE)
    request = codec.request_schema(SASL_HANDSHAKE, version).SaslHandshakeRequest(mechanism=name)
    return connection.call(SASL_HANDSHAKE, request, deadline).message


def _agree_on(name: str, connection: Caller, security: SecurityOptions, deadline: float) -> None:
    answer = _shake_hands(name, connection, deadline)
    if answer.error_code == UNSUPPORTED_SASL_MECHANISM:
        offered = shown(", ".join(answer.mechanisms), security)
        raise AuthenticationError(
            f"{connection.address} offers no SASL mechanism {name}: set kafka.sasl.mechanism to one of {offered}"
        )
    if answer.error_code == ILLEGAL_SASL_STATE:
        raise AuthenticationError(
            f"{connection.address} wants no SASL login on this port: set kafka.security.protocol to "
            f"{security.protocol.removeprefix('SASL_')}"
        )
    if answer.error_code != 0:
        raise AuthenticationError(f"{connection.address} refused SaslHandshake with error {int(answer.error_code)}")
