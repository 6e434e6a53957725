"""ZooKeeper instead of a controller, for releases of Kafka without KRaft.

Names as in ZooKeeper's `QuorumPeerConfig` and Kafka's `KafkaConfig`.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from pathlib import Path

from pyspark_kafka_meta.errors import ClusterError
from pyspark_kafka_meta.testing import kafka_config
from pyspark_kafka_meta.testing.kafka_config import HOST, ClusterLayout, Properties

MAIN_CLASS = "org.apache.zookeeper.server.ZooKeeperServerMain"
SESSION_TIMEOUT_S = 60.0
_KRAFT_ONLY = ("process.roles", "node.id", "controller.listener.names", "controller.quorum.voters")
_RESPONSE_TIMEOUT_S = 5.0
_POLL_S = 0.1


def server_properties(layout: ClusterLayout, folder: Path) -> Properties:
    """Settings of the single ZooKeeper server, with its data in `folder`."""
    return {
        "dataDir": str(folder),
        "clientPort": str(layout.controller_port),
        "clientPortAddress": HOST,
        "maxClientCnxns": "0",
        "admin.enableServer": "false",
        "4lw.commands.whitelist": "dump",
    }


def broker_properties(layout: ClusterLayout, broker_id: int, folder: Path, extra: Mapping[str, str]) -> Properties:
    """As `kafka_config.broker_properties`, with ZooKeeper instead of a controller."""
    settings = kafka_config.broker_properties(layout, broker_id, folder, {})
    return {
        **{name: value for name, value in settings.items() if name not in _KRAFT_ONLY},
        "broker.id": str(broker_id),
        "zookeeper.connect": f"{HOST}:{layout.controller_port}",
        "zookeeper.connection.timeout.ms": "60000",
        "zookeeper.session.timeout.ms": "9000",  # as broker.session.timeout.ms in KRaft
        **extra,
    }


def wait_until_session_expired(port: int, broker_id: int) -> None:
    """Wait until the session of a killed broker has expired: before, ZooKeeper refuses its registration, and the broker
    exits."""
    deadline = time.monotonic() + SESSION_TIMEOUT_S
    registration = f"/brokers/ids/{broker_id}\n"
    while registration in _ephemeral_nodes(port):
        if time.monotonic() > deadline:
            raise ClusterError(f"ZooKeeper still has the session of broker {broker_id} after {SESSION_TIMEOUT_S:.0f} s")
        time.sleep(_POLL_S)


def _ephemeral_nodes(port: int) -> str:
    """The output of the command `dump`, with the nodes of all sessions; empty if ZooKeeper does not respond."""
    try:
        with socket.create_connection((HOST, port), _RESPONSE_TIMEOUT_S) as connection:
            connection.sendall(b"dump")
            return b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    except OSError:
        return ""
