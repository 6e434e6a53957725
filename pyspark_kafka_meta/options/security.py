"""What `kafka.security.*`, `kafka.ssl.*` and `kafka.sasl.*` say about TLS and SASL, and whether it fits together.

Names and meanings are those of Kafka's `SslConfigs` and `SaslConfigs`. A value of these options is never repeated in an
error: it may be a secret, or one pasted into the wrong place.
"""
# ruff: noqa: RUF009 (each field's default is a row of the table, made by a function)

from __future__ import annotations

import importlib.util
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyspark_kafka_meta.options.jaas import JaasLogin, parse_jaas
from pyspark_kafka_meta.options.secret import Secret
from pyspark_kafka_meta.options.table import read, row, table_of
from pyspark_kafka_meta.options.values import parse_choice

logger = logging.getLogger(__name__)

PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS = (*PASSWORD_MECHANISMS, "OAUTHBEARER", "GSSAPI", "AWS_MSK_IAM")
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_NEEDED_PACKAGES = {"GSSAPI": ("gssapi", "kerberos"), "AWS_MSK_IAM": ("aws_msk_iam_sasl_signer", "aws")}
_JAAS_MODULES = {"PlainLoginModule": "PLAIN", "ScramLoginModule": "SCRAM-", "OAuthBearerLoginModule": "OAUTHBEARER"}


def _text(name: str, doc: str) -> Any:
    return row(name, None, _some_text, f"Option '{name}' must not be empty", doc)


def _secret(name: str, doc: str) -> Any:
    return row(name, None, lambda text: Secret(_some_text(text)), f"Option '{name}' must not be empty", doc)


def _one_of(name: str, default: str | None, choices: tuple[str, ...], doc: str) -> Any:
    parse = partial(parse_choice, values={choice.lower(): choice for choice in choices})
    return row(name, default, parse, f"Option '{name}' must be {', '.join(choices[:-1])} or {choices[-1]}", doc)


def _some_text(text: str) -> str:
    if not text.strip():
        raise ValueError
    return text


def _store_type(text: str) -> str:
    kind = {"pem": "PEM", "pkcs12": "PKCS12"}.get(text.strip().lower())
    if kind is None:
        raise ValueError(
            "convert a JKS store with `keytool -importkeystore -srckeystore old.jks -destkeystore new.p12 "
            "-deststoretype PKCS12`"
            if text.strip().lower() in ("jks", "jceks")
            else ""
        )
    return kind


def _store(name: str, doc: str) -> Any:
    return row(name, None, _store_type, f"Option '{name}' must be PEM or PKCS12", doc)


def _provider(text: str) -> str:
    if re.fullmatch(r"\w+(\.\w+)*:\w+", text.strip()) is None:
        raise ValueError
    return text.strip()


