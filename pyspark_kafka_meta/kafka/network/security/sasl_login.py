"""The SASL login over an open connection: handshake, steps of the mechanism, lifetime of the session.

Follows Kafka's `SaslClientAuthenticator`, KIP-152 (errors) and KIP-368 (session lifetime).
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Protocol

from pyspark_kafka_meta.errors import AuthenticationError
from pyspark_kafka_meta.kafka.network.security.oauth_tokens import TokenRefusedError, forget_token
from pyspark_kafka_meta.kafka.network.security.sasl_mechanisms import STEPS
from pyspark_kafka_meta.kafka.protocol import frame_codec
from pyspark_kafka_meta.kafka.protocol.apis import SASL_AUTHENTICATE, SASL_HANDSHAKE, Api
from pyspark_kafka_meta.kafka.protocol.error_codes import ILLEGAL_SASL_STATE, UNSUPPORTED_SASL_MECHANISM
from pyspark_kafka_meta.kafka.protocol.response_checks import printable
from pyspark_kafka_meta.model import Address
from pyspark_kafka_meta.options import HIDDEN, SecurityOptions

MAX_ROUNDS = 10


class Caller(Protocol):
    """The part of a `Connection` that a login needs."""

    address: Address

    def version(self, api: Api) -> int: ...

    def call(self, api: Api, message: Any, deadline: float) -> Any: ...


def log_in(connection: Caller, security: SecurityOptions, deadline: float) -> float:
    """Log in, or renew the session. Returns the lifetime of the session in ms, 0 for no limit.

    Raises:
        AuthenticationError: the broker refuses, or does not prove its identity. TokenRefusedError: it refuses a token.
    """
    mechanism = security.mechanism
    assert mechanism is not None  # checked by SecurityOptions.of
    name = mechanism.name_for_brokers
    _agree_on(name, connection, security, deadline)
    steps = STEPS[mechanism.name](security, connection.address.host, deadline)
    version = connection.version(SASL_AUTHENTICATE)
    request = frame_codec.request_schema(SASL_AUTHENTICATE, version).SaslAuthenticateRequest
    to_send, refusal = next(steps), b""
    token = to_send.decode(errors="replace").partition("auth=Bearer ")[2].partition("\1")[0]
    for _ in range(MAX_ROUNDS):
        response = connection.call(SASL_AUTHENTICATE, request(auth_bytes=to_send), deadline).message
        if response.error_code != 0:
            forget_token(security, token)
            reason = redacted(refusal.decode(errors="replace") or response.error_message or "", security, token)
            kind = TokenRefusedError if token else AuthenticationError
            raise kind(
                f"{connection.address} refused the {name} login{reason and f' ({reason})'}: check the credentials"
            )
        try:
            refusal = response.auth_bytes if name == "OAUTHBEARER" else b""
            to_send = steps.send(response.auth_bytes)
        except StopIteration:
            return float(getattr(response, "session_lifetime", timedelta()) / timedelta(milliseconds=1))
    raise AuthenticationError(f"{connection.address} did not finish the {name} login in {MAX_ROUNDS} rounds")


def login_is_required(connection: Caller, deadline: float) -> bool:
    """Whether the broker expects a login on this port: without SASL, SaslHandshake returns ILLEGAL_SASL_STATE."""
    code: int = _handshake("PLAIN", connection, deadline).error_code
    return code != ILLEGAL_SASL_STATE


def redacted(text: str, security: SecurityOptions, token: str = "") -> str:
    """The text of a broker for an error or a log: shortened, without control characters, our password and token."""
    password = security.sasl_password.reveal() if security.sasl_password is not None else ""
    for secret in filter(None, (password, token)):
        text = text.replace(secret, HIDDEN)
    return printable(text)


def _handshake(name: str, connection: Caller, deadline: float) -> Any:
    version = connection.version(SASL_HANDSHAKE)
    request = frame_codec.request_schema(SASL_HANDSHAKE, version).SaslHandshakeRequest(mechanism=name)
    return connection.call(SASL_HANDSHAKE, request, deadline).message


def _agree_on(name: str, connection: Caller, security: SecurityOptions, deadline: float) -> None:
    response = _handshake(name, connection, deadline)
    if response.error_code == UNSUPPORTED_SASL_MECHANISM:
        offered = redacted(", ".join(response.mechanisms), security)
        raise AuthenticationError(
            f"{connection.address} offers no SASL mechanism {name}: set kafka.sasl.mechanism to one of {offered}"
        )
    if response.error_code == ILLEGAL_SASL_STATE:
        raise AuthenticationError(
            f"{connection.address} expects no SASL login on this port: set kafka.security.protocol to "
            f"{security.protocol.removeprefix('SASL_')}"
        )
    if response.error_code != 0:
        raise AuthenticationError(f"{connection.address} refused SaslHandshake with error {int(response.error_code)}")
