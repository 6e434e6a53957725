"""Tokens for OAUTHBEARER: from a class of the user's, from an OpenID Connect token endpoint, or signed for Amazon MSK.

Each source is foreign code that may block and whose errors may hold secrets: it gets a deadline, and only the kind of
an error is shown. What is known to pass, as an endpoint that is asked too often or AWS credentials that are missing at
the moment, is a ConnectError: callers try again for a while. All else is final, so that no account is locked.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from pyspark_kafka_meta.errors import AuthenticationError, ConnectError, KafkaMetaError
from pyspark_kafka_meta.options import SecurityOptions
from pyspark_kafka_meta.wire.sockets import remaining_s, within

USED_SHARE_OF_LIFETIME = 0.8
"""A token of an endpoint serves new connections for this share of its lifetime; then another is asked for."""

_PASSING = frozenset({"temporarily_unavailable", "server_error"})
"""OAuth error codes worth retrying (RFC 6749, section 4.1.2.1)."""
TOO_MANY_REQUESTS = 429

_tokens: dict[SecurityOptions, tuple[str, float]] = {}  # the token, and until when it serves new connections
_asking_endpoint = threading.Lock()  # connections that open at the same time share a token


def bearer_token(security: SecurityOptions, host: str, deadline: float) -> str:
    """The token to show to the broker at `host`.

    Raises:
        AuthenticationError: the source refused, is not there, or gave something else.
        ConnectError: it did not answer by `deadline`, cannot be reached, or failed in a way that may pass.
    """
    if security.sasl_mechanism == "AWS_MSK_IAM":
        return _ask("Amazon's signer", lambda: _sign_for_msk(host), deadline)
    if security.oauth_token_provider is not None:
        name = security.oauth_token_provider
        return _ask("the class of 'oauthTokenProvider'", lambda: _provider(name).token(), deadline)
    if not _asking_endpoint.acquire(timeout=remaining_s(deadline)):
        raise _failure("the token endpoint", TimeoutError())
    try:
        token, serves_until = _tokens.get(security, ("", 0.0))
        if time.monotonic() >= serves_until:
            token = _ask("the token endpoint", lambda: _ask_endpoint(security, remaining_s(deadline)), deadline)
        return token
    finally:
        _asking_endpoint.release()


def forget_token(security: SecurityOptions) -> None:
    """A broker refused it: the next login asks for another."""
    _tokens.pop(security, None)


def _ask(who: str, source: Callable[[], str], deadline: float) -> str:
    try:
        token = within(deadline, source)
    except Exception as error:
        raise _failure(who, error) from None
    return _checked(who, token)


def _checked(who: str, token: object) -> str:
    """RFC 6750, section 2.1. Anything else could end the message of the login early and add fields to it."""
    if not isinstance(token, str) or re.fullmatch(r"[A-Za-z0-9._~+/-]+=*", token) is None:
        raise AuthenticationError(f"{who} gave something that is no bearer token")
    return token


def _failure(who: str, error: Exception) -> KafkaMetaError:
    if isinstance(error, KafkaMetaError):
        return error
    if isinstance(error, TimeoutError):
        return ConnectError(f"{who} gave no token in time")
    if isinstance(error, OSError):
        return ConnectError(f"{who} cannot be reached ({type(error).__name__})")
    code = str(getattr(error, "error", ""))  # of OAuth: invalid_client, temporarily_unavailable ...
    told = f"{type(error).__name__}: {code}" if re.fullmatch(r"[a-z_]{1,40}", code) else type(error).__name__
    may_pass = code in _PASSING or type(error).__module__.startswith("botocore.")
    kind = ConnectError if may_pass else AuthenticationError
    return kind(f"{who} gave no token ({told}): check its settings and credentials")


@cache
def _provider(name: str) -> Any:
    module, _, class_name = name.partition(":")
    return getattr(import_module(module), class_name)()


def _ask_endpoint(security: SecurityOptions, timeout_s: float) -> str:
    from authlib.integrations.requests_client import OAuth2Session

    secret = security.oauth_client_secret
    assert secret is not None  # SecurityOptions.complete has seen to it
    with OAuth2Session(security.oauth_client_id, secret.reveal(), scope=security.oauth_scope) as session:
        session.register_compliance_hook("access_token_response", _come_back_later)
        answer = session.fetch_token(
            security.oauth_token_endpoint_url,
            grant_type="client_credentials",
            timeout=timeout_s,
            allow_redirects=False,  # which could carry the secret elsewhere
        )
    lifetime_s = float(answer.get("expires_in") or 0)
    token = _checked("the token endpoint", answer["access_token"])  # what is kept is not looked at again
    _tokens[security] = (token, time.monotonic() + lifetime_s * USED_SHARE_OF_LIFETIME)
    return token


def _come_back_later(response: Any) -> Any:
    if response.status_code == TOO_MANY_REQUESTS:
        raise ConnectError("the token endpoint is asked too often (HTTP status 429)")
    return response


def _sign_for_msk(host: str) -> str:
    """The region is in the brokers' names; behind names of one's own it is that of the AWS configuration."""
    import botocore.session
    from aws_msk_iam_sasl_signer import MSKAuthTokenProvider

    logging.getLogger("botocore.auth").setLevel(logging.INFO)  # below, it logs session tokens
    named = re.search(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com", host)
    region = named[1] if named else botocore.session.Session().get_config_variable("region")
    if region is None:
        raise AuthenticationError(
            "the broker's name holds no AWS region: set AWS_DEFAULT_REGION on the driver and on every executor"
        )
    try:
        return str(MSKAuthTokenProvider.generate_auth_token(region)[0])
    except AttributeError:  # None in place of credentials, as when the machine's metadata service does not answer
        raise ConnectError("Amazon's signer found no AWS credentials: check those of this machine") from None
