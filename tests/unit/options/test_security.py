"""Security options: combinations, errors, and secrets that no error or repr repeats."""

from __future__ import annotations

import logging
import pickle
import re
from dataclasses import asdict

import pytest

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.options import HIDDEN, ClientOptions, Secret, SecurityOptions, SourceOptions
from pyspark_kafka_meta.options.jaas import jaas_text, parse_jaas

SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}
SSL = {"security.protocol": "SSL"}
SASL_SSL = {"security.protocol": "SASL_SSL"}
PLAIN = {**SASL_SSL, "sasl.mechanism": "PLAIN"}
OAUTH = {**SASL_SSL, "sasl.mechanism": "OAUTHBEARER"}
ENDPOINT = "sasl.oauthbearer.token.endpoint.url"
CLIENT_ID = "sasl.oauthbearer.client.credentials.client.id"
CLIENT_SECRET = "sasl.oauthbearer.client.credentials.client.secret"


def parse(options: dict[str, str]) -> SecurityOptions:
    own = ("oauthTokenProvider",)
    named = {name if name in own else f"kafka.{name}": text for name, text in options.items()}
    return ClientOptions.parse({**SERVERS, **named}).security


def problems(options: dict[str, str]) -> list[str]:
    with pytest.raises(OptionError) as caught:
        parse(options)
    return str(caught.value).split("\n")


# --- values -----------------------------------------------------------------------------------------------------------

JAAS_LOGINS = [
    ('org.apache.kafka.common.security.plain.PlainLoginModule required username="al" password="p w";', "al", "p w"),
    ("PlainLoginModule required username=al password=pw ;", "al", "pw"),
    (
        'PlainLoginModule REQUIRED\n  username=\'a"l\' // said\n /* and */ password="a\\"b\\\\c\\t\\101;";',
        'a"l',
        'a"b\\c\tA;',
    ),
]


@pytest.mark.parametrize(("text", "user", "password"), JAAS_LOGINS)
def test_jaas_login_is_parsed_as_in_java(text: str, user: str, password: str) -> None:
    options = parse({**PLAIN, "sasl.jaas.config": text})

    assert (options.sasl_username, options.sasl_password) == (user, Secret(password))


IAM = {**SASL_SSL, "sasl.mechanism": "AWS_MSK_IAM"}
GSSAPI = {**SASL_SSL, "sasl.mechanism": "GSSAPI"}
IAM_LOGIN, KRB5_LOGIN = "software.amazon.msk.auth.iam.IAMLoginModule", "com.sun.security.auth.module.Krb5LoginModule"


@pytest.fixture
def _all_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())


SCRAM, TOKEN = {**SASL_SSL, "sasl.mechanism": "scram-sha-512"}, {**OAUTH, ENDPOINT: "https://idp/token"}
CLIENT = {**TOKEN, CLIENT_ID: "me", CLIENT_SECRET: "s3"}
EXTENSIONS = {"extension_logicalCluster": "lkc-1", "extension_identityPoolId": "p=1"}
EQUIVALENT = [
    (
        SCRAM,
        jaas_text("org.x.ScramLoginModule", {"username": 'a"\\', "password": "b; c"}),
        {"sasl.username": 'a"\\', "sasl.password": "b; c"},
    ),
    (
        TOKEN,
        jaas_text("org.x.OAuthBearerLoginModule", {"clientId": "me", "clientSecret": "s3", "scope": "kafka"}),
        {CLIENT_ID: "me", CLIENT_SECRET: "s3", "sasl.oauthbearer.scope": "kafka"},
    ),
    (
        CLIENT,
        jaas_text("OAuthBearerLoginModule", EXTENSIONS),
        {"sasl.oauthbearer.extensions": "identityPoolId=p=1, logicalCluster=lkc-1"},
    ),
    # Java clients require such an entry beside the options.
    (CLIENT, "org.x.OAuthBearerLoginModule required ;", {}),
    (CLIENT, "OAuthBearerLoginModule required scope=s;", {"sasl.oauthbearer.scope": "s"}),
    (IAM, f"{IAM_LOGIN} required;", {}),
    (GSSAPI, f'{KRB5_LOGIN} required serviceName="kafka";', {"sasl.kerberos.service.name": "kafka"}),
    ({**GSSAPI, "sasl.kerberos.service.name": "kafka"}, f"{KRB5_LOGIN} required useTicketCache=true;", {}),
]


