"""Measures the parts of a micro-batch, and the delay of a record from its topic to another.

    python -m benchmarks.latency_parts [--batches 1000] [--rounds 5] [--json FILE] [PIPELINE ...]

A thousand records a second arrive in 6 partitions. Pipelines take turns, without a trigger interval, from the latest
offsets on. Times of Spark are those of its progress reports and of its event log, times of Python those of the calls
that `benchmarks.timed_source` records. Micro-batches count from the end of a turn's warm-up on.

The delay of a record is from its send time until a consumer with read_committed has it: another process, which reads
the topic that is written. Real-Time Mode has no micro-batches of such a length, only delays. It needs a task slot for
each partition, hence a session of its own.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import tempfile
import time
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from itertools import chain
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Consumer
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from benchmarks.harness import argument_parser, brokers, report, spark_session
from benchmarks.peers import TUNED_JVM, take_turns
from benchmarks.spans import FOLDER, Span, recorded
from benchmarks.timed_source import READY_ROWS, IdleSource, TimedSource
from benchmarks.topics import new_topic, trickle

PARTITIONS = 6
RECORDS_PER_S = 1_000
WARM_UP_BATCHES = 20
"""Of each pipeline before the first turn that counts: Spark's JVM compiles what they have in common."""
WARM_UP_S = 8.0
"""Of each turn."""
POLL_S = 0.5
TURN_TIMEOUT_S = 600.0
REAL_TIME_S = 40.0
CONSUMER_POLL_S = 0.2

OUTER = ("latestOffset", "partitions", "writer made", "sink commit", "read", "write")
"""Spans of calls by Spark. Spans within one have its name before their own."""


class Pipeline(NamedTuple):
    """A query: formats and options of its source and its sink.

    Attributes:
        settings: of Spark, while it runs.
        delivers: whether what it reads comes to the topic that it writes.
    """

    name: str
    source: str
    sink: str
    source_options: Mapping[str, str] = {}
    sink_options: Mapping[str, str] = {}
    trigger: Mapping[str, str] = {"processingTime": "0 seconds"}
    settings: Mapping[str, str] = {}

    @property
    def delivers(self) -> bool:
        return self.source in KAFKA and self.sink in KAFKA


KAFKA = ("kafka", "timed")
RATE = {"rowsPerBatch": str(READY_ROWS), "numPartitions": "1"}
PIPELINES = (
    Pipeline("rows of the JVM, noop sink", "rate-micro-batch", "noop", RATE),
    Pipeline("rows of Python, noop sink", "idle", "noop"),
    Pipeline("rows of Python, sink in Python", "idle", "idle"),
    Pipeline("kafkameta, noop sink", "timed", "noop"),
    Pipeline("rows of the JVM, kafkameta", "rate-micro-batch", "timed", RATE),
    Pipeline("kafkameta", "timed", "timed"),
    Pipeline("kafkameta, exactly once", "timed", "timed", {}, {"kafka.transactional.id": "parts"}),
    Pipeline("JVM source and sink, defaults", "kafka", "kafka"),
    Pipeline("JVM source, tuned, and sink, defaults", TUNED_JVM.source, "kafka", TUNED_JVM.options),
)
FEWER_PROCESSES = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    )
}
"""Without Hadoop's native library, a new file of a checkpoint in a local file system costs several processes, such as
`chmod` and `stat`: Hadoop's FileContext, which Spark prefers, starts more of them than its FileSystem."""
FASTER_CHECKPOINTS = tuple(
    each._replace(name=f"{each.name}, FileSystem checkpoint", settings=FEWER_PROCESSES)
    for each in PIPELINES
    if each.sink in KAFKA or each is PIPELINES[0]
)
REAL_TIME = Pipeline("Real-Time Mode, JVM", "kafka", "kafka", trigger={"realTime": "5 minutes"})


class Turn(NamedTuple):
    """A query that ran.

    Attributes:
        counted_from_ms: since 1970; the end of its warm-up.
        delays_ms: of the records that were sent after the warm-up; none if it delivers nothing.
    """

    run_id: str
    counted_from_ms: float
    delays_ms: Sequence[float] = ()


class Batch(NamedTuple):
    """A micro-batch, with what happened in it: intervals in ms since 1970."""

    start_ms: float
    end_ms: float
    duration_ms: Mapping[str, float]
    job: tuple[float, float]
    tasks: tuple[float, float]


class Part(NamedTuple):
    """How long something took in a micro-batch, and when it began, in ms since the micro-batch did."""

    start_ms: float
    ms: float


