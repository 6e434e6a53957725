"""Lineage of queries for OpenLineage, by its Python client: which topics a query reads and writes.

Topics, brokers and types are in the query's plan, which Spark's JVM has, also those of Spark's own Kafka source and
sink; offsets in its progress reports. Names follow OpenLineage's naming of Kafka: namespace `kafka://<host>:<port>` of
the first bootstrap server, and the topic.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any

from openlineage.client.client import OpenLineageClient
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    DatasetFacet,
    InputDatasetFacet,
    RunFacet,
    error_message_run,
    job_type_job,
    processing_engine_run,
    schema_dataset,
)
from openlineage.client.uuid import generate_new_uuid
from py4j.protocol import Py4JJavaError
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from pyspark_kafka_meta.model import Positions
from pyspark_kafka_meta.read.planning.checkpoint_offsets import source_offset
from pyspark_kafka_meta.tools.query_listeners import END_WAIT_S, BackgroundCalls, JsonListener

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INTERVAL_S = 60.0
SERVERS = "kafka.bootstrap.servers"
SOURCE, BATCH_SOURCE = "StreamingDataSourceV2ScanRelation", "DataSourceV2Relation"
"""The node of a source in Spark's plan of a query."""
BATCH_SINKS = ("AppendData", "OverwriteByExpression")
MICRO_BATCH = "IncrementalExecution"


@dataclass(frozen=True, slots=True)
class KafkaEnd:
    """A source or sink of a query.

    Attributes:
        namespace: of OpenLineage.
        topics: that its options name; those of a source with `subscribePattern` or `assign` are in its offsets alone.
        description: of a source in progress reports.
    """

    namespace: str
    topics: tuple[str, ...]
    schema: StructType
    description: str = ""


@dataclass(slots=True)
class QueryRun:
    """A run of a query, from its start to its end.

    Attributes:
        execution: the query in Spark's JVM.
        positions: of the last report, by description of the source.
        reported_s: time of the last event, by the monotonic clock.
    """

    job: Job
    run_id: str
    execution: Any
    sources: Sequence[KafkaEnd] = ()
    sinks: Sequence[KafkaEnd] = ()
    positions: dict[str, Positions] = field(default_factory=dict)
    reported_s: float = float("-inf")


