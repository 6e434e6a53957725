"""`kafkameta doctor` on real brokers: users with and without ACLs, a wrong address, too few in-sync replicas."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType
from typer.testing import CliRunner

from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.tables.cluster_query import partition_rows
from pyspark_kafka_meta.testing import LocalKafka
from pyspark_kafka_meta.testing.kafka_node import free_ports
from pyspark_kafka_meta.tools.cli.main import app
from pyspark_kafka_meta.tools.doctor import connection_checks
from tests.kafka.cluster_tools import create_acls, create_topic, poll_until

pytestmark = [pytest.mark.kafka, pytest.mark.thorough]

TOPIC, REPLICATED = "orders", "orders-replicated"
USERS = {name: f"canary-{name}" for name in ("alice", "dora", "mallory", "wanda")}
GOOD, WRONG_ADDRESS = 2, 3


@pytest.fixture(scope="module")
def kafka() -> Iterator[LocalKafka]:
    """Broker 2 leads the topic; broker 3 advertises a closed port. Alice may READ, Dora DESCRIBE, Wanda WRITE."""
    port, other_port, dead_port = free_ports(3)
    ports = {"ports": (port, other_port), "advertised_ports": (port, dead_port)}
    with LocalKafka(2, security="SASL_PLAINTEXT", users=USERS, acls=True, **ports) as cluster:  # type: ignore[arg-type]
        create_topic(cluster, TOPIC, [[GOOD], [GOOD]])
        create_topic(cluster, REPLICATED, [[GOOD, WRONG_ADDRESS]])
        allowed = [
            acl("alice", AclOperation.READ),
            acl("dora", AclOperation.DESCRIBE),
            acl("wanda", AclOperation.WRITE),
        ]
        create_acls(cluster, allowed)
        producer = Producer({"bootstrap.servers": cluster.admin_servers, "compression.type": "zstd"})
        producer.produce(TOPIC, "x" * 1000)
        assert producer.flush(60) == 0
        yield cluster


@pytest.fixture(autouse=True)
def slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broker and tests may share one that is: the doctor says so of a broker that takes longer than 100 ms."""
    monkeypatch.setattr(connection_checks, "SLOW_MS", 60_000)


def acl(user: str, operation: AclOperation) -> AclBinding:
    entry = (f"User:{user}", "*", operation, AclPermissionType.ALLOW)
    return AclBinding(ResourceType.TOPIC, TOPIC, ResourcePatternType.PREFIXED, *entry)


def run(
    kafka: LocalKafka, folder: Path, user: str, *arguments: str, topic: str = TOPIC, **more: str
) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit code, and the checks that are not ok by their names. The login comes from a file."""
    options = {**kafka.client_options(user), **more}
    config = folder / "client.properties"
    config.write_text("\n".join(f"{name}={value}" for name, value in options.items()))
    servers = kafka.bootstrap_servers.split(",")[0]
    command = ["doctor", "--bootstrap-servers", servers, "--topic", topic, "--config", str(config), *arguments]
    result = CliRunner().invoke(app, command, env={"PYSPARK_PYTHON": sys.executable})
    assert "canary" not in result.output
    checks = {row["check"]: row for row in map(json.loads, result.stdout.splitlines())}
    return result.exit_code, {name: row for name, row in checks.items() if row["verdict"] != "ok"}


def test_only_the_address_advertised_in_vain_is_wrong_for_who_may_read(kafka: LocalKafka, tmp_path: Path) -> None:
    code, wrong = run(kafka, tmp_path, "alice")
    assert (code, list(wrong)) == (1, [f"broker {WRONG_ADDRESS}"])
    assert "Connection refused" in wrong[f"broker {WRONG_ADDRESS}"]["what"]
    assert f"advertised.listeners of broker {WRONG_ADDRESS}" in wrong[f"broker {WRONG_ADDRESS}"]["fix"]


@pytest.mark.parametrize(
    ("user", "check"), [("dora", f"fetch {TOPIC} from broker {GOOD}"), ("mallory", f"topic {TOPIC}")]
)
def test_an_acl_that_is_missing_is_named(kafka: LocalKafka, tmp_path: Path, user: str, check: str) -> None:
    code, wrong = run(kafka, tmp_path, user)
    assert (code, wrong.keys() - {f"broker {WRONG_ADDRESS}"}) == (1, {check})
    assert "TOPIC_AUTHORIZATION_FAILED (error 29)" in wrong[check]["what"]
    assert f"--operation Read --topic {TOPIC}" in wrong[check]["fix"]


def log_ends(kafka: LocalKafka) -> list[int | None]:
    options = ClientOptions.parse({"kafka.bootstrap.servers": kafka.admin_servers})
    return [row.end_offset for row in partition_rows(options, [TOPIC, REPLICATED])]


def test_a_user_who_only_writes_can_write_and_nothing_is_written(kafka: LocalKafka, tmp_path: Path) -> None:
    before = log_ends(kafka)
    _, wrong = run(kafka, tmp_path, "wanda", "--write", **{"kafka.acks": "all"})

    del wrong[f"broker {WRONG_ADDRESS}"]
    assert {check: row["verdict"] for check, row in wrong.items()} == {f"fetch {TOPIC} from broker {GOOD}": "warn"}
    assert log_ends(kafka) == before


@pytest.mark.parametrize("user", ["alice", "dora"])
def test_a_missing_right_to_write_is_named(kafka: LocalKafka, tmp_path: Path, user: str) -> None:
    code, wrong = run(kafka, tmp_path, user, "--write")
    refused = wrong[f"write {TOPIC} to broker {GOOD}"]

    assert (code, refused["verdict"], wrong["idempotence"]["verdict"]) == (1, "fail", "fail")
    assert f"{TOPIC}-0, {TOPIC}-1 cannot be written: TOPIC_AUTHORIZATION_FAILED (error 29)" in refused["what"]
    assert f"--operation Write --topic {TOPIC}" in refused["fix"]
    assert "CLUSTER_AUTHORIZATION_FAILED (error 31)" in wrong["idempotence"]["what"]


def test_too_few_in_sync_replicas_are_told_unless_the_leader_is_enough(kafka: LocalKafka, tmp_path: Path) -> None:
    check, out_of_sync = f"write {REPLICATED} to broker {GOOD}", f"partition {REPLICATED}-0"
    assert check not in run(kafka, tmp_path, "wanda", "--write", topic=REPLICATED)[1]
    before = log_ends(kafka)
    kafka.stop(WRONG_ADDRESS)
    try:
        poll_until(lambda: out_of_sync in run(kafka, tmp_path, "wanda", topic=REPLICATED)[1])
        code, wrong = run(kafka, tmp_path, "wanda", "--write", topic=REPLICATED)
        assert (code, wrong[check]["verdict"]) == (1, "fail")
        assert "NOT_ENOUGH_REPLICAS (error 19)" in wrong[check]["what"]
        assert f"lower min.insync.replicas of topic {REPLICATED}" in wrong[check]["fix"]
        assert check not in run(kafka, tmp_path, "wanda", "--write", topic=REPLICATED, **{"kafka.acks": "1"})[1]
        assert log_ends(kafka) == before
    finally:
        kafka.restore()
