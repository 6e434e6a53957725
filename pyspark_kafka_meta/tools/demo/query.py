"""What runs on the demo's cluster: a Spark application with a streaming query on two executors of one core each
(`local-cluster`), and a thread that produces the records.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pyspark_kafka_meta.errors import DeliveryTimeoutError, KafkaMetaError
from pyspark_kafka_meta.events.publisher import client_without_events
from pyspark_kafka_meta.model import Positions
from pyspark_kafka_meta.options import ClientOptions, ProducerOptions, default_options
from pyspark_kafka_meta.read.planning.checkpoint_offsets import SourceOffset
from pyspark_kafka_meta.tools.console import defer_signals, note
from pyspark_kafka_meta.tools.demo import TOO_BUSY
from pyspark_kafka_meta.tools.demo.clusters import COPY, REPLICAS, TOPIC, Cluster
from pyspark_kafka_meta.tools.event_sources import FolderEvents, RepeatedPoll, StateReader
from pyspark_kafka_meta.write.input_columns import SinkColumns
from pyspark_kafka_meta.write.task_writer import TaskWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

MASTER = "local-cluster[2,1,1024]"
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For an application of a few minutes: three JVMs start with less CPU time."""
MAX_AGE_MS = 15_000
"""Much longer than a micro-batch on a busy machine: a cache that refreshes by age in each batch meets no error."""
OFFSETS_PER_TRIGGER = 20_000
JVM_END_S = 10.0
RECORDS_PER_S = 480
"""To the first topic."""
ROUNDS_PER_S = 10
SLOW_WORKER = "Python worker failed to connect back"
"""In Spark's error when a Python process needs more than 10 s to start, a limit that no setting changes."""
RESTARTS = 5
FEED_TIMEOUT_MS = 2_000
"""A partition without a leader holds the others up for no longer."""
RECORD_COLUMNS = ["topic", "key", "value"]


class QueryFailedError(KafkaMetaError):
    """The demo's own query ended with an error, or reads nothing."""


def root_cause(text: str) -> str:
    """The text of the last KafkaMetaError in a StreamingQueryException, else the first line."""
    if SLOW_WORKER in text:
        return f"Spark's Python processes did not start within 10 s, {RESTARTS + 1} times; {TOO_BUSY}"
    lines = text.strip().splitlines()
    errors = [error for line in lines if (error := line.partition("pyspark_kafka_meta.errors.")[2])]
    return errors[-1].partition(": ")[2] if errors else lines[0]


