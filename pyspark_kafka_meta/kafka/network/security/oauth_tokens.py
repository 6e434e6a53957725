"""Tokens for OAUTHBEARER: from the user's class, from an OpenID Connect token endpoint, or signed for Amazon MSK.

A token source may block, and its errors may contain secrets: each call has a deadline, and errors show only their type.
Temporary failures, such as HTTP status 429 or missing AWS credentials, raise ConnectError, which is retriable. Other
failures are final, so that retries do not lock the account.
"""

from __future__ import annotations

import logging
import os
import re
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

from pyspark_kafka_meta.errors import AuthenticationError, ConnectError, KafkaMetaError, OptionError
from pyspark_kafka_meta.extras import EXTRAS, missing_extra
from pyspark_kafka_meta.kafka.network.sockets import remaining_s, within
from pyspark_kafka_meta.options import SecurityOptions

USED_SHARE_OF_LIFETIME = 0.8
"""New connections use an endpoint's token for this share of its lifetime, then request another token."""

_TEMPORARY = frozenset({"temporarily_unavailable", "server_error"})
"""OAuth error codes worth retrying (RFC 6749, section 4.1.2.1)."""
TOO_MANY_REQUESTS = 429

_tokens: dict[SecurityOptions, tuple[str, float]] = {}  # with the end of its use for new connections
_endpoint_lock = threading.Lock()  # connections that open at the same time share a token


class TokenRefusedError(AuthenticationError):
    """A broker refused a token. Another token may be accepted: a token can be revoked before it expires."""


def bearer_token(security: SecurityOptions, host: str, deadline: float) -> str:
    """The token for the broker at `host`.

    Raises:
        AuthenticationError: the source refused, does not exist, or returned no bearer token.
        ConnectError: the source did not respond by `deadline`, cannot be reached, or failed temporarily.
    """
    if security.sasl_mechanism == "AWS_MSK_IAM":
        return _request("Amazon's signer", lambda: _sign_for_msk(host), deadline)
    if security.oauth_token_provider is not None:
        name = security.oauth_token_provider
        return _request("the class of 'oauthTokenProvider'", lambda: _provider(name).token(), deadline)
    if not _endpoint_lock.acquire(timeout=remaining_s(deadline)):
        raise _failure("the token endpoint", TimeoutError())
    try:
        token, used_until = _tokens.get(security, ("", 0.0))
        if time.monotonic() >= used_until:
            token = _request("the token endpoint", lambda: _request_endpoint(security, remaining_s(deadline)), deadline)
        return token
    finally:
        _endpoint_lock.release()


def forget_token(security: SecurityOptions, token: str) -> None:
    """A broker refused the token: the next login requests another token, unless another login has."""
    if _tokens.get(security, ("", 0.0))[0] == token:
        _tokens.pop(security, None)


def _request(who: str, source: Callable[[], str], deadline: float) -> str:
    try:
        token = within(deadline, source)
    except Exception as error:
        raise _failure(who, error) from None
    return _checked(who, token)


def _checked(who: str, token: object) -> str:
    """A token as in RFC 6750, section 2.1. Other characters could add fields to the login message."""
    if not isinstance(token, str) or re.fullmatch(r"[A-Za-z0-9._~+/-]+=*", token) is None:
        raise AuthenticationError(f"{who} returned no bearer token")
    return token


def _failure(who: str, error: Exception) -> KafkaMetaError:
    if isinstance(error, KafkaMetaError):
        return error
    if isinstance(error, ModuleNotFoundError) and error.name in EXTRAS:  # on an executor: the driver has it
        return OptionError(missing_extra(who, error.name))
    if isinstance(error, TimeoutError):
        return ConnectError(f"{who} returned no token in time")
    if (refusal := _tls_refusal(error)) is not None:
        return AuthenticationError(
            f"the certificate of {who} was refused ({refusal.verify_message}): put the certificate of its authority "
            "into 'kafka.https.ca.location', or correct the certificate or the URL"
        )
    if isinstance(error, OSError):
        return ConnectError(f"{who} cannot be reached ({type(error).__name__})")
    code = str(getattr(error, "error", ""))  # OAuth: invalid_client, temporarily_unavailable ...
    reason = f"{type(error).__name__}: {code}" if re.fullmatch(r"[a-z_]{1,40}", code) else type(error).__name__
    is_temporary = code in _TEMPORARY or type(error).__module__.startswith("botocore.")
    kind = ConnectError if is_temporary else AuthenticationError
    return kind(f"{who} returned no token ({reason}): check its settings and credentials")


