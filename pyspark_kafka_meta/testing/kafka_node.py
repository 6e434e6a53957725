"""One node of a cluster: its files, its Java process, and the signals that make it fail as in production."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark_kafka_meta.errors import ClusterError
from pyspark_kafka_meta.testing import kafka_config
from pyspark_kafka_meta.testing.kafka_config import HOST, LOGGING, properties_text

LOG_TAIL_LINES = 20
KILL_TIMEOUT_S = 30.0
FORMAT_TIMEOUT_S = 60.0
SESSION_TIMEOUT_S = 60.0
ZOOKEEPER_TIMEOUT_S = 5.0
POLL_S = 0.1
TRAINING_TIMEOUT_S = 120.0

# Below the range of ephemeral ports: a client of a killed broker could otherwise get the broker's port as its own, and
# connect to itself.
_PORTS = range(20000, 29000)
# A port is returned again only after all others: until its process has started, nothing else shows that it is in use.
# Not the shared generator: processes with the same seed would choose the same ports.
_candidates = itertools.cycle(random.SystemRandom().sample(_PORTS, len(_PORTS)))


def log_tail(path: Path) -> str:
    """The last lines of the log of a process, for an error."""
    with path.open(errors="replace") as log:
        return f"The end of its log:\n{''.join(deque(log, LOG_TAIL_LINES))}"


def free_ports(count: int) -> list[int]:
    """Ports of this machine that no process listens on."""
    free = (port for port in itertools.islice(_candidates, len(_PORTS)) if is_free(port))
    return [next(free) for _ in range(count)]


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


@dataclass(frozen=True, slots=True)
class JavaRuntime:
    """Java, jars and JVM options of all nodes."""

    java: Path
    jars: Sequence[Path]
    options: Sequence[str]

    def command(self, main_class: str, folder: Path, *arguments: str) -> list[str]:
        """The command line of one of Kafka's main classes, with the logging configuration in `folder`."""
        classpath = os.pathsep.join(map(str, self.jars))
        logging = f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}"
        return [str(self.java), *self.options, logging, "-cp", classpath, main_class, *arguments]


def write_files(folder: Path, server: Mapping[str, str], meta: Mapping[str, str] | None) -> None:
    """Create a node's folder: settings, logging and, with `meta`, a formatted data folder."""
    folder.mkdir(exist_ok=True)
    (folder / "server.properties").write_text(properties_text(server))
    (folder / "log4j2.properties").write_text(properties_text(LOGGING))
    if meta is not None:
        data = Path(server["log.dirs"])
        data.mkdir()
        (data / "meta.properties").write_text(properties_text(meta))


def format_controller(folder: Path, runtime: JavaRuntime, cluster_id: str, arguments: Sequence[str]) -> None:
    """Format the data folder of a controller with Kafka's StorageTool, which also adds users. Raises ClusterError: the
    tool fails, with its output, or does not end."""
    settings = ["--cluster-id", cluster_id, "--config", str(folder / "server.properties")]
    command = runtime.command("kafka.tools.StorageTool", folder, "format", *settings, *arguments)
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=FORMAT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise ClusterError(
            f"Formatting the controller's folder took over {FORMAT_TIMEOUT_S:.0f} s: the machine is busy, try again."
        ) from None
    if process.returncode != 0:
        raise ClusterError(f"Kafka cannot format the controller's folder: {process.stderr or process.stdout}")


def wait_until_session_expired(zookeeper_port: int, broker_id: int) -> None:
    """Wait until the session of a killed broker has expired: before, ZooKeeper refuses its registration, and the broker
    exits."""
    deadline = time.monotonic() + SESSION_TIMEOUT_S
    while _has_session(zookeeper_port, broker_id):
        if time.monotonic() > deadline:
            raise ClusterError(f"ZooKeeper still has the session of broker {broker_id} after {SESSION_TIMEOUT_S:.0f} s")
        time.sleep(POLL_S)


def _has_session(zookeeper_port: int, broker_id: int) -> bool:
    """By the output of the command `dump`, with the nodes of all sessions. True also if ZooKeeper does not respond in
    time, false if it does not run."""
    try:
        with socket.create_connection((HOST, zookeeper_port), ZOOKEEPER_TIMEOUT_S) as connection:
            connection.sendall(b"dump")
            nodes = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    except ConnectionRefusedError:
        return False
    except OSError:
        return True
    return f"/brokers/ids/{broker_id}\n" in nodes


