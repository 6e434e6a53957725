"""The Spark data source `format("kafkameta")`: it reads the records of topics or one of the side tables, and writes
records.

Spark pickles the data source, and imports this module at every look-up of data sources: it holds the options alone and
imports heavy modules on first use.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructField, StructType

from pyspark_kafka_meta.arrow_reader import new_filter, schemas_of
from pyspark_kafka_meta.errors import KafkaMetaError, OptionError
from pyspark_kafka_meta.model import name_first
from pyspark_kafka_meta.options import (
    ClusterOptions,
    EventTableOptions,
    SinkOptions,
    SourceOptions,
    Table,
    choose_table,
)
from pyspark_kafka_meta.options.tables import batch_warnings, is_read
from pyspark_kafka_meta.spark.batch_reader import find_newest_schemas
from pyspark_kafka_meta.spark.filter_pushdown import reader_class
from pyspark_kafka_meta.spark.records_table import Columns, records_struct_type
from pyspark_kafka_meta.spark.user_errors import entry_points

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType

    from pyspark_kafka_meta.typed.reading import QuerySchemas

logger = logging.getLogger(__name__)

TableOptions: TypeAlias = tuple[Table, SourceOptions | EventTableOptions | ClusterOptions]


@entry_points
class KafkaMetaDataSource(DataSource):
    """Kafka topics as a DataFrame, to read or to write, with the options and columns of Spark's Kafka source and sink.
    Option `table` selects a side table of metadata caches or of the live cluster.

        kafka = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "clicks"}
        spark.readStream.format("kafkameta").options(**kafka).load()
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._user_options = {name: text for name, text in options.items() if not _is_set_by_spark(name)}
        self._parsed = _parse(self._user_options) if is_read(self._user_options) else None
        self._plans_writes = True
        self._schemas: QuerySchemas | None = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Spark pickles the data source at the start of a stream, for the writers that commit its micro-batches; to
        plan a micro-batch it makes a new data source."""
        self.__dict__.update(state)
        self._plans_writes = False

    def __getstate__(self) -> dict[str, Any]:
        """With the schemas of typed columns, which Spark does not ask for if the user gives a schema: the planner of a
        stream and its tasks are made in processes of their own."""
        if self._parsed is not None and isinstance(self._parsed[1], SourceOptions):
            with suppress(KafkaMetaError):  # the reader asks again, and its error is told better
                self._typed_columns(self._parsed[1])
        return self.__dict__

    @classmethod
    def name(cls) -> str:
        return "kafkameta"

    def schema(self) -> StructType:
        table, options = self._read_options()
        if isinstance(options, SourceOptions):
            typed = self._typed_columns(options)
            if isinstance(typed, StructType):
                return typed
            return records_struct_type(options.include_headers, typed, options.headers_as_map)
        from pyspark_kafka_meta.tables.rows import ROWS, struct_type

        return struct_type(ROWS[table])

    def reader(self, schema: StructType) -> DataSourceReader:
        columns = _columns(schema, self.schema())
        for warning in batch_warnings(self.options):
            logger.warning("%s", warning)
        table, options = self._read_options()
        if isinstance(options, SourceOptions):
            new_filter(options, self._schemas, list(columns))  # refuses its condition
            return reader_class(options)(options.for_batch(table is Table.LATEST), columns, self._schemas)
        from pyspark_kafka_meta.tables.readers import batch_reader

        return batch_reader(table, options, columns)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        try:
            return self._stream_reader(schema)
        except KafkaMetaError as error:
            return RefusedStreamReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise OptionError(
                'Save mode Overwrite not allowed for Kafka, where records are only appended: use mode("append")'
            )
        from pyspark_kafka_meta.spark.batch_writer import KafkaMetaWriter

        return KafkaMetaWriter(SinkOptions.parse(self._user_options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """`overwrite` is true in output mode complete, whose rows are appended as by Spark's sink."""
        from pyspark_kafka_meta.spark.stream_writer import KafkaMetaStreamWriter
        from pyspark_kafka_meta.spark.typed_columns import answers_of_stream

        options = SinkOptions.parse(self._user_options).for_stream()
        answers = answers_of_stream(frozenset(self._user_options.items()))
        return KafkaMetaStreamWriter(options, schema, answers, plans=self._plans_writes)

    def _stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        from pyspark_kafka_meta.spark.stream_api import reader_of_release
        from pyspark_kafka_meta.spark.stream_reader import KafkaMetaStreamReader
        from pyspark_kafka_meta.tables.readers import stream_reader

        columns = _columns(schema, self.schema())
        table, options = self._read_options()
        if table is Table.LATEST:
            raise OptionError(
                "table latest is for batch queries: a stream with startingOffsets latestByKey begins with the same rows"
            )
        if isinstance(options, SourceOptions):
            new_filter(options, self._schemas, list(columns))  # refuses its condition
            reader = KafkaMetaStreamReader(options.for_stream(), columns, self._schemas)
            return reader_of_release(reader, self._user_options)
        return reader_of_release(stream_reader(table, options, columns), self._user_options)

    def _typed_columns(self, options: SourceOptions) -> StructType | dict[str, DataType]:
        """The types of typed columns; of changes the whole schema. The readers' schemas are looked up once: Spark
        pickles this data source with its schema, and makes the reader from it."""
        if not options.typed.columns:
            return {}
        from pyspark_kafka_meta.spark.typed_columns import changes_struct_type, column_types

        self._schemas = self._schemas or schemas_of(options, partial(find_newest_schemas, options))
        return column_types(self._schemas) if options.changes is None else changes_struct_type(self._schemas, options)

    def _read_options(self) -> TableOptions:
        self._parsed = self._parsed or _parse(self._user_options)
        return self._parsed


