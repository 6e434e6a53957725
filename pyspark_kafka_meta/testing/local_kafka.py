"""`LocalKafka`: real Apache Kafka on this machine, with one controller and several brokers, without Docker.

Needs Linux or macOS, Java 17 or later, and a connection to Maven Central at the first start.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Literal, Self

from pyspark_kafka_meta.errors import ClusterError, KafkaMetaError
from pyspark_kafka_meta.events.publisher import client_without_events
from pyspark_kafka_meta.java_launcher import find_java
from pyspark_kafka_meta.kafka.client.cluster_admin import ClusterAdmin
from pyspark_kafka_meta.kafka.network.connection import ConnectionSettings
from pyspark_kafka_meta.kafka.network.kafka_network import KafkaNetwork
from pyspark_kafka_meta.model import Address, MetadataResponse
from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.testing import kafka_config, process_guard
from pyspark_kafka_meta.testing.kafka_config import CONTROLLER_ID, FIRST_BROKER_ID, HOST, KafkaRelease
from pyspark_kafka_meta.testing.kafka_node import (
    JavaRuntime,
    KafkaNode,
    format_controller,
    free_ports,
    is_free,
    wait_until_session_expired,
    with_class_archive,
    write_files,
)
from pyspark_kafka_meta.testing.listener_security import ListenerSecurity, Protocol
from pyspark_kafka_meta.testing.maven_jars import resolve_jars

JVM_OPTIONS = ("-Xms64m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""For small nodes with a fast start. On two cores they also carry more records per second than Java's defaults."""

STANDARD_PORTS = (19092, 29092, 39092)

UP_TIMEOUT_S = 90.0
METADATA_TIMEOUT_S = 2.0
CLIENT_ID = "kafkameta-testing"

_POLL_S = 0.1


