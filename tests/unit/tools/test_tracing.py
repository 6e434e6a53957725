"""Traces of micro-batches, in OpenTelemetry's exporter to memory."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pyspark_kafka_meta import TraceListener
from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.events.event import EventKind, Origin, Role
from pyspark_kafka_meta.events.sinks import writer_prefix
from pyspark_kafka_meta.model import Position, TopicPartition
from pyspark_kafka_meta.read.planning.checkpoint_offsets import SourceOffset
from pyspark_kafka_meta.tables.event_file_reader import EventFile, EventFolder
from pyspark_kafka_meta.tools import tracing
from pyspark_kafka_meta.tools.query_listeners import DriverEvents
from tests.unit.written_events import made, write

OFFSET = SourceOffset({TopicPartition("orders", 0): Position(5)}, {"orders": None})
BEGAN_MS = 4_102_444_800_000
"""In 2100: after the listener was created, as events from before are not read."""
TASK = {
    "partitionId": 0,
    "attempt": 0,
    "launchTime": BEGAN_MS + 60,
    "duration": 100,
    "executorId": "1",
    "host": "worker",
    "status": "SUCCESS",
    "stageId": 3,
    "taskMetrics": {"inputMetrics": {"recordsRead": 40}, "outputMetrics": {"recordsWritten": 0}},
}
WRITER = Origin(role=Role.WRITER, query_id="q", batch_id=7, stage_id=3, task_partition_id=0, task_attempt=0)
COMMITTER = Origin(role=Role.COMMITTER, query_id="q", batch_id=7, executor_id="driver")


def progress(**others: Any) -> dict[str, Any]:
    return {
        "id": "q",
        "runId": "r",
        "name": "copies",
        "batchId": 7,
        "timestamp": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(BEGAN_MS // 1000)) + f".{BEGAN_MS % 1000:03}Z",
        "batchDuration": 300,
        "durationMs": {"addBatch": 200, "latestOffset": 30, "walCommit": 20, "triggerExecution": 300},
        "numInputRows": 40,
        "sources": [],
        **others,
    }


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def listen(
    exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., TraceListener]:
    """A listener that reads events from a folder, where Spark's UI shows these tasks."""

    def listener(*tasks: dict[str, Any], find_jobs: Callable[[str], object] = lambda _: None) -> TraceListener:
        reports = SimpleNamespace(tasks=lambda *_: tasks, find_jobs=find_jobs, forget=lambda _: None)
        monkeypatch.setattr(tracing, "TaskReports", lambda _: reports)
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        created = TraceListener(None, provider, eventsPath=str(tmp_path))  # type: ignore[arg-type]
        created.on_start({"id": "q", "runId": "r", "name": "copies"})
        return created

    return listener


def end(listener: TraceListener, exception: str | None = None) -> None:
    """The query ends; spans of all reports are recorded."""
    listener.on_end({"id": "q", "runId": "r", "exception": exception})


def report(listener: TraceListener, **others: Any) -> None:
    listener.on_progress(progress(**others))


def parents(spans: Sequence[ReadableSpan]) -> dict[str, str | None]:
    """The parent of each span, by names."""
    names = {span.context.span_id: span.name for span in spans if span.context is not None}
    return {span.name: None if span.parent is None else names[span.parent.span_id] for span in spans}


def by_name(spans: Sequence[ReadableSpan]) -> dict[str, ReadableSpan]:
    return {span.name: span for span in spans}


def times_ms(span: ReadableSpan) -> tuple[float, float]:
    """Start and end, from the start of the micro-batch."""
    assert span.start_time is not None and span.end_time is not None
    began_ns = BEGAN_MS * 1_000_000
    return (span.start_time - began_ns) / 1e6, (span.end_time - began_ns) / 1e6


def test_a_micro_batch_is_one_trace_of_its_phases_tasks_and_events(
    listen: Callable[..., TraceListener], exporter: InMemorySpanExporter, tmp_path: Path
) -> None:
    listener = listen(TASK)
    write(
        tmp_path,
        made("a" * 32, 1, BEGAN_MS + 90, origin=WRITER, latency_ms=10.0),
        made("b" * 32, 1, BEGAN_MS + 240, origin=COMMITTER, kind=EventKind.TRANSACTIONS_COMMITTED, transactions_ms=30),
    )
    report(listener)
    end(listener)
    spans = exporter.get_finished_spans()

    assert parents(spans) == {
        "process": None,
        "latestOffset": "process",
        "walCommit": "process",
        "addBatch": "process",
        "task": "addBatch",
        "refresh": "task",
        "transactions_committed": "addBatch",
    }
    assert len({span.context.trace_id for span in spans if span.context is not None}) == 1
    assert {name: times_ms(span) for name, span in by_name(spans).items()} == {
        "process": (0, 300),
        "latestOffset": (0, 30),
        "walCommit": (30, 50),
        "addBatch": (50, 250),
        "task": (60, 160),
        "refresh": (80, 90),
        "transactions_committed": (210, 240),
    }


