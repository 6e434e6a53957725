"""`KafkaMetaStreamWriter`: Spark's stream writer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import WriterCommitMessage

from pyspark_kafka_meta.options import SinkOptions
from pyspark_kafka_meta.spark.batch_writer import (
    abort_batch,
    commit_transactions,
    log_commit,
    plan_transactions,
    require_topic,
    with_driver,
    write_task,
)
from pyspark_kafka_meta.spark.stream_api import DataSourceStreamArrowWriter
from pyspark_kafka_meta.spark.task_latency import LowLatencyTask, avoid_task_delays
from pyspark_kafka_meta.spark.typed_columns import columns_without_encoders, with_encoders
from pyspark_kafka_meta.spark.user_errors import entry_points
from pyspark_kafka_meta.write.exactly_once.decision import STREAM

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from pyspark_kafka_meta.typed.writing import FinalAnswers


@entry_points
class KafkaMetaStreamWriter(LowLatencyTask, DataSourceStreamArrowWriter):
    """Appends the rows of each micro-batch to topics. At least once, because Spark repeats failed tasks and
    micro-batches; with `kafka.transactional.id` exactly once for read_committed readers."""

    def __init__(self, options: SinkOptions, schema: StructType, answers: FinalAnswers, *, plans: bool) -> None:
        """
        Args:
            answers: of the registry to this stream so far.
            plans: whether tasks will write. Spark also makes a writer, in another process, for the commit.
        """
        avoid_task_delays()
        self._options = with_driver(options)
        self._columns = columns_without_encoders(schema, options)
        self._plan = plan_transactions(self._options, STREAM) if plans else None
        if plans:
            # After the plan: what an earlier run decided is settled also without the topic or the registry.
            require_topic(self._options)
            self._columns = with_encoders(self._columns, schema, self._options, answers)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_task(self._options, self._columns, iterator, self._plan)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        commit_transactions(self._options, messages)
        log_commit(messages, f"micro-batch {batchId}")

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        abort_batch(self._options, messages, f"micro-batch {batchId}")
