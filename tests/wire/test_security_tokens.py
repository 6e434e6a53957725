"""Where bearer tokens come from: an OpenID Connect endpoint, Amazon's signer, Kerberos; and their ways to fail."""

from __future__ import annotations

import base64
import logging
import ssl
import sys
import threading
import time
import traceback
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pyspark_kafka_meta.errors import AuthenticationError, ConnectError, KafkaMetaError, OptionError
from pyspark_kafka_meta.kafka.network.security import oauth_tokens
from pyspark_kafka_meta.kafka.network.security.oauth_tokens import bearer_token, forget_token
from pyspark_kafka_meta.kafka.network.security.sasl_login import STEPS
from pyspark_kafka_meta.options import ClientOptions, SecurityOptions
from pyspark_kafka_meta.testing.listener_security import CertificateAuthority
from tests.wire.token_endpoint import token_endpoint

CANARY = "canary-secret"
SASL_SSL = {"kafka.bootstrap.servers": "localhost:9092", "kafka.security.protocol": "SASL_SSL"}
CLIENT = "kafka.sasl.oauthbearer.client.credentials.client"
GOOD = {"access_token": "a.b-c", "token_type": "Bearer", "expires_in": 3600}


@pytest.fixture(autouse=True)
def no_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """An endpoint may have the port of an earlier one, whose token the process still has."""
    monkeypatch.setattr(oauth_tokens, "_tokens", {})


class Endless:
    """A provider that never responds."""

    def token(self) -> str:
        threading.Event().wait(30)
        return ""


class Forger:
    def token(self) -> str:
        return "a\1host=evil"


def parse(**options: str) -> SecurityOptions:
    return ClientOptions.parse({**SASL_SSL, **options}).security


def by_provider(name: str) -> SecurityOptions:
    return parse(**{"kafka.sasl.mechanism": "OAUTHBEARER", "oauthTokenProvider": f"{__name__}:{name}"})


def by_endpoint(url: str, ca_location: Path | None = None) -> SecurityOptions:
    client = {f"{CLIENT}.id": "me", f"{CLIENT}.secret": CANARY, "kafka.sasl.oauthbearer.scope": "kafka"}
    if ca_location is not None:
        client["kafka.https.ca.location"] = str(ca_location)
    return parse(**{"kafka.sasl.mechanism": "OAUTHBEARER", "kafka.sasl.oauthbearer.token.endpoint.url": url, **client})


def soon() -> float:
    return time.monotonic() + 30


def test_client_credentials_are_exchanged_for_a_token_that_serves_all_connections() -> None:
    with token_endpoint(200, GOOD) as (url, requests):
        assert [bearer_token(by_endpoint(url), "broker", soon()) for _ in range(3)] == ["a.b-c"] * 3
    assert requests == [
        (f"Basic {base64.b64encode(f'me:{CANARY}'.encode()).decode()}", "grant_type=client_credentials&scope=kafka")
    ]


def test_connections_that_open_at_the_same_time_share_a_token() -> None:
    with token_endpoint(200, GOOD) as (url, requests), ThreadPoolExecutor(3) as threads:
        security = by_endpoint(url)
        assert list(threads.map(lambda _: bearer_token(security, "broker", soon()), range(3))) == ["a.b-c"] * 3
    assert len(requests) == 1


def test_after_a_refused_login_another_token_is_asked_for() -> None:
    with token_endpoint(200, GOOD) as (url, requests):
        for _ in range(2):
            forget_token(by_endpoint(url), bearer_token(by_endpoint(url), "broker", soon()))
    assert len(requests) == 2


def test_a_token_that_another_login_has_replaced_is_kept() -> None:
    with token_endpoint(200, GOOD) as (url, requests):
        token = bearer_token(by_endpoint(url), "broker", soon())
        forget_token(by_endpoint(url), "the token before")
        assert bearer_token(by_endpoint(url), "broker", soon()) == token
    assert len(requests) == 1


def test_a_token_without_a_lifetime_serves_once() -> None:
    with token_endpoint(200, {**GOOD, "expires_in": None}) as (url, requests):
        for _ in range(2):
            bearer_token(by_endpoint(url), "broker", soon())
    assert len(requests) == 2


