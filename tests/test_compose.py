"""docker-compose.yml configures brokers as in `LocalKafka`, and creates ten topics. Where Docker runs, tests/kafka and
tests/spark use these brokers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from pyspark_kafka_meta.testing import kafka_config

COMPOSE: dict[str, Any] = yaml.safe_load((Path(__file__).parent.parent / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
BROKERS = {name: service for name, service in SERVICES.items() if name.startswith("broker-")}


def kafka_settings(service: dict[str, Any]) -> dict[str, str]:
    """The service's Kafka settings, named as in a properties file, by the image's rule for names without dashes."""
    return {
        name.removeprefix("KAFKA_").lower().replace("_", "."): value
        for name, value in service["environment"].items()
        if name.startswith("KAFKA_") and name != "KAFKA_HEAP_OPTS"
    }


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
