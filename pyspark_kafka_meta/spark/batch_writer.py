"""`KafkaMetaWriter`: Spark's batch writer, and what batches and streams share: the task, its message to the driver, and
the driver's transactions.

Spark unpickles the writer in each worker, so it holds only options; heavy modules are imported on first use.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyspark
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from pyspark_kafka_meta.errors import ChangedBatchError, KafkaMetaError
from pyspark_kafka_meta.model import NO_ROWS, RowDigest
from pyspark_kafka_meta.options import SinkOptions
from pyspark_kafka_meta.spark.task_latency import LowLatencyTask
from pyspark_kafka_meta.spark.typed_columns import columns_without_encoders, with_encoders
from pyspark_kafka_meta.spark.user_errors import entry_points
from pyspark_kafka_meta.spark.worker_memory import worker_memory
from pyspark_kafka_meta.write.exactly_once.decision import BATCH, STREAM, BatchId, TransactionPlan, is_written
from pyspark_kafka_meta.write.input_columns import SinkColumns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from pyspark_kafka_meta.events.event import Origin
    from pyspark_kafka_meta.model import OpenTransaction
    from pyspark_kafka_meta.write.exactly_once.batch_committer import BatchCommitter

logger = logging.getLogger(__name__)


@entry_points
class KafkaMetaWriter(LowLatencyTask, DataSourceArrowWriter):
    """Appends the rows of a DataFrame to topics. With `kafka.transactional.id`, all become visible or none."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = with_driver(options)
        columns = columns_without_encoders(schema, options)
        self._batch = _batch_id(options)
        self._plan = plan_transactions(self._options, self._batch.series)
        if self._plan is not None and is_written(self._plan.decisions, self._batch):
            logger.warning(
                "%s of txnAppId %s was written before with this kafka.transactional.id: its rows are not written again",
                self._batch,
                self._batch.owner,
            )
        # After the plan: what an earlier run decided is settled also without the topic or the registry.
        require_topic(self._options)
        self._columns = with_encoders(columns, schema, self._options, {})

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_task(self._options, self._columns, iterator, self._plan, self._batch)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        commit_transactions(self._options, messages)
        log_commit(messages, "a batch")

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        abort_batch(self._options, messages, "a batch")


def _batch_id(options: SinkOptions) -> BatchId:
    """Without txnAppId, a batch of its own, which nothing can repeat."""
    app_id, version = options.transaction.txn_app_id, options.transaction.txn_version
    if app_id is None or version is None:
        return BatchId(BATCH, str(uuid.uuid4()), 0)
    return BatchId.of_app(app_id, version)


def with_driver(options: SinkOptions) -> SinkOptions:
    """Names the driver for the tasks. Call it in the driver's Python process that makes the writer."""
    from pyspark_kafka_meta.events.origin import driver_name

    return replace(options, events=replace(options.events, driver=driver_name()))


# --- tasks ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskCommit(WriterCommitMessage):
    """All rows of a task are acknowledged. Spark's driver holds the messages of all tasks: offsets are only in the
    transaction, which needs them.

    Attributes:
        records: number of rows that were written.
        transaction: in which the rows wait for the driver's commit; None without `kafka.transactional.id` or rows.
        batch: of an exactly-once write.
        rows: of an exactly-once write, also those that the task did not write because their batch was decided before.
    """

    records: int
    transaction: OpenTransaction | None = None
    batch: BatchId | None = None
    rows: RowDigest = NO_ROWS


@worker_memory("kafka.buffer.memory and spark.sql.execution.arrow.maxRecordsPerBatch")
def write_task(
    options: SinkOptions,
    columns: SinkColumns,
    batches: Iterator[pa.RecordBatch],
    plan: TransactionPlan | None = None,
    batch: BatchId | None = None,
) -> TaskCommit:
    """Write the rows of one task; returns once all are acknowledged. With a plan they are in a transaction, which the
    driver ends; a batch that was decided before is not written again.

    Args:
        batch: None for the micro-batch of the running task.
    """
    from pyspark_kafka_meta.events.event import Role
    from pyspark_kafka_meta.events.origin import task_origin
    from pyspark_kafka_meta.spark.client_pool import worker_clients
    from pyspark_kafka_meta.write.exactly_once.commit_protocol import require_owner
    from pyspark_kafka_meta.write.row_digest import RowDigester
    from pyspark_kafka_meta.write.task_writer import TaskWriter
    from pyspark_kafka_meta.write.transactional_producer import TransactionalProducer

    origin = task_origin(Role.WRITER)
    if plan is None and options.transaction.transactional_id is not None:
        raise KafkaMetaError(f"this task has no transaction: pyspark {pyspark.__version__} is not supported")
    digester = RowDigester(columns)
    if plan is not None:
        batch, batches = batch or _micro_batch(origin), digester.passing(batches)
        if is_written(plan.decisions, batch):
            deque(batches, maxlen=0)
            return TaskCommit(0, None, batch, digester.digest)
        require_owner(plan.decisions, batch)
    with worker_clients.client(options.client, options.events, origin) as client:
        transaction = None
        if plan is not None:
            assert origin.task_partition_id is not None and origin.task_attempt is not None
            transactional_id = plan.task_id(origin.task_partition_id, origin.task_attempt)
            transaction = TransactionalProducer(
                client, transactional_id, plan.timeout_ms, plan.version, options.producer.max_block_ms
            )
        written = TaskWriter(client, options.producer, columns, options.topic, transaction).write(batches)
        opened = None if transaction is None else transaction.opened(written)
        return TaskCommit(sum(offsets.records for offsets in written.values()), opened, batch, digester.digest)


