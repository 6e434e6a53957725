"""The SASL login over an open connection: handshake, steps of the mechanism, lifetime of the session.

Follows Kafka's `SaslClientAuthenticator`, KIP-152 (errors) and KIP-368 (session lifetime). A mechanism is a generator
that yields the bytes to send and receives the broker's responses. PLAIN is RFC 4616, SCRAM RFC 5802 and 7677,
OAUTHBEARER RFC 7628 with KIP-342's extensions, GSSAPI RFC 4752.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping
from datetime import timedelta
from typing import Any, Protocol

from pyspark_kafka_meta.errors import AuthenticationError, ConnectError
from pyspark_kafka_meta.kafka.network.security.oauth_tokens import TokenRefusedError, bearer_token, forget_token
from pyspark_kafka_meta.kafka.network.sockets import within
from pyspark_kafka_meta.kafka.protocol import frame_codec
from pyspark_kafka_meta.kafka.protocol.apis import SASL_AUTHENTICATE, SASL_HANDSHAKE, Api
from pyspark_kafka_meta.kafka.protocol.error_codes import ILLEGAL_SASL_STATE, UNSUPPORTED_SASL_MECHANISM
from pyspark_kafka_meta.kafka.protocol.response_checks import printable
from pyspark_kafka_meta.model import Address
from pyspark_kafka_meta.options import HIDDEN, SecurityOptions

Steps = Generator[bytes, bytes, None]

MAX_SCRAM_ITERATIONS = 1_000_000
"""They take most of a second of CPU time per connection. More would let a hostile broker keep clients busy."""


def _plain(security: SecurityOptions, _host: str, _deadline: float) -> Steps:
    user, password = _user_and_password(security)
    yield f"\0{user}\0{password}".encode()


def _scram(security: SecurityOptions, _host: str, _deadline: float) -> Steps:
    """scramp checks the nonce, the server's signature and the minimum of 4096 iterations.

    It would normalize user and password (SASLprep), which Kafka's brokers do not (`ScramFormatter`).
    """
    from scramp import ScramClient, ScramException

    name = security.sasl_mechanism
    user, password = _user_and_password(security)
    try:
        client = ScramClient([name], "prepared", "prepared")
        client.username.username, client.password = user, password.encode()
        first = (yield client.get_client_first().encode()).decode()
        iterations = re.search(r"(?:^|,)i=(\d+)", first)
        if iterations is not None and int(iterations[1]) > MAX_SCRAM_ITERATIONS:
            raise AuthenticationError(
                f"the broker requests {int(iterations[1]):,} iterations of {name}, more than {MAX_SCRAM_ITERATIONS:,}: "
                "give the user fewer with kafka-configs"
            )
        client.set_server_first(first)
        client.set_server_final((yield client.get_client_final().encode()).decode())
    except (ScramException, ValueError) as error:
        reason = str(error) if "must not be <" in str(error) else type(error).__name__
        raise AuthenticationError(
            f"the broker's part of {name} is wrong ({reason}): it does not prove that it knows the password, or "
            "requests fewer than 4096 iterations"
        ) from None


def _user_and_password(security: SecurityOptions) -> tuple[str, str]:
    assert security.sasl_username is not None and security.sasl_password is not None  # checked by SecurityOptions.of
    return security.sasl_username, security.sasl_password.reveal()


def _bearer(security: SecurityOptions, host: str, deadline: float) -> Steps:
    token = bearer_token(security, host, deadline)
    extensions = "".join(f"\1{name}={value}" for name, value in security.oauth_extensions or ())
    refusal = yield f"n,,\1auth=Bearer {token}{extensions}\1\1".encode()
    if refusal:
        yield b"\1"  # RFC 7628, section 3.2.3: then the broker reports that the login failed


def _gssapi(security: SecurityOptions, host: str, deadline: float) -> Steps:
    """Without a security layer, as all Kafka clients. The calls may wait for a Kerberos server."""
    import gssapi

    service = f"{security.kerberos_service_name}@{host}"
    try:
        name = gssapi.Name(service, gssapi.NameType.hostbased_service)
        context = gssapi.SecurityContext(name=name, usage="initiate")
        response = yield within(deadline, context.step) or b""
        while not context.complete:
            token = within(deadline, lambda: context.step(response))  # noqa: B023 (called within this round)
            response = yield token or b""
        if context.unwrap(response).message[:1] not in (b"\1", b"\3", b"\5", b"\7"):
            raise AuthenticationError("the broker requires a GSSAPI security layer: use TLS instead")
        yield context.wrap(b"\1\0\0\0" + str(context.initiator_name).encode(), False).message
    except TimeoutError:
        raise ConnectError("Kerberos did not answer in time") from None
    except gssapi.exceptions.GSSError as error:
        raise AuthenticationError(
            f"Kerberos gave no ticket for {service} ({type(error).__name__}): check klist, and "
            "kafka.sasl.kerberos.service.name"
        ) from None


STEPS: Mapping[str, Callable[[SecurityOptions, str, float], Steps]] = {
    "PLAIN": _plain,
    "SCRAM-SHA-256": _scram,
    "SCRAM-SHA-512": _scram,
    "OAUTHBEARER": _bearer,
    "GSSAPI": _gssapi,
    "AWS_MSK_IAM": _bearer,
}
"""The login by each mechanism of `options.MECHANISMS`, at the broker at a host and by a deadline, complete when the
generator ends. The generator raises AuthenticationError if the broker's responses are wrong."""


MAX_ROUNDS = 10


class Caller(Protocol):
    """The part of a `Connection` that a login needs."""

    address: Address

    def version(self, api: Api) -> int: ...

    def call(self, api: Api, message: Any, deadline: float) -> Any: ...


def log_in(connection: Caller, security: SecurityOptions, deadline: float) -> float:
    """Log in, or renew the session. Returns the lifetime of the session in ms, 0 for no limit. Raises
    AuthenticationError: the broker refuses, or does not prove its identity. TokenRefusedError: it refuses a token."""
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
