"""A Spark standalone cluster with two workers at 127.0.0.1 and 127.0.0.2, which Spark treats as two hosts: it starts a
speculative copy of a task only on another host. Linux only."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from pyspark_kafka_meta.testing.kafka_node import free_ports
from tests.kafka.cluster_tools import poll_until

HOSTS = ("127.0.0.1", "127.0.0.2")
END_TIMEOUT_S = 30
EAGER_SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
}
BOTH_WORKERS = {
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
}
"""Of an application on the workers."""


@contextmanager
def standalone_spark(folder: Path) -> Iterator[str]:
    """The master's URL. Two workers of one core each are starting."""
    port, *web_ports = free_ports(4)
    master = f"spark://{HOSTS[0]}:{port}"
    with ExitStack() as started:
        started.enter_context(
            _daemon(folder, "master.Master", HOSTS[0], "--port", str(port), "--webui-port", str(web_ports[0]))
        )
        poll_until(lambda: _accepts(port))
        for host, web_port in zip(HOSTS, web_ports[1:], strict=True):
            limits = ("--cores", "1", "--memory", "1g", "--webui-port", str(web_port), "--work-dir", str(folder / host))
            started.enter_context(_daemon(folder, "worker.Worker", host, *limits, master))
        yield master


@contextmanager
def _daemon(folder: Path, name: str, host: str, *arguments: str) -> Iterator[None]:
    home = Path(pyspark.__path__[0])
    command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", "--host", host, *arguments]
    environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": host}
    with (
        (folder / f"{name}-{host}.log").open("w") as log,
        subprocess.Popen(command, stdout=log, stderr=log, env=environment) as process,
    ):
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(END_TIMEOUT_S)
            finally:
                process.kill()


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOSTS[0], port)) == 0
