"""The options of TLS and SASL: `kafka.security.*`, `kafka.ssl.*` and `kafka.sasl.*`.

Names and meanings are those of Kafka's `SslConfigs` and `SaslConfigs`. An error never repeats a value of these options:
the value may be a secret, or a secret pasted into the wrong option.
"""
# ruff: noqa: RUF009 (the default of a field is an option, made by a function)

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark_kafka_meta.options.case_insensitive import CaseInsensitiveMap
from pyspark_kafka_meta.options.definitions import parse_options, row, table_of
from pyspark_kafka_meta.options.jaas import JaasLogin, parse_jaas
from pyspark_kafka_meta.options.parsers import parse_choice
from pyspark_kafka_meta.options.secret import Secret

PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS = (*PASSWORD_MECHANISMS, "OAUTHBEARER", "GSSAPI", "AWS_MSK_IAM")
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


def _text(name: str, doc: str) -> Any:
    return row(name, None, _non_empty_text, f"Option '{name}' must not be empty", doc)


def _secret(name: str, doc: str) -> Any:
    return row(name, None, lambda text: Secret(_non_empty_text(text)), f"Option '{name}' must not be empty", doc)


def _one_of(name: str, default: str | None, choices: tuple[str, ...], doc: str) -> Any:
    parse = partial(parse_choice, values={choice: choice for choice in choices})
    return row(name, default, parse, f"Option '{name}' must be {', '.join(choices[:-1])} or {choices[-1]}", doc)


def _non_empty_text(text: str) -> str:
    if not text.strip():
        raise ValueError
    return text


def _store_type(text: str) -> str:
    if text.strip().lower() in ("jks", "jceks"):
        raise ValueError(
            "convert a JKS store with `keytool -importkeystore -srckeystore old.jks -destkeystore new.p12 "
            "-deststoretype PKCS12`"
        )
    kind: str = parse_choice(text, {"PEM": "PEM", "PKCS12": "PKCS12"})
    return kind


def _store(name: str, doc: str) -> Any:
    return row(name, None, _store_type, f"Option '{name}' must be PEM or PKCS12", doc)


def parse_extensions(text: str) -> tuple[tuple[str, str], ...]:
    """Checked as in Kafka's `OAuthBearerClientInitialResponse`."""
    pairs = [pair.strip() for pair in text.split(",")]
    if not all(re.fullmatch(r"(?!auth=)[A-Za-z]+=[\x21-\x7E]+", pair) for pair in pairs):
        raise ValueError
    return tuple(sorted((name, value) for name, _, value in (pair.partition("=") for pair in pairs)))


def _provider(text: str) -> str:
    if re.fullmatch(r"\w+(\.\w+)*:\w+", text.strip()) is None:
        raise ValueError
    return text.strip()


@dataclass(frozen=True, slots=True)
class SecurityOptions:
    """How connections are encrypted and authenticated.

    After `complete_security`, `sasl_username` and `sasl_password` are the login of PLAIN and SCRAM, the
    `oauth_client_...` fields the login of OAUTHBEARER, wherever they were given; `sasl_jaas_config` is None.
    """

    protocol: str = _one_of(
        "kafka.security.protocol", "PLAINTEXT", _PROTOCOLS, f"{', '.join(_PROTOCOLS[:-1])} or {_PROTOCOLS[-1]}."
    )
    truststore_location: str | None = _text(
        "kafka.ssl.truststore.location",
        "File with trusted authorities, PEM or PKCS#12. Default: the system's authorities.",
    )
    truststore_password: Secret | None = _secret("kafka.ssl.truststore.password", "Password of a PKCS#12 truststore.")
    truststore_type: str | None = _store("kafka.ssl.truststore.type", "PEM or PKCS12. Default: detected.")
    truststore_certificates: str | None = _text("kafka.ssl.truststore.certificates", "Trusted authorities as PEM text.")
    keystore_location: str | None = _text(
        "kafka.ssl.keystore.location", "File with the client's private key and certificates, PEM or PKCS#12."
    )
    keystore_password: Secret | None = _secret("kafka.ssl.keystore.password", "Password of a PKCS#12 keystore.")
    keystore_type: str | None = _store("kafka.ssl.keystore.type", "PEM or PKCS12. Default: detected.")
    keystore_key: Secret | None = _secret("kafka.ssl.keystore.key", "The client's private key as PEM text.")
    keystore_certificate_chain: str | None = _text(
        "kafka.ssl.keystore.certificate.chain", "The client's certificates as PEM text, its own first."
    )
    key_password: Secret | None = _secret("kafka.ssl.key.password", "Password of an encrypted PEM private key.")
    checks_host_name: bool = row(
        "kafka.ssl.endpoint.identification.algorithm",
        "https",
        partial(parse_choice, values={"https": True, "": False}),
        "Option 'kafka.ssl.endpoint.identification.algorithm' must be https or empty",
        "https: broker certificates must match the host name. Empty: no check, with a warning.",
    )
    sasl_mechanism: str | None = _one_of(
        "kafka.sasl.mechanism",
        None,
        MECHANISMS,
        "Required for SASL: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, GSSAPI or AWS_MSK_IAM.",
    )
    sasl_username: str | None = _text("kafka.sasl.username", "User name for PLAIN and SCRAM.")
    sasl_password: Secret | None = _secret("kafka.sasl.password", "Password for PLAIN and SCRAM.")
    sasl_jaas_config: JaasLogin | None = row(
        "kafka.sasl.jaas.config",
        None,
        parse_jaas,
        "Option 'kafka.sasl.jaas.config' must be as in `org.apache.kafka.common.security.plain.PlainLoginModule "
        'required username="..." password="...";`',
        "Login in the syntax of Kafka's Java clients, instead of separate options.",
    )
    oauth_token_provider: str | None = row(
        "oauthTokenProvider",
        None,
        _provider,
        "Option 'oauthTokenProvider' must be module:Class",
        "For OAUTHBEARER: module:Class, created without arguments, with a thread-safe method `token()`. An OSError "
        "is retried for a while; any other exception ends the query.",
    )
    oauth_token_endpoint_url: str | None = _text(
        "kafka.sasl.oauthbearer.token.endpoint.url",
        "For OAUTHBEARER: OpenID Connect token endpoint for client credentials.",
    )
    oauth_client_id: str | None = _text(
        "kafka.sasl.oauthbearer.client.credentials.client.id", "Client id for the token endpoint."
    )
    oauth_client_secret: Secret | None = _secret(
        "kafka.sasl.oauthbearer.client.credentials.client.secret", "Client secret for the token endpoint."
    )
    oauth_scope: str | None = _text("kafka.sasl.oauthbearer.scope", "Scope for the token endpoint.")
    oauth_extensions: tuple[tuple[str, str], ...] | None = row(
        "kafka.sasl.oauthbearer.extensions",
        None,
        parse_extensions,
        "Option 'kafka.sasl.oauthbearer.extensions' must be name=value between commas, with names of letters",
        "SASL extensions, as logicalCluster=lkc-1,identityPoolId=pool-1.",
    )
    kerberos_service_name: str | None = _text(
        "kafka.sasl.kerberos.service.name", "For GSSAPI: service name in the brokers' principals, usually kafka."
    )

    @property
    def uses_tls(self) -> bool:
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.protocol.startswith("SASL_")


SECURITY_OPTIONS = table_of(SecurityOptions)
PLAINTEXT = SecurityOptions(**parse_options(CaseInsensitiveMap({}), SECURITY_OPTIONS)[0])
"""Without encryption and login."""