@pytest.mark.parametrize(("common", "jaas", "options"), EQUIVALENT)
@pytest.mark.usefixtures("_all_packages")
def test_login_options_and_jaas_are_equivalent(common: dict[str, str], jaas: str, options: dict[str, str]) -> None:
    assert parse({**common, "sasl.jaas.config": jaas}) == parse({**common, **options})


def test_extensions_are_sorted_pairs() -> None:
    options = parse({**CLIENT, "sasl.oauthbearer.extensions": "logicalCluster=lkc-1,identityPoolId=p=1"})
    assert options.oauth_extensions == (("identityPoolId", "p=1"), ("logicalCluster", "lkc-1"))


@pytest.mark.parametrize(
    ("options", "line", "expected"),
    [
        (IAM, f"{IAM_LOGIN} required awsProfileName=hunter2;", "awsProfileName: remove them; credentials come"),
        (IAM, f"{IAM_LOGIN} required awsRoleArn=hunter2;", "OAUTHBEARER, and 'oauthTokenProvider'"),
        (GSSAPI, f"{KRB5_LOGIN} required useKeyTab=true keyTab=hunter2;", "keyTab, .*KRB5_CLIENT_KTNAME"),
        (GSSAPI, f"{IAM_LOGIN} required;", "does not fit GSSAPI. Supported modules: PlainLoginModule, .*, Krb5Login"),
    ],
)
@pytest.mark.usefixtures("_all_packages")
def test_jaas_entries_that_only_java_supports_are_refused(options: dict[str, str], line: str, expected: str) -> None:
    text = "\n".join(problems({**options, "sasl.jaas.config": line}))

    assert re.search(expected, text)
    assert "hunter2" not in text


def test_empty_identification_algorithm_disables_the_check_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert parse(SSL).checks_host_name
    assert caplog.messages == []
    assert not parse({**SSL, "ssl.endpoint.identification.algorithm": ""}).checks_host_name
    assert "identification.algorithm is empty" in caplog.text


def test_password_without_encryption_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    parse({**PLAIN, "security.protocol": "SASL_PLAINTEXT", "sasl.username": "u", "sasl.password": "p"})

    assert "PLAIN over SASL_PLAINTEXT sends the secret unencrypted" in caplog.text


# --- errors -----------------------------------------------------------------------------------------------------------

