"""`kafkameta doctor` on real brokers: users with and without ACLs, and a wrong advertised address."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from typer.testing import CliRunner

from pyspark_kafka_meta.cli.main import app
from pyspark_kafka_meta.testing import LocalKafka
from pyspark_kafka_meta.testing.free_ports import free_ports

pytestmark = pytest.mark.kafka

TOPIC = "orders"
USERS = {"alice": "canary-alice", "dora": "canary-dora", "mallory": "canary-mallory"}
GOOD, WRONG_ADDRESS = 2, 3


@pytest.fixture(scope="module")
def kafka() -> Iterator[LocalKafka]:
    """Broker 2 leads the topic; broker 3 advertises a closed port. Alice may READ, Dora may DESCRIBE."""
    port, other_port, dead_port = free_ports(3)
    ports = {"ports": (port, other_port), "advertised_ports": (port, dead_port)}
    with LocalKafka(2, security="SASL_PLAINTEXT", users=USERS, acls=True, **ports) as cluster:  # type: ignore[arg-type]
        admin = AdminClient({"bootstrap.servers": cluster.admin_servers})
        admin.create_topics([NewTopic(TOPIC, 2, replica_assignment=[[GOOD], [GOOD]])])[TOPIC].result(60)
        allowed = [acl("alice", AclOperation.READ), acl("dora", AclOperation.DESCRIBE)]
        for future in admin.create_acls(allowed).values():
            future.result(60)
        producer = Producer({"bootstrap.servers": cluster.admin_servers, "compression.type": "zstd"})
        producer.produce(TOPIC, "x" * 1000)
        assert producer.flush(60) == 0
        yield cluster


def acl(user: str, operation: AclOperation) -> AclBinding:
    entry = (f"User:{user}", "*", operation, AclPermissionType.ALLOW)
    return AclBinding(ResourceType.TOPIC, TOPIC, ResourcePatternType.LITERAL, *entry)


def run(kafka: LocalKafka, folder: Path, user: str, **more: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit code, and the checks that are not ok by their names. The login comes from a file."""
    options = {**kafka.client_options(user), **more}
    config = folder / "client.properties"
    config.write_text("\n".join(f"{name}={value}" for name, value in options.items()))
    servers = kafka.bootstrap_servers.split(",")[0]
    arguments = ["doctor", "--bootstrap-servers", servers, "--topic", TOPIC, "--config", str(config)]
    result = CliRunner().invoke(app, arguments, env={"PYSPARK_PYTHON": sys.executable})
    assert "canary" not in result.output
    checks = {row["check"]: row for row in map(json.loads, result.stdout.splitlines())}
    return result.exit_code, {name: row for name, row in checks.items() if row["verdict"] != "ok"}


def test_only_the_address_that_is_advertised_in_vain_is_wrong_for_who_may_read(
    kafka: LocalKafka, tmp_path: Path
) -> None:
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


def test_a_wrong_password_is_told_without_it(kafka: LocalKafka, tmp_path: Path) -> None:
    code, wrong = run(kafka, tmp_path, "alice", **{"kafka.sasl.password": "canary-wrong"})
    assert (code, len(wrong)) == (1, 1)
    (login,) = wrong.values()
    assert "refused the SCRAM-SHA-512 login" in login["what"]
    assert "kafka.sasl." in login["fix"]
