"""Real brokers with TLS, SASL and ACLs: with each login clients read, stream, produce, commit and report events. Wrong
certificates, logins and ACLs each end in a typed error soon, after few connections, and show no secret."""

from __future__ import annotations

import json
import logging
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import AclOperation
from typer.testing import CliRunner

from pyspark_kafka_meta.errors import AuthenticationError, AuthorizationError, DeadLetterError, KafkaMetaError, TlsError
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.network import connection, sockets
from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.options import ClientOptions, SinkOptions, SourceOptions
from pyspark_kafka_meta.spark.batch_reader import KafkaMetaReader
from pyspark_kafka_meta.testing.listener_security import CertificateAuthority
from pyspark_kafka_meta.tools.cli.main import app
from pyspark_kafka_meta.typed.reading import query_schemas
from pyspark_kafka_meta.write.input_columns import SinkColumns
from pyspark_kafka_meta.write.task_writer import TaskWriter
from tests.kafka.harness import Stream, Task
from tests.kafka.secured_kafka import GROUP, MECHANISMS, RECORDS, SASL, TLS, TOPIC, SecuredKafka
from tests.marks import thorough_after
from tests.unit.scene import RecordingPublisher

pytestmark = pytest.mark.kafka

FAILURE_S = 25
"""Limit for a failure; timeouts of requests are 30 s by default."""
CONNECTIONS = 4
"""Limit per failure, with the connections that diagnose it: two of the planner and two of the reader."""

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


@by_each_protocol
def test_the_command_line_takes_secrets_out_of_a_file_of_kafkas_tools(secured: SecuredKafka, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("secured", TLS, indirect=True)
def test_r16_only_the_right_pem_files_get_in(secured: SecuredKafka, fails: Callable[..., None], tmp_path: Path) -> None:
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


@pytest.mark.parametrize("secured", thorough_after(1, reversed(MECHANISMS)), indirect=True)
def test_r18_who_lacks_a_right_is_told_topic_and_operation(secured: SecuredKafka, fails: Callable[..., None]) -> None:
    for user, operation in (("mallory", "DESCRIBE"), ("dora", "READ")):
        sentence = f"no ACL allows this user {operation} on topic {TOPIC}"
        fails(user, Failure(secured.options(user), secured.servers, AuthorizationError, sentence))


@pytest.mark.parametrize("secured", thorough_after(1, reversed(MECHANISMS)), indirect=True)
def test_r18_a_right_taken_away_ends_a_stream(secured: SecuredKafka, connections: list[Any], tmp_path: Path) -> None:
    for user, continue_with, operation in (("erin", run_batches, "(DESCRIBE|READ)"), ("frank", read_planned, "READ")):
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


@pytest.mark.parametrize("secured", thorough_after(1, reversed(MECHANISMS)), indirect=True)
def test_r18_who_may_not_write_dead_letters_is_told_the_right(secured: SecuredKafka, tmp_path: Path) -> None:
    letters = f"letters-{secured.protocol}"
    secured.create_topic(letters)
    secured.allow("erin", AclOperation.READ, TOPIC)
    secured.allow("erin", AclOperation.DESCRIBE, letters)
    reading = {"kafka.bootstrap.servers": secured.servers, "subscribe": TOPIC, "eventsPath": str(tmp_path)}
    malformed = {"valueFormat": "json", "valueSchema": "id BIGINT", "onMalformedRecord": "deadLetter"}
    given = {**reading, **malformed, "deadLetterTopic": letters, **secured.options("erin")}
    options = SourceOptions.parse(given).for_batch()
    reader = KafkaMetaReader(options, {"value": "value"}, query_schemas(options.typed, options.topics))
    (task,) = reader.partitions()
    with pytest.raises(DeadLetterError, match="this user may not write idempotently"):
        list(reader.read(task))
    secured.allow("erin", AclOperation.WRITE, TOPIC)  # which includes idempotence
    with pytest.raises(DeadLetterError, match=f"no ACL allows this user WRITE on topic {letters}"):
        list(reader.read(task))
    secured.forbid("erin")


def run_batches(stream: Stream, _: list[Task]) -> None:
    stream.run_until(lambda: False)  # brokers apply the change a moment later


def read_planned(stream: Stream, tasks: list[Task]) -> None:
    """As a worker does with tasks that were planned before the change."""
    deadline = time.monotonic() + FAILURE_S
    while time.monotonic() < deadline:
        stream.read(tasks)
