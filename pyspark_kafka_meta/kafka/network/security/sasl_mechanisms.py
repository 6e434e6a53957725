"""SASL mechanisms: generators that yield the bytes to send and receive the broker's responses. No socket.

PLAIN is RFC 4616, SCRAM RFC 5802 and 7677, OAUTHBEARER RFC 7628 with KIP-342's extensions, GSSAPI RFC 4752.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping

from pyspark_kafka_meta.errors import AuthenticationError, ConnectError
from pyspark_kafka_meta.kafka.network.security.oauth_tokens import bearer_token
from pyspark_kafka_meta.kafka.network.sockets import within
from pyspark_kafka_meta.options import SecurityOptions

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
