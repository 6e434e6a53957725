"""Traces of streaming queries for OpenTelemetry: one trace for each micro-batch, made after it in the driver.

Durations of a micro-batch are in Spark's progress reports, its tasks in the status store of Spark's UI, and Metadata
requests, transactions and losses in the events of caches, which name their query, micro-batch and task. So executors
need neither OpenTelemetry nor a collector, and tasks do nothing for it. The driver computes for a few milliseconds for
each micro-batch, once a second for all that have finished since.

Names of attributes follow OpenTelemetry's semantic conventions for messaging where they have one.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.context import Context
from py4j.protocol import Py4JJavaError

from pyspark_kafka_meta.tables.caches_from_events import EventRow
from pyspark_kafka_meta.tables.lag import end_offsets
from pyspark_kafka_meta.tools.query_listeners import BackgroundCalls, DriverEvents, JsonListener

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_SPANS = 500
"""Tasks of a stage, the slowest, and events of a micro-batch: an exporter's queue takes 2,048 spans."""
MAX_BATCHES = 1_000
"""Micro-batches whose late events find their trace, and those whose events wait for their report."""
GATHER_S = 1.0
"""Micro-batches that finish in this time after another are traced together."""
ERROR_CHARACTERS = 500
PHASES = ("latestOffset", "walCommit", "getBatch", "queryPlanning", "addBatch", "commitOffsets")
"""Of a micro-batch in Spark's progress reports, in their order."""

Batch = tuple[str, int | None]
"""Query id and batch id."""
TaskKey = tuple[int, int, int]
"""Stage, partition and attempt."""


@dataclass(slots=True)
class Span:
    """A span with its descendants. Attributes of None are left out."""

    name: str
    start_ms: float
    end_ms: float
    attributes: Mapping[str, Any]
    error: str | None = None
    kind: trace.SpanKind = trace.SpanKind.INTERNAL
    children: list[Span] = field(default_factory=list)

    def record(self, tracer: trace.Tracer, parent: Context) -> Context:
        """Returns the context of the span."""
        given = {name: value for name, value in self.attributes.items() if value is not None}
        span = tracer.start_span(self.name, parent, self.kind, given, start_time=_ns(self.start_ms))
        if self.error is not None:
            span.set_status(trace.StatusCode.ERROR, self.error.partition("\n")[0][:ERROR_CHARACTERS])
        context = trace.set_span_in_context(span, parent)
        for child in self.children:
            child.record(tracer, context)
        span.end(_ns(self.end_ms))
        return context


def _ns(time_ms: float) -> int:
    """Of whole microseconds: a float of today has no nanoseconds."""
    return round(time_ms * 1_000) * 1_000


def batch_span(progress: Mapping[str, Any], tasks: Sequence[Mapping[str, Any]], events: Sequence[EventRow]) -> Span:
    """The span of a finished micro-batch by Spark's report, with its phases, tasks (as of `TaskReports`) and events."""
    start_ms = _start_ms(progress)
    topics = sorted({topic for offset in end_offsets(progress) for topic in offset.topic_ids})
    topic = topics[0] if len(topics) == 1 else None
    attributes = {
        **_query_attributes(progress["id"], progress["runId"], progress["batchId"]),
        "spark.query.name": progress["name"],
        "messaging.batch.message_count": progress["numInputRows"],
        "messaging.destination.name": topic,
    }
    root = _root(start_ms, start_ms + progress["batchDuration"], attributes)
    root.children = list(_phases(start_ms, progress["durationMs"]))
    writing = next((phase for phase in root.children if phase.name == "addBatch"), root)
    _add_tasks(writing, tasks, events)
    return root