# --- queries ----------------------------------------------------------------------------------------------------------


def turn(spark: SparkSession, servers: str, topics: tuple[str, str], batches: int, pipeline: Pipeline) -> Turn:
    """Run a query until this many micro-batches have ended after its warm-up, or, of Real-Time Mode, for some time.

    Raises:
        TimeoutError: they did not end in time.
    """
    source, target = topics
    kafka = {"kafka.bootstrap.servers": servers}
    for name in FEWER_PROCESSES:
        spark.conf.unset(name)
    for name, value in pipeline.settings.items():
        spark.conf.set(name, value)
    rows = spark.readStream.format(pipeline.source).options(**kafka, subscribe=source, **pipeline.source_options).load()
    has_key = "key" in rows.columns
    rows = rows.selectExpr(f"CAST({'key' if has_key else 'NULL'} AS STRING) key", "CAST(value AS STRING) value")
    mode = "update" if "realTime" in pipeline.trigger else "append"
    with tempfile.TemporaryDirectory() as checkpoint, delays(servers, target, pipeline.delivers) as watched:
        writer = rows.writeStream.format(pipeline.sink).options(**kafka, topic=target, **pipeline.sink_options)
        writer = writer.option("checkpointLocation", checkpoint).outputMode(mode)
        query, started = writer.trigger(**pipeline.trigger).start(), time.monotonic()
        try:
            first: int | None = None
            counted_from_ms = math.inf
            while time.monotonic() < started + TURN_TIMEOUT_S:
                time.sleep(POLL_S)
                if (error := query.exception()) is not None:
                    raise error
                passed_s, last = time.monotonic() - started, query.lastProgress
                if first is None and passed_s > WARM_UP_S and (last or mode == "update"):
                    first, counted_from_ms = last.batchId if last else 0, time.time() * 1000
                if "realTime" in pipeline.trigger:
                    is_done = passed_s > WARM_UP_S + REAL_TIME_S
                else:
                    is_done = first is not None and last is not None and last.batchId > first + batches
                if is_done:
                    late = watched(counted_from_ms)
                    return Turn(str(query.runId), counted_from_ms, late)
            raise TimeoutError(f"{pipeline.name} did not run {batches} micro-batches")
        finally:
            query.stop()


@contextmanager
def suppress_refusal() -> Iterator[None]:
    """Print why Real-Time Mode does not run: it needs the connector of a release that has it."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        print(f"{REAL_TIME.name}: {error}")


@contextmanager
def delays(servers: str, topic: str, delivers: bool) -> Iterator[Any]:
    """Inside `with`, a process reads the topic. Yields a function: the delays, in ms, of records sent after a time."""
    if not delivers:
        yield lambda _: ()
        return
    parent, child = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=_consume, args=(servers, topic, child), daemon=True)
    process.start()
    if not parent.poll(30):
        raise TimeoutError("the consumer has no partitions")
    parent.recv()

    def late(counted_from_ms: float) -> list[float]:
        parent.send(counted_from_ms)
        found: list[float] = parent.recv()
        return found

    try:
        yield late
    finally:
        process.kill()
        process.join()


def _consume(servers: str, topic: str, parent: Connection) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"parts-{os.getpid()}",
            "isolation.level": "read_committed",
            "auto.offset.reset": "latest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
            "log_level": 0,
        }
    )
    consumer.subscribe([topic], on_assign=lambda *_: parent.send("assigned"))
    arrived: list[tuple[float, float]] = []
    while not parent.poll():
        message = consumer.poll(CONSUMER_POLL_S)
        value = None if message is None or message.error() else message.value()
        if value is not None:
            arrived.append((float(value), time.time()))
    counted_from_s = parent.recv() / 1000
    parent.send([(at - sent) * 1000 for sent, at in arrived if sent >= counted_from_s])
    consumer.close()


# --- what Spark logged ------------------------------------------------------------------------------------------------


def batches_of_runs(folder: Path) -> dict[str, list[Batch]]:
    """The micro-batches in Spark's event logs, by the run of their query."""
    jobs: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    tasks: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    started: dict[int, tuple[tuple[str, str], float]] = {}
    of_stage: dict[int, tuple[str, str]] = {}
    progress: list[dict[str, Any]] = []
    for line in chain.from_iterable(log.open() for log in folder.iterdir()):
        event = json.loads(line)
        match event["Event"]:
            case "SparkListenerJobStart":
                properties = event["Properties"]
                key = (properties.get("sql.streaming.queryId", ""), properties.get("streaming.sql.batchId", ""))
                started[event["Job ID"]] = key, event["Submission Time"]
                of_stage |= dict.fromkeys(event["Stage IDs"], key)
            case "SparkListenerJobEnd":
                key, at = started[event["Job ID"]]
                jobs[key].append((at, event["Completion Time"]))
            case "SparkListenerTaskEnd":
                info = event["Task Info"]
                tasks[of_stage[event["Stage ID"]]].append((info["Launch Time"], info["Finish Time"]))
            case name if name.endswith("QueryProgressEvent"):
                progress.append(event["progress"])
    runs: dict[str, list[Batch]] = defaultdict(list)
    for each in progress:
        key = (each["id"], str(each["batchId"]))
        if key in jobs:
            start_ms = datetime.fromisoformat(each["timestamp"]).timestamp() * 1000
            durations = each["durationMs"]
            end_ms = start_ms + durations["triggerExecution"]
            runs[each["runId"]].append(Batch(start_ms, end_ms, durations, _around(jobs[key]), _around(tasks[key])))
    return runs


