"""Memory and CPU time of the processes of a benchmark, and their violent ends (Linux)."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
KINDS = {"pyspark.daemon": "python_workers", "SparkSubmit": "spark_jvm"}
"""Part of a command line; workers are forked from the daemon, with its command line."""
if not os.environ.get("KAFKAMETA_BOOTSTRAP_SERVERS"):  # the processes of other brokers are unknown
    KINDS["kafka.Kafka"] = "brokers"
EXECUTOR = "CoarseGrainedExecutorBackend"
WORKER_DAEMON = "pyspark.daemon\0pyspark.worker"
_FIELDS_AFTER_NAME = re.compile(r"\) (.*)", re.DOTALL)
_USER_TICKS, _SYSTEM_TICKS = 11, 12  # of the fields after the name


def worker_peak_mb() -> float:
    """Largest peak memory of a Python worker of this process's Spark."""
    return max((_memory_mb(pid, "VmHWM") for pid, kind in _started() if kind == "python_workers"), default=0.0)


def resident_mb(part: str) -> float:
    """Memory of the descendant process with `part` in its command line; the largest of several."""
    pids = (pid for pid in _descendants(os.getpid()) if part in _read(Path(f"/proc/{pid}/cmdline")))
    return max((_memory_mb(pid, "VmRSS") for pid in pids), default=0.0)


def kill_workers() -> None:
    """Kill the Python workers of tasks of this process's Spark; their daemon forks new workers."""
    daemons = [pid for pid in _descendants(os.getpid()) if WORKER_DAEMON in _read(Path(f"/proc/{pid}/cmdline"))]
    for worker in (worker for daemon in daemons for worker in _children(daemon)):
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)


def kill_executors() -> None:
    """Kill the JVMs of this process's Spark executors: their Python workers end with them."""
    for pid in _descendants(os.getpid()):
        if EXECUTOR in _read(Path(f"/proc/{pid}/cmdline")):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def kill_session(session: int) -> list[int]:
    """Kill the processes of a session, and return their pids. The JVM is the first, because it starts workers, and this
    process the last."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        name, _, rest = _read(folder / "stat").rpartition(")")
        if rest:
            state, _, _, session_id = rest.split()[:4]
            if int(session_id) == session and state != "Z":
                pid = int(folder.name)
                found.append((pid == os.getpid(), not name.endswith("(java"), pid))
    for _, _, pid in sorted(found):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return [pid for _, _, pid in found]


def cpu_s() -> dict[str, float]:
    """CPU seconds so far, by kind."""
    taken = dict.fromkeys(KINDS.values(), 0.0)
    for pid, kind in _started():
        stat = _FIELDS_AFTER_NAME.search(_read(Path(f"/proc/{pid}/stat")))
        if stat:
            fields = stat.group(1).split()
            taken[kind] += (int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])) / TICKS_PER_S
    return taken


def _started() -> Iterator[tuple[int, str]]:
    for pid in _descendants(os.getpid()):
        command = _read(Path(f"/proc/{pid}/cmdline"))
        yield from ((pid, kind) for part, kind in KINDS.items() if part in command)


def _descendants(pid: int) -> Iterator[int]:
    for child in _children(pid):
        yield child
        yield from _descendants(child)


def _children(pid: int) -> Iterator[int]:
    with suppress(FileNotFoundError):  # it has ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            yield from map(int, _read(task / "children").split())


def _memory_mb(pid: int, field: str) -> float:
    match = re.search(rf"{field}:\s+(\d+) kB", _read(Path(f"/proc/{pid}/status")))
    return int(match.group(1)) / 1000 if match else 0.0


def _read(path: Path) -> str:
    """Empty if the thread or process has ended."""
    try:
        return path.read_text()
    except OSError:
        return ""
