"""The side tables in Spark: functions that return them as DataFrames, and the batch readers that Spark calls.

Spark plans a DataFrame once, at its first use: call the function again for newer rows. Options are those of
`format("kafkameta")` for the table: `caches(spark, eventsPath="/data/events")`,
`partitions(spark, **{"kafka.bootstrap.servers": "localhost:9092"})`.

Spark pickles readers, so they hold options and no connection. Methods import heavy modules when they need them.
Refresh events alone are also streams, which `pyspark` 4.2 and later read as here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from pyspark_kafka_meta.errors import KafkaMetaError, OptionError
from pyspark_kafka_meta.events.default_folder import default_root
from pyspark_kafka_meta.events.event import Event
from pyspark_kafka_meta.kafka.records.schema import rows_without_columns
from pyspark_kafka_meta.options import ClusterOptions, EventTableOptions, Table
from pyspark_kafka_meta.spark.batch_reader import KafkaMetaReader
from pyspark_kafka_meta.spark.records_table import Columns, rename_columns
from pyspark_kafka_meta.spark.stream_api import ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark_kafka_meta.spark.stream_reader import KafkaMetaStreamReader
from pyspark_kafka_meta.spark.user_errors import entry_points
from pyspark_kafka_meta.tables.caches_from_events import CONTENTS, CacheContents, KnownCaches
from pyspark_kafka_meta.tables.event_file_reader import (
    EventFile,
    EventFolder,
    FilesOffset,
    advance,
    count_deleted,
    files_between,
    latest_offset,
    next_numbers,
    warn_of_deleted,
)
from pyspark_kafka_meta.tables.leader_changes import leader_change_rows
from pyspark_kafka_meta.tables.parsed_events import parse_events
from pyspark_kafka_meta.tables.rows import ROWS, CacheRow, LagRow, arrow_schema, struct_type, to_batches

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.query import StreamingQuery


FILES_PER_TASK = 200
"""A Python task costs more than many small files."""
VALUE_COLUMN = {"value": "value"}
LEARNED = (*CONTENTS, "recovery_ms", "retries")
"""The fields of events that leader changes need."""


def refresh_events(spark: SparkSession, stream: bool = False, **options: str) -> DataFrame:
    """The refresh events of all metadata caches, as a batch or as a stream from the earliest event on."""
    return _load(spark, Table.REFRESH_EVENTS, options, stream)


def caches(spark: SparkSession, **options: str) -> DataFrame:
    """What each metadata cache knows now: a row for each cache and topic-partition."""
    return _load(spark, Table.CACHES, options)


def leader_changes(spark: SparkSession, **options: str) -> DataFrame:
    """The leader changes that any metadata cache has learned: who knew when, and who does not know yet."""
    return _load(spark, Table.LEADER_CHANGES, options)


def brokers(spark: SparkSession, **options: str) -> DataFrame:
    """The brokers of a cluster, as one broker reports them now."""
    return _load(spark, Table.BROKERS, options)


def partitions(spark: SparkSession, **options: str) -> DataFrame:
    """The partitions of a cluster now: leaders, replicas, start and end offsets."""
    return _load(spark, Table.PARTITIONS, options)


def open_transactions(spark: SparkSession, **options: str) -> DataFrame:
    """The open transactions of a cluster now, and those of decided batches that are not settled."""
    return _load(spark, Table.TRANSACTIONS, options)


def lag(spark: SparkSession, progress: StreamingQuery | Mapping[str, Any] | str | None, **options: str) -> DataFrame:
    """The lag of a streaming query, in records and in seconds: a `LagRow` for each partition that it reads.

    Queries the cluster now, and reads the next unread record of each partition for its timestamp.

    Args:
        progress: the query, one of its progress reports, or its checkpointLocation, a path or a URI that pyarrow knows.
            Sources of other formats are ignored.
        options: `kafka.*`, of the query's cluster.

    Raises:
        KafkaMetaError: the query has made no progress yet.
        CheckpointError: as `read_checkpoint`.
    """
    from pyspark_kafka_meta.tables.lag import end_offsets, query_lag, read_checkpoint

    report = getattr(progress, "lastProgress", progress)
    if report is None:
        raise KafkaMetaError("the query has made no progress yet: call again after its first micro-batch")
    offsets = read_checkpoint(report).offsets if isinstance(report, str) else end_offsets(report)
    rows = query_lag(options, offsets)
    return spark.createDataFrame([astuple(row) for row in rows], struct_type(LagRow))


def _load(spark: SparkSession, table: Table, options: Mapping[str, str], stream: bool = False) -> DataFrame:
    reader = spark.readStream if stream else spark.read
    return reader.format("kafkameta").option("table", table.value).options(**options).load()


class FilesTask(InputPartition):
    """The event files of one Spark task."""

    def __init__(self, files: Sequence[EventFile]) -> None:
        self.files = tuple(files)


class AllEventsTask(InputPartition):
    """All events, in one task, because a row of the table depends on all events of a cache."""

    def __init__(self, source: Sequence[InputPartition], now_ms: int) -> None:
        self.source = tuple(source)
        self.now_ms = now_ms


@entry_points
class EventFilesReader(DataSourceReader):
    """Reads the event files that exist when Spark plans the query."""

    def __init__(self, options: EventTableOptions, columns: Columns) -> None:
        if options.starts_latest:
            raise OptionError("starting offset can't be latest for batch queries on refresh events")
        self._options = options
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        return _file_tasks(_event_folder(self._options).files())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _event_batches(self.lines(partition), self._columns)

    def lines(self, partition: InputPartition) -> Iterator[bytes]:
        return _file_lines(self._options, partition)


@entry_points
class EventTopicReader(KafkaMetaReader):
    """Reads the values of the events topic as events."""

    def __init__(self, options: EventTableOptions, columns: Columns) -> None:
        assert options.topic is not None
        super().__init__(options.topic.for_batch(), VALUE_COLUMN)
        self._event_columns = columns

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _event_batches(self.lines(partition), self._event_columns)

    def lines(self, partition: InputPartition) -> Iterator[bytes | None]:
        return _record_values(super().read(partition))


@entry_points
class AllEventsReader(DataSourceReader):
    """Computes a table from all events, in one task."""

    def __init__(self, table: Table, events: EventFilesReader | EventTopicReader, columns: Columns) -> None:
        self._table = table
        self._events = events
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        return [AllEventsTask(self._events.partitions(), _now_ms())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, AllEventsTask)
        lines = chain.from_iterable(map(self._events.lines, partition.source))
        if self._table is Table.LEADER_CHANGES:
            return _row_batches(
                self._table, leader_change_rows(parse_events(lines, LEARNED), partition.now_ms), self._columns
            )
        caches = KnownCaches.of(parse_events(lines, CONTENTS)).living()
        return rename_columns(_cache_batches(caches, partition.now_ms, self._columns), self._columns)


@entry_points
class ClusterReader(DataSourceReader):
    """Reads the brokers, partitions or transactions of the cluster, in one task."""

    def __init__(self, table: Table, options: ClusterOptions, columns: Columns) -> None:
        self._table = table
        self._options = options
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from pyspark_kafka_meta.tables.cluster_query import (
            broker_rows,
            describe_cluster,
            partition_rows,
            query_transactions,
        )

        options = self._options
        rows: Sequence[Any]
        match self._table:
            case Table.BROKERS:
                rows = broker_rows(describe_cluster(options.client, ()))
            case Table.TRANSACTIONS:
                rows = query_transactions(options)
            case _:
                rows = partition_rows(options.client, options.topics, options.fetch.read_committed)
        return _row_batches(self._table, rows, self._columns)


def batch_reader(table: Table, options: EventTableOptions | ClusterOptions, columns: Columns) -> DataSourceReader:
    """The reader of a side table for `spark.read`. Raises OptionError for events that start at latest."""
    if isinstance(options, ClusterOptions):
        return ClusterReader(table, options, columns)
    events = EventTopicReader(options, columns) if options.topic is not None else EventFilesReader(options, columns)
    return events if table is Table.REFRESH_EVENTS else AllEventsReader(table, events, columns)


# --- streams of events ------------------------------------------------------------------------------------------------


def stream_reader(
    table: Table, options: EventTableOptions | ClusterOptions, columns: Columns
) -> DataSourceStreamReader:
    """The reader of refresh events for `spark.readStream`. Raises OptionError for any other table."""
    if isinstance(options, ClusterOptions) or table is not Table.REFRESH_EVENTS:
        raise OptionError(f"table {table} is not a stream: use spark.read, or stream refresh_events")
    if options.topic is not None:
        return EventTopicStreamReader(options, columns)
    return EventFilesStreamReader(options, columns)


@entry_points
class EventFilesStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads each new event file in exactly one micro-batch."""

    def __init__(self, options: EventTableOptions, columns: Columns) -> None:
        self._options = options
        self._columns = columns
        self._target: Mapping[str, int] | None = None
        # The latest planned batch: start, end and files, so that a plan lists the folder once.
        self._planned: tuple[FilesOffset, FilesOffset, Sequence[EventFile]] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        if self._options.starts_latest:
            return latest_offset(_event_folder(self._options).files(), _now_ms()).as_dict()
        return FilesOffset({}, initial=True).as_dict()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxFiles(self._options.max_files)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = next_numbers(_event_folder(self._options).files())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        max_files = limit.max_files if isinstance(limit, ReadMaxFiles) else None
        begin = FilesOffset.parse(start)
        files = _event_folder(self._options).files(begin)
        if self._target is not None:
            files = [file for file in files if file.number < self._target.get(file.writer_id, 0)]
        end = advance(begin, files, max_files, _now_ms())
        self._planned = begin, end, files_between(begin, end, files)
        return end.as_dict()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, until = FilesOffset.parse(start), FilesOffset.parse(end)
        planned, self._planned = self._planned, None  # Spark pickles the reader for the tasks
        if planned is not None and planned[:2] == (begin, until):
            files = planned[2]
        else:
            files = _event_folder(self._options).files(until.start or begin)
        warn_of_deleted(count_deleted(begin, until, files))
        return _file_tasks(files_between(begin, until, files))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _event_batches(_file_lines(self._options, partition), self._columns)