def _around(intervals: Iterable[tuple[float, float]]) -> tuple[float, float]:
    starts, ends = zip(*intervals, strict=True)
    return min(starts), max(ends)


# --- parts ------------------------------------------------------------------------------------------------------------


def parts(batch: Batch, spans: Sequence[Span]) -> dict[str, Part]:
    """The parts of one micro-batch by name. Parts overlap: Spark's contain Python's, and source and sink run at the
    same time."""
    found = {name: (at, at + ms) for name, at, ms in _driver_parts(batch)}
    found["addBatch: job"] = batch.job
    found["addBatch: task"] = batch.tasks
    spent = {name: end - start for name, (start, end) in found.items()}
    for each, name in zip(spans, named(spans), strict=True):
        start, end = found.get(name, (each.start_ms, each.end_ms))
        found[name] = min(start, each.start_ms), max(end, each.end_ms)
        spent[name] = spent.get(name, 0.0) + each.end_ms - each.start_ms
    for name, (start_of, at), (end_of, until) in GAPS:
        if start_of in found and end_of in found:
            gap = found[start_of][at], found[end_of][until]
            found[name], spent[name] = gap, gap[1] - gap[0]
    return {name: Part(start - batch.start_ms, spent[name]) for name, (start, _) in found.items()}


START, END = 0, 1
WHOLE = "micro-batch"
GAPS = (
    ("addBatch: before the job", ("addBatch", START), ("addBatch: job", START)),
    ("task: until the reader", ("addBatch: task", START), ("reader unpickled", END)),
    ("task: until the writer", ("addBatch: task", START), ("writer unpickled", END)),
    ("task: rows from source to sink", ("read: first rows", END), ("write: first rows", END)),
    ("task: end of rows from source to sink", ("read", END), ("write: all rows", END)),
    ("task: after the sink", ("write", END), ("addBatch: task", END)),
    ("task: after the source", ("read", END), ("addBatch: task", END)),
    ("addBatch: after the job", ("addBatch: job", END), ("addBatch", END)),
    ("addBatch: from the job to the commit", ("addBatch: job", END), ("sink commit", START)),
    ("addBatch: after the commit", ("sink commit", END), ("addBatch", END)),
)
"""Parts between the start or end of two others: what Spark does, and processes that wait for a core."""


def _driver_parts(batch: Batch) -> Iterator[tuple[str, float, float]]:
    """Name, start and length of what Spark reports: one after the other from the start, the last ones from the end."""
    at = batch.start_ms
    for name in ("latestOffset", "walCommit", "getBatch", "queryPlanning"):
        ms = batch.duration_ms.get(name, 0)
        yield f"Spark: {name}", at, ms
        at += ms
    at = batch.end_ms - batch.duration_ms["commitOffsets"]
    yield "Spark: commitOffsets", at, batch.duration_ms["commitOffsets"]
    yield "addBatch", at - batch.duration_ms["addBatch"], batch.duration_ms["addBatch"]
    yield WHOLE, batch.start_ms, batch.duration_ms["triggerExecution"]


def named(spans: Sequence[Span]) -> list[str]:
    """The names of spans, each after that of the call by Spark that it lies in."""
    outer = [each for each in spans if each.name in OUTER]
    return [
        next((f"{call.name}: {each.name}" for call in outer if _is_within(each, call)), each.name) for each in spans
    ]


def _is_within(inner: Span, outer: Span) -> bool:
    is_other = inner is not outer and inner.process == outer.process and ":" not in inner.name
    return is_other and outer.start_ms <= inner.start_ms and inner.end_ms <= outer.end_ms


