"""Real brokers with TLS, SASL and ACLs: each mechanism reads, through Spark too, and each failure says what it is."""

from __future__ import annotations

import base64
import json
import logging
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic
from harness import Stream
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from pyspark_kafka_meta.cli.main import app
from pyspark_kafka_meta.errors import AuthenticationError, AuthorizationError, KafkaMetaError, TlsError
from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.testing import LocalKafka
from pyspark_kafka_meta.testing.certificates import CertificateAuthority
from pyspark_kafka_meta.wire import connection
from pyspark_kafka_meta.wire.brokers import KafkaWire
from pyspark_kafka_meta.wire.connection import ConnectionSettings
from pyspark_kafka_meta.wire.security.librdkafka import librdkafka_settings
from pyspark_kafka_meta.wire.security.login import log_in

pytestmark = pytest.mark.kafka

TOPIC = "orders"
RECORDS = 20
USERS = {"alice": "canary-alice", "mallory": "canary-mallory", "dora": "canary-dora"}
OFFERED = ("SCRAM-SHA-512", "PLAIN", "OAUTHBEARER")
SESSION_MS = 1_500
FAILURE_S = 10


def unsecured_token(user: str) -> str:
    """What Kafka's OAuthBearerUnsecuredValidatorCallbackHandler takes."""
    issued = int(time.time()) - 1  # lest rounding puts it into the future
    parts = ({"alg": "none"}, {"sub": user, "iat": issued, "exp": issued + 3600})
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts]
    return ".".join(encoded) + "."


class AliceTokens:
    def token(self) -> str:
        return unsecured_token("alice")


ALICE_TOKENS = {"kafka.sasl.mechanism": "OAUTHBEARER", "oauthTokenProvider": f"{__name__}:AliceTokens"}


def secured(protocol: Any) -> Iterator[LocalKafka]:
    """One broker, one topic with records. Alice may read and write it, Dora may describe it, Mallory nothing."""
    config = {"connections.max.reauth.ms": str(SESSION_MS)}
    with LocalKafka(1, config=config, security=protocol, mechanisms=OFFERED, users=USERS, acls=True) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.admin_servers})
        admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(60)
        rules = [("alice", AclOperation.READ), ("alice", AclOperation.WRITE), ("dora", AclOperation.DESCRIBE)]
        acls = [acl(user, operation) for user, operation in rules]
        for future in admin.create_acls(acls).values():
            future.result(60)
        produce({"bootstrap.servers": kafka.admin_servers})
        yield kafka


def acl(user: str, operation: AclOperation) -> AclBinding:
    who = (f"User:{user}", "*", operation, AclPermissionType.ALLOW)
    return AclBinding(ResourceType.TOPIC, TOPIC, ResourcePatternType.LITERAL, *who)


def produce(settings: dict[str, Any]) -> None:
    producer = Producer({**settings, "log_level": 0})
    delivered: list[Any] = []
    for number in range(RECORDS):
        producer.produce(TOPIC, str(number), on_delivery=lambda error, _: delivered.append(error))
    assert producer.flush(30) == 0
    assert delivered == [None] * RECORDS