def test_an_executor_without_the_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    security = by_endpoint("https://localhost:1")
    for name in [name for name in sys.modules if name.partition(".")[0] == "authlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(OptionError, match=r"needs a missing package: pip install 'pyspark-kafka-meta\[oauth\]'$"):
        bearer_token(security, "broker", soon())


@pytest.mark.parametrize(
    ("status", "response", "kind", "text"),
    [
        (401, {"error": "invalid_client", "error_description": CANARY}, AuthenticationError, r"OAuthError: invalid_cl"),
        (401, {"message": CANARY}, AuthenticationError, r"the token endpoint returned no token \(KeyError\)"),
        (429, {"errorCode": CANARY}, ConnectError, "the token endpoint refuses so many requests"),
        (400, {"error": "temporarily_unavailable"}, ConnectError, r"OAuthError: temporarily_unavailable"),
        (200, {**GOOD, "access_token": f"{CANARY}\r\n"}, AuthenticationError, "no bearer token"),
        (500, {}, KafkaMetaError, "the token endpoint"),
    ],
)
def test_an_endpoint_that_gives_no_token_says_why_and_no_secret(
    status: int, response: dict[str, Any], kind: type[KafkaMetaError], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with token_endpoint(status, response) as (url, _), pytest.raises(kind, match=text) as caught:
        bearer_token(by_endpoint(url), "broker", soon())
    assert CANARY not in "".join(traceback.format_exception(caught.value)) + caplog.text


def test_an_endpoint_that_gives_no_bearer_token_is_asked_again_and_again_refused() -> None:
    with token_endpoint(200, {**GOOD, "access_token": "a\1host=evil"}) as (url, requests):
        for _ in range(2):
            with pytest.raises(AuthenticationError, match="no bearer token"):
                bearer_token(by_endpoint(url), "broker", soon())
    assert len(requests) == 2


def test_the_client_secret_does_not_follow_a_redirect() -> None:
    with (
        token_endpoint(200, GOOD) as (elsewhere, requests_elsewhere),
        token_endpoint(307, {}, elsewhere) as (url, requests),
        pytest.raises(KafkaMetaError, match="the token endpoint"),
    ):
        bearer_token(by_endpoint(url), "broker", soon())
    assert (len(requests), requests_elsewhere) == (1, [])


def test_an_endpoint_that_is_down_may_be_tried_again() -> None:
    with pytest.raises(ConnectError, match="the token endpoint cannot be reached"):
        bearer_token(by_endpoint("http://127.0.0.1:1/token"), "broker", soon())


def test_an_endpoint_of_a_private_authority_is_trusted_by_option_or_the_system_and_else_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = CertificateAuthority()
    issued = authority.issue("endpoint", ["127.0.0.1"])
    (tmp_path / "endpoint.pem").write_text(issued.key + issued.certificate)
    (tmp_path / "authority.pem").write_text(authority.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "endpoint.pem")
    with token_endpoint(200, GOOD, context=context) as (url, requests):
        refused = r"^the certificate of the token endpoint was refused \(unable to get local issuer certificate\): put"
        with pytest.raises(AuthenticationError, match=refused):
            bearer_token(by_endpoint(url), "broker", soon())
        with pytest.raises(OptionError, match=r"'kafka\.https\.ca\.location' names a file that cannot be read"):
            bearer_token(by_endpoint(url, tmp_path / "nowhere.pem"), "broker", soon())
        assert bearer_token(by_endpoint(url, tmp_path / "authority.pem"), "broker", soon()) == "a.b-c"
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
        assert bearer_token(by_endpoint(url), "broker", soon()) == "a.b-c"
    assert len(requests) == 2


def test_a_provider_that_hangs_is_left_at_the_deadline() -> None:
    with pytest.raises(ConnectError, match="returned no token in time"):
        bearer_token(by_provider("Endless"), "broker", time.monotonic() + 0.05)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError(CANARY), AuthenticationError),
        (KeyError(CANARY), AuthenticationError),
        (type("NoCredentialsError", (Exception,), {"__module__": "botocore.exceptions"})(), ConnectError),
    ],
)
def test_of_a_provider_that_fails_only_the_kind_of_error_is_told(
    error: Exception, kind: type[KafkaMetaError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Forger) -> str:
        raise error

    monkeypatch.setattr(Forger, "token", fail)
    with pytest.raises(kind, match=rf"returned no token \({type(error).__name__}\)") as caught:
        bearer_token(by_provider("Forger"), "broker", soon())
    assert CANARY not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("name", ["pyspark_kafka_meta.nowhere:Tokens", f"{__name__}:Nobody"])
def test_a_provider_that_is_not_there_is_never_tried_again(name: str) -> None:
    options = parse(**{"kafka.sasl.mechanism": "OAUTHBEARER", "oauthTokenProvider": name})
    with pytest.raises(AuthenticationError, match="returned no token"):
        bearer_token(options, "broker", soon())


def test_a_token_cannot_smuggle_fields_into_the_login() -> None:
    with pytest.raises(AuthenticationError, match="no bearer token"):
        bearer_token(by_provider("Forger"), "broker", soon())


# --- Amazon -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    monkeypatch.setenv("AWS_SESSION_TOKEN", CANARY)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    for name in ("AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("host", "region"),
    [
        ("b-1.x.c3.kafka.eu-west-1.amazonaws.com", "eu-west-1"),
        ("boot.x.kafka-serverless.us-east-2.amazonaws.com", "us-east-2"),
    ],
)
@pytest.mark.usefixtures("aws")
def test_tokens_for_msk_are_signed_for_its_region(host: str, region: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    security = parse(**{"kafka.sasl.mechanism": "AWS_MSK_IAM"})
    token = bearer_token(security, host, time.monotonic() + 30)
    assert f"https://kafka.{region}" in base64.urlsafe_b64decode(token + "==").decode()
    assert security.mechanism is not None
    assert security.mechanism.name_for_brokers == "OAUTHBEARER"
    assert CANARY not in caplog.text


@pytest.mark.usefixtures("aws")
def test_msk_behind_other_names_needs_a_region() -> None:
    with pytest.raises(AuthenticationError, match="set AWS_DEFAULT_REGION"):
        bearer_token(parse(**{"kafka.sasl.mechanism": "AWS_MSK_IAM"}), "broker.internal", time.monotonic() + 30)


@pytest.mark.usefixtures("aws")
def test_aws_credentials_that_are_not_there_may_come_later(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    host = "b-1.x.c3.kafka.eu-west-1.amazonaws.com"
    with pytest.raises(ConnectError, match="found no AWS credentials"):
        bearer_token(parse(**{"kafka.sasl.mechanism": "AWS_MSK_IAM"}), host, time.monotonic() + 30)


# --- Kerberos ---------------------------------------------------------------------------------------------------------


class Ticket:
    """A stand-in for gssapi's SecurityContext: two rounds, then the broker's offer of security layers."""

    def __init__(self, name: str, usage: str) -> None:
        self.name, self.complete = name, False
        self.initiator_name = "alice@REALM"

    def step(self, token: bytes | None = None) -> bytes | None:
        if token == b"unknown":
            raise GssError
        self.complete = token is not None
        return None if self.complete else b"first"

    def unwrap(self, token: bytes) -> Any:
        return types.SimpleNamespace(message=token)

    def wrap(self, message: bytes, _: bool) -> Any:
        return types.SimpleNamespace(message=b"wrapped:" + message)


class GssError(Exception):
    pass


@pytest.fixture
def kerberos(monkeypatch: pytest.MonkeyPatch) -> SecurityOptions:
    """Options of GSSAPI, with a stand-in for the package, which needs Kerberos on the machine."""
    gssapi = types.ModuleType("gssapi")
    gssapi.Name = lambda name, kind: name  # type: ignore[attr-defined]
    gssapi.NameType = types.SimpleNamespace(hostbased_service=1)  # type: ignore[attr-defined]
    gssapi.SecurityContext = Ticket  # type: ignore[attr-defined]
    gssapi.exceptions = types.SimpleNamespace(GSSError=GssError)  # type: ignore[attr-defined]
    gssapi.__spec__ = types.SimpleNamespace()  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "gssapi", gssapi)
    return parse(**{"kafka.sasl.mechanism": "GSSAPI", "kafka.sasl.kerberos.service.name": "kafka"})


def test_kerberos_asks_for_no_security_layer(kerberos: SecurityOptions) -> None:
    steps = STEPS["GSSAPI"](kerberos, "broker", soon())
    assert next(steps) == b"first"
    assert steps.send(b"second") == b""
    assert steps.send(b"\x07\0\0\0") == b"wrapped:\x01\0\0\0alice@REALM"
    with pytest.raises(StopIteration):
        steps.send(b"")


@pytest.mark.parametrize(
    ("responses", "text"),
    [([b"unknown"], "no ticket for kafka@broker"), ([b"second", b"\x06\0\0\0"], "requires a GSSAPI security layer")],
)
def test_kerberos_failures_are_typed_errors(kerberos: SecurityOptions, responses: list[bytes], text: str) -> None:
    steps = STEPS["GSSAPI"](kerberos, "broker", soon())
    next(steps)
    with pytest.raises(AuthenticationError, match=text):
        for response in responses:
            steps.send(response)
