"""One LocalKafka for all parallel workers of a test run: a process of its own, which the first worker that needs the
cluster starts, and which ends once the last worker has left.

Locks of files say who uses it, because the system releases those of a killed process too. The folder is the run's.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark_kafka_meta.testing import LocalKafka, kafka_node

ROOT = Path(__file__).parent.parent

CONFIG = {
    # Later than readers give up a broker that hangs.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    # Coordinators abort a transaction within a second of its timeout.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    # Fewer threads and metadata records than by default save CPU time while the cluster is idle.
    "num.io.threads": "2",
    "num.network.threads": "1",
    "background.threads": "2",
    "group.coordinator.threads": "1",
    "share.coordinator.threads": "1",
    "metadata.max.idle.interval.ms": "5000",
}
"""Of every LocalKafka that is not about its own settings."""


def take_own_ports() -> None:
    """Parallel workers that start clusters at the same time must not pick the same ports."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        workers = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        worker = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw")) % workers  # more, if workers crash
        kafka_node._candidates = (port for port in kafka_node._candidates if port % workers == worker)  # type: ignore[assignment]


@contextmanager
def shared_kafka(folder: Path) -> Iterator[str]:
    """The bootstrap servers of the cluster that all workers with this folder share. It runs at least inside `with`."""
    servers = folder / "kafka.servers"
    with _locked(folder / "kafka.users", fcntl.LOCK_SH):
        with _locked(folder / "kafka.start", fcntl.LOCK_EX):
            if not servers.exists():
                servers.write_text(_start(folder))
        yield servers.read_text()


def _start(folder: Path) -> str:
    """Start the process, and wait until all brokers are up."""
    command = [sys.executable, "-m", __name__, str(folder)]
    # In a session of its own: Ctrl-C must not end the brokers before the tests that use them.
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True
    )
    assert process.stdout is not None
    with process.stdout as output:
        servers = output.readline().strip()
    assert servers, "the cluster that all workers share did not start: see its error above"
    return servers


def serve(folder: Path) -> None:
    """Run the cluster, and print its servers, until no worker uses it."""
    take_own_ports()
    with LocalKafka(config=CONFIG) as kafka:
        print(kafka.bootstrap_servers, flush=True)  # noqa: T201
        with _locked(folder / "kafka.users", fcntl.LOCK_EX):
            (folder / "kafka.servers").unlink()  # who comes later starts another one


@contextmanager
def _locked(path: Path, mode: int) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, mode)
        yield


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
