"""How much memory a Python worker takes at its peak, whatever the topic holds.

    python -m benchmarks.memory [--megabytes 2000] [--json FILE]

One core, so that one worker reads all: 200 B records, 10 million of them with the default size, and of 5 MB, from
one partition and from 60. Each case has its own Spark session, whose workers live on after their task: `VmHWM` is their
peak. "Idle" is a worker after a single ready row, with all its imports. Keys are distinct numbers as text, all of which
the table `latest` keeps.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks.harness import argument_parser, brokers, report, spark_session
from benchmarks.peers import CONSUME, OURS, Reader, ceiling, register
from benchmarks.processes import worker_peak_mb
from benchmarks.topics import MAX_RECORD_BYTES, fill, new_topic

ONE_CORE = "local[1]"
LATEST = OURS._replace(name="kafkameta, table latest", options={"table": "latest"})
TUNED = OURS._replace(name="kafkameta, 16 MB fetches", options={"kafka.fetch.max.bytes": str(16 << 20)})


@dataclass(frozen=True)
class Case:
    value_bytes: int
    partitions: int
    codec: str = "none"
    readers: tuple[Reader, ...] = (OURS, TUNED, CONSUME)


CASES = (
    Case(200, 1, readers=(OURS, TUNED, CONSUME, LATEST)),
    Case(200, 60),
    Case(200, 60, "lz4"),
    Case(5_000_000, 1),
    Case(5_000_000, 60),
)


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
            for reader in case.readers:
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
