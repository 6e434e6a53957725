"""What security options may not say together, and what is allowed but weak. No sentence repeats a value."""

from __future__ import annotations

import importlib.util
import logging
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark_kafka_meta.options.option_table import table_of

if TYPE_CHECKING:
    from pyspark_kafka_meta.options.security_options import SecurityOptions

logger = logging.getLogger(__name__)

PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS = (*PASSWORD_MECHANISMS, "OAUTHBEARER", "GSSAPI", "AWS_MSK_IAM")
_LOGINS = {
    ("sasl_username", "sasl_password"): PASSWORD_MECHANISMS,
    ("oauth_",): ("OAUTHBEARER",),
}
"""Which mechanism reads which fields: those that identify a user must not be ignored."""
_NEEDED_PACKAGES = {"GSSAPI": ("gssapi", "kerberos"), "AWS_MSK_IAM": ("aws_msk_iam_sasl_signer", "aws")}


def store_problems(options: SecurityOptions) -> Iterator[str]:
    if not options.uses_tls and (name := _first_given(options, "truststore_", "keystore_", "key_password")):
        yield f"Option '{name}' has no effect without TLS: set 'kafka.security.protocol' to SSL or SASL_SSL"
    if options.truststore_location and options.truststore_certificates:
        yield "Give either 'kafka.ssl.truststore.location' or 'kafka.ssl.truststore.certificates', not both"
    text_key = options.keystore_key or options.keystore_certificate_chain
    if options.keystore_location and text_key:
        yield "Give either 'kafka.ssl.keystore.location' or 'kafka.ssl.keystore.key', not both"
    if bool(options.keystore_key) != bool(options.keystore_certificate_chain):
        yield "Options 'kafka.ssl.keystore.key' and 'kafka.ssl.keystore.certificate.chain' need each other"


def sasl_problems(options: SecurityOptions) -> Iterator[str]:
    if not options.uses_sasl:
        if name := _first_given(options, "sasl_", "oauth_", "kerberos_"):
            yield f"Option '{name}' has no effect without SASL: set 'kafka.security.protocol' to SASL_SSL"
        return
    mechanism = options.sasl_mechanism
    for fields, mechanisms in _LOGINS.items():
        if mechanism not in (None, *mechanisms) and (name := _first_given(options, *fields)):
            yield f"Option '{name}' has no effect with {mechanism}"
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
    if options.oauth_token_provider and (name := _first_given(options, "oauth_client_", "oauth_scope")):
        yield f"Option '{name}' has no effect with 'oauthTokenProvider', which finds the token by itself"
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
        yield f"{who} needs a package that is not installed: pip install '.[{extra}]' in a clone of pyspark-kafka-meta"


def _first_given(options: SecurityOptions, *prefixes: str) -> str | None:
    """The name of the first option that was given, among the fields that begin so."""
    rows = table_of(type(options)).items()
    given = (row.name for field, row in rows if field.startswith(prefixes) and getattr(options, field) is not None)
    return next(given, None)


def warn(options: SecurityOptions) -> None:
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