@dataclass(frozen=True, slots=True)
class SecurityOptions:
    """How connections are encrypted and who this client says it is.

    After `complete`, `sasl_username` and `sasl_password` are the login of PLAIN and SCRAM, and the `oauth_client_...`
    fields that of OAUTHBEARER, wherever they were given; `sasl_jaas_config` is None.
    """

    protocol: str = _one_of(
        "kafka.security.protocol", "PLAINTEXT", _PROTOCOLS, f"{', '.join(_PROTOCOLS[:-1])} or {_PROTOCOLS[-1]}."
    )
    truststore_location: str | None = _text(
        "kafka.ssl.truststore.location",
        "File of the authorities that brokers' certificates must come from, PEM or PKCS#12; without it, the system's.",
    )
    truststore_password: Secret | None = _secret("kafka.ssl.truststore.password", "Password of that PKCS#12 file.")
    truststore_type: str | None = _store("kafka.ssl.truststore.type", "PEM or PKCS12; found out if not given.")
    truststore_certificates: str | None = _text(
        "kafka.ssl.truststore.certificates", "The authorities themselves, as PEM text, in place of a file."
    )
    keystore_location: str | None = _text(
        "kafka.ssl.keystore.location", "File of this client's private key and certificates, PEM or PKCS#12."
    )
    keystore_password: Secret | None = _secret("kafka.ssl.keystore.password", "Password of that PKCS#12 file.")
    keystore_type: str | None = _store("kafka.ssl.keystore.type", "PEM or PKCS12; found out if not given.")
    keystore_key: Secret | None = _secret(
        "kafka.ssl.keystore.key", "The private key itself, as PEM text, in place of a file."
    )
    keystore_certificate_chain: str | None = _text(
        "kafka.ssl.keystore.certificate.chain", "Its certificates as PEM text, the client's own first."
    )
    key_password: Secret | None = _secret("kafka.ssl.key.password", "Password of an encrypted PEM private key.")
    checks_host_name: bool = row(
        "kafka.ssl.endpoint.identification.algorithm",
        "https",
        partial(parse_choice, values={"https": True, "": False}),
        "Option 'kafka.ssl.endpoint.identification.algorithm' must be https or empty",
        "https: brokers' certificates must name the host connected to. Empty: they need not, which is logged.",
    )
    sasl_mechanism: str | None = _one_of(
        "kafka.sasl.mechanism",
        None,
        MECHANISMS,
        "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, GSSAPI or AWS_MSK_IAM. Needed with SASL.",
    )
    sasl_username: str | None = _text("kafka.sasl.username", "User of PLAIN and SCRAM.")
    sasl_password: Secret | None = _secret("kafka.sasl.password", "Password of PLAIN and SCRAM.")
    sasl_jaas_config: JaasLogin | None = row(
        "kafka.sasl.jaas.config",
        None,
        parse_jaas,
        "Option 'kafka.sasl.jaas.config' must be as in `org.apache.kafka.common.security.plain.PlainLoginModule "
        'required username="..." password="...";`',
        "The login as Kafka's Java clients want it, in place of the options for user, password and OAuth client.",
    )
    oauth_token_provider: str | None = row(
        "oauthTokenProvider",
        None,
        _provider,
        "Option 'oauthTokenProvider' must be module:Class",
        "For OAUTHBEARER: a class, as module:Class, made without arguments, whose `token()` returns the token.",
    )
    oauth_token_endpoint_url: str | None = _text(
        "kafka.sasl.oauthbearer.token.endpoint.url",
        "For OAUTHBEARER: where OpenID Connect client credentials are exchanged for tokens.",
    )
    oauth_client_id: str | None = _text(
        "kafka.sasl.oauthbearer.client.credentials.client.id", "The client's id at the token endpoint."
    )
    oauth_client_secret: Secret | None = _secret(
        "kafka.sasl.oauthbearer.client.credentials.client.secret", "The client's secret at the token endpoint."
    )
    oauth_scope: str | None = _text("kafka.sasl.oauthbearer.scope", "Scope to ask for at the token endpoint.")
    kerberos_service_name: str | None = _text(
        "kafka.sasl.kerberos.service.name", "For GSSAPI: the first part of the brokers' principals, mostly kafka."
    )

    @property
    def uses_tls(self) -> bool:
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.protocol.startswith("SASL_")

    def complete(self) -> tuple[SecurityOptions, list[str]]:
        """These options with the login of `sasl_jaas_config` in its fields, and one sentence for each that does not
        fit the others. What is allowed but weak is logged."""
        completed, jaas_problems = _with_jaas_login(self)
        problems = [*jaas_problems, *_store_problems(completed), *_sasl_problems(completed)]
        if not problems:
            _warn(completed)
        return completed, problems


SECURITY_OPTIONS = table_of(SecurityOptions)
PLAINTEXT = SecurityOptions(**read({}, SECURITY_OPTIONS)[0])
"""No encryption, no login."""


def complete_security(parsed: dict[str, Any]) -> list[str]:
    """Puts the security options, taken out of `parsed`, there as one value. Returns what does not fit together."""
    values = {name: parsed.pop(name, None) for name in SECURITY_OPTIONS}
    if values["protocol"] is None:
        return []  # its value was refused already
    parsed["security"], problems = SecurityOptions(**values).complete()
    return problems


def _with_jaas_login(given: SecurityOptions) -> tuple[SecurityOptions, list[str]]:
    jaas, mechanism = given.sasl_jaas_config, given.sasl_mechanism
    if jaas is None or mechanism is None:
        return given, []
    if given.sasl_username or given.sasl_password or given.oauth_client_id or given.oauth_client_secret:
        return given, ["Give the login either in 'kafka.sasl.jaas.config' or in options of its own, not in both"]
    if not mechanism.startswith(_JAAS_MODULES.get(jaas.module, "\0")):
        return given, [
            f"The login module in 'kafka.sasl.jaas.config' is not one for {mechanism}: PlainLoginModule, "
            "ScramLoginModule and OAuthBearerLoginModule are understood"
        ]
    if jaas.get("tokenauth") is not None:
        return given, ["Delegation tokens ('tokenauth' in 'kafka.sasl.jaas.config') are not supported"]
    return replace(
        given,
        sasl_jaas_config=None,
        sasl_username=_revealed(jaas, "username"),
        sasl_password=jaas.get("password"),
        oauth_client_id=_revealed(jaas, "clientId"),
        oauth_client_secret=jaas.get("clientSecret"),
        oauth_scope=given.oauth_scope or _revealed(jaas, "scope"),
    ), []