@pytest.fixture(scope="module", params=["SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def kafka(request: pytest.FixtureRequest) -> Iterator[LocalKafka]:
    yield from secured(request.param)


def options(kafka: LocalKafka, user: str = "alice", **more: str) -> dict[str, str]:
    return {**kafka.client_options(user), **more}


def is_sasl(kafka: LocalKafka) -> bool:
    return "kafka.sasl.mechanism" in options(kafka)


def read(kafka: LocalKafka, folder: Path, options: dict[str, str], servers: str | None = None) -> int:
    """How many records a planner and a reader get out of the topic."""
    stream = Stream(servers or kafka.bootstrap_servers, [TOPIC], folder, **options)
    try:
        stream.run_batch()
        return len(stream.rows)
    finally:
        stream.close()


def logins(kafka: LocalKafka) -> dict[str, dict[str, str]]:
    own = options(kafka)
    if not is_sasl(kafka):
        return {"certificate": own}
    bare = {name: text for name, text in own.items() if not name.startswith("kafka.sasl.")}
    jaas = f'org.x.PlainLoginModule required username="alice" password="{USERS["alice"]}";'
    return {
        "SCRAM-SHA-512": own,
        "PLAIN": kafka.client_options("alice", "PLAIN"),
        "PLAIN by JAAS": {**bare, "kafka.sasl.mechanism": "PLAIN", "kafka.sasl.jaas.config": jaas},
        "OAUTHBEARER": {**bare, **ALICE_TOKENS},
    }


def test_every_way_in_reads_and_produces(kafka: LocalKafka, tmp_path: Path) -> None:
    count = RECORDS
    for name, own in logins(kafka).items():
        client = ClientOptions.parse({"kafka.bootstrap.servers": kafka.bootstrap_servers, **own})
        produce(librdkafka_settings(client.security, client.bootstrap_servers))
        count += RECORDS
        assert read(kafka, tmp_path / name, own) >= count, name


@pytest.mark.spark
def test_spark_reads_a_batch_and_a_stream(kafka: LocalKafka, spark: SparkSession, tmp_path: Path) -> None:
    where = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": TOPIC, "startingOffsets": "earliest"}
    given = {**where, **options(kafka), "metricsPath": str(tmp_path / "events")}
    rows = spark.read.format("kafkameta").options(**given).load().count()
    table = f"secured_{uuid.uuid4().hex}"
    stream = spark.readStream.format("kafkameta").options(**given).load().writeStream.format("memory")
    query = stream.queryName(table).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()

    assert rows >= RECORDS
    assert spark.table(table).count() == rows
    written = [path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) > 2
    assert not any("canary" in text for text in written)
    assert "canary" not in str(query.lastProgress)


def test_a_session_is_renewed_on_the_same_connection(
    kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch, wait_for: Callable[..., Any]
) -> None:
    if not is_sasl(kafka):
        pytest.skip("certificates open no session")
    lifetimes: list[float] = []

    def counted(*arguments: Any) -> float:
        lifetimes.append(log_in(*arguments))
        return lifetimes[-1]

    monkeypatch.setattr(connection, "log_in", counted)
    security = ClientOptions.parse({"kafka.bootstrap.servers": kafka.bootstrap_servers, **options(kafka)}).security
    settings = ConnectionSettings("test", connect_timeout_ms=5_000, max_frame_bytes=1 << 20, security=security)
    one = connection.Connection(kafka.address(2), settings, time.monotonic() + 10)
    request = connection.codec.request_schema(connection.API_VERSIONS, 2).ApiVersionsRequest()

    def ask() -> bool:
        one.call(connection.API_VERSIONS, request, time.monotonic() + 5)
        return len(lifetimes) == 3

    try:
        wait_for(ask)
    finally:
        one.close()
    assert lifetimes == [pytest.approx(SESSION_MS, rel=0.1)] * 3


def failures(kafka: LocalKafka) -> dict[str, tuple[dict[str, str], str, type[KafkaMetaError], str]]:
    """Options, servers, and the error with its text."""
    own, servers, plain = options(kafka), kafka.bootstrap_servers, kafka.admin_servers
    stranger = {"kafka.ssl.truststore.certificates": CertificateAuthority().certificate}
    cases: dict[str, tuple[dict[str, str], str, type[KafkaMetaError], str]] = {
        "denied": (options(kafka, "mallory"), servers, AuthorizationError, f"DESCRIBE on topic {TOPIC}"),
        "may describe, not read": (options(kafka, "dora"), servers, AuthorizationError, f"READ on topic {TOPIC}"),
    }
    if own["kafka.security.protocol"].endswith("SSL"):
        cases["unknown authority"] = ({**own, **stranger}, servers, TlsError, "not trusted here")
        cases["TLS to a plaintext port"] = (own, plain, TlsError, "does not speak TLS")
        cases["plaintext to a TLS port"] = ({}, servers, TlsError, "speaks TLS")
        other_name = servers.replace("127.0.0.1", "localhost")
        cases["other host name"] = (own, other_name, TlsError, "does not name this host")
    if own["kafka.security.protocol"] == "SSL":
        nobody = {name: text for name, text in own.items() if not name.startswith("kafka.ssl.keystore.")}
        cases["no certificate"] = (nobody, servers, TlsError, "wants a client certificate")
    if is_sasl(kafka):
        cases["wrong password"] = (
            {**own, "kafka.sasl.password": "canary-wrong"},
            servers,
            AuthenticationError,
            "refused the SCRAM-SHA-512 login .*: check the credentials",
        )
        other = {**own, "kafka.sasl.mechanism": "SCRAM-SHA-256"}
        cases["mechanism not offered"] = (other, servers, AuthenticationError, "offers no SASL mechanism SCRAM-SHA-256")
        no_login = {name: text for name, text in own.items() if not name.startswith("kafka.sasl.")}
        no_login["kafka.security.protocol"] = own["kafka.security.protocol"].removeprefix("SASL_")
        cases["login forgotten"] = (no_login, servers, AuthenticationError, "wants a SASL login")
    if own["kafka.security.protocol"] == "SASL_PLAINTEXT":
        cases["login not wanted"] = (own, plain, AuthenticationError, "wants no SASL login")
    return cases


def test_each_failure_says_what_it_is_soon_and_shows_no_secret(
    kafka: LocalKafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for name, (given, servers, kind, text) in failures(kafka).items():
        began = time.monotonic()
        with pytest.raises(kind, match=text) as caught:
            read(kafka, tmp_path / name.replace(" ", "-"), given, servers)
        assert time.monotonic() - began < FAILURE_S, name
        assert "canary" not in "".join(traceback.format_exception(caught.value)), name
    events = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert events
    assert "canary" not in caplog.text + "".join(events)


def test_a_wrong_password_is_tried_once(kafka: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_sasl(kafka):
        pytest.skip("certificates have no password")
    attempts: list[Any] = []
    opened = KafkaWire._connection

    def counted(self: KafkaWire, *arguments: Any) -> Any:
        attempts.append(arguments)
        return opened(self, *arguments)

    monkeypatch.setattr(KafkaWire, "_connection", counted)
    with pytest.raises(AuthenticationError):
        read(kafka, tmp_path, options(kafka, **{"kafka.sasl.password": "canary-wrong"}))
    assert len(attempts) == 1


def test_the_command_line_takes_its_secrets_out_of_a_file_of_kafkas_tools(kafka: LocalKafka, tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    escaped = {name: text.replace("\\", "\\\\").replace("\n", "\\n") for name, text in options(kafka).items()}
    config.write_text("".join(f"{name.removeprefix('kafka.')}={text}\n" for name, text in escaped.items()))
    place = ["--bootstrap-servers", kafka.bootstrap_servers, "--config", str(config)]
    seen = CliRunner().invoke(app, ["metadata", *place, "--topic", TOPIC, "--refresh", "--json"])
    refused = CliRunner().invoke(app, ["metadata", *place, "--option", "security.protocol=PLAINTEXT"])

    assert seen.exit_code == 0, seen.stderr
    assert [event["reason"] for event in json.loads(seen.stdout)["events"]] == ["bootstrap", "bootstrap", "on_demand"]
    assert (refused.exit_code, refused.stdout, len(refused.stderr.splitlines())) == (1, "", 1)
    assert "canary" not in refused.stderr
