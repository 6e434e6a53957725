"""`KafkaMetaStreamWriter`: Spark's stream writer; needs pyspark 4.1 or later."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from pyspark_kafka_meta.options import SinkOptions
from pyspark_kafka_meta.sink_schema import SinkColumns
from pyspark_kafka_meta.spark.batch_writer import with_driver, write_task
from pyspark_kafka_meta.spark.task_commit import log_abort, log_commit
from pyspark_kafka_meta.spark.task_latency import PromptTask, begin_promptly
from pyspark_kafka_meta.spark.user_errors import entry_points

if TYPE_CHECKING:
    import pyarrow as pa


@entry_points
class KafkaMetaStreamWriter(PromptTask, DataSourceStreamArrowWriter):
    """Appends the rows of each micro-batch to topics, at least once: Spark repeats failed tasks and micro-batches."""

    def __init__(self, options: SinkOptions, columns: SinkColumns) -> None:
        begin_promptly()  # Spark makes a writer for the plan of each micro-batch, and in another process for its commit
        self._options = with_driver(options)
        self._columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_task(self._options, self._columns, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        log_commit(messages, f"micro-batch {batchId}")

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        log_abort(messages, f"micro-batch {batchId}")
