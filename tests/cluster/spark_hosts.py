"""A Spark standalone cluster on hosts of their own, each with its own Python environment, and applications on it."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pyspark

from pyspark_kafka_meta.kafka.network.sockets import within
from tests.cluster.hosts import EMPTY, Host
from tests.kafka.cluster_tools import poll_until

MASTER, DRIVER = "master", "driver"
WORKERS = ("worker-1", "worker-2", "worker-3")
URL = f"spark://{MASTER}:7077"
STATE = f"http://{MASTER}:8080/json/"
HOME = Path(pyspark.__path__[0])
PYTHON = "/mnt/environment/bin/python"
"""Of each host, with the package and without pyspark, which Spark brings along."""
MASTER_CLASS, WORKER_CLASS = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"
EXECUTOR_CLASS = "CoarseGrainedExecutorBackend"
END_TIMEOUT_S = 60
SETTINGS = {
    "spark.master": URL,
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
    "spark.local.dir": "/mnt",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": str(len(WORKERS)),
}
DAEMON = {
    "SPARK_DAEMON_MEMORY": "256m",
    # A new master takes over workers and applications of a killed one.
    "SPARK_DAEMON_JAVA_OPTS": "-Dspark.deploy.recoveryMode=FILESYSTEM -Dspark.deploy.recoveryDirectory=/mnt/recovery",
}


class SparkHosts:
    """Master and workers, on the hosts with their names."""

    def __init__(self, hosts: Mapping[str, Host], folder: Path) -> None:
        """
        Args:
            folder: of logs and settings. All hosts see it.
        """
        self.hosts, self._folder = hosts, folder
        # No SPARK_CONF_DIR: Java takes an archive of classes only for the class path that it was made with.
        self._settings = folder / "spark.properties"
        self._settings.write_text("".join(f"{name} {value}\n" for name, value in SETTINGS.items()))

    def start(self) -> None:
        """Start all daemons, and wait for them."""
        self.start_master()
        for name in WORKERS:
            self.start_worker(name)
        self.wait_for_workers()

    def start_master(self) -> None:
        self._start_daemon(MASTER, MASTER_CLASS, "--port", "7077", "--webui-port", "8080")
        poll_until(self.state, timeout_s=240)

    def start_worker(self, name: str) -> None:
        self._start_daemon(name, WORKER_CLASS, "--cores", "1", "--memory", "1g", "--work-dir", "/mnt/work", URL)

    def wait_for_workers(self) -> None:
        poll_until(lambda: self.live_workers() == set(WORKERS), timeout_s=240)

    def live_workers(self) -> set[str]:
        return {worker["host"] for worker in self.state().get("workers", ()) if worker["state"] == "ALIVE"}

    def state(self) -> dict[str, Any]:
        """What the master says of itself; nothing if it does not respond, or responds with a page, as it starts."""
        try:
            with urlopen(STATE, timeout=5) as response:
                return dict(json.load(response))
        except (OSError, json.JSONDecodeError):
            return {}

    def submit(self, *arguments: str, timeout_s: float, python: str = PYTHON) -> subprocess.CompletedProcess[str]:
        """The result of spark-submit on the driver's host."""
        command = (str(HOME / "bin" / "spark-submit"), "--properties-file", str(self._settings), *arguments)
        return self.hosts[DRIVER].run(*command, timeout_s=timeout_s, environment=self._environment(DRIVER, python))

    def run(self, *arguments: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
        """The result of Python on the driver's host."""
        return self.hosts[DRIVER].run(
            PYTHON, *arguments, timeout_s=timeout_s, environment=self._environment(DRIVER, PYTHON)
        )

    def open(self, program: Path, settings: Mapping[str, str] = EMPTY) -> Application:
        """Start a program on the driver's host, with these settings of Spark."""
        log = self._folder / f"{program.stem}.log"
        environment = self._environment(DRIVER, PYTHON, settings)
        return Application(self.hosts[DRIVER].start([PYTHON, str(program)], log, environment, pipes=True), log)

    def _start_daemon(self, host: str, name: str, *arguments: str) -> None:
        command = [str(HOME / "bin" / "spark-class"), name, "--host", host, *arguments]
        self.hosts[host].start(command, self._folder / f"{host}.log", self._environment(host, PYTHON) | DAEMON)

    def _environment(self, host: str, python: str, settings: Mapping[str, str] = EMPTY) -> dict[str, str]:
        libraries = (HOME / "python" / "lib").glob("*.zip")
        given = [f"--conf {name}={value}" for name, value in settings.items()]
        return {
            "SPARK_HOME": str(HOME),
            "PYSPARK_SUBMIT_ARGS": " ".join(["--properties-file", str(self._settings), *given, "pyspark-shell"]),
            "SPARK_LOCAL_HOSTNAME": host,
            "PYSPARK_PYTHON": python,
            "PYTHONPATH": ":".join(map(str, libraries)),
        }


class Application:
    """`cluster_application.py` as a process on the driver's host."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process, self._log = process, log

    @property
    def log(self) -> str:
        return self._log.read_text()

    def call(self, function: str, *arguments: object, timeout_s: float = 240) -> Any:
        """What a function of the application returns. AssertionError with the error's text if it raises one."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([function, *arguments]) + "\n")
        self._process.stdin.flush()
        line = within(time.monotonic() + timeout_s, self._process.stdout.readline)
        assert line, self.log[-5000:]
        reply = json.loads(line)
        assert "error" not in reply, reply["error"]
        return reply["result"]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_TIMEOUT_S)
        finally:
            self._process.kill()
