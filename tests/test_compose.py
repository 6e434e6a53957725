"""docker-compose.yml starts a controller, three brokers configured as in `LocalKafka`, and ten topics."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from pyspark_kafka_meta.testing import kafka_config
from pyspark_kafka_meta.testing.local_kafka import STANDARD_PORTS

COMPOSE: dict[str, Any] = yaml.safe_load((Path(__file__).parent.parent / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
BROKERS = {name: service for name, service in SERVICES.items() if name.startswith("broker-")}
IMAGE = "apache/kafka:4.1.1"


def kafka_settings(service: dict[str, Any]) -> dict[str, str]:
    """The service's Kafka settings, named as in a properties file, by the image's rule for names without dashes."""
    return {
        name.removeprefix("KAFKA_").lower().replace("_", "."): value
        for name, value in service["environment"].items()
        if name.startswith("KAFKA_") and name != "KAFKA_HEAP_OPTS"
    }


def listeners(text: str) -> dict[str, tuple[str, int]]:
    """Listener name -> host, port; an empty host means every interface."""
    return {name: (host, int(port)) for name, host, port in re.findall(r"(\w+)://([\w.-]*):(\d+)", text)}


def test_services_are_a_controller_three_brokers_and_a_topic_creator() -> None:
    assert list(SERVICES) == ["controller-1", "broker-2", "broker-3", "broker-4", "topics"]
    assert {service["image"] for service in SERVICES.values()} == {IMAGE}


@pytest.mark.parametrize("name", ["controller-1", *BROKERS])
def test_node_name_is_role_and_id(name: str) -> None:
    settings = kafka_settings(SERVICES[name])
    assert f"{settings['process.roles']}-{settings['node.id']}" == name


@pytest.mark.parametrize(("name", "port"), list(zip(BROKERS, STANDARD_PORTS, strict=True)))
def test_broker_advertises_its_mapped_port(name: str, port: int) -> None:
    settings = kafka_settings(BROKERS[name])
    bound, advertised = listeners(settings["listeners"]), listeners(settings["advertised.listeners"])
    assert BROKERS[name]["ports"] == [f"127.0.0.1:{port}:{bound['HOST'][1]}"]
    assert advertised == {"INTERNAL": (name, bound["INTERNAL"][1]), "HOST": ("localhost", port)}
    assert bound.keys() == advertised.keys()
    assert settings["inter.broker.listener.name"] == "INTERNAL"


@pytest.mark.parametrize("name", ["controller-1", *BROKERS])
def test_listeners_have_protocols_and_nodes_know_the_controller(name: str) -> None:
    settings = kafka_settings(SERVICES[name])
    protocols = dict(entry.split(":") for entry in settings["listener.security.protocol.map"].split(","))
    controller_port = listeners(kafka_settings(SERVICES["controller-1"])["listeners"])["CONTROLLER"][1]
    assert protocols.keys() >= {*listeners(settings["listeners"]), settings["controller.listener.names"]}
    assert settings["controller.quorum.voters"] == f"1@controller-1:{controller_port}"


def test_nodes_have_the_same_cluster_id() -> None:
    ids = {SERVICES[name]["environment"]["CLUSTER_ID"] for name in ("controller-1", *BROKERS)}
    assert len(ids) == 1
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}", ids.pop())


@pytest.mark.parametrize("name", BROKERS)
def test_health_check_waits_for_its_own_broker(name: str) -> None:
    """`kafka-broker-api-versions.sh` prints "broker-2:9092 (id: 2 rack: ..." for each live broker."""
    command = BROKERS[name]["healthcheck"]["test"][1]
    node_id = kafka_settings(BROKERS[name])["node.id"]
    assert f"--bootstrap-server {name}:9092 " in command
    assert command.endswith(f"| grep -q '(id: {node_id} '")


def test_brokers_are_configured_as_in_local_kafka() -> None:
    layout = kafka_config.ClusterLayout("Aa", 9093, {2: 19092, 3: 29092, 4: 39092})
    local = kafka_config.broker_properties(layout, 2, Path("/data"), {})
    per_machine = {"listeners", "listener.security.protocol.map", "controller.quorum.voters", "log.dirs"}
    shared = {name: value for name, value in local.items() if name not in per_machine}
    composed = kafka_settings(SERVICES["broker-2"])
    assert {name: composed.get(name) for name in shared} == shared


def test_ten_topics_are_created_after_all_brokers_are_healthy() -> None:
    creator = SERVICES["topics"]
    assert creator["depends_on"] == {broker: {"condition": "service_healthy"} for broker in BROKERS}
    script = creator["command"][0]
    numbers = re.search(r"for number in ([\d ]+);", script)
    assert numbers is not None
    assert [f"topic-{number}" for number in numbers[1].split()] == [f"topic-{number}" for number in range(10)]
    for option in (
        '--topic "topic-$$number"',
        "--if-not-exists",
        "--partitions 2",
        "--replication-factor 3",
        "--config min.insync.replicas=2",
    ):
        assert option in script
    assert all(f"{broker}:9092" in script for broker in BROKERS)
