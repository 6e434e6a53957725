"""Measures the time from the start of an application to its first row.

    python -m benchmarks.cold_start [--rounds 5] [--json FILE]

Each turn is a new process, timed from its start: it imports pyspark, creates a session and takes one row of a topic.
pip has installed this package, with `kafkameta-python`, into the Python that runs this.
Sources take turns. The jars of the JVM source are local files, and this source is installed: no turn resolves or
downloads packages. A Python source with ready rows shows Spark's own time for a source in Python.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from benchmarks.harness import argument_parser, brokers, installed_environment, report
from benchmarks.jvm_source import jvm_source_jars
from benchmarks.peers import JVM, OURS, Reader, ceiling, take_turns
from benchmarks.topics import fill, new_topic

PARTITIONS = 6
RECORDS = 6_000
VALUE_BYTES = 200
ROOT = Path(__file__).parent.parent
TURN_TIMEOUT_S = 180
FASTER = OURS._replace(name="kafkameta, kafkameta-python")
PROGRAM = """
import json, sys, time
from pyspark.sql import SparkSession
source, options, jars, began = sys.argv[1:]
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
if jars:
    builder = builder.config("spark.jars", jars)
spark = builder.getOrCreate()
ready = time.time()
if source == "ceiling":
    from benchmarks.ready_rows import CeilingSource
    spark.dataSource.register(CeilingSource)
rows = spark.read.format(source).options(**json.loads(options)).load()
assert len(rows.take(1)) == 1
print(json.dumps([ready - float(began), time.time() - ready]))
"""


def turn_s(bootstrap_servers: str, topic: str, reader: Reader) -> tuple[float, float]:
    """Seconds from the start of a process to its session, and from the session to the first row."""
    jars = ",".join(map(str, jvm_source_jars())) if reader is JVM else ""
    options = {"kafka.bootstrap.servers": bootstrap_servers, "subscribe": topic, **reader.options}
    environment = installed_environment(ROOT)
    if reader is FASTER:
        environment["PYSPARK_PYTHON"] = str(Path(sys.executable).with_name("kafkameta-python"))
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, reader.source, json.dumps(options), jars, str(time.time())],
        env=environment,
        capture_output=True,
        text=True,
        timeout=TURN_TIMEOUT_S,
        check=True,
    )
    session_s, row_s = json.loads(process.stdout.splitlines()[-1])
    return session_s, row_s


def main() -> None:
    arguments = argument_parser(__doc__, rounds=5).parse_args()
    readers = (OURS, FASTER, JVM, ceiling(PARTITIONS, RECORDS, VALUE_BYTES))
    with brokers() as bootstrap_servers:
        topic = new_topic(bootstrap_servers, "cold-start", PARTITIONS)
        fill(bootstrap_servers, topic, PARTITIONS, RECORDS, VALUE_BYTES)
        turns = take_turns(readers, arguments.rounds, partial(turn_s, bootstrap_servers, topic))
    totals = {name: statistics.median(map(sum, taken)) for name, taken in turns.items()}
    rows: list[dict[str, object]] = [
        {
            "reader": name,
            "session_s": round(statistics.median(session for session, _ in taken), 2),
            "first_row_s": round(statistics.median(row for _, row in taken), 2),
            "together_s": round(totals[name], 2),
            "times_the_JVM_source's": round(totals[name] / totals[JVM.name], 2),
        }
        for name, taken in turns.items()
    ]
    report(f"Seconds to the first row, {arguments.rounds} turns each", rows, arguments.json)


if __name__ == "__main__":
    main()