def _micro_batch(origin: Origin) -> BatchId:
    """The micro-batch of the running task: only tasks are told its query."""
    assert origin.query_id is not None and origin.batch_id is not None, "Spark sets both in each task of a stream"
    return BatchId(STREAM, origin.query_id, origin.batch_id)


# --- the driver -------------------------------------------------------------------------------------------------------


@contextmanager
def batch_committer(options: SinkOptions, batch: BatchId | None = None) -> Iterator[BatchCommitter]:
    """The sink's committer in this Python process beside Spark's driver. `batch` is for its events."""
    from pyspark_kafka_meta.events.origin import committer_origin
    from pyspark_kafka_meta.spark.client_pool import worker_clients

    origin = committer_origin(None, None)
    if batch is not None and batch.is_stream:
        origin = committer_origin(batch.owner, batch.version)
    with worker_clients.committer(options, origin) as committer:
        yield committer


def require_topic(options: SinkOptions) -> None:
    """Fail before tasks start if the option topic names a topic that does not exist, or create it. The cluster is asked
    once: Spark keeps the process, and the process its client. Except in a write in transactions, this makes no events.
    Raises UnknownTopicError, BrokerError, ConnectError: as `ask_partitions` and `create_if_missing`."""
    if options.topic is None:
        return
    from pyspark_kafka_meta.events.origin import committer_origin
    from pyspark_kafka_meta.spark.client_pool import worker_clients
    from pyspark_kafka_meta.write.topic_metadata import ask_partitions, create_if_missing

    events = None if options.transaction.transactional_id is None else options.events  # the committer's client
    with worker_clients.client(options.client, events, committer_origin(None, None)) as client:
        if options.topic not in client.cache.snapshot.topics:
            if options.create_topics:
                create_if_missing(client, options)
            else:
                ask_partitions(client, [options.topic], options.producer.max_block_ms)


def plan_transactions(options: SinkOptions, series: str) -> TransactionPlan | None:
    """Settle earlier batches, and return what tasks need to write a batch of this series in transactions; None if they
    write in none."""
    if options.transaction.transactional_id is None:
        return None
    with batch_committer(options) as committer:
        plan = committer.plan(series)
        last = {name: decision for name, decision in plan.decisions.items() if name == series}
        return replace(plan, decisions=last)


def commit_transactions(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Make the records of a batch visible, if it was written in transactions. Raises ChangedBatchError: see
    `commit_protocol.commit`; unless onChangedBatch is skip."""
    if options.transaction.transactional_id is None:
        return
    transactions, commits = _transactions(messages), _commits(messages)
    batch = next((commit.batch for commit in commits if commit.batch is not None), None)
    rows = sum((commit.rows for commit in commits), NO_ROWS)
    # The first micro-batch of a query takes over the sink, also without rows.
    if batch is not None and (rows.rows or (batch.is_stream and batch.version == 0)):
        try:
            with batch_committer(options, batch) as committer:
                committer.commit(batch, transactions, int(time.time() * 1000), rows)
        except ChangedBatchError as error:
            if not options.transaction.skip_changed_batches:
                raise
            logger.warning("%s; continuing because onChangedBatch is skip", error)


def abort_batch(options: SinkOptions, messages: Sequence[WriterCommitMessage | None], what: str) -> None:
    """Abort the transactions of a batch that failed, or warn of the records that it leaves behind."""
    if options.transaction.transactional_id is None:
        log_abort(messages, what)
    else:
        with batch_committer(options) as committer:
            all_ended = all(message is not None for message in messages)
            committer.abort(len(messages), _transactions(messages), all_ended=all_ended)


def log_commit(messages: Sequence[WriterCommitMessage | None], what: str) -> None:
    """`what` is a batch or a micro-batch with its number."""
    commits = _commits(messages)
    logger.info("%s: %d tasks wrote %d records", what, len(commits), sum(commit.records for commit in commits))


def log_abort(messages: Sequence[WriterCommitMessage | None], what: str) -> None:
    """Warn of records that stay. A query that is stopped ends so too, mostly without any."""
    records = sum(commit.records for commit in _commits(messages))
    if records:
        logger.warning(
            "%s failed after some of its tasks had written %d records, which stay in their topics: a repetition writes "
            "them again",
            what,
            records,
        )


def _commits(messages: Sequence[WriterCommitMessage | None]) -> list[TaskCommit]:
    return [message for message in messages if isinstance(message, TaskCommit)]


def _transactions(messages: Sequence[WriterCommitMessage | None]) -> list[OpenTransaction]:
    """Of the tasks that wrote rows."""
    return [commit.transaction for commit in _commits(messages) if commit.transaction is not None]