def _tls_refusal(error: BaseException | None) -> ssl.SSLCertVerificationError | None:
    """Why this client trusts no certificate, below the errors of HTTP libraries."""
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__context__
    return error


@cache
def _provider(name: str) -> Any:
    module, _, class_name = name.partition(":")
    return getattr(import_module(module), class_name)()


def _request_endpoint(security: SecurityOptions, timeout_s: float) -> str:
    from authlib.integrations.requests_client import OAuth2Session

    secret = security.oauth_client_secret
    assert secret is not None  # checked by SecurityOptions.of
    with (
        _authorities(security) as authorities,
        OAuth2Session(security.oauth_client_id, secret.reveal(), scope=security.oauth_scope) as session,
    ):
        session.register_compliance_hook("access_token_response", _refuse_too_many_requests)
        response = session.fetch_token(
            security.oauth_token_endpoint_url,
            grant_type="client_credentials",
            timeout=timeout_s,
            verify=authorities,
            allow_redirects=False,  # a redirect could carry the secret to another host
        )
    lifetime_s = float(response.get("expires_in") or 0)
    token = _checked("the token endpoint", response["access_token"])  # cached tokens are not checked again
    _tokens[security] = (token, time.monotonic() + lifetime_s * USED_SHARE_OF_LIFETIME)
    return token


@contextmanager
def _authorities(security: SecurityOptions) -> Iterator[str | bool]:
    """A file or folder. By default the system's, as for brokers; requests would take those of certifi. Of a registry,
    which has no SASL, the truststore serves its token endpoint too, as in Confluent's `OauthCredentialProvider`."""
    from pyspark_kafka_meta.kafka.network.security.key_stores import trusted_pem

    if not security.uses_sasl and (trusted := trusted_pem(security)) is not None:
        with tempfile.NamedTemporaryFile("w", prefix="kafkameta-", suffix=".pem") as file:
            file.write(trusted)
            file.flush()
            yield file.name
        return
    location = security.oauth_ca_location
    if location is not None and not os.access(location, os.R_OK):
        raise OptionError(
            "Option 'kafka.https.ca.location' names a file that cannot be read: it must exist on the driver and on "
            "every executor"
        )
    system = ssl.get_default_verify_paths()
    yield location or system.cafile or system.capath or True


def _refuse_too_many_requests(response: Any) -> Any:
    if response.status_code == TOO_MANY_REQUESTS:
        raise ConnectError("the token endpoint refuses so many requests (HTTP status 429)")
    return response


def _sign_for_msk(host: str) -> str:
    """The region comes from the broker's name; with custom names, from the AWS configuration."""
    import botocore.session
    from aws_msk_iam_sasl_signer import MSKAuthTokenProvider

    logging.getLogger("botocore.auth").setLevel(logging.INFO)  # at DEBUG it logs session tokens
    named = re.search(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com", host)
    region = named[1] if named else botocore.session.Session().get_config_variable("region")
    if region is None:
        raise AuthenticationError(
            "the broker's name contains no AWS region: set AWS_DEFAULT_REGION on the driver and on every executor"
        )
    try:
        return str(MSKAuthTokenProvider.generate_auth_token(region)[0])
    except AttributeError:  # no credentials, for example if the machine's metadata service does not respond
        raise ConnectError("Amazon's signer found no AWS credentials: check the credentials of this machine") from None
