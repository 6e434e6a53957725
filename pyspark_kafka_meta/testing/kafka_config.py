"""The settings of a small cluster on one machine, by release of Kafka: pure functions from ports to properties files.

Names and defaults are those of Apache Kafka's `KafkaConfig`, `AbstractKafkaConfig` and `ReplicationConfigs`, and of
ZooKeeper's `QuorumPeerConfig`. KRaft is ready for production since 3.3 (KIP-833). 4.0 has neither ZooKeeper (KIP-500)
nor log4j 1 (KIP-653).
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyspark_kafka_meta.errors import ClusterError

HOST = "127.0.0.1"
CONTROLLER_ID = 1
FIRST_BROKER_ID = 2

Properties = dict[str, str]

_LOG4J = "org.apache.logging.log4j"
_LOG4J_VERSION = "2.24.3"
ZOOKEEPER_CLASS = "org.apache.zookeeper.server.ZooKeeperServerMain"
_KRAFT_ONLY = ("process.roles", "node.id", "controller.listener.names", "controller.quorum.voters")
LOGGING: Properties = {
    "rootLogger.level": "INFO",
    "rootLogger.appenderRef.out.ref": "out",
    "appender.out.type": "Console",
    "appender.out.name": "out",
    "appender.out.layout.type": "PatternLayout",
    "appender.out.layout.pattern": "%d %p %m (%c)%n",
}
"""A log4j 2 configuration that writes to standard output."""


@dataclass(frozen=True, slots=True)
class KafkaRelease:
    """A release on Maven Central. Raises ClusterError: `version` is not three numbers."""

    version: str = "4.1.1"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\d+\.\d+\.\d+", self.version):
            raise ClusterError(f"{self.version!r} is not a version of Kafka: use three numbers, such as 3.9.1.")

    @property
    def jars(self) -> tuple[str, ...]:
        """Maven coordinates of the broker (with its Scala library) and of log4j 2, which also implements log4j 1 for
        releases before 4.0."""
        bindings = ("log4j-slf4j-impl",) if self._is_at_least(4, 0) else ("log4j-slf4j-impl", "log4j-1.2-api")
        logging = (f"{_LOG4J}:{binding}:{_LOG4J_VERSION}" for binding in bindings)
        return (f"org.apache.kafka:kafka_2.13:{self.version}", *logging)

    @property
    def has_kraft(self) -> bool:
        """Whether the cluster has a KRaft controller instead of ZooKeeper."""
        return self._is_at_least(3, 3)

    @property
    def adds_scram_users(self) -> bool:
        """Whether StorageTool adds SCRAM users (KIP-900)."""
        return self._is_at_least(3, 5)

    @property
    def authorizer(self) -> str:
        kraft, zookeeper = (
            "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "kafka.security.authorizer.AclAuthorizer",
        )
        return kraft if self.has_kraft else zookeeper

    def _is_at_least(self, major: int, minor: int) -> bool:
        return tuple(map(int, self.version.split(".")[:2])) >= (major, minor)


@dataclass(frozen=True, slots=True)
class ClusterLayout:
    """The ports of a cluster's nodes, which listen on the loopback address alone.

    Attributes:
        broker_ports: port of each broker's listener, by node id.
    """

    cluster_id: str
    controller_port: int
    broker_ports: Mapping[int, int]


def new_cluster_id() -> str:
    """A random Kafka Uuid, without a leading dash, which would look like an option on a command line."""
    return f"A{secrets.token_urlsafe(16)[1:]}"


def controller_properties(layout: ClusterLayout, folder: Path, extra: Mapping[str, str]) -> Properties:
    """Settings of the controller, with its log in `folder`; `extra` overrides them."""
    return {
        "process.roles": "controller",
        "listeners": f"CONTROLLER://{HOST}:{layout.controller_port}",
        **_common(layout, CONTROLLER_ID, folder),
        **extra,
    }


def broker_properties(layout: ClusterLayout, node_id: int, folder: Path, extra: Mapping[str, str]) -> Properties:
    """Settings of a broker, with its logs in `folder`; `extra` overrides them."""
    return {
        "process.roles": "broker",
        "listeners": f"PLAINTEXT://{HOST}:{layout.broker_ports[node_id]}",
        **_common(layout, node_id, folder),
        **_FEW_PARTITIONS,
        **_QUICK_CLEANING,
        # Each broker is its own rack, and serves clients of this rack (KIP-392).
        "broker.rack": f"rack-{node_id}",
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": "0",
        **extra,
    }


def zookeeper_properties(layout: ClusterLayout, folder: Path) -> Properties:
    """Settings of the single ZooKeeper server, with its data in `folder`."""
    return {
        "dataDir": str(folder),
        "clientPort": str(layout.controller_port),
        "clientPortAddress": HOST,
        "maxClientCnxns": "0",
        "admin.enableServer": "false",
        "4lw.commands.whitelist": "dump",
    }


def zookeeper_broker_properties(
    layout: ClusterLayout, broker_id: int, folder: Path, extra: Mapping[str, str]
) -> Properties:
    """As `broker_properties`, with ZooKeeper instead of a controller."""
    settings = broker_properties(layout, broker_id, folder, {})
    return {
        **{name: value for name, value in settings.items() if name not in _KRAFT_ONLY},
        "broker.id": str(broker_id),
        "zookeeper.connect": f"{HOST}:{layout.controller_port}",
        "zookeeper.connection.timeout.ms": "60000",
        "zookeeper.session.timeout.ms": "9000",  # as broker.session.timeout.ms in KRaft
        **extra,
    }


def meta_properties(layout: ClusterLayout, node_id: int) -> Properties:
    """The `meta.properties` of a formatted folder (Kafka `MetaProperties`, version 1)."""
    return {"version": "1", "cluster.id": layout.cluster_id, "node.id": str(node_id)}


def properties_text(properties: Mapping[str, str]) -> str:
    """A file for Java's `Properties`, with escaped backslashes."""
    return "".join(f"{name}={value}\n" for name, value in properties.items()).replace("\\", "\\\\")


def _common(layout: ClusterLayout, node_id: int, folder: Path) -> Properties:
    return {
        "node.id": str(node_id),
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"{CONTROLLER_ID}@{HOST}:{layout.controller_port}",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": str(folder),
        # For the controller too: it creates topics, and with eligible leader replicas it applies min.insync.replicas.
        **_replication(len(layout.broker_ports)),
    }


def _replication(brokers: int) -> Properties:
    """Three replicas, two of them in sync, as in production; fewer with fewer brokers."""
    replicas, in_sync = str(min(brokers, 3)), str(min(brokers, 2))
    return {
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
    }


_FEW_PARTITIONS: Properties = {
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "share.coordinator.state.topic.num.partitions": "3",
}

# Retention and compaction run within about a second. The cleaner's buffer is 128 MiB by default.
_QUICK_CLEANING: Properties = {
    "log.retention.check.interval.ms": "1000",
    "log.initial.task.delay.ms": "500",
    "log.cleaner.backoff.ms": "500",
    "log.cleaner.dedupe.buffer.size": "4194304",
}
