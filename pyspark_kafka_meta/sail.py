"""`SailDataSource`: `format("kafkameta")` in Sail, a Spark Connect server without a JVM (https://docs.lakesail.com).

Sail finds the class by its entry point in the group `pysail.datasources`. Sail has Arrow schemas where Spark has its
own, and refuses batches with another schema. Its tasks are threads of one process, without a TaskContext. It cannot run
a stream of a Python data source: it runs `readStream` as `read`, unnoticed by the data source.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter, InputPartition

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.source import KafkaMetaDataSource
from pyspark_kafka_meta.spark.records_table import arrow_type

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

REFUSED_IN_WRITES = {
    "checkpointLocation": "Sail cannot write a stream to Kafka: write batches with df.write, or use Spark",
    "kafka.transactional.id": "Sail cannot write exactly once, as its tasks have no number: remove "
    "'kafka.transactional.id' to write at least once, or use Spark",
}


class SailDataSource(DataSource):
    """`KafkaMetaDataSource` with the schemas of Sail."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._source = KafkaMetaDataSource(options)

    @classmethod
    def name(cls) -> str:
        return KafkaMetaDataSource.name()

    def schema(self) -> pa.Schema:
        import pyarrow as pa

        return pa.schema(list(arrow_type(self._source.schema())))

    def reader(self, schema: pa.Schema) -> SailReader:
        return SailReader(self._source.reader(_spark_schema(schema)), schema)

    def writer(self, schema: pa.Schema, overwrite: bool) -> DataSourceWriter:
        """Raises OptionError for a stream, which Sail would run as a batch, and for a write in transactions."""
        given = {name.lower() for name in self.options}
        for name, problem in REFUSED_IN_WRITES.items():
            if name.lower() in given:
                raise OptionError(problem)
        return self._source.writer(_spark_schema(schema), overwrite)


class SailReader(DataSourceReader):
    """Returns batches with the schema that Sail expects: the time zone of timestamps is the session's."""

    def __init__(self, reader: DataSourceReader, schema: pa.Schema) -> None:
        self._reader = reader
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        return self._reader.partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        batches: Iterator[Any] = iter(self._reader.read(partition))
        for batch in batches:
            pairs = zip(batch.columns, self._schema.types, strict=True)
            # Arrow casts no column of null structs to its own type, if the structs have required fields.
            columns = [column if column.type == wanted else column.cast(wanted) for column, wanted in pairs]
            yield pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _spark_schema(schema: pa.Schema) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)