VALUE = "hunter2"
WRONG = [
    ({**SSL, "sasl.password": VALUE}, "has no effect without 'kafka.security.protocol' SASL_SSL or SASL_PLAINTEXT"),
    ({"security.protocol": VALUE}, "must be PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL"),
    ({"security.protocol": "sasl-ssl"}, "SASL_SSL (did you mean 'SASL_SSL'?)"),
    ({**SSL, "ssl.truststore.type": "JKS"}, "keytool -importkeystore"),
    ({**SSL, "ssl.truststore.type": VALUE}, "must be PEM or PKCS12"),
    ({**SSL, "ssl.truststore.type": "PKCS#12"}, "must be PEM or PKCS12 (did you mean 'PKCS12'?)"),
    ({**SSL, "ssl.endpoint.identification.algorithm": VALUE}, "must be https or empty"),
    ({**SSL, "ssl.key.password": " "}, "'kafka.ssl.key.password' must not be empty"),
    (SASL_SSL, "'kafka.sasl.mechanism' is required with SASL"),
    ({**SASL_SSL, "sasl.mechanism": "DIGEST-MD5"}, "must be PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, GSSAPI"),
    ({**PLAIN, "sasl.username": VALUE}, "PLAIN needs 'kafka.sasl.username' and 'kafka.sasl.password'"),
    ({**PLAIN, "sasl.username": VALUE, "sasl.jaas.config": "PlainLoginModule required password=p;"}, "not in both"),
    ({**PLAIN, "sasl.jaas.config": f"PlainLoginModule required password={VALUE}"}, "must end with ';'"),
    ({**PLAIN, "sasl.jaas.config": f'PlainLoginModule required password="{VALUE};'}, "from character 36 on"),
    ({**PLAIN, "sasl.jaas.config": f"PlainLoginModule required {VALUE};"}, "option 1 is not name="),
    ({**PLAIN, "sasl.jaas.config": f'PlainLoginModule required user== password="{VALUE}";'}, "option 1 is not name="),
    ({**PLAIN, "sasl.jaas.config": f'PlainLoginModule required password="{VALUE}" ===;'}, "option 2 is not name="),
    ({**PLAIN, "sasl.jaas.config": f"{VALUE}"}, "must come first"),
    ({**PLAIN, "sasl.jaas.config": "com.sun.Krb5LoginModule required x=y;"}, "does not fit PLAIN"),
    ({**PLAIN, "sasl.jaas.config": "PlainLoginModule required tokenauth=true;"}, "Delegation tokens"),
    ({**PLAIN, "sasl.jaas.config": f"PlainLoginModule required user={VALUE};"}, "entries other than username and"),
    ({**OAUTH, "sasl.jaas.config": f"OAuthBearerLoginModule required clientid={VALUE};"}, "other than clientId, "),
    ({**OAUTH, "sasl.jaas.config": f"OAuthBearerLoginModule required extension_1={VALUE};"}, "a name of letters"),
    ({**OAUTH, "sasl.oauthbearer.extensions": f"auth={VALUE}"}, "must be name=value between commas"),
    ({**OAUTH, "sasl.oauthbearer.extensions": f"a={VALUE},b"}, "must be name=value between commas"),
    (
        {
            **OAUTH,
            "sasl.oauthbearer.extensions": f"a={VALUE}",
            "sasl.jaas.config": f"OAuthBearerLoginModule required extension_a={VALUE};",
        },
        "not in both",
    ),
    ({**OAUTH, "oauthTokenProvider": "a:B", CLIENT_SECRET: VALUE}, "has no effect with 'oauthTokenProvider'"),
    ({**OAUTH, "oauthTokenProvider": "a:B", "https.ca.location": VALUE}, "has no effect with 'oauthTokenProvider'"),
    ({**OAUTH, "sasl.password": VALUE}, "'kafka.sasl.password' has no effect with OAUTHBEARER"),
    ({**PLAIN, "oauthTokenProvider": VALUE + ":B"}, "'oauthTokenProvider' has no effect with PLAIN"),
    ({**SASL_SSL, "sasl.mechanism": "AWS_MSK_IAM", "sasl.username": VALUE}, "has no effect with AWS_MSK_IAM"),
    (OAUTH, "OAUTHBEARER needs either"),
    ({**OAUTH, "oauthTokenProvider": VALUE}, "'oauthTokenProvider' must be module:Class"),
    ({**OAUTH, ENDPOINT: "https://idp/token"}, "A token endpoint needs"),
    ({**OAUTH, ENDPOINT: f"https://u:{VALUE}@h/", CLIENT_ID: "c", CLIENT_SECRET: VALUE}, "contain no password"),
    ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "AWS_MSK_IAM"}, "AWS_MSK_IAM needs TLS"),
]


@pytest.mark.parametrize(("options", "expected"), WRONG)
def test_invalid_security_options_are_refused_without_a_value(options: dict[str, str], expected: str) -> None:
    text = "\n".join(problems(options))

    assert expected in text
    assert VALUE not in text


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ssl.ca.location", "is librdkafka's: use 'kafka.ssl.truststore.location'"),
        ("sasl.mechanisms", "is librdkafka's: use 'kafka.sasl.mechanism'"),
        ("sasl.login.callback.handler.class", "is not supported: it configures Java"),
        ("sasl.login.refresh.window.factor", "is not supported: a token is requested at each login"),
        ("ssl.cipher.suites", "is not supported: OpenSSL's policy"),
    ],
)
def test_option_of_other_clients_is_refused_with_the_reason(name: str, expected: str) -> None:
    (problem,) = problems({name: VALUE})

    assert problem.startswith(f"Kafka option '{name}' {expected}")
    assert VALUE not in problem


