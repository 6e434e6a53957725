"""The options of the schema registry. Names are those of Confluent's clients (`SchemaRegistryClientConfig`); an error
never repeats a value that may be a secret.
"""
# ruff: noqa: RUF009 (the default of a field is an option, made by a function)

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from pyspark_kafka_meta.options.option_table import GivenOptions, Query, Rows, Section, options_of, renamed_row
from pyspark_kafka_meta.options.parsers import Secret, parse_choice, parse_word
from pyspark_kafka_meta.options.security import PLAINTEXT, SecurityOptions, package_problems, parse_provider
from pyspark_kafka_meta.value_checks import non_empty

logger = logging.getLogger(__name__)

_BEARER = "schema.registry.bearer.auth."
_TOKEN_SOURCES = {"STATIC_TOKEN": "bearer_token", "OAUTHBEARER": "token_issuer_url", "CUSTOM": "token_provider"}
"""Fields that have a token, or say where it is from."""
_URL = "schema.registry.url"
_TOKEN_ENDPOINT = f"{_BEARER}issuer.endpoint.url"
_PROVIDER = f"{_BEARER}custom.provider.class"
_AS_KAFKAS = "As kafka.ssl.*, for the registry; its truststore is that of the token endpoint too."
_rows = Rows(Section.TYPED_VALUES, Query.RECORDS | Query.WRITES, needs=(_URL,))


def _parse_urls(text: str) -> tuple[str, ...]:
    """The URLs without a slash at the end, without duplicates."""
    urls = (_parse_url(url.strip()) for url in text.split(",") if url.strip())
    return non_empty(tuple(dict.fromkeys(urls)))


def _parse_url(url: str) -> str:
    if url.startswith("mock://"):
        raise ValueError("the processes of a Spark query share no mock:// registry; in tests use testing.MockRegistry")
    if "@" in url:  # a password may precede it
        raise ValueError("a URL must have no login: use the options for one")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError
    if parts.port == 0:  # the property raises ValueError for other ports that do not exist
        raise ValueError
    return parts.geturl().rstrip("/")  # with the scheme in lower case


def _parse_issuer(text: str) -> str:
    _parse_url(text)
    return text.strip()


def _parse_user_info(text: str) -> Secret:
    if not re.match(r"[^:\s]+:.", text):
        raise ValueError
    return Secret(text)


_parse_header = partial(parse_word, pattern=r"[!-~]+")
"""Without the line break at the end of a token's file. Python's HTTP client repeats a header that it refuses."""


def _parse_token(text: str) -> Secret:
    return Secret(_parse_header(text))


def _header(name: str, doc: str, parse: Callable[[str], Any] = _parse_header, **columns: Any) -> Any:
    error = f"Option '{_BEARER}{name}' must be one word of ASCII characters"
    return _rows.option(f"{_BEARER}{name}", None, parse, error, doc, **columns)


def _as_for_kafka(field: str) -> Any:
    """The row of a TLS option of brokers, for the registry."""
    option = options_of(SecurityOptions)[field]
    columns = {"section": _rows.section, "queries": _rows.queries, "needs": _rows.needs, "needs_values": ()}
    return renamed_row(option, lambda name: name.replace("kafka.", "schema.registry."), _AS_KAFKAS, **columns)