def _start_ms(progress: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(progress["timestamp"]).timestamp() * 1000


def failed_batch_span(
    query_id: str,
    run_id: str,
    end_ms: float,
    error: str,
    tasks: Sequence[Mapping[str, Any]],
    events: Sequence[EventRow],
) -> Span:
    """The span of the micro-batch that failed with its query: Spark reports neither its start nor its phases."""
    start_ms = min((task["launchTime"] for task in tasks), default=end_ms)
    batch_id = next((event["batch_id"] for event in events), None)
    root = _root(start_ms, end_ms, _query_attributes(query_id, run_id, batch_id), error)
    _add_tasks(root, tasks, events)
    return root


def _query_attributes(query_id: str, run_id: str, batch_id: int | None) -> dict[str, Any]:
    return {"spark.query.id": query_id, "spark.query.run_id": run_id, "spark.batch.id": batch_id}


def _root(start_ms: float, end_ms: float, attributes: Mapping[str, Any], error: str | None = None) -> Span:
    messaging = {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
    }
    topic = attributes.get("messaging.destination.name")
    name = "process" if topic is None else f"process {topic}"
    return Span(name, start_ms, end_ms, {**messaging, **attributes}, error, trace.SpanKind.CONSUMER)


def _phases(start_ms: float, durations_ms: Mapping[str, int]) -> Iterator[Span]:
    """One after the other: Spark reports durations alone, and what is between phases takes a few milliseconds."""
    for name in PHASES:
        if name in durations_ms:
            yield Span(name, start_ms, start_ms + durations_ms[name], {})
            start_ms += durations_ms[name]


def _add_tasks(parent: Span, tasks: Sequence[Mapping[str, Any]], events: Sequence[EventRow]) -> None:
    """Tasks become children of `parent`, events children of their tasks. Events of a committer have no task."""
    spans: dict[TaskKey | None, Span] = {None: parent}
    for task in tasks:
        key = (task["stageId"], task["partitionId"], task["attempt"])
        spans[key] = _task_span(task, parent.end_ms)
        parent.children.append(spans[key])
    for event in events[:MAX_SPANS]:
        spans.get(_task_of(event), parent).children.append(event_span(event))


def _task_span(task: Mapping[str, Any], end_ms: float) -> Span:
    metrics = task.get("taskMetrics") or {}
    attributes = {
        "spark.executor.id": task["executorId"],
        "host.name": task["host"],
        "spark.stage.id": task["stageId"],
        "spark.task.partition": task["partitionId"],
        "spark.task.attempt": task["attempt"],
        "spark.task.status": task["status"],
        "spark.task.records_read": metrics.get("inputMetrics", {}).get("recordsRead"),
        "spark.task.records_written": metrics.get("outputMetrics", {}).get("recordsWritten"),
    }
    duration_ms = task.get("duration")  # None: it still runs, as some that were killed
    end_ms = end_ms if duration_ms is None else task["launchTime"] + duration_ms
    return Span("task", task["launchTime"], end_ms, attributes, task.get("errorMessage"))


def _task_of(event: EventRow) -> TaskKey | None:
    key = event["stage_id"], event["task_partition_id"], event["task_attempt"]
    return None if None in key else key


def event_span(event: EventRow) -> Span:
    """The span of a request, of the end of transactions, or of a moment."""
    duration_ms = event["latency_ms"] or event["transactions_ms"] or 0.0
    partition = event["cause_partition"]
    attributes = {
        "messaging.system": "kafka",
        "messaging.destination.name": event["cause_topic"],
        "messaging.destination.partition.id": None if partition is None else str(partition),
        "messaging.operation.type": "settle" if event["transactions"] else None,
        "server.address": event["broker_host"],
        "server.port": event["broker_port"],
        "spark.executor.id": event["executor_id"],
        "host.name": event["host"],
        "process.pid": event["pid"],
        **{f"kafkameta.{name}": event[name] for name in ("role", "cache_id", "reason", "outcome", "recovery_ms")},
    }
    return Span(event["kind"], event["time_ms"] - duration_ms, event["time_ms"], attributes, event["error"])


class TaskReports:
    """The tasks of this driver's queries as the status store of Spark's UI has them, also without the UI.

    The store is Spark's, but its rows are those of Spark's REST API, and asked for as the UI asks for them.
    """

    def __init__(self, spark: SparkSession) -> None:
        jvm: Any = spark.sparkContext._jvm
        context: Any = spark.sparkContext._jsc.sc()
        self._tracker = context.statusTracker()
        self._store = context.statusStore()
        self._json = jvm.com.fasterxml.jackson.databind.ObjectMapper()
        self._json.registerModule(jvm.com.fasterxml.jackson.module.scala.DefaultScalaModule())
        self._slowest = jvm.org.apache.spark.status.api.v1.TaskSorting.DECREASING_RUNTIME
        self._any_status = jvm.java.util.ArrayList()
        self._jobs: dict[str, deque[int]] = {}  # not traced yet
        self._last_jobs: dict[str, int] = {}

    def find_jobs(self, run_id: str) -> None:
        """Find the jobs that a query has started since the last call."""
        last = self._last_jobs.get(run_id, -1)
        found = sorted(job_id for job_id in self._rows(self._tracker.getJobIdsForGroup(run_id)) if job_id > last)
        self._jobs.setdefault(run_id, deque()).extend(found)
        self._last_jobs[run_id] = max([last, *found])

    def tasks(self, run_id: str, until_ms: float) -> list[dict[str, Any]]:
        """The tasks of the jobs that were found, started before `until_ms`, and have not been returned; at most
        `MAX_SPANS` of each stage. Times are ms since 1970 UTC."""
        stages: dict[int, None] = {}
        jobs = self._jobs[run_id]
        while jobs:
            try:
                job = self._rows(self._store.job(job_id := jobs.popleft()))
            except Py4JJavaError:  # it left the store, which keeps spark.ui.retainedJobs
                continue
            if (job["submissionTime"] or until_ms) >= until_ms:
                jobs.appendleft(job_id)  # of the next micro-batch
                break
            stages |= dict.fromkeys(job["stageIds"])
        return [task for stage_id in stages for task in self._of_stage(stage_id)]

    def forget(self, run_id: str) -> None:
        """The query has ended."""
        self._jobs.pop(run_id, None)
        self._last_jobs.pop(run_id, None)

    def _of_stage(self, stage_id: int) -> Iterator[dict[str, Any]]:
        """Of all attempts: another one follows if a task failed. None of a stage that was skipped."""
        for attempt in count():
            tasks = self._rows(self._store.taskList(stage_id, attempt, 0, MAX_SPANS, self._slowest, self._any_status))
            yield from ({**task, "stageId": stage_id} for task in tasks)
            if all(task["status"] == "SUCCESS" for task in tasks):
                return

    def _rows(self, rows: Any) -> Any:
        return json.loads(self._json.writeValueAsString(rows))


class TraceListener(JsonListener):
    """Traces each micro-batch of this session's queries with OpenTelemetry: its phases, its tasks on their executors,
    Metadata requests, transactions and losses. Needs the extra `otel`.

    Planners do not know their query: their Metadata requests are in no trace, but in the duration of `latestOffset`.

    Args:
        tracer_provider: of OpenTelemetry's SDK; by default the global one, without which there are no traces.
        options: `eventsPath` or `eventsTopic` of the queries, by default the default folder.

    Raises:
        OptionError: an option is invalid.
    """

    def __init__(
        self, spark: SparkSession, tracer_provider: trace.TracerProvider | None = None, **options: str
    ) -> None:
        self._events = DriverEvents(options)
        self._reports = TaskReports(spark)
        self._tracer = trace.get_tracer("pyspark_kafka_meta", tracer_provider=tracer_provider)
        self._calls = BackgroundCalls("kafkameta-traces", GATHER_S)
        self._finished: deque[Mapping[str, Any]] = deque(maxlen=MAX_BATCHES)
        self._waiting: dict[Batch, list[EventRow]] = {}
        self._traced: dict[Batch, Context] = {}

    def on_start(self, event: Mapping[str, Any]) -> None:
        self._events.query_ids.add(event["id"])

    def on_progress(self, progress: Mapping[str, Any]) -> None:
        self._events.query_ids.add(progress["id"])  # it may have started before the listener was added
        self._finished.append(progress)
        self._calls.put(self._trace)

    def on_end(self, event: Mapping[str, Any]) -> None:
        self._calls.put(partial(self._end, event["id"], event["runId"], event["exception"], time.time() * 1000))
        self._calls.wait(event["runId"])

    def _trace(self) -> None:
        """Trace all micro-batches that have finished: others did before this call."""
        finished = [self._finished.popleft() for _ in range(len(self._finished))]
        if finished:
            self._read()
        for run_id in {progress["runId"] for progress in finished}:
            self._reports.find_jobs(run_id)
        for progress in finished:
            batch = progress["id"], progress["batchId"]
            tasks = self._reports.tasks(progress["runId"], _start_ms(progress) + progress["batchDuration"])
            self._record(batch, batch_span(progress, tasks, self._waiting.pop(batch, [])))

    def _end(self, query_id: str, run_id: str, error: str | None, end_ms: float) -> None:
        self._read()
        if error is not None:
            self._reports.find_jobs(run_id)
            tasks = self._reports.tasks(run_id, end_ms)
            batches = [batch for batch in self._waiting if batch[0] == query_id]
            events = [event for batch in batches for event in self._waiting.pop(batch)]
            root = failed_batch_span(query_id, run_id, end_ms, error, tasks, events)
            root.record(self._tracer, Context())  # later events are of the next run, which repeats the micro-batch
        self._reports.forget(run_id)
        self._events.query_ids.discard(query_id)

    def _record(self, batch: Batch, root: Span) -> None:
        self._traced[batch] = root.record(self._tracer, Context())
        if len(self._traced) > MAX_BATCHES:
            del self._traced[next(iter(self._traced))]

    def _read(self) -> None:
        """Keep new events until their micro-batch is reported. Those that come later become children of its span."""
        for event in self._events.read() or ():
            batch = event["query_id"], event["batch_id"]
            if batch in self._traced:
                event_span(event).record(self._tracer, self._traced[batch])
            else:
                self._waiting.setdefault(batch, []).append(event)
        while len(self._waiting) > MAX_BATCHES:  # that nobody reports
            del self._waiting[next(iter(self._waiting))]
