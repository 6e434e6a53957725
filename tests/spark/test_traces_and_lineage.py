"""Traces and lineage of a typed query from topic to topic, as collectors of both receive them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from openlineage.client import OpenLineageClient
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.listener import StreamingQueryListener

import pyspark_kafka_meta as kafkameta
from pyspark_kafka_meta.testing import MockRegistry
from pyspark_kafka_meta.tools.tracing import TaskReports

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
RECORDS = 20
JOBS = "org.apache.spark.status.JobDataWrapper"
ROUNDING_MS = 1.0
BETWEEN_PHASES_MS = 100.0
"""Spark does not report when a phase begins."""


class Endpoint(ThreadingHTTPServer):
    """Records the bodies of requests by their path."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Recorder)
        self.bodies: list[tuple[str, bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Recorder(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        self.server.bodies.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@contextmanager
def listening(spark: SparkSession, listener: StreamingQueryListener) -> Iterator[None]:
    spark.streams.addListener(listener)
    yield
    spark.streams.removeListener(listener)


@pytest.fixture
def copy(
    spark: SparkSession,
    kafka: Any,
    make_topic: Callable[..., str],
    produce: Callable[..., list[int]],
    registry: MockRegistry,
    tmp_path: Path,
) -> Callable[..., tuple[StreamingQuery, str, str]]:
    """Copies orders exactly once, in micro-batches of half of them; returns the query, its source and its target."""

    def start(expression: str = "value.id") -> tuple[StreamingQuery, str, str]:
        source, target = make_topic(2), make_topic(1)
        schema_id = registry.register(f"{source}-value", json.dumps(ORDER))
        registry.register(f"{target}-value", json.dumps(ORDER))
        for partition in range(2):
            values = [b"\0" + schema_id.to_bytes(4) + bytes([2 * number]) for number in range(RECORDS // 2)]
            produce(source, values, partition=partition)
        common = {
            "kafka.bootstrap.servers": kafka.bootstrap_servers,
            "schema.registry.url": registry.url,
            "valueFormat": "avro",
        }
        stream = spark.readStream.format("kafkameta").options(**common, subscribe=source, startingOffsets="earliest")
        orders = stream.option("maxOffsetsPerTrigger", RECORDS // 2).load()
        sink = orders.selectExpr(f"struct({expression} AS id) AS value").writeStream.format("kafkameta")
        sink = sink.options(**common, topic=target, checkpointLocation=str(tmp_path))
        return sink.option("kafka.transactional.id", target).queryName("copies").start(), source, target

    return start


def spans_at(endpoint: Endpoint) -> list[Any]:
    requests = [ExportTraceServiceRequest.FromString(body) for path, body in endpoint.bodies if path == "/v1/traces"]
    return [
        span
        for request in requests
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def attribute(span: Any, name: str) -> Any:
    found = next((given.value for given in span.attributes if given.key == name), None)
    return None if found is None else getattr(found, found.WhichOneof("value"))


def start_and_end_ms(span: Any) -> tuple[float, float]:
    return round(span.start_time_unix_nano / 1e6, 3), round(span.end_time_unix_nano / 1e6, 3)


def duration_ms(span: Any) -> float:
    return float(span.end_time_unix_nano - span.start_time_unix_nano) / 1e6


def test_a_collector_receives_a_trace_of_each_micro_batch_with_sparks_durations(
    spark: SparkSession, copy: Callable[..., Any], endpoint: Endpoint, wait_for: Callable[..., Any]
) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{endpoint.url}/v1/traces")))
    with listening(spark, kafkameta.TraceListener(spark, provider)):
        query, source, _ = copy()
        query.processAllAvailable()
        query.stop()
        reports = {report["batchId"]: report for report in query.recentProgress if report["numInputRows"]}
        roots = wait_for(lambda: provider.force_flush() and roots_of(endpoint, query, len(reports)))
    provider.shutdown()
    assert len(reports) == 2
    for root in roots:
        report = reports[attribute(root, "spark.batch.id")]
        check_trace(root, [span for span in spans_at(endpoint) if span.trace_id == root.trace_id], report)
        assert root.name == f"process {source}"
        assert attribute(root, "messaging.batch.message_count") == report["numInputRows"]


def roots_of(endpoint: Endpoint, query: StreamingQuery, count: int) -> list[Any] | None:
    """The spans of the query's micro-batches, once there are so many."""
    spans = [span for span in spans_at(endpoint) if attribute(span, "spark.query.id") == query.id]
    return spans if len(spans) == count else None


def check_trace(root: Any, spans: list[Any], report: Any) -> None:
    began_ms, ended_ms = start_and_end_ms(root)
    assert began_ms == datetime.fromisoformat(report["timestamp"]).timestamp() * 1000
    assert duration_ms(root) == report["batchDuration"]
    names = {span.span_id: span.name for span in spans}
    phases = {span.name: span for span in spans if span.parent_span_id == root.span_id}
    durations_ms = {name: duration_ms(span) for name, span in phases.items()}
    assert durations_ms == {name: ms for name, ms in report["durationMs"].items() if name != "triggerExecution"}
    tasks = [span for span in spans if span.name == "task"]
    assert sum(attribute(task, "spark.task.records_read") for task in tasks) == report["numInputRows"]
    add_batch_began_ms, add_batch_ended_ms = start_and_end_ms(phases["addBatch"])
    for task in tasks:
        assert names[task.parent_span_id] == "addBatch"
        start_ms, end_ms = start_and_end_ms(task)
        assert began_ms <= start_ms <= end_ms <= ended_ms + ROUNDING_MS
        assert add_batch_began_ms - ROUNDING_MS <= start_ms <= end_ms <= add_batch_ended_ms + BETWEEN_PHASES_MS
        assert attribute(task, "spark.executor.id") == "driver"
    (commit,) = [span for span in spans if span.name == "transactions_committed"]
    assert names[commit.parent_span_id] == "addBatch"
    start_ms, end_ms = start_and_end_ms(commit)
    assert max(start_and_end_ms(task)[1] for task in tasks) - ROUNDING_MS <= start_ms < end_ms <= ended_ms + ROUNDING_MS


def test_a_failed_query_is_a_trace_with_its_error_and_the_attempts_of_its_task(
    spark: SparkSession, copy: Callable[..., Any], endpoint: Endpoint, wait_for: Callable[..., Any]
) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{endpoint.url}/v1/traces")))
    with listening(spark, kafkameta.TraceListener(spark, provider)):
        query, _, _ = copy("IF(value.id = 3, raise_error('bad order'), value.id)")
        with pytest.raises(StreamingQueryException, match="bad order"):
            query.awaitTermination()
        (root,) = wait_for(lambda: provider.force_flush() and roots_of(endpoint, query, 1))
    provider.shutdown()
    failed = [span for span in spans_at(endpoint) if span.name == "task" and span.status.code == 2]
    assert root.status.code == 2 and "bad order" in root.status.message
    assert attribute(root, "spark.batch.id") == 0
    assert {attribute(span, "spark.task.attempt") for span in failed} >= {0, 1, 2, 3}


def test_jobs_that_left_sparks_store_take_no_other_tasks_from_a_trace(spark: SparkSession) -> None:
    context: Any = spark.sparkContext
    context.setJobGroup("run", "")
    store, jobs = context._jsc.sc().statusStore().store(), context._jvm.java.lang.Class.forName(JOBS)
    for _ in range(2):
        spark.range(1).collect()
    first, second = sorted(context._jsc.sc().statusTracker().getJobIdsForGroup("run"))
    (reports := TaskReports(spark)).find_jobs("run")
    store.delete(jobs, first)

    stages = {task["stageId"] for task in reports.tasks("run", float("inf"))}
    assert stages == set(context.statusTracker().getJobInfo(second).stageIds)


def test_a_collector_that_is_away_delays_no_micro_batch(spark: SparkSession, copy: Callable[..., Any]) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter("http://127.0.0.1:1/v1/traces")))
    with listening(spark, kafkameta.TraceListener(spark, provider)):
        query, _, _ = copy()
        query.processAllAvailable()
        began = time.monotonic()
        query.stop()
        assert time.monotonic() - began < 10
    assert sum(report["numInputRows"] for report in query.recentProgress) == RECORDS


def test_lineage_of_a_typed_copy_has_both_topics_their_types_and_offsets(
    spark: SparkSession, kafka: Any, copy: Callable[..., Any], endpoint: Endpoint, wait_for: Callable[..., Any]
) -> None:
    client = OpenLineageClient(config={"transport": {"type": "http", "url": endpoint.url}})
    with listening(spark, kafkameta.LineageListener(spark, client)):
        query, source, target = copy()
        query.processAllAvailable()
        query.stop()
        events = wait_for(lambda: lineage_of(endpoint, query))

    assert [event["eventType"] for event in events] == ["START", "RUNNING", "COMPLETE"]
    assert {event["job"]["name"] for event in events} == {"kafkameta-tests.copies"}
    namespace = f"kafka://{kafka.bootstrap_servers.split(',')[0]}"
    (read,), (written,) = events[-1]["inputs"], events[-1]["outputs"]
    assert (read["namespace"], read["name"]) == (namespace, source)
    assert (written["namespace"], written["name"]) == (namespace, target)
    assert type_of(read, "value") == type_of(written, "value") == {"id": "bigint"}
    offsets = read["inputFacets"]["kafkameta_offsets"]["endOffsets"]
    assert offsets == {"0": RECORDS // 2, "1": RECORDS // 2}


def lineage_of(endpoint: Endpoint, query: StreamingQuery) -> list[Any] | None:
    """The events of the query's run, once it has ended."""
    events = [json.loads(body) for path, body in endpoint.bodies if path == "/api/v1/lineage"]
    events = [event for event in events if event["run"]["runId"] == query.runId]
    return events if events and events[-1]["eventType"] in ("COMPLETE", "FAIL") else None


def type_of(dataset: Any, column: str) -> dict[str, str]:
    """The types of the fields of a column."""
    (found,) = [field for field in dataset["facets"]["schema"]["fields"] if field["name"] == column]
    return {field["name"]: field["type"] for field in found["fields"]}


def test_a_query_that_fails_before_it_has_a_plan_is_reported_as_failed(
    spark: SparkSession, kafka: Any, endpoint: Endpoint, wait_for: Callable[..., Any], tmp_path: Path
) -> None:
    client = OpenLineageClient(config={"transport": {"type": "http", "url": endpoint.url}})
    with listening(spark, kafkameta.LineageListener(spark, client)):
        stream = spark.readStream.format("kafkameta").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
        rows = stream.option("subscribe", "no-such-topic").load()
        query = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
        with pytest.raises(StreamingQueryException):
            query.awaitTermination()
        events = wait_for(lambda: lineage_of(endpoint, query))

    assert [event["eventType"] for event in events] == ["START", "FAIL"]
    assert "no-such-topic" in events[-1]["run"]["facets"]["errorMessage"]["message"]


def test_lineage_of_batch_queries_and_of_the_writes_of_foreach_batch(
    spark: SparkSession,
    kafka: Any,
    make_topic: Callable[..., str],
    produce: Callable[..., list[int]],
    endpoint: Endpoint,
    tmp_path: Path,
) -> None:
    source, copied, failed, streamed = (make_topic(1) for _ in range(4))
    produce(source, ["a", "b"])
    cluster = {"kafka.bootstrap.servers": kafka.bootstrap_servers}
    values = spark.read.format("kafkameta").options(**cluster, subscribe=source).load().select("value")
    stream = spark.readStream.format("kafkameta").options(**cluster, subscribe=source, startingOffsets="earliest")

    def write(rows: DataFrame, topic: str) -> None:
        rows.write.format("kafkameta").options(**cluster, topic=topic).mode("append").save()

    client = OpenLineageClient(config={"transport": {"type": "http", "url": endpoint.url}})
    with kafkameta.LineageListener(spark, client).of_batches():
        write(values, copied)
        with pytest.raises(PySparkException, match="bad value"):
            write(values.selectExpr("CAST(raise_error('bad value') AS STRING) AS value"), failed)
        spark.range(1).count()
        sink = stream.load().select("value").writeStream.foreachBatch(lambda rows, _: write(rows, streamed))
        sink.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination()
    write(values, copied)

    events = [json.loads(body) for path, body in endpoint.bodies if path == "/api/v1/lineage"]
    names = [
        (event["eventType"], [read["name"] for read in event["inputs"]], [sunk["name"] for sunk in event["outputs"]])
        for event in events
    ]
    assert names == [
        *[(state, [source], [copied]) for state in ("START", "COMPLETE")],
        *[(state, [source], [failed]) for state in ("START", "FAIL")],
        *[(state, [], [streamed]) for state in ("START", "COMPLETE")],
    ]
    assert [event["job"]["name"] for event in events[::2]] == [
        f"kafkameta-tests.{t}" for t in (copied, failed, streamed)
    ]
    assert "bad value" in events[3]["run"]["facets"]["errorMessage"]["message"]
    assert events[0]["run"]["runId"] == events[1]["run"]["runId"] != events[2]["run"]["runId"]
    assert events[0]["eventTime"] < events[1]["eventTime"]
