"""Real brokers with TLS, SASL and ACLs: with each login clients read, stream, produce, commit and report events. Wrong
certificates, logins and ACLs each end in a typed error soon, after few connections, and show no secret."""

from __future__ import annotations

import json
import logging
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import (
    AclOperation,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from pyspark_kafka_meta.errors import AuthenticationError, AuthorizationError, ConnectError, KafkaMetaError, TlsError
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.network import connection, sockets
from pyspark_kafka_meta.kafka.network.connection import ConnectionSettings
from pyspark_kafka_meta.kafka.network.security.sasl_login import log_in
from pyspark_kafka_meta.kafka.protocol.frame_codec import API_VERSIONS, request_schema
from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.options import ClientOptions, SinkOptions
from pyspark_kafka_meta.testing.listener_security import CertificateAuthority
from pyspark_kafka_meta.tools.cli.main import app
from pyspark_kafka_meta.write.input_columns import SinkColumns
from pyspark_kafka_meta.write.task_writer import TaskWriter
from tests.kafka.harness import Stream, Task, Worker
from tests.kafka.secured_kafka import (
    GROUP,
    MECHANISMS,
    RECORDS,
    SASL,
    SESSION_MS,
    TLS,
    TOPIC,
    USERS,
    SecuredKafka,
    unsecured_token,
)
from tests.marks import thorough_after
from tests.unit.scene import RecordingPublisher

pytestmark = pytest.mark.kafka

FAILURE_S = 25
"""Limit for a failure; timeouts of requests are 30 s by default."""
CONNECTIONS = 4
"""Limit per failure, with the connections that diagnose it: two of the planner and two of the reader."""

SPARK_LOGINS = {"SSL": "certificate", "SASL_PLAINTEXT": "PLAIN by JAAS", "SASL_SSL": "OAUTHBEARER"}

by_each_protocol = pytest.mark.parametrize("secured", MECHANISMS, indirect=True)


# --- logins that work -------------------------------------------------------------------------------------------------


def client_options(secured: SecuredKafka, options: dict[str, str]) -> ClientOptions:
    return ClientOptions.parse({"kafka.bootstrap.servers": secured.servers, **options})


def assert_login_works(secured: SecuredKafka, login: dict[str, str], folder: Path) -> None:
    before = secured.read(folder, login)
    client = client_options(secured, login)
    columns = SinkColumns(key=None, value=0, headers=None, topic=None, partition=None, timestamp=None)
    rows = pa.record_batch([pa.array([str(number) for number in range(RECORDS)])], ["value"])
    committed = {TopicPartition(TOPIC, 0): before}
    with closing(KafkaClient(client, RecordingPublisher([]))) as made:
        producer = SinkOptions.parse({"kafka.bootstrap.servers": secured.servers}).producer
        TaskWriter(made, producer, columns, TOPIC).write([rows])
        made.groups.commit(GROUP, committed)
        assert made.groups.committed(GROUP, committed) == committed
    assert secured.read(folder, login) == before + RECORDS > RECORDS


@by_each_protocol
def test_every_way_in_reads_produces_and_commits(secured: SecuredKafka, tmp_path: Path) -> None:
    for name, login in secured.logins().items():
        assert_login_works(secured, login, tmp_path / name)


@pytest.mark.parametrize("secured", SASL, indirect=True)
def test_tokens_of_a_class_of_the_users_get_in(secured: SecuredKafka, tmp_path: Path) -> None:
    login = {**secured.logins()["OAUTHBEARER"], "oauthTokenProvider": "tests.kafka.secured_kafka:AliceTokens"}
    named = {name: text for name, text in login.items() if not name.startswith("kafka.sasl.oauthbearer.")}
    assert_login_works(secured, named, tmp_path)


@pytest.mark.thorough
@pytest.mark.spark
@by_each_protocol
def test_spark_reads_streams_and_reports_events_by_each_protocol(
    secured: SecuredKafka, spark: SparkSession, tmp_path: Path, wait_for: Callable[..., Any]
) -> None:
    """The options reach planners, tasks and the topic of events. Other logins only differ in the client."""
    login, events = secured.logins()[SPARK_LOGINS[secured.protocol]], f"events-{uuid.uuid4().hex}"
    secured.create_topic(events)
    cluster = {"kafka.bootstrap.servers": secured.servers, **login, "eventsTopic": events}
    assert_batch_and_stream_agree(spark, cluster, tmp_path)
    wait_for(partial(all_roles_reported, spark, cluster))


def assert_batch_and_stream_agree(spark: SparkSession, cluster: dict[str, str], folder: Path) -> None:
    """Both read the same rows, and no file or progress report contains a secret."""
    options = {**cluster, "eventsPath": str(folder / "events"), "subscribe": TOPIC, "startingOffsets": "earliest"}
    rows = spark.read.format("kafkameta").options(**options).load().count()
    table = f"secured_{uuid.uuid4().hex}"
    stream = spark.readStream.format("kafkameta").options(**options).load().writeStream.format("memory")
    query = stream.queryName(table).option("checkpointLocation", str(folder / "checkpoint")).start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()

    assert rows >= RECORDS
    assert spark.table(table).count() == rows
    written = [path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file()]
    assert len(written) > 2
    assert not any("canary" in text for text in written)
    assert "canary" not in str(query.lastProgress)


def all_roles_reported(spark: SparkSession, cluster: dict[str, str]) -> bool:
    """Whether the topic of events, read with the same login, has refreshes of planners and readers."""
    side = spark.read.format("kafkameta").options(**cluster, table="refresh_events").load()
    roles = {row.role for row in side.where("outcome = 'changed'").select("role").distinct().collect()}
    return roles >= {"planner", "reader"}


@pytest.mark.thorough
@pytest.mark.parametrize("secured", SASL, indirect=True)
def test_a_session_is_renewed_on_the_same_connection(
    secured: SecuredKafka, monkeypatch: pytest.MonkeyPatch, wait_for: Callable[..., Any]
) -> None:
    lifetimes: list[float] = []

    def counted(*arguments: Any) -> float:
        lifetimes.append(log_in(*arguments))
        return lifetimes[-1]

    monkeypatch.setattr(connection, "log_in", counted)
    security = client_options(secured, secured.options()).security
    settings = ConnectionSettings("test", connect_timeout_ms=30_000, max_frame_bytes=1 << 20, security=security)
    client = connection.Connection(secured.address, settings, time.monotonic() + 30)
    request = request_schema(API_VERSIONS, 2).ApiVersionsRequest()

    def has_logged_in_again() -> bool:
        client.call(API_VERSIONS, request, time.monotonic() + 30)
        return len(lifetimes) == 3

    try:
        wait_for(has_logged_in_again)
    finally:
        client.close()
    assert lifetimes == [pytest.approx(SESSION_MS, rel=0.1)] * 3


@by_each_protocol
def test_the_command_line_takes_its_secrets_out_of_a_file_of_kafkas_tools(
    secured: SecuredKafka, tmp_path: Path
) -> None:
    config = tmp_path / "client.properties"
    escaped = {name: text.replace("\\", "\\\\").replace("\n", "\\n") for name, text in secured.options().items()}
    config.write_text("".join(f"{name.removeprefix('kafka.')}={text}\n" for name, text in escaped.items()))
    place = ["--bootstrap-servers", secured.servers, "--config", str(config)]
    seen = CliRunner().invoke(app, ["metadata", *place, "--topic", TOPIC, "--refresh", "--json"])
    refused = CliRunner().invoke(app, ["metadata", *place, "--option", "security.protocol=PLAINTEXT"])

    assert seen.exit_code == 0, seen.stderr
    reasons = {event["reason"] for event in json.loads(seen.stdout)["events"]}
    assert reasons >= {"bootstrap", "on_demand"}, "a slow broker causes further reasons"
    assert (refused.exit_code, refused.stdout, len(refused.stderr.splitlines())) == (1, "", 1)
    assert "canary" not in refused.stderr


# --- wrong certificates, logins and ACLs ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Failure:
    options: dict[str, str]
    servers: str
    kind: type[KafkaMetaError]
    text: str


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The addresses of all connection attempts."""
    tried: list[Any] = []
    connect = sockets.connect

    def counted(address: Any, *arguments: Any) -> Any:
        tried.append(address)
        return connect(address, *arguments)

    monkeypatch.setattr(connection, "connect", counted)
    return tried


@pytest.fixture
def fails(
    secured: SecuredKafka, connections: list[Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> Iterator[Callable[[str, Failure], None]]:
    """Runs a read that must fail: with this error, soon, after few connections, without a secret in errors, logs or
    events."""
    caplog.set_level(logging.DEBUG)

    def read(name: str, failure: Failure) -> None:
        connections.clear()
        began = time.monotonic()
        with pytest.raises(failure.kind, match=failure.text) as caught:
            secured.read(tmp_path / name, failure.options, failure.servers)
        assert time.monotonic() - began < FAILURE_S, name
        assert len(connections) <= CONNECTIONS, name
        assert "canary" not in "".join(traceback.format_exception(caught.value)), name

    yield read
    events = [path.read_text() for path in tmp_path.rglob("*.jsonl")]
    assert events
    assert "canary" not in caplog.text + "".join(events)


def tls_failures(secured: SecuredKafka) -> dict[str, Failure]:
    own, servers, plain = secured.options(), secured.servers, secured.kafka.admin_servers
    stranger = {"kafka.ssl.truststore.certificates": CertificateAuthority().certificate}
    other_name = servers.replace("127.0.0.1", "localhost")
    cases = {
        "unknown CA": Failure({**own, **stranger}, servers, TlsError, "authority that is not trusted"),
        "wrong name": Failure(own, other_name, TlsError, "does not name this host"),
        "TLS to a plaintext port": Failure(own, plain, TlsError, "does not speak TLS"),
        "plaintext to a TLS port": Failure({}, servers, TlsError, "speaks TLS"),
    }
    if secured.protocol == "SSL":
        nobody = {name: text for name, text in own.items() if not name.startswith("kafka.ssl.keystore.")}
        cases["no certificate"] = Failure(nobody, servers, TlsError, "requires a client certificate")
    return cases


@pytest.mark.parametrize("secured", TLS, indirect=True)
def test_r16_a_tls_failure_says_which(secured: SecuredKafka, fails: Callable[..., None]) -> None:
    for name, failure in tls_failures(secured).items():
        fails(name, failure)


@pytest.mark.thorough
@pytest.mark.parametrize("secured", TLS, indirect=True)
def test_r16_a_broker_that_is_silent_in_the_handshake_is_left_in_time(
    secured: SecuredKafka, connections: list[Any], tmp_path: Path
) -> None:
    short_timeouts = {"kafka.default.api.timeout.ms": "4000", "kafka.socket.connection.setup.timeout.ms": "1000"}
    (broker,) = secured.kafka.broker_ids
    secured.kafka.pause(broker)
    began = time.monotonic()
    try:
        with pytest.raises(ConnectError, match="did not finish the TLS handshake in time: is it a Kafka broker"):
            secured.read(tmp_path, secured.options(**short_timeouts))
    finally:
        secured.kafka.resume(broker)
    assert time.monotonic() - began < FAILURE_S
    assert len(connections) <= 2 * 4  # attempts of 1 s, each with a second connection without TLS


@pytest.mark.parametrize("secured", TLS, indirect=True)
def test_r16_pem_files_get_in_once_they_are_the_right_ones(
    secured: SecuredKafka, fails: Callable[..., None], tmp_path: Path
) -> None:
    files = {"truststore.certificates": "truststore.location", "keystore.key": "keystore.location"}
    own = secured.options()
    chain = own.pop("kafka.ssl.keystore.certificate.chain", "")
    contents = {to: own.pop(f"kafka.ssl.{name}") for name, to in files.items() if f"kafka.ssl.{name}" in own}
    for to, content in contents.items():
        (tmp_path / to).write_text(content + chain if to == "keystore.location" else content)
        own |= {f"kafka.ssl.{to}": str(tmp_path / to), f"kafka.ssl.{to.replace('location', 'type')}": "PEM"}
    trusted = tmp_path / "truststore.location"
    trusted.write_text(CertificateAuthority().certificate)

    fails("wrong file", Failure(own, secured.servers, TlsError, "authority that is not trusted"))
    trusted.write_text(contents["truststore.location"])
    assert secured.read(tmp_path / "right file", own) >= RECORDS


def login_failures(secured: SecuredKafka) -> dict[str, Failure]:
    own, servers = secured.options(), secured.servers
    bare = {name: text for name, text in own.items() if not name.startswith("kafka.sasl.")}
    no_login = {**bare, "kafka.security.protocol": secured.protocol.removeprefix("SASL_")}
    refused = "refused the {} login .*: check the credentials"
    cases = {
        f"wrong password of {mechanism}": Failure(
            {**secured.options(mechanism=mechanism), "kafka.sasl.password": "canary-wrong"},
            servers,
            AuthenticationError,
            refused.format(mechanism),
        )
        for mechanism in MECHANISMS[secured.protocol]
        if mechanism != "OAUTHBEARER"
    }
    cases["unknown user"] = Failure(
        {**own, "kafka.sasl.username": "nobody"}, servers, AuthenticationError, refused.format("SCRAM-SHA-512")
    )
    forged = {"kafka.sasl.mechanism": "OAUTHBEARER", "oauthTokenProvider": f"{__name__}:ForgedTokens"}
    cases["token of no issuer"] = Failure({**bare, **forged}, servers, AuthenticationError, "OAUTHBEARER login")
    cases["login forgotten"] = Failure(no_login, servers, AuthenticationError, "requires a SASL login")
    if secured.protocol == "SASL_PLAINTEXT":
        plain = secured.kafka.admin_servers
        other = {**own, "kafka.sasl.mechanism": "SCRAM-SHA-256"}
        cases["login not wanted"] = Failure(own, plain, AuthenticationError, "expects no SASL login")
        cases["mechanism"] = Failure(other, servers, AuthenticationError, "offers no SASL mechanism SCRAM-SHA-256")
    return cases


class ForgedTokens:
    def token(self) -> str:
        return "canary.token.forged"


@pytest.mark.parametrize("secured", thorough_after(1, reversed(SASL)), indirect=True)
def test_r17_a_refused_login_is_tried_a_few_times_at_most(secured: SecuredKafka, fails: Callable[..., None]) -> None:
    for name, failure in login_failures(secured).items():
        fails(name, failure)


@pytest.mark.thorough
@pytest.mark.parametrize("secured", SASL, indirect=True)
def test_r17_a_password_that_is_changed_ends_a_running_stream(
    secured: SecuredKafka, connections: list[Any], tmp_path: Path, wait_for: Callable[..., Any]
) -> None:
    stream = Stream(secured.servers, [TOPIC], tmp_path, **secured.options("carol"))
    with closing(stream), stream:
        wait_for(lambda: len(stream.rows) >= RECORDS)
        connections.clear()
        change_password(secured, "carol", "canary-changed")
        try:
            wait_for(lambda: stream.error, timeout_s=FAILURE_S)
        finally:
            change_password(secured, "carol", USERS["carol"])
    assert isinstance(stream.error, AuthenticationError)
    assert "refused the SCRAM-SHA-512 login" in str(stream.error)
    assert "canary" not in str(stream.error)
    assert len(connections) <= CONNECTIONS


def change_password(secured: SecuredKafka, user: str, password: str) -> None:
    admin, login = secured.admin(), ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    changes: list[Any] = [UserScramCredentialUpsertion(user, login, password.encode())]
    admin.alter_user_scram_credentials(changes)[user].result(60)


@pytest.mark.parametrize("secured", thorough_after(1, reversed(MECHANISMS)), indirect=True)
def test_r18_who_lacks_a_right_is_told_the_topic_and_the_operation(
    secured: SecuredKafka, fails: Callable[..., None]
) -> None:
    for user, operation in (("mallory", "DESCRIBE"), ("dora", "READ")):
        sentence = f"no ACL allows this user {operation} on topic {TOPIC}"
        fails(user, Failure(secured.options(user), secured.servers, AuthorizationError, sentence))


@pytest.mark.parametrize("secured", ["SASL_PLAINTEXT"], indirect=True)
def test_r18_a_pattern_that_acls_leave_nothing_of_is_warned_about(
    secured: SecuredKafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stream = Stream(secured.servers, [], tmp_path, subscribePattern=TOPIC, **secured.options("mallory"))
    with closing(stream):
        stream.run_batch()
    assert stream.rows == []
    assert "matches no topic that this user may see" in caplog.text
    assert "correct it, or allow DESCRIBE on the topic" in caplog.text


@pytest.mark.parametrize("secured", thorough_after(1, reversed(MECHANISMS)), indirect=True)
def test_r18_a_right_that_is_taken_away_ends_a_running_stream(
    secured: SecuredKafka, connections: list[Any], tmp_path: Path
) -> None:
    for user, continue_with, operation in (
        ("erin", run_batches, "(DESCRIBE|READ)"),
        ("frank", read_planned, "READ"),
    ):
        secured.allow(user, AclOperation.READ, TOPIC)
        stream = Stream(secured.servers, [TOPIC], tmp_path / user, **secured.options(user))
        with closing(stream):
            _, tasks = stream.plan()
            assert len(stream.read(tasks)) >= RECORDS
            connections.clear()
            secured.forbid(user)
            began = time.monotonic()
            with pytest.raises(AuthorizationError, match=f"no ACL allows this user {operation} on topic {TOPIC}"):
                continue_with(stream, tasks)
        assert time.monotonic() - began < FAILURE_S
        assert len(connections) <= CONNECTIONS


def run_batches(stream: Stream, _: list[Task]) -> None:
    stream.run_until(lambda: False)  # brokers apply the change a moment later


def read_planned(stream: Stream, tasks: list[Task]) -> None:
    """As a worker does with tasks that were planned before the change."""
    deadline = time.monotonic() + FAILURE_S
    while time.monotonic() < deadline:
        stream.read(tasks)


@pytest.mark.thorough
@pytest.mark.parametrize("secured", ["SASL_PLAINTEXT"], indirect=True)
def test_right_that_is_taken_away_ends_the_attempt_and_the_next_attempt_needs_it_back(secured: SecuredKafka) -> None:
    topic = f"written-{uuid.uuid4().hex}"
    secured.create_topic(topic)
    secured.allow("grace", AclOperation.WRITE, topic)
    worker = Worker(
        secured.kafka.admin_servers,
        topic,
        **secured.options("grace"),
        **{"kafka.bootstrap.servers": secured.servers},
    )
    with closing(worker.client):
        with worker.attempt(partitions=1) as attempt:
            attempt.write_on()
            secured.forbid("grace")
            text = attempt.wait_for_error(AuthorizationError, FAILURE_S)
        assert f"no ACL allows this user WRITE on topic {topic}" in text
        secured.allow("grace", AclOperation.WRITE, topic)
        worker.retry()
        worker.assert_written()


class RefusedFirst:
    """The class in `oauthTokenProvider`: its first token is of no issuer."""

    issued = 0

    def token(self) -> str:
        RefusedFirst.issued += 1
        return unsecured_token("alice") if RefusedFirst.issued > 1 else "canary.token.refused"


@pytest.mark.parametrize("secured", ["SASL_PLAINTEXT"], indirect=True)
def test_r17_a_new_token_follows_a_refused_token(
    secured: SecuredKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RefusedFirst, "issued", 0)
    bare = {name: text for name, text in secured.options().items() if not name.startswith("kafka.sasl.")}
    tokens = {"kafka.sasl.mechanism": "OAUTHBEARER", "oauthTokenProvider": f"{__name__}:RefusedFirst"}

    assert secured.read(tmp_path, {**bare, **tokens}) >= RECORDS
    assert RefusedFirst.issued > 1
