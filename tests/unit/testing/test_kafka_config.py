"""Differences of `LocalKafka` between releases of Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_kafka_meta.testing import ClusterError, LocalKafka, kafka_config
from pyspark_kafka_meta.testing.kafka_config import KafkaRelease

LAYOUT = kafka_config.ClusterLayout("Aa", 9000, {2: 9002, 3: 9003, 4: 9004})


@pytest.mark.parametrize(
    ("version", "has_kraft", "adds_scram_users", "bindings"),
    [("2.8.2", False, False, 2), ("3.3.2", True, False, 2), ("3.9.1", True, True, 2), ("4.0.2", True, True, 1)],
)
def test_releases_differ(version: str, has_kraft: bool, adds_scram_users: bool, bindings: int) -> None:
    release = KafkaRelease(version)
    assert (release.has_kraft, release.adds_scram_users) == (has_kraft, adds_scram_users)
    broker, *logging = release.jars
    assert broker == f"org.apache.kafka:kafka_2.13:{version}"
    assert len(logging) == bindings


@pytest.mark.parametrize("version", ["", "4", "4.1", "latest", "4.1.1-rc0"])
def test_version_must_be_three_numbers(version: str) -> None:
    with pytest.raises(ClusterError, match=r"is not a version of Kafka: use three numbers, such as 3\.9\.1"):
        LocalKafka(version=version)


def test_scram_users_need_3_5() -> None:
    users = {"alice": "canary-alice"}
    LocalKafka(security="SASL_PLAINTEXT", mechanisms=["PLAIN"], users=users, version="3.3.2")
    with pytest.raises(ClusterError, match=r"Kafka 3\.3\.2 cannot start with users of SCRAM: use PLAIN") as caught:
        LocalKafka(security="SASL_PLAINTEXT", users=users, version="3.3.2")
    assert "canary" not in str(caught.value)


def test_settings_of_a_broker_with_zookeeper(tmp_path: Path) -> None:
    extra = {"inter.broker.protocol.version": "2.7", "zookeeper.session.timeout.ms": "6000"}
    server = kafka_config.zookeeper_broker_properties(LAYOUT, 3, tmp_path, extra)
    assert server["broker.id"] == "3"
    assert server["zookeeper.connect"] == "127.0.0.1:9000"
    assert server["listeners"] == "PLAINTEXT://127.0.0.1:9003"
    assert server.items() >= extra.items()
    assert not server.keys() & {"process.roles", "node.id", "controller.quorum.voters"}
