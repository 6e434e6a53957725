"""The data source as Spark sees it: `format("kafkameta")`, its batch reader and its stream reader. Glue only.

Spark pickles readers and sends them to executors, so they hold options and no connection; heavy imports wait until a
method needs them, because Spark imports this package whenever it looks for data sources.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.schemas import records_struct_type

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafka_meta.reading.offsets import OffsetRange, Positions
    from pyspark_kafka_meta.reading.planner import OffsetPlanner

PLANNER_MAX_AGE_MS = 5_000
"""A stream's planner looks for new topics and partitions at least this often: their records are read from the start."""


class KafkaMetaDataSource(DataSource):
    """Kafka topics as a DataFrame, with the options and columns of Spark's own Kafka source.

    >>> spark.readStream.format("kafkameta").options(**{
    ...     "kafka.bootstrap.servers": "localhost:9092", "subscribe": "clicks"}).load()  # doctest: +SKIP
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = SourceOptions.parse({name: text for name, text in options.items() if not _is_sparks(name)})

    @classmethod
    def name(cls) -> str:
        return "kafkameta"

    def schema(self) -> StructType:
        return records_struct_type(self._options.include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        return KafkaMetaReader(self._options.for_batch(), _columns(schema, self.schema()))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return KafkaMetaStreamReader(self._options.for_stream(), _columns(schema, self.schema()))


def _is_sparks(name: str) -> bool:
    """Whether Spark adds this option by itself, as it does for `CREATE TABLE ... USING kafkameta`."""
    return name.lower() in ("provider", "owner") or name.lower().startswith("option.")


def _columns(schema: StructType, available: StructType) -> list[str]:
    """The columns of the schema that the user gave, or of the whole one: only these are decoded."""
    kinds = {field.name: field for field in available}
    unknown = [field.simpleString() for field in schema if kinds.get(field.name) != field]
    if unknown:
        raise OptionError(
            f"the schema may only choose from the source's columns, {available.simpleString()}; not among them: "
            f"{', '.join(unknown)}"
        )
    return schema.names


class Task(InputPartition):
    """The offset ranges that one Spark task reads."""

    def __init__(self, ranges: Sequence[OffsetRange]) -> None:
        self.ranges = tuple(ranges)


class KafkaMetaReader(DataSourceReader):
    """Reads from the starting to the ending offsets, which are resolved once, when the query is planned."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        planner = _new_planner(self._options, self._options.client.metadata_max_age_ms)
        try:
            return [Task(ranges) for ranges in planner.tasks(planner.batch_ranges())]
        finally:
            planner.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition, self._columns)


class KafkaMetaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches beside the driver and reads their tasks on executors."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = columns
        self._opened: OffsetPlanner | None = None
        self._target: Positions | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        planner = self._planner()
        try:
            return planner.initial_offset().as_dict()
        finally:
            planner.flush_events()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """There are no composite limits: all that is read off it later is that Trigger.Once has none."""
        most, fewest = self._options.max_offsets_per_trigger, self._options.min_offsets_per_trigger
        if most is not None:
            return ReadMaxRows(most)
        return ReadAllAvailable() if fewest is None else ReadMinRows(fewest)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        planner = self._planner()
        try:
            self._target = planner.available_now()
        finally:
            planner.flush_events()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        from pyspark_kafka_meta.reading.offsets import SourceOffset

        limited = not isinstance(limit, ReadAllAvailable)
        planner = self._planner()
        try:
            return planner.next_offset(SourceOffset.parse(start), self._target, limited).as_dict()
        finally:
            planner.flush_events()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return self._planner().last_seen_latest()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        from pyspark_kafka_meta.reading.offsets import SourceOffset, ranges

        planned = ranges(SourceOffset.parse(start), SourceOffset.parse(end))
        return [Task(ranges) for ranges in self._planner().tasks(planned)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition, self._columns)

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.close()

    def _planner(self) -> OffsetPlanner:
        """Made when it is first needed: Spark pickles the reader, and executors plan nothing."""
        if self._opened is None:
            max_age_ms = min(self._options.client.metadata_max_age_ms, PLANNER_MAX_AGE_MS)
            self._opened = _new_planner(self._options, max_age_ms)
        return self._opened


def _new_planner(options: SourceOptions, max_age_ms: int) -> OffsetPlanner:
    from pyspark_kafka_meta.reading.client import KafkaClient
    from pyspark_kafka_meta.reading.planner import OffsetPlanner
    from pyspark_kafka_meta.telemetry.origin import planner_origin

    client = KafkaClient(options.client, options.metrics_path, planner_origin(), max_age_ms, options.topic_pattern)
    return OffsetPlanner(client, options)


def _read(options: SourceOptions, partition: InputPartition, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    from pyspark_kafka_meta.reading.workers import read_task

    # Spark turns an empty plan of a batch into one partition that is not ours: nothing to read.
    return read_task(options, partition.ranges, columns) if isinstance(partition, Task) else iter(())