@entry_points
class EventTopicStreamReader(KafkaMetaStreamReader):
    """Reads the values of the events topic as events."""

    def __init__(self, options: EventTableOptions, columns: Columns) -> None:
        assert options.topic is not None
        super().__init__(options.topic.for_stream(), VALUE_COLUMN)
        self._event_columns = columns

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _event_batches(_record_values(super().read(partition)), self._event_columns)


def _now_ms() -> int:
    return int(time.time() * 1000)


# --- both -------------------------------------------------------------------------------------------------------------


def _event_folder(options: EventTableOptions) -> EventFolder:
    return EventFolder(options.path or str(default_root()))


def _file_tasks(files: Sequence[EventFile]) -> list[InputPartition]:
    return [FilesTask(files[start : start + FILES_PER_TASK]) for start in range(0, len(files), FILES_PER_TASK)]


def _file_lines(options: EventTableOptions, partition: InputPartition) -> Iterator[bytes]:
    # Spark replaces an empty list of batch partitions with one partition that is not a FilesTask.
    files = partition.files if isinstance(partition, FilesTask) else ()
    return _event_folder(options).lines(files)


def _record_values(batches: Iterator[pa.RecordBatch]) -> Iterator[bytes | None]:
    for batch in batches:
        yield from batch.column("value").to_pylist()


def _event_batches(lines: Iterator[bytes | None], columns: Columns) -> Iterator[pa.RecordBatch]:
    return rename_columns(to_batches(parse_events(lines, columns), arrow_schema(Event, list(columns))), columns)


def _cache_batches(caches: Sequence[CacheContents], now_ms: int, columns: Columns) -> Iterator[pa.RecordBatch]:
    """A batch for each cache."""
    import pyarrow as pa

    schema = arrow_schema(CacheRow, list(columns))
    for contents in caches:
        common, entries = contents.common(now_ms), contents.entries()
        rows = len(entries["topic"])
        arrays = [
            pa.array(entries[field.name], field.type)
            if field.name in entries
            else pa.repeat(pa.scalar(common[field.name], field.type), rows)
            for field in schema
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema) if arrays else rows_without_columns(rows)


def _row_batches(table: Table, rows: Sequence[Any], columns: Columns) -> Iterator[pa.RecordBatch]:
    return rename_columns(to_batches(map(asdict, rows), arrow_schema(ROWS[table], list(columns))), columns)