class LocalKafka:
    """A cluster for fault injection: node 1 is the controller, nodes 2, 3, ... are brokers, each in its own process.

        with LocalKafka() as kafka:
            spark.read.format("kafkameta").option("kafka.bootstrap.servers", kafka.bootstrap_servers)

    The cluster runs inside `with` and leaves no process and no file behind, even if this process is killed. Each broker
    is its own rack: rack-2, rack-3, ... Topics have three replicas by default, two of which must be in sync, and are
    not created automatically. Retention and compaction run within two seconds. Timeouts are Kafka's defaults: leaders
    of a killed or paused broker move after 9 s, and a killed or stopped broker can register again after 9 s
    (`broker.session.timeout.ms`).

    Methods raise ClusterError, with the end of a node's log where it helps.
    """

    def __init__(
        self,
        brokers: int = 3,
        ports: Sequence[int] | Literal["standard"] | None = None,
        config: Mapping[str, str] | None = None,
        security: Protocol = "PLAINTEXT",
        mechanisms: Sequence[str] = ("SCRAM-SHA-512",),
        users: Mapping[str, str] | None = None,
        acls: bool = False,
        advertised_ports: Sequence[int] | None = None,
        version: str = KafkaRelease().version,
    ) -> None:
        """Starts no process.

        Args:
            ports: one for each broker; "standard" for 19092, 29092, 39092; None for free ports.
            config: Kafka settings of every node; they override the settings of this class.
            security: protocol of the brokers' listener at `bootstrap_servers`; clients need `client_options`.
            mechanisms: of SASL: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, and OAUTHBEARER with unsigned tokens.
            users: passwords by user. With SSL each user has a certificate, and clients need one.
            acls: whether clients need ACLs. Clients of `admin_servers` need none.
            advertised_ports: advertised ports of the brokers' secured listeners, one for each, such as proxies' ports.
            version: release of Kafka on Maven Central, such as "3.9.1". Before 3.3 node 1 is ZooKeeper instead of a
                KRaft controller, and before 3.5 `mechanisms` cannot contain SCRAM.
        """
        controller_port, *free = free_ports(2 * brokers + 1)
        chosen = STANDARD_PORTS if ports == "standard" else ports or free[:brokers]
        if len(chosen) != brokers:
            raise ClusterError(f"{brokers} brokers cannot listen on {len(chosen)} ports: give one port for each.")
        broker_ports = dict(enumerate(chosen, FIRST_BROKER_ID))
        self._layout = kafka_config.ClusterLayout(kafka_config.new_cluster_id(), controller_port, broker_ports)
        self._release = KafkaRelease(version)
        self._security = ListenerSecurity(security, mechanisms, users or {}, acls, self._release)
        if advertised_ports is not None and (security == "PLAINTEXT" or len(advertised_ports) != brokers):
            raise ClusterError(
                "advertised_ports are for secured listeners: set `security`, and give one port for each broker."
            )
        self._advertised_ports = dict(zip(broker_ports, advertised_ports or (), strict=False))
        self._plain_ports = dict(enumerate(free[brokers:], FIRST_BROKER_ID))
        self._config = dict(config or {})
        self._nodes: dict[int, KafkaNode] = {}
        self._guard: process_guard.ProcessGuard | None = None

    def __enter__(self) -> Self:
        """Start the cluster and wait until every broker knows all brokers: about 4 s, the first time 30 s more."""
        used = [port for port in self._layout.broker_ports.values() if not is_free(port)]
        if used:
            raise ClusterError(
                f"Port {used[0]} is in use: end the process that uses it (a closed connection blocks its port for a "
                "minute), or leave out `ports` to use free ports."
            )
        runtime = JavaRuntime(find_java(), resolve_jars(self._release.jars), JVM_OPTIONS)
        if self._release.has_kraft:
            runtime = with_class_archive(runtime)
        self._guard = process_guard.ProcessGuard()
        try:
            self._launch(runtime, self._guard)
            self.wait_until_up()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill every node and remove its data. A second call does nothing."""
        if self._guard is not None:
            for node in self._nodes.values():
                if node.is_started:
                    node.kill()
            self._guard.close()
        self._guard = None
        self._nodes = {}

    @property
    def broker_ids(self) -> tuple[int, ...]:
        return tuple(self._layout.broker_ports)

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(str(self.address(broker_id)) for broker_id in self.broker_ids)

    @property
    def admin_servers(self) -> str:
        """The brokers' plaintext listeners, which need no login and no ACLs."""
        return ",".join(str(self._plain_address(broker_id)) for broker_id in self.broker_ids)

    def client_options(self, user: str | None = None, mechanism: str | None = None) -> dict[str, str]:
        """Options of `user` for `bootstrap_servers`, without the servers themselves.

        Args:
            mechanism: of SASL; None for the cluster's first.
        """
        return self._security.client_options(user, mechanism)

    def address(self, broker_id: int) -> Address:
        """Address of the broker's listener, which a restart does not change."""
        if broker_id not in self._layout.broker_ports:
            raise ClusterError(f"There is no broker {broker_id}: the brokers are {self.broker_ids}.")
        return Address(HOST, self._layout.broker_ports[broker_id])

    def create_topic(
        self,
        topic: str | None = None,
        partitions: int = 1,
        replication: int = -1,
        config: Mapping[str, str] | None = None,
    ) -> str:
        """Create a topic, and wait until every running broker knows its leaders. Returns its name.

        Args:
            topic: None for a new name.
            replication: replicas of each partition; -1 for three, or as many as there are brokers.
            config: of the topic, such as `{"cleanup.policy": "compact"}`.
        """
        name = topic or f"test-{uuid.uuid4().hex}"
        servers = [self._plain_address(broker_id) for broker_id in self._running()]
        if not servers:
            raise ClusterError("No broker is running: start or resume a broker first.")
        given = {"kafka.bootstrap.servers": ",".join(map(str, servers)), "kafka.client.id": CLIENT_ID}
        with closing(client_without_events(ClientOptions.parse(given))) as client:
            try:
                is_new = ClusterAdmin(client).create_topic(name, partitions, replication, config or {})
            except KafkaMetaError as error:
                raise ClusterError(str(error)) from error
        if not is_new:
            raise ClusterError(f"Topic {name} exists: choose another name, or none for a new name.")
        self._wait_for_all(f"does not know topic {name}", lambda address: knows_topic(address, name, partitions))
        return name

    def pid(self, node_id: int) -> int:
        """Process id of a running node."""
        return self._node(node_id).pid

    def start(self, node_id: int, port: int | None = None) -> None:
        """Start a stopped or killed node with its old data. Does not wait: see `wait_until_up`. But with ZooKeeper it
        waits until the session of a killed broker has expired.

        Args:
            port: new port of the broker; None for its old port, 0 for a free port.
        """
        node = self._node(node_id)
        if port is not None:
            self._move(node, port or free_ports(1)[0])
        if not self._release.has_kraft and not node.is_started:
            wait_until_session_expired(self._layout.controller_port, node_id)
        node.start()

    def kill(self, node_id: int) -> None:
        """Crash a node (SIGKILL). The controller notices after `broker.session.timeout.ms`."""
        self._node(node_id).kill()

    def stop(self, node_id: int, timeout_s: float = 60.0) -> None:
        """Shut down a node (SIGTERM), which moves its leaders first, and wait for its end."""
        self._node(node_id).stop(timeout_s)

    def pause(self, node_id: int) -> None:
        """Hang a node (SIGSTOP): its connections stay open without responses."""
        self._node(node_id).pause()

    def resume(self, node_id: int) -> None:
        """Continue a paused node."""
        self._node(node_id).resume()

    def restore(self) -> None:
        """Undo every `kill`, `stop` and `pause`, and wait until all brokers are up."""
        for node in self._nodes.values():
            if node.is_paused:
                node.resume()
            if not node.is_started:
                self.start(node.node_id)
        self.wait_until_up()

    def wait_until_up(self) -> None:
        """Wait until every started broker that is not paused responds, and reports all of them as live."""
        running = set(self._running())
        self._wait_for_all("does not know all brokers", lambda address: running <= live_brokers(address))

    def _running(self) -> list[int]:
        """The brokers that are started and not paused."""
        brokers = [self._node(broker_id) for broker_id in self.broker_ids]
        return [broker.node_id for broker in brokers if broker.is_started and not broker.is_paused]

    def _wait_for_all(self, trouble: str, is_ready: Callable[[Address], bool]) -> None:
        """Wait until `is_ready` is true at the plaintext address of each running broker."""
        deadline = time.monotonic() + UP_TIMEOUT_S
        for broker_id in self._running():
            while not is_ready(self._plain_address(broker_id)):
                for node in self._nodes.values():
                    node.check()
                if time.monotonic() > deadline:
                    tail = self._node(broker_id).log_tail()
                    raise ClusterError(f"Broker {broker_id} {trouble} after {UP_TIMEOUT_S:.0f} s. {tail}")
                time.sleep(_POLL_S)

    def _launch(self, runtime: JavaRuntime, guard: process_guard.ProcessGuard) -> None:
        """Start the brokers, which wait for the controller, then the controller."""
        for broker_id in self.broker_ids:
            folder = guard.folder / str(broker_id)
            folder.mkdir()
            self._security.write_keys(folder)
            meta = kafka_config.meta_properties(self._layout, broker_id) if self._release.has_kraft else None
            write_files(folder, self._broker_properties(broker_id, folder), meta)
            node = self._nodes[broker_id] = KafkaNode(broker_id, folder, runtime, guard.group)
            node.start()
        folder = guard.folder / str(CONTROLLER_ID)
        if self._release.has_kraft:
            write_files(folder, self._controller_properties(folder), None)
            format_controller(folder, runtime, self._layout.cluster_id, self._security.format_arguments())
            node = KafkaNode(CONTROLLER_ID, folder, runtime, guard.group)
        else:
            write_files(folder, kafka_config.zookeeper_properties(self._layout, folder / "data"), None)
            node = KafkaNode(CONTROLLER_ID, folder, runtime, guard.group, kafka_config.ZOOKEEPER_CLASS)
        self._nodes[CONTROLLER_ID] = node
        node.start()

    def _move(self, node: KafkaNode, port: int) -> None:
        """Change the port of a broker that does not run."""
        if node.is_started:
            raise ClusterError(f"Node {node.node_id} is running: stop or kill it first.")
        self.address(node.node_id)  # raises for the controller
        self._layout = replace(self._layout, broker_ports={**self._layout.broker_ports, node.node_id: port})
        write_files(node.folder, self._broker_properties(node.node_id, node.folder), None)

    def _controller_properties(self, folder: Path) -> kafka_config.Properties:
        config = {**self._security.authorizer, **self._config}
        return kafka_config.controller_properties(self._layout, folder / "data", config)

    def _broker_properties(self, broker_id: int, folder: Path) -> kafka_config.Properties:
        port, plain_port = self._layout.broker_ports[broker_id], self._plain_ports[broker_id]
        advertised_port = self._advertised_ports.get(broker_id, port)
        config = {**self._security.broker_properties(port, plain_port, advertised_port, folder), **self._config}
        properties = (
            kafka_config.broker_properties if self._release.has_kraft else kafka_config.zookeeper_broker_properties
        )
        return properties(self._layout, broker_id, folder / "data", config)

    def _plain_address(self, broker_id: int) -> Address:
        """Address of the broker's plaintext listener."""
        address = self.address(broker_id)
        return address if self._security.protocol == "PLAINTEXT" else Address(HOST, self._plain_ports[broker_id])

    def _node(self, node_id: int) -> KafkaNode:
        if node_id not in self._nodes:
            raise ClusterError(
                f"There is no node {node_id} now: inside `with` there are {CONTROLLER_ID} and {self.broker_ids}."
            )
        return self._nodes[node_id]


def live_brokers(address: Address) -> set[int]:
    """The live brokers according to the broker at `address`; none if it does not respond."""
    response = _metadata(address, ())
    return {broker.node_id for broker in response.brokers} if response else set()


def knows_topic(address: Address, topic: str, partitions: int) -> bool:
    """Whether the broker at `address` knows a leader of each of the topic's partitions."""
    response = _metadata(address, [topic])
    found = [partition for entry in (response.topics if response else ()) for partition in entry.partitions]
    return sum(partition.leader_id >= 0 for partition in found) == partitions


def _metadata(address: Address, topics: Collection[str]) -> MetadataResponse | None:
    settings = ConnectionSettings(CLIENT_ID, connect_timeout_ms=1000, max_frame_bytes=1 << 20)
    with closing(KafkaNetwork(settings)) as network:
        try:
            return network.metadata(address, topics, time.monotonic() + METADATA_TIMEOUT_S)
        except KafkaMetaError:
            return None
