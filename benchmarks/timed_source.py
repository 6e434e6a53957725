"""Sources and sinks in Python whose calls are spans: this source and sink, and ones that do nothing.

Spark's Python processes import this module when they unpickle a source, and then time the calls of `CALLS` too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.types import StructType

from benchmarks.ready_rows import Range, ready_rows
from benchmarks.spans import now_ms, record, span, time_calls
from pyspark_kafka_meta import KafkaMetaDataSource
from pyspark_kafka_meta.kafka.client.transactions import TransactionCoordinators
from pyspark_kafka_meta.read.fetching.task_reader import TaskReader
from pyspark_kafka_meta.read.planning.leader_epochs import LeaderEpochs
from pyspark_kafka_meta.read.planning.offset_resolver import OffsetResolver
from pyspark_kafka_meta.spark.records_table import records_struct_type
from pyspark_kafka_meta.spark.task_latency import LowLatencyTask, avoid_socket_delays
from pyspark_kafka_meta.write.exactly_once.step_runner import StepRunner
from pyspark_kafka_meta.write.task_writer import TaskWriter

READY_ROWS = 150
"""In a micro-batch of the source that does nothing: as many as arrive at a thousand records a second."""
VALUE_BYTES = 20

CALLS: tuple[tuple[type, str, str], ...] = (
    (OffsetResolver, "latest", "ListOffsets"),
    (LeaderEpochs, "with_epoch_starts", "epochs"),
    (TaskReader, "_receive", "Fetch"),
    (TaskWriter, "_add", "encode and send"),
    (TaskWriter, "_wait_until_unacknowledged", "Produce"),
    (TransactionCoordinators, "fence", "InitProducerId"),
    (TransactionCoordinators, "add_partitions", "AddPartitionsToTxn"),
    (TransactionCoordinators, "end_transactions", "EndTxn"),
    (TransactionCoordinators, "transaction_version", "transaction version"),
)
for owner, method, name in CALLS:
    time_calls(owner, method, lambda *_, _name=name, **__: _name)
time_calls(StepRunner, "run", lambda _, step: type(step).__name__)


class TimedReader(DataSourceStreamReader):
    """Calls another reader."""

    def __init__(self, reader: DataSourceStreamReader) -> None:
        self._reader = reader

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        record("reader unpickled", now_ms())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return self._reader.getDefaultReadLimit()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._reader.initialOffset()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        with span("latestOffset"):
            return self._reader.latestOffset(start, limit)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        with span("reportLatestOffset"):
            return self._reader.reportLatestOffset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with span("partitions"):
            return self._reader.partitions(start, end)

    def commit(self, end: dict[str, Any]) -> None:
        with span("source commit"):
            self._reader.commit(end)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        start_ms = now_ms()
        for number, batch in enumerate(self._reader.read(partition)):
            if number == 0:
                record("read: first rows", start_ms)
            yield batch
        record("read", start_ms)

    def stop(self) -> None:
        self._reader.stop()


class TimedWriter(DataSourceStreamArrowWriter):
    """Calls another writer."""

    def __init__(self, writer: DataSourceStreamWriter) -> None:
        self._writer = writer

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        record("writer unpickled", now_ms())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with span("write"):
            return self._writer.write(self._timed(iterator))

    def _timed(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        start_ms = now_ms()
        for number, batch in enumerate(batches):
            if number == 0:
                record("write: first rows", start_ms)
            yield batch
        record("write: all rows", start_ms)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        with span("sink commit"):
            self._writer.commit(list(messages), batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._writer.abort(list(messages), batchId)


class TimedSource(KafkaMetaDataSource):
    """This source and sink."""

    def __init__(self, options: dict[str, str]) -> None:
        self._made_ms = now_ms()
        super().__init__(options)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._made_ms = now_ms()

    @classmethod
    def name(cls) -> str:
        return "timed"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return TimedReader(super().streamReader(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        writer = super().streamWriter(schema, overwrite)
        record("writer made", self._made_ms)
        return TimedWriter(writer)


class IdleSource(DataSource):
    """A source of ready rows in one task, and a sink that drops its rows."""

    def __init__(self, options: dict[str, str]) -> None:
        self._made_ms = now_ms()
        super().__init__(options)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._made_ms = now_ms()

    @classmethod
    def name(cls) -> str:
        return "idle"

    def schema(self) -> StructType:
        return records_struct_type(include_headers=False)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return TimedReader(IdleReader(READY_ROWS))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        record("writer made", self._made_ms)
        return TimedWriter(IdleWriter(schema))


class IdleReader(LowLatencyTask, DataSourceStreamReader):
    """Always has another micro-batch."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"offset": 0}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        avoid_socket_delays()
        return {"offset": start["offset"] + self._rows}

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [Range(0, start["offset"], end["offset"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        yield from ready_rows(VALUE_BYTES, partition.until_offset - partition.from_offset)


class IdleWriter(LowLatencyTask, DataSourceStreamArrowWriter):
    """Has a field: objects without one are unpickled without `__setstate__`."""

    def __init__(self, schema: StructType) -> None:
        self._schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        pass

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        pass
