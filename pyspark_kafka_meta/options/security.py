"""The options of TLS and SASL: `kafka.security.*`, `kafka.ssl.*` and `kafka.sasl.*`; and the table of SASL mechanisms.

Names and meanings are those of Kafka's `SslConfigs` and `SaslConfigs`. An error never repeats a value of these options:
the value may be a secret, or a secret pasted into the wrong option.

A new mechanism is a row of `MECHANISMS`, and its steps in `kafka/network/security/sasl_login.py`.
"""
# ruff: noqa: RUF009 (the default of a field is an option, made by a function)

from __future__ import annotations

import importlib.util
import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from pyspark_kafka_meta.extras import missing_extra
from pyspark_kafka_meta.options.jaas import EXTENSION, JaasLogin, parse_jaas
from pyspark_kafka_meta.options.option_table import GivenOptions, Query, Rows, Section, default_options, options_of
from pyspark_kafka_meta.options.parsers import Secret, parse_choice, parse_word

logger = logging.getLogger(__name__)

_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


# --- SASL mechanisms --------------------------------------------------------------------------------------------------


class LoginModule(NamedTuple):
    """What `kafka.sasl.jaas.config` names for a mechanism.

    Attributes:
        java_class: of Kafka's Java clients; its package may be another one.
        entries: supported entries, and entries without effect here.
        others: describes unsupported entries in an error.
        takes_extensions: whether other entries may be SASL extensions.
    """

    java_class: str
    entries: tuple[str, ...]
    others: str
    takes_extensions: bool = False

    @property
    def name(self) -> str:
        return self.java_class.rpartition(".")[2]


class SaslMechanism(NamedTuple):
    """A SASL mechanism.

    Attributes:
        name: in `kafka.sasl.mechanism`.
        problems: yields a sentence for each option that it needs and lacks, or that contradicts another.
        login: beginnings of the fields that it takes a login from.
        package: Python package of an extra that it needs.
        broker_name: in SaslHandshake, if it is another: a signed token of Amazon is a bearer token.
        sends_secret: whether whoever reads the connection could log in.
    """

    name: str
    login_module: LoginModule
    problems: Callable[[SecurityOptions], Iterator[str]]
    login: tuple[str, ...] = ()
    package: str | None = None
    broker_name: str | None = None
    sends_secret: bool = False

    @property
    def name_for_brokers(self) -> str:
        return self.broker_name or self.name


def _password_problems(options: SecurityOptions) -> Iterator[str]:
    if not (options.sasl_username and options.sasl_password):
        yield (
            f"{options.sasl_mechanism} needs 'kafka.sasl.username' and 'kafka.sasl.password', or "
            "'kafka.sasl.jaas.config'"
        )


def _oauth_problems(options: SecurityOptions) -> Iterator[str]:
    if bool(options.oauth_token_provider) == bool(options.oauth_token_endpoint_url):
        yield "OAUTHBEARER needs either 'oauthTokenProvider' or 'kafka.sasl.oauthbearer.token.endpoint.url'"
    if options.oauth_token_provider and (name := _first_given(options, "oauth_ca_", "oauth_client_", "oauth_scope")):
        yield f"Option '{name}' has no effect with 'oauthTokenProvider', which supplies the token"
    if options.oauth_token_endpoint_url:
        if re.match(r"https?://[^/@]+(/|$)", options.oauth_token_endpoint_url) is None:
            yield "Option 'kafka.sasl.oauthbearer.token.endpoint.url' must begin with https:// and contain no password"
        if not (options.oauth_client_id and options.oauth_client_secret):
            yield (
                "A token endpoint needs 'kafka.sasl.oauthbearer.client.credentials.client.id' and '...client.secret', "
                "or clientId and clientSecret in 'kafka.sasl.jaas.config'"
            )
        yield from package_problems("A token endpoint", "authlib")


def _kerberos_problems(options: SecurityOptions) -> Iterator[str]:
    if not options.kerberos_service_name:
        yield "GSSAPI needs 'kafka.sasl.kerberos.service.name'"


def _iam_problems(options: SecurityOptions) -> Iterator[str]:
    if not options.uses_tls:
        yield "AWS_MSK_IAM needs TLS: set 'kafka.security.protocol' to SASL_SSL"


