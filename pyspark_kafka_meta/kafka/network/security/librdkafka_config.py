"""Translate the security options to librdkafka's, for confluent-kafka's producers and admin clients."""

from __future__ import annotations

import base64
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from confluent_kafka import KafkaException

from pyspark_kafka_meta.errors import AuthenticationError, OptionError
from pyspark_kafka_meta.kafka.network.security.key_stores import client_identity, trusted_pem
from pyspark_kafka_meta.kafka.network.security.oauth_tokens import bearer_token
from pyspark_kafka_meta.kafka.network.security.sasl_login import redacted
from pyspark_kafka_meta.model import Address
from pyspark_kafka_meta.options import SecurityOptions

logger = logging.getLogger(__name__)

Client = TypeVar("Client")

TOKEN_TIMEOUT_S = 10.0
OPAQUE_TOKEN_LIFETIME_S = 300.0
REFUSAL_HOLDS_S = 300.0
"""Pause after a refused token request. librdkafka would repeat it every few seconds, which may lock the account."""

_refusals: dict[SecurityOptions, tuple[AuthenticationError, float]] = {}  # with the end of the pause, for all clients


class _Log:
    """Logs librdkafka's messages, which may repeat texts of brokers, without secrets.

    Attributes:
        token: the last token of the client.
    """

    def __init__(self, security: SecurityOptions) -> None:
        self.token = ""
        self._security = security

    def log(self, level: int, text: str, *details: str) -> None:
        """As `logging.Logger.log`."""
        logger.log(level, "%s", redacted(text % details, self._security, self.token))


def new_client(
    kind: Callable[[dict[str, Any]], Client],
    bootstrap_servers: Sequence[Address],
    security: SecurityOptions,
    settings: Mapping[str, object],
) -> Client:
    """A `Producer` or `AdminClient` with additional `settings`.

    Raises:
        OptionError: a key store is unusable, librdkafka does not support the mechanism, or no token came in time.
    """
    try:
        return kind({**librdkafka_settings(security, bootstrap_servers), **settings})
    except KafkaException as error:
        reason = redacted(error.args[0].str(), security)
        raise OptionError(f"librdkafka refuses the security options: {reason}") from None


def librdkafka_settings(security: SecurityOptions, bootstrap_servers: Sequence[Address]) -> dict[str, Any]:
    """The address and security settings of a client. They contain secrets in clear text; the client's log does not.

    Raises:
        OptionError: a store cannot be read, or librdkafka does not support the mechanism.
    """
    servers = ",".join(map(str, bootstrap_servers))
    log = _Log(security)
    settings: dict[str, Any] = {"bootstrap.servers": servers, "security.protocol": security.protocol, "logger": log}
    if security.uses_tls:
        settings |= _tls(security)
    if security.uses_sasl:
        settings |= _sasl(security, bootstrap_servers[0].host, log)
    return settings


def _tls(security: SecurityOptions) -> dict[str, Any]:
    trusted, identity = trusted_pem(security), client_identity(security)
    settings = {"ssl.endpoint.identification.algorithm": "https" if security.checks_host_name else "none"}
    settings |= {"ssl.ca.location": "probe"} if trusted is None else {"ssl.ca.pem": trusted}
    if identity is not None:
        settings |= {"ssl.key.pem": identity.key_pem(password=None), "ssl.certificate.pem": identity.chain_pem()}
    return settings


def _sasl(security: SecurityOptions, host: str, log: _Log) -> dict[str, Any]:
    mechanism = security.mechanism
    assert mechanism is not None  # checked by SecurityOptions.of
    if not mechanism.in_librdkafka:
        raise OptionError(
            f"the librdkafka of confluent-kafka's wheels does not support {mechanism.name}: for a metrics topic or a "
            "consumer group's offsets, use another mechanism"
        )
    if mechanism.name_for_brokers == "OAUTHBEARER":
        return {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": _Tokens(security, host, log)}
    assert security.sasl_password is not None  # checked by SecurityOptions.of
    return {
        "sasl.mechanism": mechanism.name,
        "sasl.username": security.sasl_username,
        "sasl.password": security.sasl_password.reveal(),
    }


class _Tokens:
    """librdkafka's token callback, which it calls as long as the client lives, even when idle."""

    def __init__(self, security: SecurityOptions, host: str, log: _Log) -> None:
        self._security = security
        self._host = host
        self._log = log

    def __call__(self, _config: str) -> tuple[str, float, str, dict[str, str]]:
        """Returns token, expiry in seconds since 1970 UTC, principal (brokers read it from the token), extensions."""
        now = time.monotonic()
        if self._security in _refusals:
            refusal, paused_until = _refusals[self._security]
            if now < paused_until:
                raise refusal
        try:
            token = bearer_token(self._security, self._host, now + TOKEN_TIMEOUT_S)
        except AuthenticationError as error:
            _refusals[self._security] = error, now + REFUSAL_HOLDS_S
            raise
        _refusals.pop(self._security, None)
        self._log.token = token
        return token, _expires_at(token, time.time()), "", dict(self._security.oauth_extensions or ())


def _expires_at(token: str, now: float) -> float:
    """The expiry in a JSON Web Token; `OPAQUE_TOKEN_LIFETIME_S` from now for any other token."""
    try:
        claims = token.split(".")[1]
        return float(json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["exp"])
    except (IndexError, KeyError, TypeError, ValueError):
        return now + OPAQUE_TOKEN_LIFETIME_S
