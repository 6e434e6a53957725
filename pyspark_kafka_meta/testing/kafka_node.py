"""One Kafka node: its files, its Java process, what it answers, and signals by which it fails as in production."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark_kafka_meta.errors import ClusterError, KafkaMetaError
from pyspark_kafka_meta.model import Address
from pyspark_kafka_meta.testing.kafka_config import LOGGING, properties_text
from pyspark_kafka_meta.wire.connection import ConnectionSettings
from pyspark_kafka_meta.wire.kafka_wire import KafkaWire

LOG_TAIL_LINES = 20
KILL_TIMEOUT_S = 30.0
FORMAT_TIMEOUT_S = 60.0
ASK_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class JavaRuntime:
    """What every node runs with."""

    java: Path
    jars: Sequence[Path]
    options: Sequence[str]

    def command(self, main_class: str, folder: Path, *arguments: str) -> list[str]:
        """How to run a class of Kafka's; it logs as the files that `write_files` put into `folder` say."""
        classpath = os.pathsep.join(map(str, self.jars))
        logging = f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}"
        return [str(self.java), *self.options, logging, "-cp", classpath, main_class, *arguments]


def write_files(folder: Path, server: Mapping[str, str], meta: Mapping[str, str] | None) -> None:
    """Make a node's folder: settings, logging and, if `meta` is given, a data folder formatted by it."""
    folder.mkdir(exist_ok=True)
    (folder / "server.properties").write_text(properties_text(server))
    (folder / "log4j2.properties").write_text(properties_text(LOGGING))
    if meta is not None:
        data = Path(server["log.dirs"])
        data.mkdir()
        (data / "meta.properties").write_text(properties_text(meta))


def format_controller(folder: Path, runtime: JavaRuntime, cluster_id: str, arguments: Sequence[str]) -> None:
    """Format the data folder of a controller by Kafka's own tool, which also takes down users.

    Raises:
        ClusterError: the tool refuses, with what it says, or does not end.
    """
    settings = ["--cluster-id", cluster_id, "--config", str(folder / "server.properties")]
    command = runtime.command("kafka.tools.StorageTool", folder, "format", *settings, *arguments)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FORMAT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise ClusterError(
            f"To format the controller's folder took over {FORMAT_TIMEOUT_S:.0f} s: the machine is busy, try again."
        ) from None
    if done.returncode != 0:
        raise ClusterError(f"Kafka cannot format the controller's folder: {done.stderr or done.stdout}")


def live_brokers(address: Address) -> set[int]:
    """The brokers that the one at `address` names as live; none while it does not answer."""
    wire = KafkaWire(ConnectionSettings("kafkameta-testing", connect_timeout_ms=1000, max_frame_bytes=1 << 20))
    try:
        answer = wire.metadata(address, (), time.monotonic() + ASK_TIMEOUT_S)
    except KafkaMetaError:
        return set()
    finally:
        wire.close()
    return {broker.node_id for broker in answer.brokers}


class KafkaNode:
    """A node whose files are in `folder`. Not running until `start`."""

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
        """Started and neither stopped nor killed since; it may be paused, or have died by itself."""
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
        """SIGKILL: no goodbye, as in a crash."""
        self._running().kill()
        self._wait(KILL_TIMEOUT_S)

    def stop(self, timeout_s: float) -> None:
        """SIGTERM: a controlled shutdown, which hands over leadership first. Returns when the process has ended."""
        self.resume()
        self._running().terminate()
        self._wait(timeout_s)

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing is answered."""
        self._running().send_signal(signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        """SIGCONT: go on after `pause`."""
        self._running().send_signal(signal.SIGCONT)
        self.is_paused = False

    def check(self) -> None:
        """Raise ClusterError if the process has died by itself."""
        if self._process is not None and self._process.poll() is not None:
            raise ClusterError(f"Node {self.node_id} died. {self.log_tail()}")

    def log_tail(self) -> str:
        with self._log.open(errors="replace") as log:
            return f"The end of its log:\n{''.join(deque(log, LOG_TAIL_LINES))}"

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
