"""Formatting of a controller's folder, and the session of a killed broker."""

from __future__ import annotations

import socket
import subprocess
import threading
from pathlib import Path
from typing import NoReturn

import pytest

from pyspark_kafka_meta.testing import ClusterError, kafka_node
from pyspark_kafka_meta.testing.kafka_node import JavaRuntime, format_controller


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
