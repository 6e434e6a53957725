"""The Spark application of `benchmarks.exactly_once_soak`: a stream from topic to topic that writes exactly once.

    python -m benchmarks.exactly_once_query FOLDER RUN

FOLDER/query.json has its `Query`, RUN its `Run`. It prints `begun` once the stream runs, and ends when its standard
input ends, or when it has written all records that were there at its start.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.processes import kill_session
from benchmarks.stepped_sink import SteppedSource
from tests.kafka.cluster_tools import poll_until
from tests.spark.standalone import BOTH_WORKERS, EAGER_SPECULATION

ROOT = Path(__file__).parent.parent
LOCAL = "local[2,4]"
"""Tasks may fail three times."""
TASKS = 4
BEGUN = "begun\n"
END_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Query:
    """What all runs of the stream have in common.

    Attributes:
        pauses: the probability that task 0 pauses for `pause_s`; see `stepped_sink`.
    """

    bootstrap_servers: str
    source: str
    target: str
    transactional_id: str
    transaction_timeout_ms: int
    master: str = LOCAL
    pauses: float = 0.0
    pause_s: float = 4.0

    @property
    def decisions_topic(self) -> str:
        return f"{self.target}-decisions"


class Run:
    """A run of the stream in a session of its own, with its JVM and Python processes."""

    def __init__(self, folder: Path, query: Query, *, available_now: bool = False) -> None:
        """
        Args:
            folder: with the checkpoint, and all files of killed processes.
            available_now: whether it ends by itself.
        """
        (folder / "query.json").write_text(json.dumps(asdict(query)))
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        java = f"-Djava.io.tmpdir={folder} -XX:-UsePerfData"
        environment = {
            **os.environ,
            "PYTHONPATH": path,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TMPDIR": str(folder),
            "JAVA_TOOL_OPTIONS": java,
        }
        self._log = folder / "spark.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.exactly_once_query", str(folder), str(int(available_now))],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def wait_until_begun(self) -> bool:
        """False if it has ended."""
        assert self._process.stdout is not None
        return self._process.stdout.readline() == BEGUN

    def ends_within(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self) -> None:
        """Stop the query as a user would, within a micro-batch or not, and wait for the end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(END_TIMEOUT_S)

    def kill(self) -> None:
        """Kill the whole session at once, as the end of a machine or container would."""
        poll_until(lambda: not kill_session(self._process.pid))
        self._process.wait(END_TIMEOUT_S)

    def close(self) -> None:
        """Leave no process and no pipe."""
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")


@contextmanager
def running(folder: Path, query: Query, *, available_now: bool = False) -> Iterator[Run]:
    run = Run(folder, query, available_now=available_now)
    try:
        yield run
    finally:
        run.close()


def committed(folder: Path) -> int:
    """The number of micro-batches that Spark has committed in its checkpoint."""
    return sum(file.name.isdecimal() for file in (folder / "state" / "commits").glob("*"))


def start(spark: SparkSession, query: Query, folder: Path, **trigger: Any) -> StreamingQuery:
    source = {
        "kafka.bootstrap.servers": query.bootstrap_servers,
        "subscribe": query.source,
        "startingOffsets": "earliest",
        "eventsPath": str(folder / "events"),
    }
    sink = {
        "kafka.bootstrap.servers": query.bootstrap_servers,
        "topic": query.target,
        "kafka.transactional.id": query.transactional_id,
        "kafka.transaction.timeout.ms": str(query.transaction_timeout_ms),
        "decisionsTopic": query.decisions_topic,
        "checkpointLocation": str(folder / "state"),
        "eventsPath": str(folder / "events"),
        "folder": str(folder),
        "pauses": str(query.pauses),
        "pause_s": str(query.pause_s),
    }
    rows = spark.readStream.format("kafkameta").options(**source).load().select("key", "value")
    rows = rows.repartition(TASKS, "key")  # keeps the order of each key, which one task has read
    return rows.writeStream.format(SteppedSource.name()).options(**sink).trigger(**trigger).start()


def stop_at_end_of_input(query: StreamingQuery) -> None:
    sys.stdin.read()
    query.stop()


def main(folder: Path, available_now: bool) -> None:
    query = Query(**json.loads((folder / "query.json").read_text()))
    settings: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.local.dir": str(folder / "spark"),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100",  # a task that pauses has written rows
    }
    if query.master != LOCAL:
        settings |= {**EAGER_SPECULATION, **BOTH_WORKERS}
    spark = SparkSession.builder.master(query.master).config(map=settings).getOrCreate()
    spark.dataSource.register(SteppedSource)
    trigger: dict[str, Any] = {"availableNow": True} if available_now else {"processingTime": "0 seconds"}
    stream = start(spark, query, folder, **trigger)
    sys.stdout.write(BEGUN)
    sys.stdout.flush()
    threading.Thread(target=stop_at_end_of_input, args=[stream], daemon=True).start()
    stream.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), bool(int(sys.argv[2])))
