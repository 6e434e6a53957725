"""Spark's batch readers of the side tables; `event_streams` has the stream readers of refresh events.

Spark pickles readers, so they hold options and no connection. Methods import heavy modules when they need them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.kafka.metadata.refresh_events import RefreshEvent
from pyspark_kafka_meta.options import ClusterOptions, EventsOptions, Table
from pyspark_kafka_meta.spark.batch_reader import KafkaMetaReader
from pyspark_kafka_meta.spark.records_table import Columns, with_user_spelling
from pyspark_kafka_meta.spark.user_errors import entry_points
from pyspark_kafka_meta.tables.event_file_reader import EventFile, EventFolder
from pyspark_kafka_meta.tables.schemas import ROWS, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

FILES_PER_TASK = 200
"""A Python task costs more than many small files."""
VALUE_COLUMN = {"value": "value"}


class FilesTask(InputPartition):
    """The event files of one Spark task."""

    def __init__(self, files: Sequence[EventFile]) -> None:
        self.files = tuple(files)


class CachesTask(InputPartition):
    """All events, in one task, because a row of the table depends on all events of a cache."""

    def __init__(self, source: Sequence[InputPartition], now_ms: int) -> None:
        self.source = tuple(source)
        self.now_ms = now_ms


@entry_points
class EventFilesReader(DataSourceReader):
    """Reads the event files that exist when Spark plans the query."""

    def __init__(self, options: EventsOptions, columns: Columns) -> None:
        if options.starts_latest:
            raise OptionError("starting offset can't be latest for batch queries on refresh events")
        self._options = options
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        return file_tasks(event_folder(self._options).files())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return event_batches(file_lines(self._options, partition), self._columns)


@entry_points
class EventTopicReader(KafkaMetaReader):
    """Reads the values of the metrics topic as events."""

    def __init__(self, options: EventsOptions, columns: Columns) -> None:
        assert options.topic is not None
        super().__init__(options.topic.for_batch(), VALUE_COLUMN)
        self._event_columns = columns

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return event_batches(record_values(super().read(partition)), self._event_columns)


@entry_points
class CachesReader(DataSourceReader):
    """Computes the caches table from all events, in one task."""

    def __init__(self, events: DataSourceReader, columns: Columns) -> None:
        self._events = events
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        return [CachesTask(self._events.partitions(), int(time.time() * 1000))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:

        from pyspark_kafka_meta.tables.caches_from_events import cache_rows

        assert isinstance(partition, CachesTask)
        batches: Iterator[Any] = chain.from_iterable(map(self._events.read, partition.source))
        rows = cache_rows((event for batch in batches for event in batch.to_pylist()), partition.now_ms)
        return _row_batches(Table.CACHES, rows, self._columns)


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
        from pyspark_kafka_meta.tables.cluster_query import broker_rows, describe_cluster, partition_rows
        from pyspark_kafka_meta.tables.open_transactions import query_transactions

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


def batch_reader(table: Table, options: EventsOptions | ClusterOptions, columns: Columns) -> DataSourceReader:
    """The reader of a side table for `spark.read`. Raises OptionError for events that start at latest."""
    if isinstance(options, ClusterOptions):
        return ClusterReader(table, options, columns)
    all_columns = {name: name for name in arrow_schema(RefreshEvent).names}
    needed = columns if table is Table.REFRESH_EVENTS else all_columns
    events = EventTopicReader(options, needed) if options.topic is not None else EventFilesReader(options, needed)
    return events if table is Table.REFRESH_EVENTS else CachesReader(events, columns)


def event_folder(options: EventsOptions) -> EventFolder:
    from pyspark_kafka_meta.events.default_folder import default_root

    return EventFolder(options.path or str(default_root()))


def file_tasks(files: Sequence[EventFile]) -> list[InputPartition]:
    return [FilesTask(files[start : start + FILES_PER_TASK]) for start in range(0, len(files), FILES_PER_TASK)]


def file_lines(options: EventsOptions, partition: InputPartition) -> Iterator[bytes]:
    # Spark replaces an empty list of batch partitions with one partition that is not a FilesTask.
    files = partition.files if isinstance(partition, FilesTask) else ()
    return event_folder(options).lines(files)


def record_values(batches: Iterator[pa.RecordBatch]) -> Iterator[bytes | None]:
    for batch in batches:
        yield from batch.column("value").to_pylist()


def event_batches(lines: Iterator[bytes | None], columns: Columns) -> Iterator[pa.RecordBatch]:
    from pyspark_kafka_meta.tables.event_parser import parse_events, to_batches

    return with_user_spelling(to_batches(parse_events(lines), arrow_schema(RefreshEvent, list(columns))), columns)


def _row_batches(table: Table, rows: Sequence[Any], columns: Columns) -> Iterator[pa.RecordBatch]:
    from pyspark_kafka_meta.tables.event_parser import to_batches

    return with_user_spelling(to_batches(map(asdict, rows), arrow_schema(ROWS[table], list(columns))), columns)
