"""Apache Kafka with a controller and brokers on hosts of their own, advertised by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pyspark_kafka_meta.java_launcher import find_java
from pyspark_kafka_meta.model import Address
from pyspark_kafka_meta.testing import kafka_config
from pyspark_kafka_meta.testing.kafka_config import CONTROLLER_ID, FIRST_BROKER_ID, KafkaRelease
from pyspark_kafka_meta.testing.kafka_node import JavaRuntime, format_controller, with_class_archive, write_files
from pyspark_kafka_meta.testing.local_kafka import JVM_OPTIONS, live_brokers
from pyspark_kafka_meta.testing.maven_jars import resolve_jars
from tests.cluster.hosts import Host
from tests.kafka.cluster_tools import poll_until

CONTROLLER = "controller"
BROKERS = ("broker-1", "broker-2", "broker-3")
BROKER_IDS = dict(zip(BROKERS, range(FIRST_BROKER_ID, FIRST_BROKER_ID + len(BROKERS)), strict=True))
PORT, CONTROLLER_PORT = 9092, 9093
SERVERS = ",".join(f"{name}:{PORT}" for name in BROKERS)


def start_kafka(hosts: Mapping[str, Host]) -> None:
    """Start controller and brokers on the hosts with their names, and wait until every broker knows all brokers."""
    runtime = with_class_archive(JavaRuntime(find_java(), resolve_jars(KafkaRelease().jars), JVM_OPTIONS))
    ports = dict.fromkeys(BROKER_IDS.values(), PORT)
    layout = kafka_config.ClusterLayout(kafka_config.new_cluster_id(), CONTROLLER_PORT, ports)
    voters = {"controller.quorum.voters": f"{CONTROLLER_ID}@{CONTROLLER}:{CONTROLLER_PORT}"}
    for name, node_id in BROKER_IDS.items():
        listeners = {"listeners": f"PLAINTEXT://:{PORT}", "advertised.listeners": f"PLAINTEXT://{name}:{PORT}"}
        folder = hosts[name].disk / "kafka"
        settings = kafka_config.broker_properties(layout, node_id, folder / "data", {**voters, **listeners})
        write_files(folder, settings, kafka_config.meta_properties(layout, node_id))
        _start(hosts[name], runtime, folder)
    folder = hosts[CONTROLLER].disk / "kafka"
    listener = {"listeners": f"CONTROLLER://:{CONTROLLER_PORT}"}
    settings = kafka_config.controller_properties(layout, folder / "data", {**voters, **listener})
    write_files(folder, settings, None)
    format_controller(folder, runtime, layout.cluster_id, ())
    _start(hosts[CONTROLLER], runtime, folder)
    poll_until(lambda: all(set(ports) <= live_brokers(Address(name, PORT)) for name in BROKERS), timeout_s=240)


def _start(host: Host, runtime: JavaRuntime, folder: Path) -> None:
    host.start(runtime.command("kafka.Kafka", folder, str(folder / "server.properties")), folder / "node.log")
