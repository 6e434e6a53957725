"""`kafkameta doctor` against brokers that are well or dead, a registry, or no brokers at all."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from pyspark_kafka_meta import java_launcher
from pyspark_kafka_meta.events.event import Origin
from pyspark_kafka_meta.testing import MockCluster, MockRegistry
from pyspark_kafka_meta.tools.cli.main import app
from pyspark_kafka_meta.tools.doctor import connection_checks
from tests.kafka.cluster_tools import first_address
from tests.unit.changes.test_captured import CAPTURED, message
from tests.wire.scripted_broker import scripted_broker

CLOSED_PORT = "127.0.0.1:1"
PRODUCE_KEY, FETCH_KEY, INIT_PRODUCER_ID_KEY = 0, 1, 22
CORRUPT_MESSAGE, TOPIC_AUTHORIZATION_FAILED = 2, 29
TERMINAL = {"FORCE_COLOR": "1", "TERM": "dumb", "COLUMNS": "160", "LINES": "50"}


@pytest.fixture(autouse=True)
def good_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setattr(java_launcher, "find_java", lambda: Path("java"))  # these tests also run without Java


def run(*arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit code, and the findings by check."""
    result = CliRunner().invoke(app, ["doctor", *arguments])
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert all(row["fix"] for row in found if row["verdict"] != "ok"), found
    return result.exit_code, {row["check"]: row for row in found}


