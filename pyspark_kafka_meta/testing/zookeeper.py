"""ZooKeeper in the controller's place, for releases of Kafka without KRaft.

Names are those of ZooKeeper's `QuorumPeerConfig` and Kafka's `KafkaConfig`.
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
FORGET_TIMEOUT_S = 60.0
_KRAFT_ALONE = ("process.roles", "node.id", "controller.listener.names", "controller.quorum.voters")
_ANSWER_TIMEOUT_S = 5.0
_POLL_S = 0.1


def server_properties(layout: ClusterLayout, folder: Path) -> Properties:
    """Settings of the only ZooKeeper server, which keeps its data in `folder`."""
    return {
        "dataDir": str(folder),
        "clientPort": str(layout.controller_port),
        "clientPortAddress": HOST,
        "maxClientCnxns": "0",
        "admin.enableServer": "false",
        "4lw.commands.whitelist": "dump",
    }


def broker_properties(layout: ClusterLayout, broker_id: int, folder: Path, extra: Mapping[str, str]) -> Properties:
    """As `kafka_config.broker_properties`, with settings for ZooKeeper instead of those for a controller."""
    settings = kafka_config.broker_properties(layout, broker_id, folder, {})
    return {
        **{name: value for name, value in settings.items() if name not in _KRAFT_ALONE},
        "broker.id": str(broker_id),
        "zookeeper.connect": f"{HOST}:{layout.controller_port}",
        "zookeeper.connection.timeout.ms": "60000",
        "zookeeper.session.timeout.ms": "9000",  # as broker.session.timeout.ms in KRaft
        **extra,
    }


def wait_until_forgotten(port: int, broker_id: int) -> None:
    """Wait until the session of a killed broker has expired: until then ZooKeeper refuses its registration, and the
    broker ends."""
    deadline = time.monotonic() + FORGET_TIMEOUT_S
    registration = f"/brokers/ids/{broker_id}\n"
    while registration in _ephemeral_nodes(port):
        if time.monotonic() > deadline:
            raise ClusterError(f"ZooKeeper still has the session of broker {broker_id} after {FORGET_TIMEOUT_S:.0f} s.")
        time.sleep(_POLL_S)


def _ephemeral_nodes(port: int) -> str:
    """The sessions and their nodes, by the command `dump`; none while ZooKeeper does not answer."""
    try:
        with socket.create_connection((HOST, port), _ANSWER_TIMEOUT_S) as connection:
            connection.sendall(b"dump")
            return b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    except OSError:
        return ""
