"""The data source as Spark sees it: `format("kafkameta")`, which reads the records of topics or one of the side tables.

Spark pickles it, and imports it whenever it looks for data sources: it holds options alone, and what is heavy waits.
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
from pyspark_kafka_meta.options.unsupported import NO_SINK
from pyspark_kafka_meta.schemas import Columns, records_struct_type
from pyspark_kafka_meta.spark.batch_reader import KafkaMetaReader
from pyspark_kafka_meta.spark.user_errors import entry_points

logger = logging.getLogger(__name__)


@entry_points
class KafkaMetaDataSource(DataSource):
    """Kafka topics as a DataFrame, with the options and columns of Spark's own Kafka source; and, by the option
    `table`, what metadata caches do and what the cluster's brokers say.

    >>> spark.readStream.format("kafkameta").options(**{
    ...     "kafka.bootstrap.servers": "localhost:9092", "subscribe": "clicks"}).load()  # doctest: +SKIP
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        own = {name: text for name, text in options.items() if not _is_sparks(name)}
        self._table, given = choose_table(own)
        self._options = _parse(self._table, given)

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
                f"streams need pyspark 4.2 or later, and this is {pyspark.__version__}, which does not tell a source "
                "where a micro-batch begins: upgrade pyspark, or read batches"
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


def _is_sparks(name: str) -> bool:
    """Whether Spark adds this option by itself, as for `CREATE TABLE ... USING kafkameta`. It lower-cases names."""
    return name in ("provider", "owner") or name.startswith("option.")


def _columns(schema: StructType, available: StructType) -> Columns:
    """The columns of the schema that the user gave, or of the whole one: only these are decoded."""
    kinds = {field.name.lower(): field for field in available}
    known = [(kinds.get(field.name.lower()), field) for field in schema]
    unknown = [
        field.simpleString()
        for kind, field in known
        if kind is None or (kind.dataType, kind.nullable) != (field.dataType, field.nullable)
    ]
    if unknown:
        raise OptionError(
            f"the schema may only choose from the source's columns, {available.simpleString()}; not among them: "
            f"{', '.join(unknown)}"
        )
    return {kind.name: field.name for kind, field in known if kind is not None}