def test_missing_package_of_a_mechanism_is_an_error_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    assert problems({**SASL_SSL, "sasl.mechanism": "GSSAPI", "sasl.kerberos.service.name": "kafka"}) == [
        "GSSAPI needs a missing package: pip install 'pyspark-kafka-meta[kerberos]'"
    ]


def test_one_error_lists_every_problem() -> None:
    theirs = "Kafka option 'ssl.ca.pem' is librdkafka's: use 'kafka.ssl.truststore.certificates'."
    jks, *rest = problems({**PLAIN, "ssl.truststore.type": "jks", "ssl.key.password": " ", "ssl.ca.pem": VALUE})
    assert (jks, rest[1]) == (theirs, "Option 'kafka.ssl.key.password' must not be empty")
    assert rest[0].startswith("Option 'kafka.ssl.truststore.type' must be PEM or PKCS12 (convert a JKS store")
    assert problems({**PLAIN, "ssl.keystore.key": VALUE, "ssl.ca.pem": VALUE}) == [
        theirs,
        "Options 'kafka.ssl.keystore.key' and 'kafka.ssl.keystore.certificate.chain' must be set together",
        "PLAIN needs 'kafka.sasl.username' and 'kafka.sasl.password', or 'kafka.sasl.jaas.config'",
    ]


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({**SASL_SSL, "sasl.mechanism": "FOO"}, "kafka.sasl.mechanism"),
        ({**PLAIN, "sasl.jaas.config": "PlainLoginModule"}, "kafka.sasl.jaas.config"),
        ({**SSL, "ssl.keystore.key": " ", "ssl.keystore.certificate.chain": VALUE}, "kafka.ssl.keystore.key"),
    ],
)
def test_invalid_value_is_not_reported_as_missing(options: dict[str, str], refused: str) -> None:
    (problem,) = problems(options)
    assert problem.startswith(f"Option '{refused}' must ")


@pytest.mark.parametrize(
    ("name", "value"), [("eventsTopic", "events"), ("commitOffsetsToGroup", "g"), ("startingOffsets", "group:g")]
)
def test_kerberos_serves_groups_and_events_too(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    gssapi = {"kafka.sasl.mechanism": "GSSAPI", "kafka.sasl.kerberos.service.name": "kafka"}
    options = {**SERVERS, "kafka.security.protocol": "SASL_SSL", **gssapi, "subscribe": "t"}

    assert SourceOptions.parse({**options, name: value}).client.security.sasl_mechanism == "GSSAPI"


# --- secrets ----------------------------------------------------------------------------------------------------------


def test_options_hide_secrets_and_can_be_pickled() -> None:
    names = ["ssl.truststore.password", "ssl.keystore.password", "ssl.keystore.key", "ssl.key.password"]
    secrets = {name: f"canary-{number}" for number, name in enumerate([*names, "sasl.password"])}
    options = parse({**PLAIN, **secrets, "sasl.username": "u", "ssl.keystore.certificate.chain": "c"})

    as_record = vars(logging.makeLogRecord({"options": options}))
    for shown in (repr(options), str(options), f"{options}", repr(as_record), repr(asdict(options))):
        assert shown.count(HIDDEN) == len(secrets)
        assert "canary" not in shown
    travelled = pickle.loads(pickle.dumps(options))
    assert travelled == options
    assert travelled.sasl_password is not None
    assert travelled.sasl_password.reveal() == "canary-4"


def test_repr_of_jaas_login_has_no_value() -> None:
    login = parse_jaas('PlainLoginModule required username="canary" password="canary";')

    assert "canary" not in repr(login)