def wrong(found: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {check: row["verdict"] for check, row in found.items() if row["verdict"] != "ok"}


def test_without_brokers_this_machine_is_looked_at() -> None:
    code, found = run()
    assert (code, wrong(found)) == (0, {})
    assert list(found) == ["python", "packages", "PYSPARK_PYTHON", "java"]
    assert found["packages"]["what"].startswith("pyspark-kafka-meta 0.")


def test_a_cluster_that_is_well_gets_no_complaint(mock_cluster: MockCluster) -> None:
    mock_cluster.create_topic("clicks", partitions=3)
    for partition in range(3):
        mock_cluster.move_leader("clicks", partition, partition + 1)
    producer = Producer({"bootstrap.servers": mock_cluster.bootstrap_servers, "log_level": 0})
    producer.produce("clicks", "one", partition=0)
    assert producer.flush(60) == 0

    mock_cluster.start_request_tracking()
    code, found = run("--bootstrap-servers", mock_cluster.bootstrap_servers.split(",")[0], "--topic", "clicks")

    assert (code, wrong(found)) == (0, {})
    asked = {request.api_key for request in mock_cluster.requests()}
    assert not asked & {PRODUCE_KEY, INIT_PRODUCER_ID_KEY}, "nothing about writes"
    assert {f"broker {number}" for number in (1, 2, 3)} <= found.keys()
    assert found["versions"]["what"] == "Metadata v13, ListOffsets v7, Fetch v16"
    assert found["topic clicks"]["what"] == "partitions: 3, led and in sync: all; records: about 1"
    fetches = [row["what"] for check, row in found.items() if check.startswith("fetch clicks from broker ")]
    assert len(fetches) == 3
    assert sum("returned a record batch" in one for one in fetches) == 1


CLICK = '{"type": "record", "name": "Click", "fields": [{"name": "id", "type": "long"}]}'


@pytest.fixture
def registry() -> Iterator[MockRegistry]:
    with MockRegistry() as registry:
        registry.register("clicks-value", CLICK)
        yield registry


@pytest.mark.parametrize(
    ("values", "options", "verdict", "what"),
    [
        ([b"\0\0\0\0\1\x06"], [], "ok", "all of 1 can be decoded, one for each partition with records"),
        ([b'{"id": 3}'], [], "fail", "1 of 1 cannot be decoded; the one of clicks-0 at offset 0: no frame"),
        ([b"{", b"\0\0\0\0\1\x06"], [], "ok", "all of 1 can be decoded, one for each partition with records"),
        ([b"\0\0\0\0\x09\x06"], [], "fail", "asked for schema id 9 and does not have it"),
        ([b"\0\0\0\0\x09\x06"], ["--option", "onMalformedRecord=null"], "warn", "asked for schema id 9"),
        ([], [], None, ""),
    ],
    ids=["good", "no frame", "newest is good", "unknown id", "tolerated", "empty topic"],
)
def test_newest_records_are_decoded_as_a_query_would(
    mock_cluster: MockCluster,
    registry: MockRegistry,
    values: list[bytes],
    options: list[str],
    verdict: str | None,
    what: str,
) -> None:
    mock_cluster.create_topic("clicks", partitions=2)
    producer = Producer({"bootstrap.servers": mock_cluster.bootstrap_servers, "log_level": 0})
    for value in values:
        producer.produce("clicks", value, partition=0)
    assert producer.flush(60) == 0
    typed = ["--option", f"schema.registry.url={registry.url}", "--option", "valueFormat=avro", *options]

    code, found = run("--bootstrap-servers", mock_cluster.bootstrap_servers, "--topic", "clicks", *typed)

    newest = found.get("newest values of clicks", {"section": "Newest records", "verdict": None, "what": ""})
    assert (newest["section"], newest["verdict"]) == ("Newest records", verdict)
    assert what in newest["what"]
    assert code == (verdict == "fail")


ENVELOPES = ["--option", "valueFormat=connect-json", "--option", "changes=debezium"]
OTHER_KEY = '{"type": "struct", "fields": [{"field": "k3", "type": "int32"}]}'


@pytest.mark.parametrize(
    ("captured", "options", "expected"),
    [
        (
            "full_identity",
            ENVELOPES,
            {
                "changes": "debezium in connect-json, 4 columns; records at both ends of partitions: 4 r, 3 c, 2 d, 2 "
                "skipped, 1 u, 1 t",
                "key": "identifies rows by k1, k2",
                "snapshot": "the oldest record is of a snapshot (first_in_data_collection)",
                "truncates": "1 records of a TRUNCATE, at which a query fails",
            },
        ),
        (
            "unsent",
            [*ENVELOPES, "--option", "keyFormat=bytes"],
            {
                "key": "there is none: the changes are a log",
                "snapshot": "the oldest record is of no snapshot: rows that did not change since then may be missing",
                "unsent columns": "e in 2 changes",
            },
        ),
        ("altered", ENVELOPES, {"defaults": "a null in c is sent as the column's default"}),
        (
            "full_identity",
            [*ENVELOPES, "--option", f"keySchema={OTHER_KEY}", "--option", "onMalformedRecord=null"],
            {"malformed changes": "10; the first: it has no key, or a key without k3", "snapshot": "", "defaults": ""},
        ),
        (
            "altered",
            [],
            {
                "values of shop": "look like changes of a database by Debezium: changes=debezium and "
                "valueFormat=connect-json make rows of the table"
            },
        ),
    ],
)
def test_a_topic_of_changes_is_explained(
    mock_cluster: MockCluster, captured: str, options: list[str], expected: dict[str, str]
) -> None:
    mock_cluster.create_topic("shop")
    content = json.loads((CAPTURED / f"{captured}.json").read_text())
    producer = Producer({"bootstrap.servers": mock_cluster.bootstrap_servers, "log_level": 0})
    for record in content["records"]:
        sides = {side: message(content["schemas"], record[side]) for side in ("key", "value") if side in record}
        producer.produce("shop", sides.get("value"), sides.get("key"))
    assert producer.flush(60) == 0

    code, found = run("--bootstrap-servers", mock_cluster.bootstrap_servers, "--topic", "shop", *options)

    explained = {check: found[check]["what"] if check in found else "" for check in expected}
    assert code == 0
    assert {check: what[: len(expected[check]) or None] for check, what in explained.items()} == expected
    assert {found[check]["section"] for check in expected if check in found} == {"Changes of a database"}


def test_registry_is_checked_without_brokers_and_with_options_of_a_file(registry: MockRegistry, tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text(f"schema.registry.url={registry.url}\nvalueFormat=avro\n")
    code, found = run("--config", str(config), "--topic", "clicks")

    assert (code, wrong(found)) == (0, {})
    assert found["value"]["what"] == "version 1 of clicks-value (id 1) is read as struct<id: int64 not null>"


@pytest.mark.parametrize(("operation", "arguments"), [("Read", []), ("Write", ["--write"])])
def test_hidden_topic_needs_the_right_to_it(mock_cluster: MockCluster, operation: str, arguments: list[str]) -> None:
    mock_cluster.create_topic("clicks")
    mock_cluster.set_topic_error("clicks", TOPIC_AUTHORIZATION_FAILED)
    code, found = run("--bootstrap-servers", mock_cluster.bootstrap_servers, "--topic", "clicks", *arguments)

    assert (code, found["topic clicks"]["verdict"]) == (1, "fail")
    assert f"--operation {operation} --topic clicks" in found["topic clicks"]["fix"]


def test_a_missing_right_to_read_is_a_warning_for_a_program_that_writes(mock_cluster: MockCluster) -> None:
    mock_cluster.create_topic("clicks")
    mock_cluster.push_partition_errors("clicks", 0, FETCH_KEY, TOPIC_AUTHORIZATION_FAILED)
    _, found = run("--bootstrap-servers", mock_cluster.bootstrap_servers, "--topic", "clicks", "--write")

    [verdict] = [row["verdict"] for check, row in found.items() if check.startswith("fetch clicks")]
    assert verdict == "warn"


@pytest.mark.usefixtures("no_pyspark")
def test_without_pyspark_all_is_checked_but_the_executors(mock_cluster: MockCluster) -> None:
    mock_cluster.create_topic("clicks")
    _, found = run("--executors", "--topic", "clicks", "--bootstrap-servers", mock_cluster.bootstrap_servers)

    assert found["package pyspark"]["verdict"] == "warn"
    assert "pip install 'pyspark" in found["package pyspark"]["fix"]
    assert found["topic clicks"]["verdict"] == "ok"
    assert (found["spark"]["verdict"], "[spark]" in found["spark"]["fix"]) == ("fail", True)


def test_a_leader_that_died_is_told_with_its_partitions(mock_cluster: MockCluster) -> None:
    mock_cluster.create_topic("clicks", partitions=3)
    first = mock_cluster.bootstrap_servers.split(",")[0]
    for partition, broker_id in enumerate((1, 2, 3)):
        mock_cluster.move_leader("clicks", partition, broker_id)
    mock_cluster.broker_down(2)

    code, found = run("--bootstrap-servers", first, "--topic", "clicks", "--timeout-ms", "10000")

    assert (code, wrong(found)) == (1, {"partition clicks-1": "fail"})


@pytest.mark.parametrize("command", ["doctor", "metadata"])
def test_an_http_server_is_named(command: str) -> None:
    with scripted_broker(lambda peer: peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as address:
        result = CliRunner().invoke(app, [command, "--bootstrap-servers", str(address)])

    assert result.exit_code == 1
    assert f"{address} speaks HTTP, not the Kafka protocol: check the host and port" in result.output


def test_writable_topic_is_told_with_the_options_of_its_producer(mock_cluster: MockCluster, tmp_path: Path) -> None:
    mock_cluster.create_topic("clicks", partitions=2)
    for partition in range(2):
        mock_cluster.move_leader("clicks", partition, partition + 1)
        mock_cluster.push_partition_errors("clicks", partition, PRODUCE_KEY, CORRUPT_MESSAGE)
    config = tmp_path / "producer.properties"
    config.write_text("compression.type=zstd\nfetch.min.bytes=1\n")
    servers = mock_cluster.bootstrap_servers
    code, found = run("--bootstrap-servers", servers, "--topic", "clicks", "--write", "--config", str(config))

    assert (code, wrong(found)) == (0, {})
    assert [check for check, row in found.items() if row["section"] == "Writes"] == [
        "write clicks to broker 1",
        "write clicks to broker 2",
        "idempotence",
    ]


@pytest.mark.parametrize(
    ("code", "verdict"), [(CORRUPT_MESSAGE, "ok"), (TOPIC_AUTHORIZATION_FAILED, "fail")], ids=["may write", "may not"]
)
def test_the_topic_of_dead_letters_is_written_to(mock_cluster: MockCluster, code: int, verdict: str) -> None:
    for topic in ("clicks", "letters"):
        mock_cluster.create_topic(topic)
    mock_cluster.push_partition_errors("letters", 0, PRODUCE_KEY, code)
    typed = ["valueFormat=json", "valueSchema=id BIGINT", "onMalformedRecord=deadLetter", "deadLetterTopic=letters"]
    options = [text for option in typed for text in ("--option", option)]
    _, found = run("--bootstrap-servers", mock_cluster.bootstrap_servers, "--topic", "clicks", *options)

    checks = {check: row["verdict"] for check, row in found.items() if row["section"] == "Dead letters"}
    assert checks["topic letters"] == "ok"
    assert [found for check, found in checks.items() if check.startswith("write letters to broker")] == [verdict]


def test_a_task_tells_what_its_executor_cannot_reach_and_that_its_release_is_another(
    mock_cluster: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        connection_checks, "task_origin", lambda role: Origin(role=role, executor_id="7", host="worker")
    )
    good = first_address(mock_cluster.bootstrap_servers)
    addresses = [("127.0.0.1", 1), (good.host, good.port)]
    rows = connection_checks.check_executor("9.9", {"kafka.bootstrap.servers": CLOSED_PORT}, addresses, None)

    assert [(check, verdict) for check, verdict, _, _ in rows] == [
        ("executor 7 on worker", "ok"),
        ("executor 7 on worker: release", "warn"),
        (f"executor 7 on worker: {CLOSED_PORT}", "fail"),
    ]
    assert sys.executable in rows[0][2]
    assert "9.9 on the driver" in rows[1][2]
    *_, reachable = connection_checks.check_executor("9.9", {"kafka.bootstrap.servers": "b:9"}, addresses[1:], None)
    assert reachable == ("executor 7 on worker: brokers", "ok", "all 1 can be reached", "")


def test_a_person_sees_a_table_with_the_fix_below_and_the_sum(mock_cluster: MockCluster) -> None:
    arguments = ["doctor", "--bootstrap-servers", mock_cluster.bootstrap_servers, "--topic", "nope"]
    result = CliRunner().invoke(app, arguments, env=TERMINAL)
    assert result.exit_code == 1
    assert "-> correct the name, or create it: kafka-topics --create --topic nope" in result.stdout
    assert "1 failed, 0 with a warning" in result.stdout


SECRET = "canary-4711"
PLAIN = ["security.protocol=SASL_PLAINTEXT", "sasl.mechanism=PLAIN"]
LOGIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.mark.parametrize(
    "options",
    [
        [*PLAIN, "sasl.username=app", f"sasl.password={SECRET}"],
        [*PLAIN, f"sasl.pasword={SECRET}"],
        [*PLAIN, f'sasl.jaas.config={LOGIN_MODULE} required username="app" password="{SECRET}'],
        ["security.protocol=SSL", f"ssl.keystore.key=-----BEGIN PRIVATE KEY-----{SECRET}"],
        ["valueFormat=avro", f"schema.registry.url=http://app:{SECRET}@{CLOSED_PORT}/?key={SECRET}"],
    ],
    ids=["password", "misspelt", "jaas", "key", "url"],
)
def test_what_a_bug_report_shows_has_no_secret(mock_cluster: MockCluster, options: list[str]) -> None:
    """Whether it fails at an option or at a broker, which has no login here."""
    given = [word for option in options for word in ("--option", option)]
    servers = mock_cluster.bootstrap_servers
    result = CliRunner().invoke(app, ["doctor", "--json", "--bootstrap-servers", servers, "--topic", "clicks", *given])

    assert result.exit_code == 1
    assert '"check": "packages"' in result.output
    assert SECRET not in result.output
