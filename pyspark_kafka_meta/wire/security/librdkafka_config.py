"""The same security options in the words of librdkafka, for the producers and admin clients of confluent-kafka."""

from __future__ import annotations

import base64
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from confluent_kafka import KafkaException

from pyspark_kafka_meta.errors import AuthenticationError, OptionError
from pyspark_kafka_meta.model import Address
from pyspark_kafka_meta.options import SecurityOptions
from pyspark_kafka_meta.wire.security.key_stores import client_identity, trusted_pem
from pyspark_kafka_meta.wire.security.oauth_tokens import bearer_token
from pyspark_kafka_meta.wire.security.sasl_login import shown
from pyspark_kafka_meta.wire.security.sasl_mechanisms import mechanism_name

logger = logging.getLogger(__name__)

Client = TypeVar("Client")

TOKEN_TIMEOUT_S = 10.0
OPAQUE_TOKEN_LIFETIME_S = 300.0
REFUSAL_HOLDS_S = 300.0
"""How long no login is tried after one that was refused, and no token asked for: librdkafka would do so every few
seconds, and have the account locked."""

_refusals: dict[SecurityOptions, tuple[AuthenticationError, float]] = {}  # until when each holds, whichever client asks


class _Log:
    """Takes what librdkafka logs, and with it what brokers say.

    Attributes:
        token: the last one that it was given.
    """

    def __init__(self, security: SecurityOptions) -> None:
        self.token = ""
        self._security = security

    def log(self, level: int, text: str, *details: str) -> None:
        """As a `logging.Logger` does."""
        logger.log(level, "%s", shown(text % details, self._security, self.token))


def new_client(
    kind: Callable[[dict[str, Any]], Client],
    bootstrap_servers: Sequence[Address],
    security: SecurityOptions,
    settings: Mapping[str, object],
) -> Client:
    """A `Producer` or `AdminClient` with these settings of its own.

    Raises:
        OptionError: a store of keys cannot be read or holds what does not fit together, librdkafka lacks the mechanism,
            or no token came in time.
    """
    try:
        return kind({**librdkafka_settings(security, bootstrap_servers), **settings})
    except KafkaException as error:
        said = shown(error.args[0].str(), security)
        raise OptionError(f"no client of librdkafka's can be made with the security options: {said}") from None


def librdkafka_settings(security: SecurityOptions, bootstrap_servers: Sequence[Address]) -> dict[str, Any]:
    """Where the cluster is and how to get in, to merge into a client's settings. They hold secrets, in the clear;
    what the client logs holds none.

    Raises:
        OptionError: a store cannot be read, or librdkafka lacks the mechanism.
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
    mechanism = mechanism_name(security)
    if mechanism == "GSSAPI":
        raise OptionError(
            "GSSAPI is not in the librdkafka that confluent-kafka's wheels bring: for a metrics topic or a consumer "
            "group's offsets, use another mechanism"
        )
    if mechanism == "OAUTHBEARER":
        return {"sasl.mechanism": mechanism, "oauth_cb": _Tokens(security, host, log)}
    assert security.sasl_password is not None  # SecurityOptions.complete has seen to it
    return {
        "sasl.mechanism": mechanism,
        "sasl.username": security.sasl_username,
        "sasl.password": security.sasl_password.reveal(),
    }


class _Tokens:
    """What a client asks for a token, for as long as it lives, used or not."""

    def __init__(self, security: SecurityOptions, host: str, log: _Log) -> None:
        self._security = security
        self._host = host
        self._log = log

    def __call__(self, _config: str) -> tuple[str, float, str, dict[str, str]]:
        """A token, when it expires, in seconds since 1970 UTC, whose it is (brokers know), and SASL extensions."""
        now = time.monotonic()
        if self._security in _refusals:
            refusal, holds_until = _refusals[self._security]
            if now < holds_until:
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
    """What a JSON Web Token says itself; a short while from now for any other."""
    try:
        claims = token.split(".")[1]
        return float(json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["exp"])
    except (IndexError, KeyError, TypeError, ValueError):
        return now + OPAQUE_TOKEN_LIFETIME_S