_PASSWORD = ("sasl_username", "sasl_password")
_TOKEN = ("oauth_",)
_NO_OTHERS = "other than username and password"
_ONLY_JAVA = "that only Java supports, such as"
_SCRAM_MODULE = LoginModule(
    "org.apache.kafka.common.security.scram.ScramLoginModule", ("username", "password"), _NO_OTHERS
)
_ROWS = (
    SaslMechanism(
        "PLAIN",
        LoginModule("org.apache.kafka.common.security.plain.PlainLoginModule", ("username", "password"), _NO_OTHERS),
        _password_problems,
        _PASSWORD,
        sends_secret=True,
    ),
    SaslMechanism("SCRAM-SHA-256", _SCRAM_MODULE, _password_problems, _PASSWORD),
    SaslMechanism("SCRAM-SHA-512", _SCRAM_MODULE, _password_problems, _PASSWORD),
    SaslMechanism(
        "OAUTHBEARER",
        LoginModule(
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
            ("clientId", "clientSecret", "scope"),
            f"other than clientId, clientSecret, scope and {EXTENSION}...; the token endpoint and its authorities are "
            "options of their own, and 'kafka.https.ca.location' replaces ssl.truststore entries",
            takes_extensions=True,
        ),
        _oauth_problems,
        _TOKEN,
        sends_secret=True,
    ),
    SaslMechanism(
        "GSSAPI",
        LoginModule(
            "com.sun.security.auth.module.Krb5LoginModule",
            ("serviceName", "useTicketCache", "renewTGT", "doNotPrompt"),
            f"{_ONLY_JAVA} keyTab, useKeyTab or principal: remove them; tickets come from "
            "kinit, or from the keytab in KRB5_CLIENT_KTNAME",
        ),
        _kerberos_problems,
        package="gssapi",
    ),
    SaslMechanism(
        "AWS_MSK_IAM",
        LoginModule(
            "software.amazon.msk.auth.iam.IAMLoginModule",
            (),
            f"{_ONLY_JAVA} awsRoleArn or awsProfileName: remove them; credentials come from AWS's usual "
            "sources, such as AWS_PROFILE with a role_arn in that profile. A class can take a role too: set "
            "'kafka.sasl.mechanism' to OAUTHBEARER, and 'oauthTokenProvider'",
        ),
        _iam_problems,
        package="aws_msk_iam_sasl_signer",
        broker_name="OAUTHBEARER",
    ),
)
MECHANISMS = {mechanism.name: mechanism for mechanism in _ROWS}


# --- options ----------------------------------------------------------------------------------------------------------

_PROTOCOL = "kafka.security.protocol"
_rows = Rows(Section.SECURITY, Query.CONNECTED)
_tls_rows = replace(_rows, needs=(_PROTOCOL,), needs_values=("SSL", "SASL_SSL"))
_sasl_rows = replace(_rows, needs=(_PROTOCOL,), needs_values=("SASL_SSL", "SASL_PLAINTEXT"))


def _one_of(rows: Rows, name: str, default: str | None, choices: tuple[str, ...], doc: str) -> Any:
    parse = partial(parse_choice, values={choice: choice for choice in choices})
    error = f"Option '{name}' must be {', '.join(choices[:-1])} or {choices[-1]}"
    return rows.option(name, default, parse, error, doc)


def _store_type(text: str) -> str:
    if text.strip().lower() in ("jks", "jceks"):
        raise ValueError(
            "convert a JKS store with `keytool -importkeystore -srckeystore old.jks -destkeystore new.p12 "
            "-deststoretype PKCS12`"
        )
    kind: str = parse_choice(text, {"PEM": "PEM", "PKCS12": "PKCS12"})
    return kind


def _store(name: str, doc: str) -> Any:
    return _tls_rows.option(name, None, _store_type, f"Option '{name}' must be PEM or PKCS12", doc)


def parse_extensions(text: str) -> tuple[tuple[str, str], ...]:
    """Checked as in Kafka's `OAuthBearerClientInitialResponse`."""
    pairs = [pair.strip() for pair in text.split(",")]
    if not all(re.fullmatch(r"(?!auth=)[A-Za-z]+=[\x21-\x7E]+", pair) for pair in pairs):
        raise ValueError
    return tuple(sorted((name, value) for name, _, value in (pair.partition("=") for pair in pairs)))


parse_provider = partial(parse_word, pattern=r"\w+(\.\w+)*:\w+")