def part_rows(turns: Mapping[str, Sequence[Turn]], runs: Mapping[str, Sequence[Batch]], spans: Sequence[Span]) -> Rows:
    starts = [each.start_ms for each in spans]
    rows: Rows = []
    for name, taken in turns.items():
        counted = [batch for each in taken for batch in runs[each.run_id] if batch.start_ms >= each.counted_from_ms]
        found: dict[str, list[Part]] = defaultdict(list)
        for batch in counted:
            own = spans[bisect_left(starts, batch.start_ms - 1) : bisect_right(starts, batch.end_ms)]
            for part_name, part in parts(batch, own).items():
                found[part_name].append(part)
        rows += sorted(
            (part_row(name, part_name, len(counted), each) for part_name, each in found.items()),
            key=lambda row: (row["start_p50_ms"], -row["p50_ms"]),
        )
    return rows


def part_row(pipeline: str, name: str, batches: int, found: Sequence[Part]) -> dict[str, Any]:
    return {
        "case": WHOLE if name == WHOLE else "part",
        "pipeline": pipeline,
        "part": name,
        "batches": batches,
        "share": round(len(found) / batches, 2),
        "start_p50_ms": round(statistics.median(part.start_ms for part in found), 1),
        **percentiles([part.ms for part in found], 1),
    }


def percentiles(times: Sequence[float], digits: int = 0) -> dict[str, float]:
    hundredths = statistics.quantiles(times, n=100, method="inclusive") if len(times) > 1 else [times[0]] * 99
    return {f"p{at}_ms": round(hundredths[at - 1], digits or None) for at in (50, 95, 99)}


Rows = list[dict[str, Any]]


def main() -> None:
    every = (*PIPELINES, *FASTER_CHECKPOINTS, REAL_TIME)
    parser = argument_parser(__doc__, batches=1000, rounds=5)
    names = [pipeline.name for pipeline in every]
    parser.add_argument("pipelines", nargs="*", default=names, metavar="PIPELINE", help=f"default: {names}")
    arguments = parser.parse_args()
    chosen = [pipeline for pipeline in every if pipeline.name in arguments.pipelines]
    each = math.ceil(arguments.batches / arguments.rounds)
    with brokers() as servers, tempfile.TemporaryDirectory() as folder:
        spans, log = Path(folder, "spans"), Path(folder, "log")
        spans.mkdir()
        log.mkdir()
        os.environ[FOLDER] = str(spans)
        topics = new_topic(servers, "source", PARTITIONS), new_topic(servers, "target", PARTITIONS)
        logged = {
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.rolling.enabled": "false",
            "spark.eventLog.dir": log.as_uri(),
        }
        with trickle(servers, topics[0], PARTITIONS, RECORDS_PER_S):
            with spark_session(settings=logged) as spark:
                spark.dataSource.register(TimedSource)
                spark.dataSource.register(IdleSource)
                in_micro_batches = [pipeline for pipeline in chosen if pipeline is not REAL_TIME]
                take_turns(in_micro_batches, 1, partial(turn, spark, servers, topics, WARM_UP_BATCHES), 0)
                run = partial(turn, spark, servers, topics, each)
                turns = take_turns(in_micro_batches, arguments.rounds, run, warm_up_rounds=0)
            if REAL_TIME in chosen:
                with spark_session(f"local[{PARTITIONS + 2}]") as spark, suppress_refusal():
                    turns[REAL_TIME.name] = [turn(spark, servers, topics, 0, REAL_TIME)]
        micro_batches = {name: taken for name, taken in turns.items() if name != REAL_TIME.name}
        rows = part_rows(micro_batches, batches_of_runs(log), recorded(spans))
    totals = [row for row in rows if row["case"] == WHOLE]
    delayed = delay_rows(turns)
    if totals:
        report("Parts of a micro-batch", rows, None)
        report("Milliseconds a micro-batch", totals, None)
    if delayed:
        report("Milliseconds from the sending of a record to its arrival in the other topic", delayed, None)
    if arguments.json:
        arguments.json.write_text(json.dumps([*rows, *delayed], indent=2))


def delay_rows(turns: Mapping[str, Sequence[Turn]]) -> Rows:
    found = {name: list(chain.from_iterable(each.delays_ms for each in taken)) for name, taken in turns.items()}
    return [
        {"case": "delay", "pipeline": name, "records": len(late), **percentiles(late)}
        for name, late in found.items()
        if late
    ]


if __name__ == "__main__":
    main()
