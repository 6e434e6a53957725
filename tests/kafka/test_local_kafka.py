"""LocalKafka: starts and faults of its nodes, errors, cleaning up, settings, ports and jars."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspark_kafka_meta import java_launcher
from pyspark_kafka_meta.testing import ClusterError, LocalKafka, kafka_config, maven_jars, process_guard
from pyspark_kafka_meta.testing.kafka_node import JavaRuntime, KafkaNode, format_controller, with_class_archive

START_AND_WAIT = """
import subprocess, sys
from pathlib import Path
from pyspark_kafka_meta.testing.kafka_node import JavaRuntime, KafkaNode
from pyspark_kafka_meta.testing.process_guard import ProcessGuard
guard = ProcessGuard()
running, paused = (KafkaNode(id, guard.folder, JavaRuntime(Path(sys.argv[1]), [], []), guard.group) for id in (1, 2))
running.start()
paused.start()
while not int(subprocess.check_output(["ps", "-o", "ignored=", "-p", str(guard.group)]), 16) & 1:  # SIGHUP
    pass  # the watcher is about to start
paused.pause()
print(running.pid, paused.pid, flush=True)
sys.stdin.read()
"""


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_node_is_started_paused_killed_and_stopped(tmp_path: Path) -> None:
    node = KafkaNode(4, tmp_path, JavaRuntime(fake_java(tmp_path, "exec sleep 600"), [], []), process_group=0)
    with pytest.raises(ClusterError, match="Node 4 is not running"):
        node.kill()
    node.start()
    pid = node.pid
    with pytest.raises(ClusterError, match="Node 4 is running"):
        node.start()
    node.pause()
    assert state(pid).startswith("T")
    node.resume()
    assert not state(pid).startswith("T")
    node.kill()
    assert not is_alive(pid)
    node.start()
    assert node.pid != pid
    node.pause()
    node.stop(60)
    assert not node.is_started


def state(pid: int) -> str:
    """Of a process: T if it is stopped."""
    return subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=True).stdout


def test_a_killed_parent_leaves_neither_java_nor_data(wait_for: Callable[..., Any], tmp_path: Path) -> None:
    """One of its nodes is paused: paused nodes must end too."""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", START_AND_WAIT, str(fake_java(tmp_path, "exec sleep 600"))],
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


def test_a_setting_that_kafka_refuses_is_shown(tmp_path: Path) -> None:
    java = fake_java(tmp_path, "echo 'Invalid value x for log.retention.ms' >&2; exit 1")
    with pytest.raises(ClusterError, match="cannot format the controller's folder: Invalid value x for"):
        format_controller(tmp_path, JavaRuntime(java, [], []), "Aa", ())


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
    assert kafka.broker_ids == (2, 3, 4)
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
    monkeypatch.setattr(shutil, "which", lambda _: None)
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
