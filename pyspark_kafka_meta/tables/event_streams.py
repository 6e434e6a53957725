"""Spark's stream readers of refresh events, from files and from a topic, as pyspark 4.2 and later call them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.options import ClusterOptions, EventTableOptions, Table
from pyspark_kafka_meta.spark.records_table import Columns
from pyspark_kafka_meta.spark.stream_api import ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark_kafka_meta.spark.stream_reader import KafkaMetaStreamReader
from pyspark_kafka_meta.spark.user_errors import entry_points
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
from pyspark_kafka_meta.tables.readers import (
    VALUE_COLUMN,
    event_batches,
    event_folder,
    file_lines,
    file_tasks,
    record_values,
)

if TYPE_CHECKING:
    import pyarrow as pa


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
            return latest_offset(self._folder().files(), _now_ms()).as_dict()
        return FilesOffset({}, initial=True).as_dict()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxFiles(self._options.max_files)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = next_numbers(self._folder().files())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        max_files = limit.max_files if isinstance(limit, ReadMaxFiles) else None
        begin = FilesOffset.parse(start)
        files = self._folder().files(begin)
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
            files = self._folder().files(until.start or begin)
        warn_of_deleted(count_deleted(begin, until, files))
        return file_tasks(files_between(begin, until, files))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return event_batches(file_lines(self._options, partition), self._columns)

    def _folder(self) -> EventFolder:
        return event_folder(self._options)


@entry_points
class EventTopicStreamReader(KafkaMetaStreamReader):
    """Reads the values of the events topic as events."""

    def __init__(self, options: EventTableOptions, columns: Columns) -> None:
        assert options.topic is not None
        super().__init__(options.topic.for_stream(), VALUE_COLUMN)
        self._event_columns = columns

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return event_batches(record_values(super().read(partition)), self._event_columns)


def _now_ms() -> int:
    return int(time.time() * 1000)