def _revealed(jaas: JaasLogin, name: str) -> str | None:
    value = jaas.get(name)
    return None if value is None else value.reveal()


def _store_problems(options: SecurityOptions) -> Iterator[str]:
    if not options.uses_tls and (name := _first_given(options, "truststore_", "keystore_", "key_password")):
        yield f"Option '{name}' has no effect without TLS: set 'kafka.security.protocol' to SSL or SASL_SSL"
    if options.truststore_location and options.truststore_certificates:
        yield "Give either 'kafka.ssl.truststore.location' or 'kafka.ssl.truststore.certificates', not both"
    text_key = options.keystore_key or options.keystore_certificate_chain
    if options.keystore_location and text_key:
        yield "Give either 'kafka.ssl.keystore.location' or 'kafka.ssl.keystore.key', not both"
    if bool(options.keystore_key) != bool(options.keystore_certificate_chain):
        yield "Options 'kafka.ssl.keystore.key' and 'kafka.ssl.keystore.certificate.chain' need each other"


def _sasl_problems(options: SecurityOptions) -> Iterator[str]:
    if not options.uses_sasl:
        if name := _first_given(options, "sasl_", "oauth_", "kerberos_"):
            yield f"Option '{name}' has no effect without SASL: set 'kafka.security.protocol' to SASL_SSL"
        return
    mechanism = options.sasl_mechanism
    if mechanism is None:
        yield f"Option 'kafka.sasl.mechanism' must be given with SASL: {', '.join(MECHANISMS)}"
    elif mechanism in PASSWORD_MECHANISMS and not (options.sasl_username and options.sasl_password):
        yield f"{mechanism} needs 'kafka.sasl.username' and 'kafka.sasl.password', or 'kafka.sasl.jaas.config'"
    elif mechanism == "OAUTHBEARER":
        yield from _oauth_problems(options)
    elif mechanism == "GSSAPI" and not options.kerberos_service_name:
        yield "GSSAPI needs 'kafka.sasl.kerberos.service.name'"
    elif mechanism == "AWS_MSK_IAM" and not options.uses_tls:
        yield "AWS_MSK_IAM needs TLS: set 'kafka.security.protocol' to SASL_SSL"
    yield from _package_problems(mechanism or "", *_NEEDED_PACKAGES.get(mechanism or "", ("", "")))


def _oauth_problems(options: SecurityOptions) -> Iterator[str]:
    if bool(options.oauth_token_provider) == bool(options.oauth_token_endpoint_url):
        yield "OAUTHBEARER needs either 'oauthTokenProvider' or 'kafka.sasl.oauthbearer.token.endpoint.url'"
    if options.oauth_token_endpoint_url:
        if re.match(r"https?://[^/@]+(/|$)", options.oauth_token_endpoint_url) is None:
            yield "Option 'kafka.sasl.oauthbearer.token.endpoint.url' must begin with https:// and hold no password"
        if not (options.oauth_client_id and options.oauth_client_secret):
            yield (
                "A token endpoint needs 'kafka.sasl.oauthbearer.client.credentials.client.id' and '...client.secret', "
                "or clientId and clientSecret in 'kafka.sasl.jaas.config'"
            )
        yield from _package_problems("A token endpoint", "authlib", "oauth")


def _package_problems(who: str, module: str, extra: str) -> Iterator[str]:
    if module and importlib.util.find_spec(module) is None:
        yield f"{who} needs a package that is not installed: pip install 'pyspark-kafka-meta[{extra}]'"


def _first_given(options: SecurityOptions, *prefixes: str) -> str | None:
    """The name of the first option that was given, among the fields that begin so."""
    rows = SecurityOptions.__dataclass_fields__
    fields = [field for field in rows if field.startswith(prefixes) and getattr(options, field) is not None]
    return rows[fields[0]].metadata["option"].name if fields else None


def _warn(options: SecurityOptions) -> None:
    if options.uses_tls and not options.checks_host_name:
        logger.warning(
            "kafka.ssl.endpoint.identification.algorithm is empty: any holder of a certificate from a trusted "
            "authority is taken for the broker"
        )
    if options.protocol == "SASL_PLAINTEXT" and options.sasl_mechanism in ("PLAIN", "OAUTHBEARER"):
        logger.warning("%s over SASL_PLAINTEXT sends the secret unencrypted: use SASL_SSL", options.sasl_mechanism)
    if (options.oauth_token_endpoint_url or "").startswith("http://"):
        logger.warning(
            "kafka.sasl.oauthbearer.token.endpoint.url is not https: the client's secret is sent unencrypted"
        )