@dataclass(frozen=True, slots=True)
class RegistryOptions:
    """Where the schema registry is, and how requests to it are authenticated and encrypted.

    Attributes:
        user_info: `user:password`.
    """

    urls: tuple[str, ...] | None = _rows.option(
        _URL,
        None,
        _parse_urls,
        "Option 'schema.registry.url' must be http://host:port or https://host:port, several separated by commas",
        "URLs with Confluent's API (Apicurio: /apis/ccompat/v7), tried in order.",
        needs=(),
    )
    user_info: Secret | None = _rows.option(
        "schema.registry.basic.auth.user.info",
        None,
        _parse_user_info,
        "Option 'schema.registry.basic.auth.user.info' must be user:password",
        "user:password, or API key and secret.",
        excludes=(f"{_BEARER}token", _TOKEN_ENDPOINT, _PROVIDER),
    )
    bearer_token: Secret | None = _header(
        "token", "Token instead of a login.", _parse_token, excludes=(_TOKEN_ENDPOINT, _PROVIDER)
    )
    token_source: str | None = _rows.option(
        f"{_BEARER}credentials.source",
        None,
        partial(parse_choice, values=_TOKEN_SOURCES),
        f"Option '{_BEARER}credentials.source' must be {' or '.join(_TOKEN_SOURCES)}, got '{{value}}'",
        "Not needed: follows from the other options.",
    )
    token_issuer_url: str | None = _rows.option(
        _TOKEN_ENDPOINT,
        None,
        _parse_issuer,
        f"Option '{_BEARER}issuer.endpoint.url' must be https://host/path",
        "OpenID Connect token endpoint, for client credentials.",
        excludes=(_PROVIDER,),
    )
    token_client_id: str | None = _rows.text(f"{_BEARER}client.id", "For the token endpoint.", needs=(_TOKEN_ENDPOINT,))
    token_client_secret: Secret | None = _rows.secret(
        f"{_BEARER}client.secret", "For the token endpoint.", needs=(_TOKEN_ENDPOINT,)
    )
    token_scope: str | None = _rows.text(f"{_BEARER}scope", "For the token endpoint.", needs=(_TOKEN_ENDPOINT,))
    token_provider: str | None = _rows.option(
        _PROVIDER,
        None,
        parse_provider,
        f"Option '{_BEARER}custom.provider.class' must be module:Class",
        "As oauthTokenProvider, for the registry.",
    )
    logical_cluster: str | None = _header("logical.cluster", "Confluent Cloud's lsrc-...")
    identity_pool_id: str | None = _header("identity.pool.id", "Confluent Cloud's pool-...")
    timeout_ms: int = _rows.number(
        "schema.registry.timeout.ms", "60000", "Maximum duration of a request with its retries.", low=1
    )
    proxy_host: str | None = _rows.option(
        "schema.registry.proxy.host",
        None,
        partial(parse_word, pattern=r"[\w.-]+|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*"),
        "Option 'schema.registry.proxy.host' must be the name or address of a host, without port and scheme",
        "HTTP proxy, without a login. HTTPS_PROXY has no effect.",
        pair="schema.registry.proxy.port",
    )
    proxy_port: int | None = _rows.number("schema.registry.proxy.port", None, "Port of the proxy.", low=1, high=65_535)
    truststore_location: str | None = _as_for_kafka("truststore_location")
    truststore_password: Secret | None = _as_for_kafka("truststore_password")
    truststore_certificates: str | None = _as_for_kafka("truststore_certificates")
    keystore_location: str | None = _as_for_kafka("keystore_location")
    keystore_password: Secret | None = _as_for_kafka("keystore_password")
    keystore_key: Secret | None = _as_for_kafka("keystore_key")
    keystore_certificate_chain: str | None = _as_for_kafka("keystore_certificate_chain")
    key_password: Secret | None = _as_for_kafka("key_password")

    @classmethod
    def of(cls, given: GivenOptions) -> RegistryOptions | None:
        """None without `schema.registry.url`. Allowed but weak options are logged."""
        options = cls(**given.values(cls))
        if given.has_invalid(cls):
            return options
        problems = list(_registry_problems(given, options))
        given.refuse(problems)
        if options.urls is None:
            return None
        has_secret = options.oauth or options.user_info is not None or options.bearer_token is not None
        if not problems and has_secret and any(url.startswith("http://") for url in options.urls):
            logger.warning("schema.registry.url is not https: the login is sent unencrypted")
        if not problems and (options.token_issuer_url or "").startswith("http://"):
            logger.warning("%sissuer.endpoint.url is not https: the client's secret is sent unencrypted", _BEARER)
        return options

    @property
    def oauth(self) -> SecurityOptions | None:
        """Where tokens come from, in the form of a broker's options; None if there is at most one."""
        if self.token_issuer_url is None and self.token_provider is None:
            return None
        return replace(
            self.security,
            sasl_mechanism="OAUTHBEARER",
            oauth_token_provider=self.token_provider,
            oauth_token_endpoint_url=self.token_issuer_url,
            oauth_client_id=self.token_client_id,
            oauth_client_secret=self.token_client_secret,
            oauth_scope=self.token_scope,
        )

    @property
    def security(self) -> SecurityOptions:
        """The TLS options in the form of a broker's."""
        names = [name for name in options_of(RegistryOptions) if name.startswith(("truststore_", "key"))]
        return replace(PLAINTEXT, protocol="SSL", **{name: getattr(self, name) for name in names})


def _registry_problems(given: GivenOptions, options: RegistryOptions) -> Iterator[str]:
    if options.urls is None:
        return
    tls = [name for name in given.given(RegistryOptions, *options_of(RegistryOptions)) if ".ssl." in name]
    if (options.token_issuer_url or "").startswith("https://"):
        tls = [name for name in tls if ".truststore." not in name]
    if tls and not any(url.startswith("https://") for url in options.urls):
        yield f"Option '{tls[0]}' has no effect without TLS: begin '{_URL}' with https://"
    if options.token_source is not None and getattr(options, options.token_source) is None:
        needed = options_of(RegistryOptions)[options.token_source].name
        yield f"'{_BEARER}credentials.source' needs '{needed}'"
    if options.token_issuer_url is not None:
        if not (options.token_client_id and options.token_client_secret):
            yield f"'{_TOKEN_ENDPOINT}' needs '{_BEARER}client.id' and '{_BEARER}client.secret'"
        yield from package_problems("A token endpoint", "authlib")
    if options.keystore_location or options.keystore_key:
        yield from package_problems("A client certificate", "cryptography")