def test_spans_name_query_batch_executor_and_records(
    listen: Callable[..., TraceListener], exporter: InMemorySpanExporter, tmp_path: Path
) -> None:
    listener = listen(TASK)
    write(tmp_path, made("a" * 32, 1, BEGAN_MS + 90, origin=WRITER, cause_topic="orders", cause_partition=2))
    report(listener, sources=[{"endOffset": json.dumps(OFFSET.as_dict())}])
    end(listener)
    spans = by_name(exporter.get_finished_spans())

    assert dict(spans["process orders"].attributes or {}) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.batch.message_count": 40,
        "spark.query.id": "q",
        "spark.query.run_id": "r",
        "spark.query.name": "copies",
        "spark.batch.id": 7,
    }
    assert dict(spans["task"].attributes or {}) == {
        "spark.executor.id": "1",
        "host.name": "worker",
        "spark.stage.id": 3,
        "spark.task.partition": 0,
        "spark.task.attempt": 0,
        "spark.task.status": "SUCCESS",
        "spark.task.records_read": 40,
        "spark.task.records_written": 0,
    }
    refresh = spans["refresh"].attributes or {}
    assert refresh["messaging.destination.name"] == "orders"
    assert refresh["messaging.destination.partition.id"] == "2"
    assert refresh["kafkameta.reason"] == "max_age"
    assert refresh["server.address"] == "broker-1"


def test_a_failed_micro_batch_has_the_error_of_its_query_and_of_its_task(
    listen: Callable[..., TraceListener], exporter: InMemorySpanExporter, tmp_path: Path
) -> None:
    listener = listen({**TASK, "status": "FAILED", "errorMessage": "RecordsLostError: gone\n\tat a line of Java"})
    write(tmp_path, made("a" * 32, 1, BEGAN_MS + 90, origin=WRITER))
    end(listener, "[STREAM_FAILED] it broke\n\tat a line of Java")
    spans = by_name(exporter.get_finished_spans())

    assert spans["process"].status.description == "[STREAM_FAILED] it broke"
    assert spans["task"].status.description == "RecordsLostError: gone"
    assert (spans["process"].attributes or {})["spark.batch.id"] == 7
    assert spans["process"].start_time == spans["task"].start_time
    assert parents(list(spans.values())) == {"process": None, "task": "process", "refresh": "task"}


def test_an_event_that_comes_after_its_report_is_in_the_same_trace(
    listen: Callable[..., TraceListener], exporter: InMemorySpanExporter, tmp_path: Path, wait_for: Callable[..., Any]
) -> None:
    listener = listen(TASK)
    report(listener)
    wait_for(exporter.get_finished_spans)
    write(tmp_path, made("a" * 32, 1, BEGAN_MS + 90, origin=WRITER))
    end(listener)

    assert parents(exporter.get_finished_spans())["refresh"] == "process"


def test_events_of_the_next_run_are_not_in_the_trace_of_a_failure(
    listen: Callable[..., TraceListener], exporter: InMemorySpanExporter, tmp_path: Path
) -> None:
    """Before its first micro-batch the next run ends the transactions of the one before."""
    listener = listen()
    end(listener, "[STREAM_FAILED] it broke")
    origin = Origin(role=Role.COMMITTER, query_id="q", executor_id="driver")
    write(tmp_path, made("a" * 32, 1, BEGAN_MS + 90_000, origin=origin))
    end(listener)

    assert parents(exporter.get_finished_spans()) == {"process": None}


def test_events_of_other_queries_and_micro_batches_are_in_no_trace(
    listen: Callable[..., TraceListener], exporter: InMemorySpanExporter, tmp_path: Path
) -> None:
    listener = listen(TASK)
    batches: list[tuple[str | None, int | None]] = [("other", 7), ("q", 8), (None, None)]
    for number, (query_id, batch_id) in enumerate(batches):
        origin = Origin(role=Role.READER, query_id=query_id, batch_id=batch_id)
        write(tmp_path, made(str(number) * 32, 1, BEGAN_MS + 90, origin=origin))
    report(listener)
    end(listener)

    assert "refresh" not in parents(exporter.get_finished_spans())


def test_many_queries_of_other_drivers_at_the_same_place_take_no_events_from_a_trace(
    listen: Callable[..., TraceListener], exporter: InMemorySpanExporter, tmp_path: Path
) -> None:
    listener = listen(TASK)
    others = (
        made(f"{number:032}", 1, BEGAN_MS + 95, origin=replace(WRITER, query_id="other", batch_id=number))
        for number in range(tracing.MAX_BATCHES)
    )
    write(tmp_path, made("a" * 32, 1, BEGAN_MS + 90, origin=WRITER), *others)
    report(listener)
    end(listener)

    assert parents(exporter.get_finished_spans())["refresh"] == "task"


def test_micro_batches_that_finish_soon_after_each_other_are_traced_together(
    listen: Callable[..., TraceListener], exporter: InMemorySpanExporter
) -> None:
    looks: list[str] = []
    listener = listen(find_jobs=looks.append)
    for batch_id in (7, 8, 9):
        report(listener, batchId=batch_id)
    began = time.monotonic()
    end(listener)

    assert time.monotonic() - began < tracing.GATHER_S, "the end of a query waits for nothing"
    roots = [span for span in exporter.get_finished_spans() if span.parent is None]
    assert [(root.attributes or {})["spark.batch.id"] for root in roots] == [7, 8, 9]
    assert looks == ["r"]


def test_files_of_former_days_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query that runs each hour would read the events of all its runs."""
    read = list[EventFile]()
    monkeypatch.setattr(EventFolder, "lines", lambda _, files: iter(read.extend(files) or ()))
    for cache, days in (("a", 3), ("b", 0)):
        write(tmp_path, made(cache * 32, 1))
        for file in tmp_path.glob(f"events-{writer_prefix(cache * 32)}*"):
            os.utime(file, (time.time() - days * 86_400,) * 2)
    events = DriverEvents({"eventsPath": str(tmp_path)})

    assert events.read() == []
    assert [file.cache for file in read] == [writer_prefix("b" * 32)]


def test_a_misspelt_option_is_refused_at_once() -> None:
    with pytest.raises(OptionError):
        TraceListener(None, metricPath="/data")  # type: ignore[arg-type]
