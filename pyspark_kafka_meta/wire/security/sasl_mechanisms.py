"""SASL mechanisms: each yields the bytes to send and is sent the broker's answers. No socket.

PLAIN is RFC 4616, SCRAM RFC 5802 and 7677, OAUTHBEARER RFC 7628 with KIP-342's extensions, GSSAPI RFC 4752.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence

from pyspark_kafka_meta.errors import AuthenticationError, ConnectError
from pyspark_kafka_meta.options import SecurityOptions
from pyspark_kafka_meta.wire.security.oauth_tokens import bearer_token
from pyspark_kafka_meta.wire.sockets import within

Steps = Generator[bytes, bytes, None]

MAX_SCRAM_ITERATIONS = 1_000_000
"""Most of a second of a core for each connection, and what no broker asks for but to keep clients busy."""


def mechanism_name(security: SecurityOptions) -> str:
    """As brokers know it: Amazon's signed tokens are shown as any other bearer token."""
    return "OAUTHBEARER" if security.sasl_mechanism == "AWS_MSK_IAM" else str(security.sasl_mechanism)


def steps(security: SecurityOptions, host: str, deadline: float) -> Steps:
    """The login at the broker at `host`. It is complete when the generator ends.

    Raises:
        AuthenticationError: from the generator, if the broker's answers are not those of one that knows us.
    """
    name, user = mechanism_name(security), security.sasl_username or ""
    password = security.sasl_password.reveal() if security.sasl_password else ""
    if name == "PLAIN":
        return _plain(user, password)
    if name.startswith("SCRAM-"):
        return _scram(name, user, password)
    if name == "GSSAPI":
        return _gssapi(f"{security.kerberos_service_name}@{host}", deadline)
    return _oauthbearer(bearer_token(security, host, deadline), security.oauth_extensions or ())


def _plain(user: str, password: str) -> Steps:
    yield f"\0{user}\0{password}".encode()


def _scram(name: str, user: str, password: str) -> Steps:
    """scramp checks the nonce, the server's signature, and that 4096 iterations at least are asked for.

    It would first put user and password into the form that the RFC wants (SASLprep). Kafka's brokers take them as they
    are (`ScramFormatter`).
    """
    from scramp import ScramClient, ScramException

    try:
        client = ScramClient([name], "prepared", "prepared")
        client.username.username, client.password = user, password.encode()
        first = (yield client.get_client_first().encode()).decode()
        asked = re.search(r"(?:^|,)i=(\d+)", first)
        if asked is not None and int(asked[1]) > MAX_SCRAM_ITERATIONS:
            raise AuthenticationError(
                f"the broker asks for {int(asked[1]):,} iterations of {name}, and this client does "
                f"{MAX_SCRAM_ITERATIONS:,} at most: give the user fewer with kafka-configs"
            )
        client.set_server_first(first)
        client.set_server_final((yield client.get_client_final().encode()).decode())
    except (ScramException, ValueError) as error:
        reason = str(error) if "must not be <" in str(error) else type(error).__name__
        raise AuthenticationError(
            f"the broker's part of {name} is wrong ({reason}): it does not prove that it knows the password, or asks "
            "for fewer than 4096 iterations"
        ) from None


def _oauthbearer(token: str, extensions: Sequence[tuple[str, str]]) -> Steps:
    shown = "".join(f"\1{name}={value}" for name, value in extensions)
    complaint = yield f"n,,\1auth=Bearer {token}{shown}\1\1".encode()
    if complaint:
        yield b"\1"  # RFC 7628, section 3.2.3: upon this the broker says that the login has failed


def _gssapi(service: str, deadline: float) -> Steps:
    """Without a security layer, as all of Kafka's clients. The calls may ask a Kerberos server."""
    import gssapi

    try:
        name = gssapi.Name(service, gssapi.NameType.hostbased_service)
        context = gssapi.SecurityContext(name=name, usage="initiate")
        answer = yield within(deadline, context.step) or b""
        while not context.complete:
            token = within(deadline, lambda: context.step(answer))  # noqa: B023 (called within this round)
            answer = yield token or b""
        if context.unwrap(answer).message[:1] not in (b"\1", b"\3", b"\5", b"\7"):
            raise AuthenticationError("the broker insists on a GSSAPI security layer: use TLS in its place")
        yield context.wrap(b"\1\0\0\0" + str(context.initiator_name).encode(), False).message
    except TimeoutError:
        raise ConnectError("Kerberos did not answer in time") from None
    except gssapi.exceptions.GSSError as error:
        raise AuthenticationError(
            f"Kerberos gave no ticket for {service} ({type(error).__name__}): check klist, and "
            "kafka.sasl.kerberos.service.name"
        ) from None
