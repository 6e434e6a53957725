"""The Spark data source `format("kafkameta")`: it reads the records of topics or one of the side tables.

Spark pickles the data source, and imports this module at every look-up of data sources: it holds the options alone and
imports heavy modules on first use.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from importlib.util import find_spec
from typing import NoReturn

import pyspark
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.options import ClusterOptions, EventsOptions, SourceOptions, Table, choose_table
from pyspark_kafka_meta.options.option_checks import batch_warnings
from pyspark_kafka_meta.options.unsupported_properties import NO_SINK
from pyspark_kafka_meta.record_schema import Columns, records_struct_type
from pyspark_kafka_meta.spark.batch_reader import KafkaMetaReader
from pyspark_kafka_meta.spark.user_errors import entry_points

logger = logging.getLogger(__name__)


@entry_points
class KafkaMetaDataSource(DataSource):
    """Kafka topics as a DataFrame, with the options and columns of Spark's Kafka source. Option `table` selects a side
    table of metadata caches or of the live cluster.

    >>> spark.readStream.format("kafkameta").options(**{
    ...     "kafka.bootstrap.servers": "localhost:9092", "subscribe": "clicks"}).load()  # doctest: +SKIP
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        own = {name: text for name, text in options.items() if not _is_set_by_spark(name)}
        self._table, table_options = choose_table(own)
        self._options = _parse(self._table, table_options)

    @classmethod
    def name(cls) -> str:
        return "kafkameta"

    def schema(self) -> StructType:
        if isinstance(self._options, SourceOptions):
            return records_struct_type(self._options.include_headers)
        from pyspark_kafka_meta.tables.table_schemas import ROWS, struct_type

        return struct_type(ROWS[self._table])

    def reader(self, schema: StructType) -> DataSourceReader:
        columns = _columns(schema, self.schema())
        for warning in batch_warnings(self.options):
            logger.warning("%s", warning)
        if isinstance(self._options, SourceOptions):
            return KafkaMetaReader(self._options.for_batch(), columns)
        from pyspark_kafka_meta.tables.table_readers import batch_reader

        return batch_reader(self._table, self._options, columns)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        if find_spec("pyspark.sql.streaming.datasource") is None:
            raise OptionError(
                f"streams need pyspark 4.2 or later, and this is {pyspark.__version__}, which gives a source no start "
                "offset of a micro-batch: upgrade pyspark, or read batches"
            )
        from pyspark_kafka_meta.spark.stream_reader import KafkaMetaStreamReader, RefusedStreamReader
        from pyspark_kafka_meta.tables.event_streams import stream_reader

        try:
            columns = _columns(schema, self.schema())
            if isinstance(self._options, SourceOptions):
                return KafkaMetaStreamReader(self._options.for_stream(), columns)
            return stream_reader(self._table, self._options, columns)
        except OptionError as error:
            return RefusedStreamReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        raise OptionError(NO_SINK)

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: N802
        raise OptionError(NO_SINK)


def _parse(table: Table, options: dict[str, str]) -> SourceOptions | EventsOptions | ClusterOptions:
    match table:
        case Table.RECORDS:
            return SourceOptions.parse(options)
        case Table.REFRESH_EVENTS | Table.CACHES:
            return EventsOptions.parse(options)
        case _:
            return ClusterOptions.parse(options)


def _is_set_by_spark(name: str) -> bool:
    """Whether Spark sets this option itself, as for `CREATE TABLE ... USING kafkameta`. It lower-cases names."""
    return name in ("provider", "owner") or name.startswith("option.")


def _columns(schema: StructType, available: StructType) -> Columns:
    """The columns of the user's schema, or of the whole schema: only these are decoded."""
    own = {field.name.lower(): field for field in available}
    columns = [(own.get(field.name.lower()), field) for field in schema]
    unknown = [
        field.simpleString()
        for column, field in columns
        if column is None or (column.dataType, column.nullable) != (field.dataType, field.nullable)
    ]
    if unknown:
        raise OptionError(
            f"the schema may only choose from the source's columns, {available.simpleString()}; not among them: "
            f"{', '.join(unknown)}"
        )
    return {column.name: field.name for column, field in columns if column is not None}
