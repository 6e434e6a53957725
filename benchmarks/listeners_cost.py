"""Measures what listeners of streaming queries cost: traces, lineage, log lines, and a listener of PySpark that does
nothing.

    python -m benchmarks.listeners_cost [--records 3000000] [--batches 12] [--rounds 8] [--seconds 10]
                                        [--json FILE] [LISTENER ...]

All take turns in one Spark session. At full speed a query reads a topic in micro-batches of equal size, and its time
counts. At 1,000 records a second micro-batches follow each other without a pause, and the CPU time counts that Spark
takes for `--seconds`, driver and workers together. A collector of traces and lineage is another process. Ten listeners
of a kind listen at once, and a tenth of what they cost is the figure: so the noise of a machine, which is some percent,
is a tenth too.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from openlineage.client import OpenLineageClient
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.listener import StreamingQueryListener

import pyspark_kafka_meta as kafkameta
from benchmarks.harness import argument_parser, brokers, report, spark_session
from benchmarks.peers import OURS, take_turns
from benchmarks.processes import cpu_s
from benchmarks.topics import fill, new_topic, trickle

PARTITIONS = 6
VALUE_BYTES = 200
RECORDS_PER_S = 1_000
WARM_UP_BATCHES = 10
POLL_S = 0.1
AT_ONCE = 10


class Idle(StreamingQueryListener):
    """Does nothing; PySpark makes objects of all events."""

    def onQueryStarted(self, event: Any) -> None: ...  # noqa: N802

    def onQueryProgress(self, event: Any) -> None: ...  # noqa: N802

    def onQueryTerminated(self, event: Any) -> None: ...  # noqa: N802


class Listening(NamedTuple):
    name: str
    listener: Callable[[], StreamingQueryListener] | None


class Turn(NamedTuple):
    seconds: float
    cpu_s: float


class Collector(BaseHTTPRequestHandler):
    """Takes whatever is sent."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


def _collect(parent: Connection) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    parent.send(server.server_port)
    server.serve_forever()


@contextmanager
def collector() -> Iterator[str]:
    """The address of a collector in another process."""
    parent, child = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_collect, args=(child,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{parent.recv()}"
    finally:
        process.kill()


def listeners(spark: SparkSession, url: str) -> list[Listening]:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{url}/v1/traces")))
    lineage = OpenLineageClient(config={"transport": {"type": "http", "url": url}})
    return [
        OFF,
        Listening("none again", None),
        Listening("PySpark's own", Idle),
        Listening("QueryListener", kafkameta.QueryListener),
        Listening("TraceListener", lambda: kafkameta.TraceListener(spark, provider)),
        Listening("LineageListener", lambda: kafkameta.LineageListener(spark, lineage)),
    ]


OFF = Listening("none", None)


@contextmanager
def listening(spark: SparkSession, given: Listening) -> Iterator[None]:
    added = [] if given.listener is None else [given.listener() for _ in range(AT_ONCE)]
    for listener in added:
        spark.streams.addListener(listener)
    yield
    for listener in added:
        spark.streams.removeListener(listener)


def used_cpu_s() -> float:
    """CPU seconds of driver, JVM and workers so far."""
    of_spark = cpu_s()
    return time.process_time() + of_spark["spark_jvm"] + of_spark["python_workers"]


def at_full_speed(spark: SparkSession, servers: str, topic: str, per_batch: int, given: Listening) -> Turn:
    """Reads the topic to its end."""
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(per_batch)}
    rows = OURS._replace(options=options).read_stream(spark, servers, topic)
    with tempfile.TemporaryDirectory() as checkpoint, listening(spark, given):
        query = rows.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(availableNow=True)
        began_s, began_cpu_s = time.monotonic(), used_cpu_s()
        query.start().awaitTermination()
        return Turn(time.monotonic() - began_s, used_cpu_s() - began_cpu_s)


def at_a_rate(spark: SparkSession, servers: str, topic: str, seconds: float, given: Listening) -> Turn:
    """Reads what arrives."""
    rows = OURS.read_stream(spark, servers, topic)
    with tempfile.TemporaryDirectory() as checkpoint, listening(spark, given):
        query = rows.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
        while last_batch(query) < WARM_UP_BATCHES:
            time.sleep(POLL_S)
        first, began_s, began_cpu_s = last_batch(query), time.monotonic(), used_cpu_s()
        time.sleep(seconds)
        batches = last_batch(query) - first
        taken_s, taken_cpu_s = time.monotonic() - began_s, used_cpu_s() - began_cpu_s
        query.stop()
    return Turn(taken_s / batches, taken_cpu_s / batches)


def last_batch(query: StreamingQuery) -> int:
    """The id of the last finished micro-batch; -1 without one."""
    progress: Any = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])


def result_row(case: str, name: str, taken: Sequence[Turn], without: Sequence[Turn]) -> dict[str, object]:
    """Ratios are of one listener, to the turns without a listener in the same rounds."""
    row: dict[str, object] = {"case": case, "listener": name}
    for field in Turn._fields:
        figures = [getattr(turn, field) for turn in taken]
        bases = [getattr(turn, field) for turn in without]
        ratios = [1 + (figure / base - 1) / AT_ONCE for figure, base in zip(figures, bases, strict=True)]
        row |= {
            f"median_{field}": round(statistics.median(figures), 4),
            f"{field}_ratio": round(statistics.fmean(ratios), 4),
            f"{field}_standard_error": round(statistics.stdev(ratios) / len(ratios) ** 0.5, 4),
        }
    return row


def main() -> None:
    parser = argument_parser(__doc__, records=3_000_000, batches=12, rounds=8, seconds=10)
    parser.add_argument("listeners", nargs="*", metavar="LISTENER", help="names as in the results; default: all")
    arguments = parser.parse_args()
    cases, rows = {}, []
    with brokers() as servers, spark_session() as spark, collector() as url:
        full, trickling = (new_topic(servers, purpose, PARTITIONS) for purpose in ("full", "trickling"))
        fill(servers, full, PARTITIONS, arguments.records, VALUE_BYTES, "lz4")
        per_batch = arguments.records // arguments.batches
        compared, rounds = listeners(spark, url), arguments.rounds
        compared = [each for each in compared if each is OFF or each.name in (arguments.listeners or [each.name])]
        cases["full speed"] = take_turns(compared, rounds, partial(at_full_speed, spark, servers, full, per_batch))
        with trickle(servers, trickling, PARTITIONS, RECORDS_PER_S):
            turn = partial(at_a_rate, spark, servers, trickling, arguments.seconds)
            cases[f"{RECORDS_PER_S:,} records/s"] = take_turns(compared, rounds, turn)
    for case, turns in cases.items():
        rows += [result_row(case, name, taken, turns[OFF.name]) for name, taken in turns.items()]
    report("Seconds of a query at full speed, of a micro-batch at a rate, with ten listeners", rows, arguments.json)


if __name__ == "__main__":
    main()
