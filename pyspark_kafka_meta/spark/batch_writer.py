"""`KafkaMetaWriter`: Spark's batch writer, and the task that batches and streams share.

Spark unpickles the writer in each worker, so it holds only options; heavy modules are imported on first use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from pyspark_kafka_meta.options import SinkOptions
from pyspark_kafka_meta.sink_schema import SinkColumns
from pyspark_kafka_meta.spark.task_commit import TaskCommit, WrittenOffsets, log_abort, log_commit
from pyspark_kafka_meta.spark.task_latency import PromptTask
from pyspark_kafka_meta.spark.user_errors import entry_points

if TYPE_CHECKING:
    import pyarrow as pa


@entry_points
class KafkaMetaWriter(PromptTask, DataSourceArrowWriter):
    """Appends the rows of a DataFrame to topics."""

    def __init__(self, options: SinkOptions, columns: SinkColumns) -> None:
        self._options = with_driver(options)
        self._columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_task(self._options, self._columns, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        log_commit(messages, "a batch")

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        log_abort(messages, "a batch")


def with_driver(options: SinkOptions) -> SinkOptions:
    """Names the driver for the tasks. Call it in the driver's Python process that makes the writer."""
    from pyspark_kafka_meta.telemetry.event_origin import driver_name

    return replace(options, metrics=replace(options.metrics, driver=driver_name()))


def write_task(options: SinkOptions, columns: SinkColumns, batches: Iterator[pa.RecordBatch]) -> TaskCommit:
    """Write the rows of one task; returns once all are acknowledged."""
    from pyspark_kafka_meta.client.client_pool import worker_clients
    from pyspark_kafka_meta.metadata.refresh_events import Role
    from pyspark_kafka_meta.telemetry.event_origin import task_origin
    from pyspark_kafka_meta.writing.task_writer import TaskWriter

    with worker_clients.client(options.client, options.metrics, task_origin(Role.WRITER)) as client:
        written = TaskWriter(client, options.producer, columns, options.topic).write(batches)
    return TaskCommit(
        tuple(
            WrittenOffsets(partition.topic, partition.partition, *written_range)
            for partition, ranges in sorted(written.items())
            for written_range in ranges
        )
    )