@dataclass(frozen=True, slots=True)
class SecurityOptions:
    """How connections are encrypted and authenticated.

    `sasl_username` and `sasl_password` are the login of PLAIN and SCRAM, the `oauth_client_...` fields the login of
    OAUTHBEARER, wherever they were given; `sasl_jaas_config` is None.
    """

    protocol: str = _one_of(_rows, _PROTOCOL, "PLAINTEXT", _PROTOCOLS, "Whether connections use TLS and a login.")
    truststore_location: str | None = _tls_rows.text(
        "kafka.ssl.truststore.location",
        "Trusted authorities, PEM or PKCS#12. Default: the system's.",
        excludes=("kafka.ssl.truststore.certificates",),
    )
    truststore_password: Secret | None = _tls_rows.secret("kafka.ssl.truststore.password", "For the PKCS#12 file.")
    truststore_type: str | None = _store("kafka.ssl.truststore.type", "PEM or PKCS12. Default: detected.")
    truststore_certificates: str | None = _tls_rows.text(
        "kafka.ssl.truststore.certificates", "Trusted authorities as PEM text."
    )
    keystore_location: str | None = _tls_rows.text(
        "kafka.ssl.keystore.location",
        "Client's private key and certificates, PEM or PKCS#12.",
        excludes=("kafka.ssl.keystore.key",),
    )
    keystore_password: Secret | None = _tls_rows.secret("kafka.ssl.keystore.password", "For the PKCS#12 file.")
    keystore_type: str | None = _store("kafka.ssl.keystore.type", "PEM or PKCS12. Default: detected.")
    keystore_key: Secret | None = _tls_rows.secret(
        "kafka.ssl.keystore.key", "Client's private key as PEM text.", pair="kafka.ssl.keystore.certificate.chain"
    )
    keystore_certificate_chain: str | None = _tls_rows.text(
        "kafka.ssl.keystore.certificate.chain", "Client's certificates as PEM text, its own first."
    )
    key_password: Secret | None = _tls_rows.secret("kafka.ssl.key.password", "For the encrypted PEM private key.")
    checks_host_name: bool = _rows.option(
        "kafka.ssl.endpoint.identification.algorithm",
        "https",
        partial(parse_choice, values={"https": True, "": False}),
        "Option 'kafka.ssl.endpoint.identification.algorithm' must be https or empty",
        "Certificates must match the host name; empty: no check, with a warning.",
    )
    sasl_mechanism: str | None = _one_of(
        _sasl_rows, "kafka.sasl.mechanism", None, tuple(MECHANISMS), "Required for SASL."
    )
    sasl_username: str | None = _sasl_rows.text("kafka.sasl.username", "For PLAIN and SCRAM.")
    sasl_password: Secret | None = _sasl_rows.secret("kafka.sasl.password", "For PLAIN and SCRAM.")
    sasl_jaas_config: JaasLogin | None = _sasl_rows.option(
        "kafka.sasl.jaas.config",
        None,
        parse_jaas,
        "Option 'kafka.sasl.jaas.config' must be as in `org.apache.kafka.common.security.plain.PlainLoginModule "
        'required username="..." password="...";`',
        "Login in the syntax of Java clients.",
    )
    oauth_token_provider: str | None = _sasl_rows.option(
        "oauthTokenProvider",
        None,
        parse_provider,
        "Option 'oauthTokenProvider' must be module:Class",
        "For OAUTHBEARER: module:Class, without arguments, with a thread-safe `token()`. An OSError is retried; other "
        "exceptions end the query.",
    )
    oauth_token_endpoint_url: str | None = _sasl_rows.text(
        "kafka.sasl.oauthbearer.token.endpoint.url", "OpenID Connect token endpoint, for client credentials."
    )
    oauth_ca_location: str | None = _sasl_rows.text(
        "kafka.https.ca.location",
        "Trusted authorities of the token endpoint: PEM file or folder. Default: the system's.",
    )
    oauth_client_id: str | None = _sasl_rows.text(
        "kafka.sasl.oauthbearer.client.credentials.client.id", "For the token endpoint."
    )
    oauth_client_secret: Secret | None = _sasl_rows.secret(
        "kafka.sasl.oauthbearer.client.credentials.client.secret", "For the token endpoint."
    )
    oauth_scope: str | None = _sasl_rows.text("kafka.sasl.oauthbearer.scope", "For the token endpoint.")
    oauth_extensions: tuple[tuple[str, str], ...] | None = _sasl_rows.option(
        "kafka.sasl.oauthbearer.extensions",
        None,
        parse_extensions,
        "Option 'kafka.sasl.oauthbearer.extensions' must be name=value between commas, with names of letters",
        "SASL extensions: logicalCluster=lkc-1,identityPoolId=pool-1.",
    )
    kerberos_service_name: str | None = _sasl_rows.text(
        "kafka.sasl.kerberos.service.name", "Service name of the brokers for GSSAPI, usually kafka."
    )

    @classmethod
    def of(cls, given: GivenOptions) -> SecurityOptions:
        """With the login of `sasl_jaas_config` in the other fields. Allowed but weak options are logged."""
        options = cls(**given.values(cls))
        if given.has_invalid(cls):
            return options  # without a value that was refused already, others would seem to contradict each other
        options, problems = _with_jaas_login(options)
        problems += [*_store_problems(options), *_sasl_problems(options)]
        given.refuse(problems)
        if not problems:
            _warn_of_weakness(options)
        return options

    @property
    def mechanism(self) -> SaslMechanism | None:
        return None if self.sasl_mechanism is None else MECHANISMS[self.sasl_mechanism]

    @property
    def uses_tls(self) -> bool:
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.protocol.startswith("SASL_")


