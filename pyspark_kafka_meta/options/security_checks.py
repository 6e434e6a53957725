"""Checks that security options fit together, and completes them with the login of `kafka.sasl.jaas.config`. No sentence
repeats a value."""

from __future__ import annotations

import importlib.util
import logging
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pyspark_kafka_meta.options.definitions import table_of
from pyspark_kafka_meta.options.jaas import JaasLogin, login_problem
from pyspark_kafka_meta.options.security import (
    MECHANISMS,
    PASSWORD_MECHANISMS,
    SECURITY_OPTIONS,
    SecurityOptions,
    parse_extensions,
)
from pyspark_kafka_meta.options.start_specs import GroupSpec

logger = logging.getLogger(__name__)

_LOGINS = {
    ("sasl_username", "sasl_password"): PASSWORD_MECHANISMS,
    ("oauth_",): ("OAUTHBEARER",),
}
"""Mechanisms that read these fields: a field that identifies a user must not be ignored."""
_NEEDED_PACKAGES = {"GSSAPI": ("gssapi", "kerberos"), "AWS_MSK_IAM": ("aws_msk_iam_sasl_signer", "aws")}


def complete_security(parsed: dict[str, Any]) -> list[str]:
    """Replaces the security options in `parsed` by one value. Returns a sentence for each contradiction."""
    if not SECURITY_OPTIONS.keys() <= parsed.keys():
        return []  # without a value that was refused already, others would seem to contradict each other
    values = {name: parsed.pop(name) for name in SECURITY_OPTIONS}
    parsed["security"], problems = _complete(SecurityOptions(**values))
    if values["sasl_mechanism"] == "GSSAPI":
        uses_of_librdkafka = {
            "Option 'metricsTopic'": parsed.get("metrics_topic") is not None,
            "Option 'commitOffsetsToGroup'": parsed.get("commit_group") is not None,
            "Option 'startingOffsets' as group:id": isinstance(parsed.get("starting_offsets"), GroupSpec),
        }
        given = (use for use, is_given in uses_of_librdkafka.items() if is_given)
        problems += [f"{use} does not work with GSSAPI: confluent-kafka lacks it" for use in given]
    return problems


def _complete(given: SecurityOptions) -> tuple[SecurityOptions, list[str]]:
    """Security options with the login of `sasl_jaas_config` in its fields, and a sentence for each contradiction.
    Allowed but weak options are logged."""
    completed, problems = _with_jaas_login(given)
    problems += [*_store_problems(completed), *_sasl_problems(completed)]
    if not problems:
        _warn_of_weakness(completed)
    return completed, problems


def _with_jaas_login(given: SecurityOptions) -> tuple[SecurityOptions, list[str]]:
    jaas, mechanism = given.sasl_jaas_config, given.sasl_mechanism
    if jaas is None or mechanism is None:
        return given, []
    separate_login = given.sasl_username or given.sasl_password or given.oauth_client_id or given.oauth_client_secret
    if separate_login and any(jaas.get(name) for name in ("username", "password", "clientId", "clientSecret")):
        return given, ["Set the login either in 'kafka.sasl.jaas.config' or in separate options, not in both"]
    if (problem := login_problem(jaas, mechanism)) is not None:
        return given, [problem]
    if jaas.extensions and given.oauth_extensions:
        return given, [
            "Set SASL extensions in 'kafka.sasl.jaas.config' or 'kafka.sasl.oauthbearer.extensions', not in both"
        ]
    try:
        extensions = parse_extensions(jaas.extensions) if jaas.extensions else given.oauth_extensions
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


def _store_problems(options: SecurityOptions) -> Iterator[str]:
    if not options.uses_tls and (name := _first_given(options, "truststore_", "keystore_", "key_password")):
        yield f"Option '{name}' has no effect without TLS: set 'kafka.security.protocol' to SSL or SASL_SSL"
    if options.truststore_location and options.truststore_certificates:
        yield "Set either 'kafka.ssl.truststore.location' or 'kafka.ssl.truststore.certificates', not both"
    text_key = options.keystore_key or options.keystore_certificate_chain
    if options.keystore_location and text_key:
        yield "Set either 'kafka.ssl.keystore.location' or 'kafka.ssl.keystore.key', not both"
    if bool(options.keystore_key) != bool(options.keystore_certificate_chain):
        yield "Options 'kafka.ssl.keystore.key' and 'kafka.ssl.keystore.certificate.chain' must be set together"


def _sasl_problems(options: SecurityOptions) -> Iterator[str]:
    if not options.uses_sasl:
        if name := _first_given(options, "sasl_", "oauth_", "kerberos_"):
            yield f"Option '{name}' has no effect without SASL: set 'kafka.security.protocol' to SASL_SSL"
        return
    mechanism = options.sasl_mechanism
    for fields, mechanisms in _LOGINS.items():
        if mechanism not in (None, *mechanisms) and (name := _first_given(options, *fields)):
            yield f"Option '{name}' has no effect with {mechanism}"
    if mechanism is None:
        yield f"Option 'kafka.sasl.mechanism' is required with SASL: {', '.join(MECHANISMS)}"
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
    if options.oauth_token_provider and (name := _first_given(options, "oauth_client_", "oauth_scope")):
        yield f"Option '{name}' has no effect with 'oauthTokenProvider', which supplies the token"
    if options.oauth_token_endpoint_url:
        if re.match(r"https?://[^/@]+(/|$)", options.oauth_token_endpoint_url) is None:
            yield "Option 'kafka.sasl.oauthbearer.token.endpoint.url' must begin with https:// and contain no password"
        if not (options.oauth_client_id and options.oauth_client_secret):
            yield (
                "A token endpoint needs 'kafka.sasl.oauthbearer.client.credentials.client.id' and '...client.secret', "
                "or clientId and clientSecret in 'kafka.sasl.jaas.config'"
            )
        yield from _package_problems("A token endpoint", "authlib", "oauth")


def _package_problems(feature: str, module: str, extra: str) -> Iterator[str]:
    if module and importlib.util.find_spec(module) is None:
        yield f"{feature} needs a missing package: pip install '.[{extra}]' in a clone of pyspark-kafka-meta"


def _first_given(options: SecurityOptions, *prefixes: str) -> str | None:
    """The name of the first given option whose field has one of these prefixes."""
    table = table_of(type(options)).items()
    given = (
        option.name for field, option in table if field.startswith(prefixes) and getattr(options, field) is not None
    )
    return next(given, None)


def _warn_of_weakness(options: SecurityOptions) -> None:
    if options.uses_tls and not options.checks_host_name:
        logger.warning(
            "kafka.ssl.endpoint.identification.algorithm is empty: every certificate of a trusted authority is "
            "accepted as the broker's"
        )
    if options.protocol == "SASL_PLAINTEXT" and options.sasl_mechanism in ("PLAIN", "OAUTHBEARER"):
        logger.warning("%s over SASL_PLAINTEXT sends the secret unencrypted: use SASL_SSL", options.sasl_mechanism)
    if (options.oauth_token_endpoint_url or "").startswith("http://"):
        logger.warning(
            "kafka.sasl.oauthbearer.token.endpoint.url is not https: the client's secret is sent unencrypted"
        )
