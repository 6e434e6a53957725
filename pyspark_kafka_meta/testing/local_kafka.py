"""`LocalKafka`: real Apache Kafka on this machine, one controller and some brokers, without Docker.

Linux or macOS, Java 17 or later, and at the first start a way to Maven Central.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, Self

from pyspark_kafka_meta.errors import ClusterError
from pyspark_kafka_meta.java import find_java
from pyspark_kafka_meta.model import Address
from pyspark_kafka_meta.testing import kafka_config, process_guard, zookeeper
from pyspark_kafka_meta.testing.class_archive import with_class_archive
from pyspark_kafka_meta.testing.free_ports import free_ports, is_free
from pyspark_kafka_meta.testing.kafka_config import CONTROLLER_ID, FIRST_BROKER_ID, HOST
from pyspark_kafka_meta.testing.kafka_jars import resolve
from pyspark_kafka_meta.testing.kafka_node import JavaRuntime, KafkaNode, format_controller, live_brokers, write_files
from pyspark_kafka_meta.testing.kafka_release import KafkaRelease
from pyspark_kafka_meta.testing.listener_security import ListenerSecurity, Protocol

JVM_OPTIONS = ("-Xms64m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Small nodes that start fast. On two cores they also carry more records a second than Java's own defaults."""

STANDARD_PORTS = (19092, 29092, 39092)

UP_TIMEOUT_S = 90.0

_POLL_S = 0.1


