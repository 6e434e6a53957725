"""`KafkaMetaStreamReader`: Spark's stream reader, as pyspark 4.2 and later call it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.spark.batch_reader import new_planner, new_tasks, new_writer_schemas, read_partition
from pyspark_kafka_meta.spark.records_table import Columns
from pyspark_kafka_meta.spark.stream_api import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark_kafka_meta.spark.task_latency import LowLatencyTask
from pyspark_kafka_meta.spark.user_errors import entry_points

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafka_meta.model import Positions, SchemaPin
    from pyspark_kafka_meta.read.planning.checkpoint_offsets import SourceOffset
    from pyspark_kafka_meta.read.planning.offset_planner import OffsetPlanner
    from pyspark_kafka_meta.typed.reading import QuerySchemas, RegisteredSchema, WriterSchemas


@entry_points
class KafkaMetaStreamReader(LowLatencyTask, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches beside the driver and reads their tasks on executors."""

    def __init__(self, options: SourceOptions, columns: Columns, schemas: QuerySchemas | None = None) -> None:
        """`schemas` are of typed columns; None without these."""
        self._options = options
        self._columns = columns
        self._schemas = schemas
        self._pins = {} if schemas is None else schemas.pins
        self._compared_pins: Mapping[str, SchemaPin] = self._pins
        self._writers: WriterSchemas | None = None
        self._opened: OffsetPlanner | None = None
        self._target: Positions | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Sends no request: the end of batch 0 carries the start that it was planned from, for a replay."""
        from pyspark_kafka_meta.read.planning.checkpoint_offsets import BEGINNING

        return BEGINNING.as_dict()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Later only its absence under Trigger.Once matters: Spark has no composite limits for Python sources."""
        max_offsets, min_offsets = self._options.max_offsets_per_trigger, self._options.min_offsets_per_trigger
        if max_offsets is not None:
            return ReadMaxRows(max_offsets)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable() if min_offsets is None else ReadMinRows(min_offsets)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        planner = self._planner()
        try:
            self._target = planner.available_now()
        finally:
            planner.flush_events()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        limited = not isinstance(limit, ReadAllAvailable)
        planner = self._planner()
        begin = self._parse(start)
        # Not in Spark's `commit`, which is called after the next micro-batch was planned, so never for a run's last.
        planner.commit_to_group(begin)
        try:
            end = planner.next_offset(begin, self._target, limited)
        finally:
            planner.flush_events()
        if end != begin:
            end = replace(end, schemas=self._pins)
        if self._target is not None and end == begin:  # the run of Trigger.AvailableNow ends
            planner.commit_to_group(begin, is_last=True)
        return planner.recent.as_dict(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return self._planner().last_seen_latest()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        planner = self._planner()
        begin, until = self._parse(start), self._parse(end)
        planned = planner.ranges(begin, until)
        return new_tasks(planner.tasks(planned), until.topic_ids.keys(), self._writer_schemas() if planned else ())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # What is after the range of a task is of the next micro-batch, also for the latest record of each key.
        options = replace(self._options, ending_offsets=None)
        return read_partition(options, partition, self._columns, self._schemas)

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.close()

    def _parse(self, offset: dict[str, Any]) -> SourceOffset:
        """As `RecentOffsets.parse`. Raises SchemaChangedError: it was read with a schema whose columns are not those of
        this query."""
        parsed = self._planner().recent.parse(offset)
        if self._schemas is not None and parsed.schemas != self._compared_pins:
            from pyspark_kafka_meta.typed.reading import check_pins

            check_pins(parsed.schemas, self._schemas)
            self._compared_pins = parsed.schemas
        return parsed

    def _writer_schemas(self) -> Sequence[RegisteredSchema]:
        if self._schemas is None:
            return ()
        if self._writers is None:
            self._writers = new_writer_schemas(self._schemas, self._planner().report)
        return self._writers.current()

    def _planner(self) -> OffsetPlanner:
        """Created at first use: Spark pickles the reader, and executors do not plan."""
        if self._opened is None:
            from pyspark_kafka_meta.read.planning.offset_planner import stream_planner_options

            self._opened = new_planner(self._options, stream_planner_options(self._options.client))
        return self._opened