def _parse(given: Mapping[str, str]) -> TableOptions:
    table, options = choose_table(given)
    match table:
        case Table.RECORDS | Table.LATEST:
            return table, SourceOptions.parse(options)
        case Table.REFRESH_EVENTS | Table.CACHES | Table.LEADER_CHANGES:
            return table, EventTableOptions.parse(options)
        case _:
            return table, ClusterOptions.parse(options)


_SET_BY_SPARK = frozenset({"queryname", "comment", "owner", "provider"})


def _is_set_by_spark(name: str) -> bool:
    """Whether Spark sets this option itself: for `queryName`, or for `CREATE TABLE ... USING kafkameta`, whose options
    come a second time with a prefix. Spark lower-cases names."""
    return name in _SET_BY_SPARK or name.startswith("option.")


def _columns(schema: StructType, available: StructType) -> Columns:
    """The columns of the user's schema, or of the whole schema: only these are decoded."""
    own = {field.name.lower(): field for field in available}
    columns = [(own.get(field.name.lower()), field) for field in schema]
    unknown = [
        _unlike(column, field)
        for column, field in columns
        if column is None or (column.dataType, column.nullable) != (field.dataType, field.nullable)
    ]
    if unknown:
        raise OptionError(
            f"the schema may only choose from the source's columns, {available.simpleString()}; not among them: "
            f"{name_first(unknown)}"
        )
    return {column.name: field.name for column, field in columns if column is not None}


def _unlike(column: StructField | None, field: StructField) -> str:
    """The user's column, and the difference if the source has a column of its name and type: Spark refuses rows that
    differ in nulls from their schema."""
    text: str = field.simpleString()
    if column is None or column.dataType != field.dataType:
        return text
    return f"{text} ({'may be null' if column.nullable else 'needs NOT NULL'})"


@entry_points
class RefusedStreamReader(DataSourceStreamReader):
    """Raises the error of a stream that cannot begin. Spark replaces errors of `streamReader` by an
    UnboundLocalError."""

    def __init__(self, error: KafkaMetaError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        raise self._error

    def latestOffset(self, *start_and_limit: Any, **named: Any) -> dict[str, Any]:  # noqa: N802
        """Called before pyspark 4.2 too, without arguments."""
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The first call of a restarted query."""
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self._error