class LocalKafka:
    """A cluster to break: node 1 is the controller, nodes 2, 3, ... are brokers; each is a process of its own.

        with LocalKafka() as kafka:
            spark.read.format("kafkameta").option("kafka.bootstrap.servers", kafka.bootstrap_servers)

    The cluster runs inside `with` and leaves nothing behind, also if this process is killed. Each broker is a rack of
    its own: rack-2, rack-3, ... Topics have three replicas unless asked otherwise, two of which must be in sync, and
    are not made by being mentioned; retention and compaction act within a second or two. Timeouts are Kafka's own: the
    leaders of a killed or paused broker move after 9 s, and a broker that was killed or stopped is let in again 9 s
    later (`broker.session.timeout.ms`).

    Methods raise ClusterError, with the end of a node's log where it says why.
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
        """Nothing starts yet.

        Args:
            ports: one for each broker; "standard" for 19092, 29092, 39092; None for free ones.
            config: Kafka settings of every node, which win over this class's.
            security: protocol of the brokers' listener at `bootstrap_servers`; `client_options` gets a client in.
            mechanisms: of SASL: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, and OAUTHBEARER with unsigned tokens.
            users: passwords by user. With SSL they have certificates, and nobody gets in without one.
            acls: whether clients may do only what an ACL allows them; those at `admin_servers` may do all.
            advertised_ports: where brokers say that their secured listeners are, one for each: those of proxies.
            version: release of Kafka on Maven Central, such as "3.9.1". Before 3.3 node 1 is ZooKeeper instead of a
                KRaft controller, and before 3.5 `mechanisms` cannot hold SCRAM.
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
                "advertised_ports are those of secured listeners: set `security`, and give one for each."
            )
        self._advertised_ports = dict(zip(broker_ports, advertised_ports or (), strict=False))
        self._plain_ports = dict(enumerate(free[brokers:], FIRST_BROKER_ID))
        self._config = dict(config or {})
        self._nodes: dict[int, KafkaNode] = {}
        self._guard: process_guard.Guard | None = None

    def __enter__(self) -> Self:
        """Start the cluster and wait until every broker knows all: about 4 s, and 30 s more the first time."""
        taken = [port for port in self._layout.broker_ports.values() if not is_free(port)]
        if taken:
            raise ClusterError(
                f"Port {taken[0]} is in use: end what uses it (a closed connection holds on to its port for a minute), "
                "or leave `ports` out for free ones."
            )
        runtime = JavaRuntime(find_java(), resolve(self._release.jars), JVM_OPTIONS)
        if self._release.has_kraft:
            runtime = with_class_archive(runtime)
        process_guard.sweep()
        self._guard = process_guard.Guard()
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
        """Kill every node and remove its data. The second call does nothing."""
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
        """The brokers' plaintext listeners, where no login is asked for and no ACL holds."""
        return ",".join(str(self._plain_address(broker_id)) for broker_id in self.broker_ids)

    def client_options(self, user: str | None = None, mechanism: str | None = None) -> dict[str, str]:
        """Options with which `user` reads from `bootstrap_servers`, all but these themselves.

        Args:
            mechanism: of SASL; None for the first of the cluster's.
        """
        return self._security.client_options(user, mechanism)

    def address(self, broker_id: int) -> Address:
        """Where this broker listens, and will listen again after a restart."""
        if broker_id not in self._layout.broker_ports:
            raise ClusterError(f"There is no broker {broker_id}: the brokers are {self.broker_ids}.")
        return Address(HOST, self._layout.broker_ports[broker_id])

    def pid(self, node_id: int) -> int:
        """Process id of a node that is running."""
        return self._node(node_id).pid

    def start(self, node_id: int, port: int | None = None) -> None:
        """Start a node that was stopped or killed, on its old data. Does not wait: see `wait_until_up`. With ZooKeeper
        it does, until the session of a broker that was killed has expired.

        Args:
            port: where a broker listens from now on; None for where it did, 0 for a free one.
        """
        node = self._node(node_id)
        if port is not None:
            self._move(node, port or free_ports(1)[0])
        if not self._release.has_kraft and not node.is_started:
            zookeeper.wait_until_forgotten(self._layout.controller_port, node_id)
        node.start()

    def kill(self, node_id: int) -> None:
        """Crash a node (SIGKILL). The controller notices after `broker.session.timeout.ms`."""
        self._node(node_id).kill()

    def stop(self, node_id: int, timeout_s: float = 60.0) -> None:
        """Shut a node down in order (SIGTERM), so that its leaders move first, and wait for its end."""
        self._node(node_id).stop(timeout_s)

    def pause(self, node_id: int) -> None:
        """Hang a node (SIGSTOP): its connections stay open and nothing is answered."""
        self._node(node_id).pause()

    def resume(self, node_id: int) -> None:
        """Let a paused node go on."""
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
        """Wait until every broker that is started and not paused answers, and names all of these as live."""
        deadline = time.monotonic() + UP_TIMEOUT_S
        brokers = [self._node(broker_id) for broker_id in self.broker_ids]
        running = {broker.node_id for broker in brokers if broker.is_started and not broker.is_paused}
        for broker_id in sorted(running):
            while not running <= live_brokers(self._plain_address(broker_id)):
                for node in self._nodes.values():
                    node.check()
                if time.monotonic() > deadline:
                    tail = self._node(broker_id).log_tail()
                    raise ClusterError(
                        f"Broker {broker_id} does not know all brokers after {UP_TIMEOUT_S:.0f} s. {tail}"
                    )
                time.sleep(_POLL_S)

    def _launch(self, runtime: JavaRuntime, guarded: process_guard.Guard) -> None:
        """Start the brokers, then the controller, for which they wait."""
        for broker_id in self.broker_ids:
            folder = guarded.folder / str(broker_id)
            folder.mkdir()
            self._security.write_keys(folder)
            meta = kafka_config.meta_properties(self._layout, broker_id) if self._release.has_kraft else None
            write_files(folder, self._broker_properties(broker_id, folder), meta)
            node = self._nodes[broker_id] = KafkaNode(broker_id, folder, runtime, guarded.group)
            node.start()
        controller = self._controller if self._release.has_kraft else self._zookeeper
        node = self._nodes[CONTROLLER_ID] = controller(guarded.folder / str(CONTROLLER_ID), runtime, guarded.group)
        node.start()

    def _controller(self, folder: Path, runtime: JavaRuntime, group: int) -> KafkaNode:
        config = {**self._security.authorizer, **self._config}
        write_files(folder, kafka_config.controller_properties(self._layout, folder / "data", config), None)
        format_controller(folder, runtime, self._layout.cluster_id, self._security.format_arguments())
        return KafkaNode(CONTROLLER_ID, folder, runtime, group)

    def _zookeeper(self, folder: Path, runtime: JavaRuntime, group: int) -> KafkaNode:
        write_files(folder, zookeeper.server_properties(self._layout, folder / "data"), None)
        return KafkaNode(CONTROLLER_ID, folder, runtime, group, zookeeper.MAIN_CLASS)

    def _move(self, node: KafkaNode, port: int) -> None:
        """Write another port into the settings of a broker that does not run."""
        if node.is_started:
            raise ClusterError(f"Node {node.node_id} is running: stop or kill it first.")
        self.address(node.node_id)  # which refuses the controller
        self._layout = replace(self._layout, broker_ports={**self._layout.broker_ports, node.node_id: port})
        write_files(node.folder, self._broker_properties(node.node_id, node.folder), None)

    def _broker_properties(self, broker_id: int, folder: Path) -> kafka_config.Properties:
        port, plain_port = self._layout.broker_ports[broker_id], self._plain_ports[broker_id]
        advertised_port = self._advertised_ports.get(broker_id, port)
        config = {**self._security.broker_properties(port, plain_port, advertised_port, folder), **self._config}
        properties = kafka_config.broker_properties if self._release.has_kraft else zookeeper.broker_properties
        return properties(self._layout, broker_id, folder / "data", config)

    def _plain_address(self, broker_id: int) -> Address:
        """Where this broker takes plaintext: beside its secured listener, or there if it has none."""
        address = self.address(broker_id)
        return address if self._security.protocol == "PLAINTEXT" else Address(HOST, self._plain_ports[broker_id])

    def _node(self, node_id: int) -> KafkaNode:
        if node_id not in self._nodes:
            raise ClusterError(
                f"There is no node {node_id} now: inside `with` there are {CONTROLLER_ID} and {self.broker_ids}."
            )
        return self._nodes[node_id]
