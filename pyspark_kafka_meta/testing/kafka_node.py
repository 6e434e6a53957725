"""One Kafka node: its files, its Java process, and the signals that make it fail as in production."""

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
from pyspark_kafka_meta.kafka.network.connection import ConnectionSettings
from pyspark_kafka_meta.kafka.network.kafka_wire import KafkaWire
from pyspark_kafka_meta.model import Address
from pyspark_kafka_meta.testing.kafka_config import LOGGING, properties_text

LOG_TAIL_LINES = 20
KILL_TIMEOUT_S = 30.0
FORMAT_TIMEOUT_S = 60.0
METADATA_TIMEOUT_S = 2.0


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
    """Format the data folder of a controller with Kafka's StorageTool, which also adds users.

    Raises:
        ClusterError: the tool fails, with its output, or does not end.
    """
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


def live_brokers(address: Address) -> set[int]:
    """The live brokers according to the broker at `address`; none if it does not respond."""
    wire = KafkaWire(ConnectionSettings("kafkameta-testing", connect_timeout_ms=1000, max_frame_bytes=1 << 20))
    try:
        response = wire.metadata(address, (), time.monotonic() + METADATA_TIMEOUT_S)
    except KafkaMetaError:
        return set()
    finally:
        wire.close()
    return {broker.node_id for broker in response.brokers}


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
        """SIGSTOP: connections stay open without responses."""
        self._running().send_signal(signal.SIGSTOP)
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
