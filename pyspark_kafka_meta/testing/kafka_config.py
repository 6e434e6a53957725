"""The settings of a small KRaft cluster on one machine: pure functions from ports to properties files.

Names and defaults are those of Apache Kafka's `KafkaConfig`, `AbstractKafkaConfig` and `ReplicationConfigs`.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HOST = "127.0.0.1"
CONTROLLER_ID = 1
FIRST_BROKER_ID = 2

Properties = dict[str, str]


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

LOGGING: Properties = {
    "rootLogger.level": "INFO",
    "rootLogger.appenderRef.out.ref": "out",
    "appender.out.type": "Console",
    "appender.out.name": "out",
    "appender.out.layout.type": "PatternLayout",
    "appender.out.layout.pattern": "%d %p %m (%c)%n",
}
"""A log4j 2 configuration that writes to standard output."""
