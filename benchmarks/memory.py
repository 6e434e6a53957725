"""How much memory a Python worker takes at its peak, whatever the topic holds.

    python -m benchmarks.memory [--megabytes 2000] [--json FILE]

One core, so that one worker reads all: 200 B records, 10 million of them with the default size, and of 5 MB, from
one partition and from 60. Each case has a Spark session of its own, whose workers live on after their task: the kernel
tells their peak (`VmHWM`). "Idle" is a worker that has handed out a single ready-made row, with all that it imports.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import argument_parser, brokers, report, spark_session
from benchmarks.peers import CONSUME, OURS, Reader, ceiling, register
from benchmarks.topics import MAX_RECORD_BYTES, fill, new_topic

ONE_CORE = "local[1]"
TUNED = OURS._replace(name="kafkameta, 16 MB fetches", options={"kafka.fetch.max.bytes": str(16 << 20)})


@dataclass(frozen=True)
class Case:
    value_bytes: int
    partitions: int
    codec: str = "none"


CASES = (Case(200, 1), Case(200, 60), Case(200, 60, "lz4"), Case(5_000_000, 1), Case(5_000_000, 60))


def worker_peak_mb() -> float:
    """Of the Python worker of this process's Spark that took most memory."""
    return max((_peak_mb(pid) for pid in _descendants(os.getpid()) if _is_worker(pid)), default=0.0)


def _descendants(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, _read(task / "children").split()):
            yield child
            yield from _descendants(child)


def _is_worker(pid: int) -> bool:
    return "pyspark.daemon" in _read(Path(f"/proc/{pid}/cmdline"))  # forked from it, with its command line


def _peak_mb(pid: int) -> float:
    found = re.search(r"VmHWM:\s+(\d+) kB", _read(Path(f"/proc/{pid}/status")))
    return int(found.group(1)) / 1000 if found else 0.0


def _read(path: Path) -> str:
    """Nothing of a thread or process that has just ended."""
    try:
        return path.read_text()
    except OSError:
        return ""


def read_all(reader: Reader, bootstrap_servers: str, topic: str) -> tuple[float, float]:
    """Peak of the worker in MB, and seconds."""
    with spark_session(ONE_CORE) as spark:
        register(spark)
        began = time.monotonic()
        reader.read(spark, bootstrap_servers, topic).write.format("noop").mode("overwrite").save()
        return worker_peak_mb(), time.monotonic() - began


def main() -> None:
    arguments = argument_parser(__doc__, megabytes=2_000).parse_args()
    rows: list[dict[str, object]] = []
    idle_mb, _ = read_all(ceiling(1, 1, 1), "", "")
    with brokers() as bootstrap_servers:
        for case in CASES:
            config = {"max.message.bytes": str(MAX_RECORD_BYTES)}
            topic = new_topic(bootstrap_servers, "memory", case.partitions, replicas=1, config=config)
            records = arguments.megabytes * 1_000_000 // case.value_bytes
            fill(bootstrap_servers, topic, case.partitions, records, case.value_bytes, case.codec)
            for reader in (OURS, TUNED, CONSUME):
                peak_mb, seconds = read_all(reader, bootstrap_servers, topic)
                rows.append(
                    {
                        "records": f"{records:,} of {case.value_bytes:,} B, {case.codec}",
                        "partitions": case.partitions,
                        "reader": reader.name,
                        "peak_MB": round(peak_mb),
                        "more_than_idle_MB": round(peak_mb - idle_mb),
                        "seconds": round(seconds, 1),
                    }
                )
    report("Memory of a Python worker", rows, arguments.json)


if __name__ == "__main__":
    main()
