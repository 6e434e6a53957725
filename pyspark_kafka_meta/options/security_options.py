"""What `kafka.security.*`, `kafka.ssl.*` and `kafka.sasl.*` say about TLS and SASL, and whether it fits together.

Names and meanings are those of Kafka's `SslConfigs` and `SaslConfigs`. A value of these options is never repeated in an
error: it may be a secret, or one pasted into the wrong place.
"""
# ruff: noqa: RUF009 (each field's default is a row of the table, made by a function)

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyspark_kafka_meta.options import security_checks
from pyspark_kafka_meta.options.case_insensitive import CaseInsensitiveMap
from pyspark_kafka_meta.options.jaas import JaasLogin, misfit, parse_jaas
from pyspark_kafka_meta.options.option_parsers import parse_choice
from pyspark_kafka_meta.options.option_table import read, row, table_of
from pyspark_kafka_meta.options.secret import Secret
from pyspark_kafka_meta.options.security_checks import MECHANISMS
from pyspark_kafka_meta.options.start_specs import GroupSpec

_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


def _text(name: str, doc: str) -> Any:
    return row(name, None, _some_text, f"Option '{name}' must not be empty", doc)


def _secret(name: str, doc: str) -> Any:
    return row(name, None, lambda text: Secret(_some_text(text)), f"Option '{name}' must not be empty", doc)


def _one_of(name: str, default: str | None, choices: tuple[str, ...], doc: str) -> Any:
    parse = partial(parse_choice, values={choice: choice for choice in choices})
    return row(name, default, parse, f"Option '{name}' must be {', '.join(choices[:-1])} or {choices[-1]}", doc)


def _some_text(text: str) -> str:
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


def _extensions(text: str) -> tuple[tuple[str, str], ...]:
    """Checked as in Kafka's `OAuthBearerClientInitialResponse`."""
    pairs = [each.strip() for each in text.split(",")]
    if not all(re.fullmatch(r"(?!auth=)[A-Za-z]+=[\x21-\x7E]+", pair) for pair in pairs):
        raise ValueError
    return tuple(sorted((name, value) for name, _, value in (pair.partition("=") for pair in pairs)))


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
        _extensions,
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

    def complete(self) -> tuple[SecurityOptions, list[str]]:
        """These options with the login of `sasl_jaas_config` in its fields, and one sentence for each that does not
        fit the others. What is allowed but weak is logged."""
        completed, jaas_problems = _with_jaas_login(self)
        problems = [
            *jaas_problems,
            *security_checks.store_problems(completed),
            *security_checks.sasl_problems(completed),
        ]
        if not problems:
            security_checks.warn(completed)
        return completed, problems


SECURITY_OPTIONS = table_of(SecurityOptions)
PLAINTEXT = SecurityOptions(**read(CaseInsensitiveMap({}), SECURITY_OPTIONS)[0])
"""No encryption, no login."""


def complete_security(parsed: dict[str, Any]) -> list[str]:
    """Puts the security options, taken out of `parsed`, there as one value. Returns what does not fit together."""
    if not SECURITY_OPTIONS.keys() <= parsed.keys():
        return []  # a value was refused already: without it, others would seem not to fit
    values = {name: parsed.pop(name) for name in SECURITY_OPTIONS}
    parsed["security"], problems = SecurityOptions(**values).complete()
    if values["sasl_mechanism"] == "GSSAPI":
        through_librdkafka = {
            "Option 'metricsTopic'": parsed.get("metrics_topic") is not None,
            "Option 'commitOffsetsToGroup'": parsed.get("commit_group") is not None,
            "Option 'startingOffsets' as group:id": isinstance(parsed.get("starting_offsets"), GroupSpec),
        }
        given = (what for what, is_given in through_librdkafka.items() if is_given)
        problems += [f"{what} cannot go with GSSAPI: confluent-kafka lacks it" for what in given]
    return problems


def _with_jaas_login(given: SecurityOptions) -> tuple[SecurityOptions, list[str]]:
    jaas, mechanism = given.sasl_jaas_config, given.sasl_mechanism
    if jaas is None or mechanism is None:
        return given, []
    own = given.sasl_username or given.sasl_password or given.oauth_client_id or given.oauth_client_secret
    if own and any(jaas.get(name) for name in ("username", "password", "clientId", "clientSecret")):
        return given, ["Give the login either in 'kafka.sasl.jaas.config' or in options of its own, not in both"]
    if (why := misfit(jaas, mechanism)) is not None:
        return given, [why]
    if jaas.extensions and given.oauth_extensions:
        return given, [
            "Give SASL extensions in 'kafka.sasl.jaas.config' or 'kafka.sasl.oauthbearer.extensions', not in both"
        ]
    try:
        extensions = _extensions(jaas.extensions) if jaas.extensions else given.oauth_extensions
    except ValueError:
        return given, [
            "An extension_... in 'kafka.sasl.jaas.config' must have a name of letters and a value without blanks "
            "and commas"
        ]
    return replace(
        given,
        sasl_jaas_config=None,
        sasl_username=given.sasl_username or _revealed(jaas, "username"),
        sasl_password=given.sasl_password or jaas.get("password"),
        oauth_client_id=given.oauth_client_id or _revealed(jaas, "clientId"),
        oauth_client_secret=given.oauth_client_secret or jaas.get("clientSecret"),
        oauth_scope=given.oauth_scope or _revealed(jaas, "scope"),
        oauth_extensions=extensions,
        kerberos_service_name=given.kerberos_service_name or _revealed(jaas, "serviceName"),
    ), []


def _revealed(jaas: JaasLogin, name: str) -> str | None:
    value = jaas.get(name)
    return None if value is None else value.reveal()