PLAINTEXT = default_options(SecurityOptions)
"""Without encryption and login."""


def _with_jaas_login(given: SecurityOptions) -> tuple[SecurityOptions, list[str]]:
    """The login of `sasl_jaas_config` in its fields, and a sentence for each contradiction."""
    jaas, mechanism = given.sasl_jaas_config, given.mechanism
    if jaas is None or mechanism is None:
        return given, []
    separate_login = given.sasl_username or given.sasl_password or given.oauth_client_id or given.oauth_client_secret
    if separate_login and any(jaas.get(name) for name in ("username", "password", "clientId", "clientSecret")):
        return given, ["Set the login either in 'kafka.sasl.jaas.config' or in separate options, not in both"]
    if (problem := _login_problem(jaas, mechanism)) is not None:
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


def _login_problem(login: JaasLogin, mechanism: SaslMechanism) -> str | None:
    """Why the login does not fit the mechanism; None if it fits. Never repeats the login."""
    module = mechanism.login_module
    if login.module != module.name:
        supported = dict.fromkeys(other.login_module.name for other in MECHANISMS.values())
        return (
            f"The login module in 'kafka.sasl.jaas.config' does not fit {mechanism.name}. Supported modules: "
            f"{', '.join(supported)}"
        )
    if login.get("tokenauth") is not None:
        return "Delegation tokens ('tokenauth' in 'kafka.sasl.jaas.config') are not supported"
    others = (name for name, _ in login.options if name not in module.entries)
    if not all(module.takes_extensions and name.startswith(EXTENSION) for name in others):
        return f"The login in 'kafka.sasl.jaas.config' has entries {module.others}"
    return None


def _revealed(jaas: JaasLogin, name: str) -> str | None:
    value = jaas.get(name)
    return None if value is None else value.reveal()


def _store_problems(options: SecurityOptions) -> Iterator[str]:
    if options.keystore_location or options.keystore_key:
        yield from package_problems("A client certificate", "cryptography")
    if "PKCS12" in (options.truststore_type, options.keystore_type):
        yield from package_problems("A PKCS#12 store", "cryptography")


def _sasl_problems(options: SecurityOptions) -> Iterator[str]:
    if not options.uses_sasl:
        return
    mechanism = options.mechanism
    if mechanism is None:
        yield f"Option 'kafka.sasl.mechanism' is required with SASL: {', '.join(MECHANISMS)}"
        return
    for login in (_PASSWORD, _TOKEN):  # an option that identifies a user must not be ignored
        if login != mechanism.login and (name := _first_given(options, *login)):
            yield f"Option '{name}' has no effect with {mechanism.name}"
    yield from mechanism.problems(options)
    if mechanism.package is not None:
        yield from package_problems(mechanism.name, mechanism.package)


def package_problems(feature: str, module: str) -> Iterator[str]:
    if importlib.util.find_spec(module) is None:
        yield missing_extra(feature, module)


def _first_given(options: SecurityOptions, *prefixes: str) -> str | None:
    """The name of the first given option whose field has one of these prefixes."""
    given = (
        option.name
        for field, option in options_of(SecurityOptions).items()
        if field.startswith(prefixes) and getattr(options, field) is not None
    )
    return next(given, None)


def _warn_of_weakness(options: SecurityOptions) -> None:
    if options.uses_tls and not options.checks_host_name:
        logger.warning(
            "kafka.ssl.endpoint.identification.algorithm is empty: every certificate of a trusted authority is "
            "accepted as the broker's"
        )
    if options.protocol == "SASL_PLAINTEXT" and options.mechanism and options.mechanism.sends_secret:
        logger.warning("%s over SASL_PLAINTEXT sends the secret unencrypted: use SASL_SSL", options.sasl_mechanism)
    if (options.oauth_token_endpoint_url or "").startswith("http://"):
        logger.warning(
            "kafka.sasl.oauthbearer.token.endpoint.url is not https: the client's secret is sent unencrypted"
        )