class KafkaNode:
    """A node with its files in `folder`."""

    def __init__(
        self, node_id: int, folder: Path, runtime: JavaRuntime, process_group: int, main_class: str = "kafka.Kafka"
    ) -> None:
        self.node_id = node_id
        self.folder = folder
        self.is_paused = False
        self._runtime = runtime
        self._process_group = process_group
        self._main_class = main_class
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_started(self) -> bool:
        """Whether the node was started, and neither stopped nor killed since. It may be paused, or have died."""
        return self._process is not None

    @property
    def pid(self) -> int:
        return self._running().pid

    def start(self) -> None:
        if self.is_started:
            raise ClusterError(f"Node {self.node_id} is running: stop or kill it first.")
        settings = str(self.folder / "server.properties")
        command = self._runtime.command(self._main_class, self.folder, settings)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=self._process_group
            )

    def kill(self) -> None:
        """SIGKILL, as in a crash."""
        self._running().kill()
        self._wait(KILL_TIMEOUT_S)

    def stop(self, timeout_s: float) -> None:
        """SIGTERM: a controlled shutdown, which moves leaders first. Waits for the end of the process."""
        self.resume()
        self._running().terminate()
        self._wait(timeout_s)

    def pause(self) -> None:
        """SIGSTOP: connections stay open without responses. Returns once all threads are stopped."""
        process = self._running()
        if not self.is_paused:
            process.send_signal(signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)
            self.is_paused = True

    def resume(self) -> None:
        """SIGCONT: continue after `pause`."""
        self._running().send_signal(signal.SIGCONT)
        self.is_paused = False

    def check(self) -> None:
        """Raise ClusterError if the process has died."""
        if self._process is not None and self._process.poll() is not None:
            raise ClusterError(f"Node {self.node_id} died. {self.log_tail()}")

    def log_tail(self) -> str:
        return log_tail(self._log)

    @property
    def _log(self) -> Path:
        return self.folder / "node.log"

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ClusterError(f"Node {self.node_id} is not running: start it first.")
        return self._process

    def _wait(self, timeout_s: float) -> None:
        try:
            self._running().wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise ClusterError(f"Node {self.node_id} did not end in {timeout_s:.0f} s. {self.log_tail()}") from None
        self._process = None
        self.is_paused = False


def with_class_archive(runtime: JavaRuntime) -> JavaRuntime:
    """`runtime` with the option of an archive of Kafka's classes, which halves the start time of nodes (JEP 350).
    Creates a missing archive (about 6 s). Java ignores an unsuitable archive and starts more slowly."""
    java = runtime.java.resolve()
    key = hashlib.sha256(f"{java} {java.stat().st_mtime_ns} {list(runtime.options)}".encode()).hexdigest()[:8]
    archive = runtime.jars[0].with_name(f"classes-{key}.jsa")
    if not archive.exists():
        with tempfile.TemporaryDirectory(dir=archive.parent, prefix="training-") as folder:
            _create(runtime, Path(folder), archive)
    return replace(runtime, options=[*runtime.options, f"-XX:SharedArchiveFile={archive}"])


def _create(runtime: JavaRuntime, folder: Path, archive: Path) -> None:
    """Run a broker without a controller: it loads nearly all classes, exits, and Java writes the archive then."""
    node_id = kafka_config.FIRST_BROKER_ID
    layout = kafka_config.ClusterLayout(kafka_config.new_cluster_id(), controller_port=1, broker_ports={node_id: 0})
    give_up_early = {"initial.broker.registration.timeout.ms": "1000"}
    server = kafka_config.broker_properties(layout, node_id, folder / "data", give_up_early)
    write_files(folder, server, kafka_config.meta_properties(layout, node_id))
    created = folder / "classes.jsa"
    training = replace(runtime, options=[*runtime.options, f"-XX:ArchiveClassesAtExit={created}"])
    command = training.command("kafka.Kafka", folder, str(folder / "server.properties"))
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(command, capture_output=True, timeout=TRAINING_TIMEOUT_S)
    if created.exists():
        created.rename(archive)