@contextmanager
def spark_session(folder: Path) -> Iterator[SparkSession]:
    """A session that keeps its files in `folder`."""
    import pyspark  # the page imports this module without pyspark
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Caches on one machine find each other by files in the temporary folder.
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
        "spark.driver.extraJavaOptions": JAVA_OPTIONS,
        "spark.executor.extraJavaOptions": JAVA_OPTIONS,
        "spark.local.dir": str(folder / "spark"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    spark = SparkSession.builder.master(MASTER).appName("kafkameta demo").config(map=settings).getOrCreate()
    application_id = spark.sparkContext.applicationId
    # pyspark's handler cancels jobs first, which would look like a failed query.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield spark
    finally:
        _end(spark)
        # local-cluster has no other place for the logs of executors.
        home = os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent
        shutil.rmtree(Path(home, "work", application_id), ignore_errors=True)


def _end(spark: SparkSession) -> None:
    """Stop the session, and wait for its JVM, which ends when its standard input does."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        gateway.proc.wait(JVM_END_S)
    SparkContext._gateway = SparkContext._jvm = None


class DemoQuery:
    """A query that reads the cluster's topics from their beginning, and writes their copies, until `close`. It is
    started again if Spark's Python processes started too slowly.

    Attributes:
        events: the folder of its refresh events.
        checkpoint: its checkpointLocation.
        state_reader: of the cluster, the events and the progress.
    """

    def __init__(self, spark: SparkSession, cluster: Cluster, folder: Path) -> None:
        self.events, self.checkpoint = folder / "events", folder / COPY
        source = FolderEvents(str(self.events))
        self.state_reader = StateReader(
            source, cluster.options, lambda _: [*cluster.topics, *cluster.copies], self.progress
        )
        client = {**cluster.options, "kafka.metadata.max.age.ms": str(MAX_AGE_MS)}
        client["eventsPath"] = str(self.events)
        rows = spark.readStream.format("kafkameta").options(
            **client,
            **cluster.selection,
            startingOffsets="earliest",
            minPartitions="2",
            maxOffsetsPerTrigger=str(OFFSETS_PER_TRIGGER),
        )
        sink_options = {**client, **cluster.sink_options}
        sink = _copies(rows.load(), sink_options) if cluster.copies else rows.load().writeStream.format("noop")
        self._sink = sink.option("checkpointLocation", str(self.checkpoint)).trigger(processingTime="1 second")
        self._query: StreamingQuery = self._sink.start()
        self._restarts = 0
        self._status = spark.sparkContext.statusTracker()
        self._executors = spark.sparkContext._jsc.sc().statusTracker()
        self._begins: Positions = {}
        self._records_per_s = 0.0

    def progress(self) -> tuple[Positions, Positions, float]:
        """First offsets, next offsets, and the rows per second of the last micro-batch with rows. Raises
        QueryFailedError: the query ended."""
        with defer_signals():
            error, last = self._query.exception(), self._query.lastProgress
        if error is not None and SLOW_WORKER in str(error) and self._restarts < RESTARTS:
            self._restarts += 1
            with defer_signals():
                self._query = self._sink.start()
        elif error is not None:
            raise QueryFailedError(f"the demo's query failed: {root_cause(str(error))}")
        offset = None if last is None else _end_offset(last)
        if last is None or offset is None:
            return {}, {}, 0.0
        if not self._begins:
            with defer_signals():
                ends = map(_end_offset, self._query.recentProgress)
            self._begins = next(end.start for end in ends if end is not None)
        if last.numInputRows:
            self._records_per_s = last.processedRowsPerSecond
        return self._begins, offset.positions, self._records_per_s

    def activity(self) -> str:
        """What Spark is doing, which changes while it makes progress."""
        with defer_signals():
            message = self._query.status["message"]
            stages = [self._status.getStageInfo(number) for number in self._status.getActiveStageIds()]
            executors = len(self._executors.getExecutorInfos()) - 1  # the driver is one of them
        tasks = "".join(f", {stage.numCompletedTasks} of {stage.numTasks} tasks done" for stage in stages if stage)
        again = f", started again {self._restarts} times" if self._restarts else ""
        return f"{executors} of 2 executors run; {message}{tasks}{again}"

    def close(self) -> None:
        self._query.stop()


def _copies(rows: DataFrame, options: Mapping[str, str]) -> DataStreamWriter:
    """Writes rows of each topic to its copy, with these options of the sink. Reading and writing are stages of their
    own, so that the worker of each executor does both, with one cache."""
    copies = rows.selectExpr(f"replace(topic, '{TOPIC}', '{COPY}') AS topic", "key", "value").repartition(2)
    return copies.writeStream.format("kafkameta").options(**options)


def _end_offset(progress: StreamingQueryProgress) -> SourceOffset | None:
    """None before the first batch: Spark reports progress while it waits, too."""
    text = progress.sources[0].endOffset
    return None if text in (None, "null") else SourceOffset.parse(json.loads(text))


def records_per_round(topics: Sequence[str]) -> dict[str, int]:
    """The records that each topic gets in a round. Topics that the demo adds have one partition, and get its share."""
    first = RECORDS_PER_S // ROUNDS_PER_S
    return {topic: first // len(REPLICAS) if number else first for number, topic in enumerate(topics)}


class RecordFeed(RepeatedPoll):
    """Produces to each topic of the cluster inside `with`; keys spread the records over partitions. A round without a
    leader for each partition is given up."""

    close_timeout_s = 10.0

    def __init__(self, cluster: Cluster) -> None:
        super().__init__("kafkameta-demo-feed", 1 / ROUNDS_PER_S, from_end=True)
        self._sent = 0
        self._failed = False
        self._cluster = cluster
        self._client_options = replace(
            ClientOptions.parse(cluster.options),
            client_id="kafkameta-demo",
            metadata_max_age_ms=MAX_AGE_MS,
            request_timeout_ms=FEED_TIMEOUT_MS,
        )
        self._producer_options = default_options(
            ProducerOptions, idempotent=False, delivery_timeout_ms=FEED_TIMEOUT_MS, max_block_ms=FEED_TIMEOUT_MS
        )

    def _run(self) -> None:
        with closing(client_without_events(self._client_options)) as self._client:
            super()._run()

    def poll(self) -> None:
        columns = SinkColumns(key=1, value=2, headers=None, topic=0, partition=None, timestamp=None)
        TaskWriter(self._client, self._producer_options, columns, None).write([self._next_round()])

    def on_error(self, error: Exception) -> bool:
        """Only the first error is printed: there may be many. None is, if the demo stopped the brokers."""
        if not self._failed and not isinstance(error, DeliveryTimeoutError):
            self._failed = True
            note(f"a record could not be produced; the demo continues: {error}")
        return True

    def _next_round(self) -> pa.RecordBatch:
        counts = records_per_round(self._cluster.topics)
        topics = [topic for topic, count in counts.items() for _ in range(count)]
        keys = [str(self._sent + number) for number in range(len(topics))]
        self._sent += len(topics)
        values = [f"click {key}" for key in keys]
        return pa.record_batch([pa.array(each, pa.string()) for each in (topics, keys, values)], RECORD_COLUMNS)
