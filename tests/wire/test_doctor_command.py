"""`kafkameta doctor` against brokers that are well, dead, leaderless, forbidding, old, or no brokers at all."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v13.request import MetadataRequest
from kio.schema.metadata.v13.response import MetadataResponse, MetadataResponseBroker
from kio.schema.types import BrokerId
from kio.static.primitive import i32
from typer.testing import CliRunner

from pyspark_kafka_meta import java_launcher
from pyspark_kafka_meta.kafka.metadata.refresh_events import Origin
from pyspark_kafka_meta.kafka.protocol.frame_codec import milliseconds
from pyspark_kafka_meta.model import Address
from pyspark_kafka_meta.testing import MockCluster, MockRegistry
from pyspark_kafka_meta.tools.cli.main import app
from pyspark_kafka_meta.tools.doctor import connection_checks
from tests.wire.scripted_broker import frame, read_message, scripted_broker, send_versions

CLOSED_PORT = "127.0.0.1:1"
PRODUCE_KEY, FETCH_KEY, INIT_PRODUCER_ID_KEY = 0, 1, 22
CORRUPT_MESSAGE = 2
TERMINAL = {"FORCE_COLOR": "1", "TERM": "dumb", "COLUMNS": "160", "LINES": "50"}


@pytest.fixture(autouse=True)
def good_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setattr(java_launcher, "find_java", lambda: Path("java"))  # these tests also run without Java


@contextmanager
def broker_that_advertises(nowhere: bool = False, fetch: int = 16) -> Iterator[Address]:
    """A broker with this Fetch version, which advertises its own address or a closed port."""
    port: list[int] = []

    def behave(peer: socket.socket) -> None:
        send_versions(peer, fetch=fetch)
        while True:
            correlation_id, _ = read_message(peer, MetadataRequest)
            broker = MetadataResponseBroker(
                node_id=BrokerId(1), host="127.0.0.1", port=i32(1 if nowhere else port[0]), rack=None
            )
            response = MetadataResponse(
                throttle_time=milliseconds(0), brokers=(broker,), cluster_id="c", topics=(), error_code=ErrorCode.none
            )
            peer.sendall(frame(response, correlation_id))

    with scripted_broker(behave) as address:
        port.append(address.port)
        yield address


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

    code, found = run("--bootstrap-servers", mock_cluster.bootstrap_servers.split(",")[0], "--topic", "clicks")

    assert (code, wrong(found)) == (0, {})
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
    ],
    ids=["good", "no frame", "newest is good", "unknown id", "tolerated"],
)
def test_newest_records_are_decoded_as_a_query_would(
    mock_cluster: MockCluster,
    registry: MockRegistry,
    values: list[bytes],
    options: list[str],
    verdict: str,
    what: str,
) -> None:
    mock_cluster.create_topic("clicks", partitions=2)
    producer = Producer({"bootstrap.servers": mock_cluster.bootstrap_servers, "log_level": 0})
    for value in values:
        producer.produce("clicks", value, partition=0)
    assert producer.flush(60) == 0
    typed = ["--option", f"schema.registry.url={registry.url}", "--option", "valueFormat=avro", *options]

    code, found = run("--bootstrap-servers", mock_cluster.bootstrap_servers, "--topic", "clicks", *typed)

    newest = found["newest values of clicks"]
    assert (newest["section"], newest["verdict"]) == ("Newest records", verdict)
    assert what in newest["what"]
    assert code == (verdict == "fail")


def test_empty_topic_has_no_newest_record_to_judge(mock_cluster: MockCluster, registry: MockRegistry) -> None:
    mock_cluster.create_topic("clicks", partitions=1)
    typed = ["--option", f"schema.registry.url={registry.url}", "--option", "valueFormat=avro"]
    code, found = run("--bootstrap-servers", mock_cluster.bootstrap_servers, "--topic", "clicks", *typed)

    assert (code, wrong(found)) == (0, {})
    assert "newest values of clicks" not in found


def test_registry_is_checked_without_brokers_and_with_options_of_a_file(registry: MockRegistry, tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text(f"schema.registry.url={registry.url}\nvalueFormat=avro\n")
    code, found = run("--config", str(config), "--topic", "clicks")

    assert (code, wrong(found)) == (0, {})
    assert found["value"]["what"] == "version 1 of clicks-value (id 1) is read as struct<id: int64 not null>"


@pytest.mark.usefixtures("no_pyspark")
def test_without_pyspark_all_is_checked_but_the_executors(mock_cluster: MockCluster) -> None:
    mock_cluster.create_topic("clicks")
    _, found = run("--executors", "--topic", "clicks", "--bootstrap-servers", mock_cluster.bootstrap_servers)

    assert found["package pyspark"]["verdict"] == "warn"
    assert "pip install 'pyspark" in found["package pyspark"]["fix"]
    assert found["topic clicks"]["verdict"] == "ok"
    assert (found["spark"]["verdict"], "[spark]" in found["spark"]["fix"]) == ("fail", True)


def test_an_advertised_address_that_cannot_be_reached_is_told_apart_from_a_dead_bootstrap() -> None:
    with broker_that_advertises(nowhere=True) as address:
        code, found = run("--bootstrap-servers", f"{address},localhost:2")

    assert (code, wrong(found)) == (1, {"bootstrap localhost:2": "warn", "broker 1": "fail"})
    assert found["broker 1"]["what"].startswith(f"it advertises {CLOSED_PORT}: cannot connect to {CLOSED_PORT}")
    assert "advertised.listeners of broker 1" in found["broker 1"]["fix"]


def test_a_leader_that_died_is_told_with_its_partitions(mock_cluster: MockCluster) -> None:
    mock_cluster.create_topic("clicks", partitions=3)
    first = mock_cluster.bootstrap_servers.split(",")[0]
    for partition, broker_id in enumerate((1, 2, 3)):
        mock_cluster.move_leader("clicks", partition, broker_id)
    mock_cluster.broker_down(2)

    code, found = run("--bootstrap-servers", first, "--topic", "clicks", "--timeout-ms", "10000")

    assert (code, wrong(found)) == (1, {"partition clicks-1": "fail"})


def test_nobody_to_ask_ends_it_with_each_address(mock_cluster: MockCluster) -> None:
    code, found = run("--bootstrap-servers", f"{CLOSED_PORT},localhost:2")
    assert (code, wrong(found)) == (1, {f"bootstrap {CLOSED_PORT}": "fail", "bootstrap localhost:2": "fail"})


def test_a_silent_address_is_given_up_in_time() -> None:
    started = time.monotonic()
    with scripted_broker(lambda _: None) as address:
        code, found = run("--bootstrap-servers", str(address), "--timeout-ms", "500")
    assert (code, time.monotonic() - started < 20) == (1, True)
    assert "is it a Kafka broker?" in found[f"bootstrap {address}"]["what"]


@pytest.mark.parametrize("command", ["doctor", "metadata"])
def test_an_http_server_is_named(command: str) -> None:
    with scripted_broker(lambda peer: peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as address:
        result = CliRunner().invoke(app, [command, "--bootstrap-servers", str(address)])

    assert result.exit_code == 1
    assert f"{address} speaks HTTP, not the Kafka protocol: check the host and port" in result.output


def test_a_missing_topic_and_a_partition_without_leader_are_failures(mock_cluster: MockCluster) -> None:
    mock_cluster.create_topic("clicks", partitions=2)
    mock_cluster.move_leader("clicks", 1, -1)
    code, found = run("--bootstrap-servers", mock_cluster.bootstrap_servers, "--topic", "clicks", "--topic", "nope")
    assert (code, wrong(found)) == (1, {"partition clicks-1": "fail", "topic nope": "fail"})
    assert found["topic clicks"]["what"].startswith("partitions: 2, led and in sync: 1")


def test_a_fetch_that_an_acl_denies_names_the_acl(mock_cluster: MockCluster) -> None:
    mock_cluster.create_topic("clicks")
    mock_cluster.push_request_errors(FETCH_KEY, 29)
    code, found = run("--bootstrap-servers", mock_cluster.bootstrap_servers, "--topic", "clicks")
    ((check, row),) = ((check, row) for check, row in found.items() if row["verdict"] != "ok")
    assert (code, check.startswith("fetch clicks from broker")) == (1, True)
    assert "TOPIC_AUTHORIZATION_FAILED" in row["what"]
    assert "--operation Read --topic clicks" in row["fix"]


def test_a_topic_that_can_be_written_is_told_with_the_options_of_its_producer(
    mock_cluster: MockCluster, tmp_path: Path
) -> None:
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


def test_without_the_option_nothing_is_asked_about_writes(mock_cluster: MockCluster) -> None:
    mock_cluster.create_topic("clicks")
    mock_cluster.start_request_tracking()
    code, _ = run("--bootstrap-servers", mock_cluster.bootstrap_servers, "--topic", "clicks")

    assert code == 0
    assert not {request.api_key for request in mock_cluster.requests()} & {PRODUCE_KEY, INIT_PRODUCER_ID_KEY}


@pytest.mark.parametrize(
    ("fetch", "verdict", "text"),
    [(11, "fail", "use brokers of Apache Kafka 2.7 or later"), (12, "warn", "Apache Kafka 3.7"), (16, "ok", "")],
)
def test_an_old_broker_is_told_what_it_lacks(fetch: int, verdict: str, text: str) -> None:
    with broker_that_advertises(fetch=fetch) as address:
        _, found = run("--bootstrap-servers", str(address))
    row = found.get("versions") or found[f"bootstrap {address}"]
    assert row["verdict"] == verdict
    assert text in row["fix"]


def test_a_task_tells_what_its_executor_cannot_reach_and_that_its_release_is_another(
    mock_cluster: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        connection_checks, "task_origin", lambda role: Origin(role=role, executor_id="7", host="worker")
    )
    good = Address("127.0.0.1", int(mock_cluster.bootstrap_servers.split(",")[0].rpartition(":")[2]))
    addresses = [("127.0.0.1", 1), (good.host, good.port)]
    rows = connection_checks.check_executor("9.9", {"kafka.bootstrap.servers": CLOSED_PORT}, addresses, None)

    assert [(check, verdict) for check, verdict, _, _ in rows] == [
        ("executor 7 on worker", "ok"),
        ("executor 7 on worker: release", "warn"),
        (f"executor 7 on worker: {CLOSED_PORT}", "fail"),
    ]
    assert "9.9 on the driver" in rows[1][2]


def test_a_person_sees_a_table_with_the_fix_below_and_the_sum(mock_cluster: MockCluster) -> None:
    arguments = ["doctor", "--bootstrap-servers", mock_cluster.bootstrap_servers, "--topic", "nope"]
    result = CliRunner().invoke(app, arguments, env=TERMINAL)
    assert result.exit_code == 1
    assert "-> correct the name, or create it: kafka-topics --create --topic nope" in result.stdout
    assert "1 failed, 0 with a warning" in result.stdout
