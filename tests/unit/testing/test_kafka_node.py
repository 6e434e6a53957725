"""Configuration, ports and certificates of the brokers of `LocalKafka`."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import pytest

from pyspark_kafka_meta.testing import ClusterError, LocalKafka, kafka_config, kafka_node
from pyspark_kafka_meta.testing.kafka_config import KafkaRelease
from pyspark_kafka_meta.testing.kafka_node import JavaRuntime, format_controller
from pyspark_kafka_meta.testing.listener_security import CertificateAuthority


def test_hanging_storage_tool_raises_cluster_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: object) -> NoReturn:
        raise subprocess.TimeoutExpired(command, 60)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(ClusterError, match="took over 60 s"):
        format_controller(Path("controller"), JavaRuntime(Path("java"), (), ()), "id", ())


def test_killed_broker_waits_until_its_session_expired() -> None:
    responses = [b"0x1:\n\t/brokers/ids/2\n\t/brokers/ids/22\n", b"0x1:\n\t/brokers/ids/22\n"]
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while responses:
                connection, _ = server.accept()
                with connection:
                    assert connection.recv(4) == b"dump"
                    connection.sendall(responses.pop(0))

        thread = threading.Thread(target=serve)
        thread.start()
        kafka_node.wait_until_session_expired(server.getsockname()[1], 2)
        thread.join(5)
    assert responses == []


def test_zookeeper_that_is_slow_may_still_have_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that starts before it expires would exit."""
    monkeypatch.setattr(kafka_node, "SESSION_TIMEOUT_S", 0.0)
    monkeypatch.setattr(kafka_node, "ZOOKEEPER_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(ClusterError, match="session of broker 2"):
        kafka_node.wait_until_session_expired(silent.getsockname()[1], 2)


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


def test_certificates_pass_the_strict_checks(tmp_path: Path) -> None:
    authority = CertificateAuthority()
    broker = authority.issue("broker", ["127.0.0.1"])
    (tmp_path / "broker.pem").write_text(broker.key + broker.certificate)
    client_context = ssl.create_default_context(cadata=authority.certificate)
    client_context.verify_flags |= ssl.VERIFY_X509_STRICT
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(tmp_path / "broker.pem")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    for side in (client, server, client):
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()

    assert client.version() == "TLSv1.3"