class LineageListener(JsonListener):
    """Reports runs of this session's streaming queries to OpenLineage: START, RUNNING, and COMPLETE or FAIL. Needs the
    extra `openlineage`.

    The job is named after application and query, or a topic of a batch query. Inputs and outputs are topics, with the
    types of their columns; inputs with the offsets that the query has read up to. Topics that rows name in a column are
    not known.

    Args:
        client: by default that of the environment variables or the file of OpenLineage's client.
        interval_s: between two RUNNING events of a query.
    """

    def __init__(
        self, spark: SparkSession, client: OpenLineageClient | None = None, interval_s: float = INTERVAL_S
    ) -> None:
        self._spark = spark
        self._streams: Any = spark._jsparkSession.streams()  # with Spark Connect Spark's error says that it has no JVM
        self._version = spark.version
        self._client = client or OpenLineageClient()
        self._interval_s = interval_s
        self._calls = BackgroundCalls("kafkameta-lineage")
        self._runs: dict[str, QueryRun] = {}

    @contextmanager
    def of_batches(self) -> Iterator[None]:
        """Report the batch queries inside `with` after each, and the writes in `foreachBatch` of streaming queries that
        start there. Inputs have no offsets."""
        jvm: Any = self._spark._jvm
        context: Any = self._spark.sparkContext._jsc
        manager: Any = self._spark._jsparkSession.listenerManager()
        ensure_callback_server_started(self._spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
        listener = jvm.java.util.Optional.of(BatchListener(self._on_batch)).get()  # Spark finds the same object only
        manager.register(listener)
        try:
            yield
        finally:
            with suppress(Py4JJavaError):  # it took too long
                context.sc().listenerBus().waitUntilEmpty(int(END_WAIT_S * 1000))
            manager.unregister(listener)
            self._calls.wait()

    def _on_batch(self, execution: Any, duration_s: float, error: str | None) -> None:
        if _is_a(execution, MICRO_BATCH):
            return  # of a streaming query
        sources, sinks = batch_ends(self._spark._jvm, execution.analyzed())
        topics = [topic for end in sinks or sources for topic in end.topics]
        if topics:
            ended = datetime.now(UTC)
            run = QueryRun(self._job(topics[0], "BATCH"), str(generate_new_uuid()), execution, sources, sinks)
            state = RunState.COMPLETE if error is None else RunState.FAIL
            self._calls.put(partial(self._emit, run, RunState.START, at=ended - timedelta(seconds=duration_s)))
            self._calls.put(partial(self._emit, run, state, error, ended))

    def _job(self, name: str, processing: str) -> Job:
        facet = job_type_job.JobTypeJobFacet(processing, "SPARK", "QUERY", producer=producer())
        namespace = os.environ.get("OPENLINEAGE_NAMESPACE", "default")
        return Job(namespace, f"{self._spark.sparkContext.appName}.{name}", {"jobType": facet})

    def on_start(self, event: Mapping[str, Any]) -> None:
        """Spark calls it before the query runs: later, a short query would be gone."""
        execution = self._streams.get(event["id"]).streamingQuery()
        job = self._job(event["name"] or event["id"], "STREAMING")
        run = self._runs[event["runId"]] = QueryRun(job, event["runId"], execution)
        self._calls.put(partial(self._emit, run, RunState.START))

    def on_progress(self, progress: Mapping[str, Any]) -> None:
        """Offsets are kept of each report, and sent with the next event."""
        run = self._runs.get(progress["runId"])
        if run is not None:  # it had started before the listener was added
            ends = {source["description"]: source_offset(source["endOffset"]) for source in progress["sources"]}
            run.positions = {description: end.positions for description, end in ends.items() if end is not None}
            if time.monotonic() - run.reported_s >= self._interval_s:
                run.reported_s = time.monotonic()
                self._calls.put(partial(self._emit, run, RunState.RUNNING))

    def on_end(self, event: Mapping[str, Any]) -> None:
        run = self._runs.pop(event["runId"], None)
        if run is not None:
            state = RunState.COMPLETE if event["exception"] is None else RunState.FAIL
            self._calls.put(partial(self._emit, run, state, event["exception"]))
            self._calls.wait(event["runId"])

    def _emit(self, run: QueryRun, state: RunState, error: str | None = None, at: datetime | None = None) -> None:
        if state is not RunState.START and not run.sources and not run.sinks:
            with suppress(Py4JJavaError):  # the query failed before it had a plan
                run.sources, run.sinks = plan_ends(self._spark._jvm, run.execution)
        self._client.emit(run_event(run, state, self._version, at or datetime.now(UTC), error))


class BatchListener:
    """The JVM's listener of queries that have ended.

    Args:
        on_end: gets the execution, which the JVM has, its duration in seconds, and its error, if any.
    """

    class Java:
        implements = ("org.apache.spark.sql.util.QueryExecutionListener",)

    def __init__(self, on_end: Callable[[Any, float, str | None], None]) -> None:
        self._on_end = on_end

    def onSuccess(self, _: str, execution: Any, duration_ns: int) -> None:  # noqa: N802
        self._on_end(execution, duration_ns / 1e9, None)

    def onFailure(self, _: str, execution: Any, error: Any) -> None:  # noqa: N802
        self._on_end(execution, 0.0, error.toString())


def run_event(run: QueryRun, state: RunState, spark_version: str, at: datetime, error: str | None = None) -> RunEvent:
    """The event of a run at a time."""
    version = metadata.version("pyspark-kafka-meta")
    engine = processing_engine_run.ProcessingEngineRunFacet(spark_version, "spark", version, producer=producer())
    facets: dict[str, RunFacet] = {"processing_engine": engine}
    if error is not None:
        facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(
            error.partition("\n")[0], "PYTHON", producer=producer()
        )
    return RunEvent(
        eventTime=at.isoformat(),
        producer=producer(),
        run=Run(run.run_id, facets),
        job=run.job,
        eventType=state,
        inputs=[read for source in run.sources for read in _inputs(source, run.positions.get(source.description, {}))],
        outputs=[
            OutputDataset(sink.namespace, topic, facets=_schema(sink.schema))
            for sink in run.sinks
            for topic in sink.topics
        ],
    )


def producer() -> str:
    """The address of this project."""
    return str(metadata.metadata("pyspark-kafka-meta")["Home-page"])


def _inputs(source: KafkaEnd, positions: Positions) -> Iterator[InputDataset]:
    offsets: dict[str, dict[str, int]] = {topic: {} for topic in source.topics}
    for partition, position in positions.items():
        offsets.setdefault(partition.topic, {})[str(partition.partition)] = position.offset
    for topic, ends in sorted(offsets.items()):
        facet: Any = InputDatasetFacet(producer=producer()).with_additional_properties(endOffsets=ends)
        facets = {"kafkameta_offsets": facet} if ends else {}
        yield InputDataset(source.namespace, topic, facets, facets=_schema(source.schema))


def _schema(schema: StructType) -> dict[str, DatasetFacet]:
    return {"schema": schema_dataset.SchemaDatasetFacet(_fields(schema), producer=producer())}


def _fields(kind: DataType) -> list[schema_dataset.SchemaDatasetFacetFields]:
    """The fields of a struct; of an array its elements, of a map its keys and values, as OpenLineage names them."""
    if isinstance(kind, StructType):
        return [_field(column.name, column.dataType) for column in kind]
    if isinstance(kind, ArrayType):
        return [_field("_element", kind.elementType)]
    if isinstance(kind, MapType):
        return [_field("key", kind.keyType), _field("value", kind.valueType)]
    return []


def _field(name: str, kind: DataType) -> schema_dataset.SchemaDatasetFacetFields:
    nested = _fields(kind)
    shown = kind.typeName() if nested else kind.simpleString()
    return schema_dataset.SchemaDatasetFacetFields(name, shown, fields=nested)


def plan_ends(jvm: Any, execution: Any) -> tuple[list[KafkaEnd], list[KafkaEnd]]:
    """The sources and sinks in Kafka, also by Spark's own format, of a `MicroBatchExecution` that has made its plan."""
    plan, to_java = execution.logicalPlan(), jvm.scala.jdk.javaapi.CollectionConverters
    leaves = [leaf for leaf in to_java.asJava(plan.collectLeaves()) if _is_a(leaf, SOURCE)]
    sources = {}
    for leaf in leaves:
        description = leaf.stream().toString()
        sources[description] = _end(leaf.relation().options(), "subscribe", leaf, description)
    options = jvm.org.apache.spark.sql.util.CaseInsensitiveStringMap(to_java.asJava(plan.writeOptions()))
    sink = _end(options, "topic", plan.query())
    return [source for source in sources.values() if source is not None], [] if sink is None else [sink]


def batch_ends(jvm: Any, plan: Any) -> tuple[list[KafkaEnd], list[KafkaEnd]]:
    """As `plan_ends`, of the analyzed plan of a batch query."""
    leaves = jvm.scala.jdk.javaapi.CollectionConverters.asJava(plan.collectLeaves())
    sources = [_end(leaf.options(), "subscribe", leaf) for leaf in leaves if _is_a(leaf, BATCH_SOURCE)]
    sink = None
    if _is_a(plan, *BATCH_SINKS) and _is_a(plan.table(), BATCH_SOURCE):
        sink = _end(plan.table().options(), "topic", plan.query())
    return [source for source in sources if source is not None], [] if sink is None else [sink]


def _is_a(node: Any, *names: str) -> bool:
    return node.getClass().getSimpleName() in names


def _end(options: Any, topics: str, plan: Any, description: str = "") -> KafkaEnd | None:
    """None if the options are not of Kafka. `topics` names the option of topics, separated by commas."""
    servers = options.get(SERVERS)
    if servers is None:
        return None
    named = tuple(topic.strip() for topic in (options.get(topics) or "").split(",") if topic.strip())
    schema = StructType.fromJson(json.loads(plan.schema().json()))
    return KafkaEnd(f"kafka://{servers.split(',')[0].strip()}", named, schema, description)
