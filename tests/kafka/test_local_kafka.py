"""LocalKafka: starts and faults of its nodes, errors, cleaning up, settings, ports and jars."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspark_kafka_meta import java_launcher
from pyspark_kafka_meta.errors import KafkaMetaError
from pyspark_kafka_meta.kafka.network.connection import ConnectionSettings
from pyspark_kafka_meta.kafka.network.kafka_network import KafkaNetwork
from pyspark_kafka_meta.model import Address
from pyspark_kafka_meta.testing import ClusterError, LocalKafka, kafka_config, maven_jars, process_guard
from pyspark_kafka_meta.testing.kafka_config import CONTROLLER_ID
from pyspark_kafka_meta.testing.kafka_node import JavaRuntime, with_class_archive
from tests.kafka.cluster_tools import topic_on_each_broker

LAYOUT = kafka_config.ClusterLayout("Aa", 9000, {2: 9002, 3: 9003, 4: 9004})

START_AND_WAIT = """
import sys
from pyspark_kafka_meta.testing import LocalKafka
with LocalKafka(brokers=1) as kafka:
    kafka.pause(2)
    print(*(kafka.pid(node) for node in (1, 2)), flush=True)
    sys.stdin.read()
"""


def live_brokers(address: Address, timeout_s: float = 5.0) -> set[int]:
    """The brokers in the Metadata response of the broker at `address`. KafkaMetaError without a response."""
    network = KafkaNetwork(ConnectionSettings("test", connect_timeout_ms=2000, max_frame_bytes=1 << 20))
    try:
        return {broker.node_id for broker in network.metadata(address, (), time.monotonic() + timeout_s).brokers}
    finally:
        network.close()


def reports(kafka: LocalKafka, broker_id: int, expected: set[int]) -> Callable[[], bool]:
    """Whether the Metadata response of this broker has the `expected` brokers. False without a response."""

    def reported() -> bool:
        try:
            return live_brokers(kafka.address(broker_id)) == expected
        except KafkaMetaError:
            return False

    return reported


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.kafka
def test_every_broker_names_all_three(local_kafka: LocalKafka, wait_for: Callable[..., Any]) -> None:
    assert local_kafka.broker_ids == (2, 3, 4)
    for broker_id in (2, 3, 4):
        wait_for(reports(local_kafka, broker_id, {2, 3, 4}))
    assert local_kafka.bootstrap_servers.split(",") == [str(local_kafka.address(broker_id)) for broker_id in (2, 3, 4)]


@pytest.mark.kafka
def test_a_paused_broker_hangs_and_goes_on(breakable_kafka: LocalKafka, wait_for: Callable[..., Any]) -> None:
    breakable_kafka.pause(3)
    with pytest.raises(KafkaMetaError):
        live_brokers(breakable_kafka.address(3), timeout_s=0.5)
    breakable_kafka.wait_until_up()
    breakable_kafka.resume(3)
    wait_for(reports(breakable_kafka, 3, {2, 3, 4}))


@pytest.mark.kafka
def test_a_killed_and_a_stopped_broker_are_missing_and_come_back_the_latter_on_another_port(
    breakable_kafka: LocalKafka, wait_for: Callable[..., Any]
) -> None:
    pid, old = breakable_kafka.pid(2), breakable_kafka.address(4)
    with pytest.raises(ClusterError, match="Node 4 is running"):
        breakable_kafka.start(4, port=0)
    log = breakable_kafka._node(CONTROLLER_ID)._log
    written = log.stat().st_size
    breakable_kafka.stop(4)
    assert b"broker 4 has requested and been granted" in log.read_bytes()[written:], (
        "a crashed broker does not request this"
    )
    wait_for(reports(breakable_kafka, 2, {2, 3}))
    with pytest.raises(ClusterError, match="Node 4 is not running"):
        breakable_kafka.kill(4)
    breakable_kafka.kill(2)
    assert not is_alive(pid)
    with pytest.raises(KafkaMetaError):
        live_brokers(breakable_kafka.address(2))
    wait_for(reports(breakable_kafka, 3, {3}))
    breakable_kafka.start(2)
    breakable_kafka.start(4, port=0)
    breakable_kafka.wait_until_up()
    assert breakable_kafka.pid(2) != pid
    assert breakable_kafka.address(4) != old
    for broker_id in (2, 4):
        wait_for(reports(breakable_kafka, broker_id, {2, 3, 4}))


@pytest.mark.kafka
def test_a_new_topic_is_known_to_every_broker_and_has_a_name_of_its_own(local_kafka: LocalKafka) -> None:
    topic, other = local_kafka.create_topic(partitions=3, config={"retention.ms": "1000"}), local_kafka.create_topic()
    found = topic_on_each_broker(local_kafka.bootstrap_servers, topic)
    assert [[len(part.replicas) for part in entry.partitions] for entry in found if entry] == [[3, 3, 3]] * 3
    assert all(part.leader_id in local_kafka.broker_ids for entry in found if entry for part in entry.partitions)
    assert topic != other


@pytest.mark.kafka
def test_a_topic_that_exists_or_is_refused_is_an_error(local_kafka: LocalKafka) -> None:
    topic = local_kafka.create_topic(f"named-{uuid.uuid4().hex}")
    with pytest.raises(ClusterError, match=f"Topic {topic} exists: choose another name"):
        local_kafka.create_topic(topic)
    with pytest.raises(ClusterError, match=r"could not be created: INVALID_CONFIG.* x "):
        local_kafka.create_topic(config={"retention.ms": "x"})


@pytest.mark.kafka
def test_produced_records_get_the_offsets_that_are_returned(
    make_topic: Callable[..., str], add_partitions: Callable[[str, int], None], produce: Callable[..., list[int]]
) -> None:
    topic = make_topic(partitions=1)
    assert produce(topic, ["a", b"b", None, {"key": b"k", "value": b"v"}]) == [0, 1, 2, 3]
    add_partitions(topic, 2)
    assert produce(topic, ["e"], partition=1) == [0]


@pytest.mark.slow
@pytest.mark.kafka
def test_a_killed_parent_leaves_neither_java_nor_data(wait_for: Callable[..., Any], tmp_path: Path) -> None:
    """One of its nodes is paused: paused nodes must end too."""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", START_AND_WAIT],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        assert list(tmp_path.glob(f"{process_guard.PREFIX}*"))
        parent.send_signal(signal.SIGKILL)
    wait_for(lambda: not any(map(is_alive, pids)))
    wait_for(lambda: not list(tmp_path.glob(f"{process_guard.PREFIX}*")))


@pytest.mark.thorough
@pytest.mark.kafka
def test_a_broker_that_cannot_start_fails_with_the_end_of_its_log() -> None:
    with (
        pytest.raises(ClusterError, match=r"(?s)Node \d died.*no\.such\.Authorizer"),
        LocalKafka(1, config={"authorizer.class.name": "no.such.Authorizer"}),
    ):
        pass


@pytest.mark.kafka
def test_a_setting_that_kafka_refuses_is_shown() -> None:
    with pytest.raises(ClusterError, match="Invalid value x for"), LocalKafka(1, config={"log.retention.ms": "x"}):
        pass


def test_a_taken_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ClusterError, match=f"Port {port} is in use"), LocalKafka(1, ports=[port]):
            pass


def test_each_broker_needs_a_port() -> None:
    with pytest.raises(ClusterError, match="2 brokers cannot listen on 3 ports"):
        LocalKafka(2, ports="standard")


def test_addresses_are_known_before_the_start() -> None:
    kafka = LocalKafka(ports="standard")
    assert kafka.bootstrap_servers == "127.0.0.1:19092,127.0.0.1:29092,127.0.0.1:39092"
    with pytest.raises(ClusterError, match="no node 2 now"):
        kafka.kill(2)
    with pytest.raises(ClusterError, match="no broker 1"):
        kafka.address(1)


def test_folder_of_a_killed_watcher_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    live = process_guard.ProcessGuard()
    stale = tmp_path / f"{process_guard.PREFIX}stale"
    stale.mkdir()
    (stale / "lock").touch()
    process_guard.remove_leftovers()
    assert list(tmp_path.iterdir()) == [live.folder]
    live.close()
    assert not list(tmp_path.iterdir())


def test_settings_of_the_controller(tmp_path: Path) -> None:
    server = kafka_config.controller_properties(LAYOUT, tmp_path, {})
    assert server["process.roles"] == "controller"
    assert server["listeners"] == "CONTROLLER://127.0.0.1:9000"
    assert server["min.insync.replicas"] == "2"


def test_settings_of_a_broker(tmp_path: Path) -> None:
    server = kafka_config.broker_properties(LAYOUT, 3, tmp_path, {"log.retention.check.interval.ms": "7"})
    assert server["node.id"] == "3"
    assert server["listeners"] == "PLAINTEXT://127.0.0.1:9003"
    assert server["controller.quorum.voters"] == "1@127.0.0.1:9000"
    assert server["offsets.topic.replication.factor"] == "3"
    assert server["log.retention.check.interval.ms"] == "7"


def test_one_broker_replicates_once(tmp_path: Path) -> None:
    alone = kafka_config.ClusterLayout("Aa", 9000, {2: 9002})
    server = kafka_config.broker_properties(alone, 2, tmp_path, {})
    factors = {value for name, value in server.items() if name.endswith(("replication.factor", "min.isr"))}
    assert factors == {"1"}


def test_cluster_ids_never_look_like_an_option() -> None:
    ids = {kafka_config.new_cluster_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(len(cluster_id) == 22 and cluster_id[0] == "A" for cluster_id in ids)


def fake_java(folder: Path, script: str) -> Path:
    launcher = folder / "bin" / "java"
    launcher.parent.mkdir(parents=True)
    launcher.write_text(f"#!/bin/sh\n{script}\n")
    launcher.chmod(0o755)
    return launcher


def test_the_class_archive_is_made_once(tmp_path: Path) -> None:
    made = tmp_path / "made"
    java = fake_java(tmp_path, f'echo x >> {made}; touch "${{2#-XX:ArchiveClassesAtExit=}}"')
    runtime = JavaRuntime(java, [tmp_path / "a.jar"], ["-Xmx1m"])
    first, second = with_class_archive(runtime), with_class_archive(runtime)
    assert first == second
    assert made.read_text() == "x\n"
    heap, archive = first.options
    assert heap == "-Xmx1m"
    assert Path(archive.removeprefix("-XX:SharedArchiveFile=")).exists()


def test_a_class_archive_that_cannot_be_made_is_done_without(tmp_path: Path) -> None:
    runtime = JavaRuntime(fake_java(tmp_path, "exit 1"), [tmp_path / "a.jar"], [])
    assert with_class_archive(runtime).command("Main", tmp_path)[-1] == "Main"
    assert not list(tmp_path.glob("*.jsa"))


@pytest.mark.parametrize(
    ("output", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 1),
        ('openjdk version "21-ea" 2023-09-19', 21),
        ("sh: not Java at all", 0),
    ],
)
def test_java_versions(output: str, version: int) -> None:
    assert java_launcher.java_version(output) == version


def test_missing_java_is_one_line_that_names_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError) as caught:
        java_launcher.find_java()
    assert str(caught.value) == "No Java found: install Java 17 or later and put it on PATH, or set JAVA_HOME."


def test_old_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, "echo 'openjdk version \"11.0.2\"' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ClusterError, match="is Java 11: install Java 17"):
        java_launcher.find_java()


def test_a_newer_java_is_found_in_a_usual_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for release in (17, 21):
        fake_java(tmp_path / f"jdk-{release}", f"echo 'openjdk version \"{release}.0.1\"' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk-17"))
    monkeypatch.setattr(java_launcher, "USUAL_HOMES", (f"{tmp_path}/jdk-*"[1:],))

    assert java_launcher.find_java_since(21) == tmp_path / "jdk-21" / "bin" / "java"
    assert java_launcher.find_java_since(17) == tmp_path / "jdk-17" / "bin" / "java"
    with pytest.raises(ClusterError, match="No Java 25 or later found: install one below /usr/lib/jvm"):
        java_launcher.find_java_since(25)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"KAFKAMETA_CACHE_DIR": "/cache"}, "/cache"),
        ({"XDG_CACHE_HOME": "/xdg"}, "/xdg/kafkameta"),
        ({"HOME": "/home/me"}, "/home/me/.cache/kafkameta"),
    ],
)
@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has a cache folder of its own")
def test_cache_folder(variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KAFKAMETA_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert maven_jars.cache_dir() == Path(expected)


def test_jars_in_the_cache_are_not_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKAMETA_CACHE_DIR", str(tmp_path))
    folder = maven_jars.jar_folder(["group:name:1.0"])
    folder.mkdir(parents=True)
    (folder / "b.jar").touch()
    (folder / "a.jar").touch()
    monkeypatch.setenv("PATH", "")
    assert [jar.name for jar in maven_jars.resolve_jars(["group:name:1.0"])] == ["a.jar", "b.jar"]


def test_ivy_is_asked_for_the_coordinates_alone() -> None:
    text = maven_jars.ivy_module(["g:a:1", "h:b:2"])
    assert '<dependency org="g" name="a" rev="1" conf="default->default"/>' in text
    assert text.count("<dependency ") == 2
