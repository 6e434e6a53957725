"""The records table in Spark: its schema, the columns that a query requests, and Arrow types as Spark has them.

The schema must equal the Arrow schema of `records_arrow_schema`, which a test checks. pyspark is imported on first use.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark_kafka_meta.kafka.records.schema import HEADERS_COLUMN, RECORD_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

Columns = Mapping[str, str]
"""The requested columns of a table, in order, with their spelling in the user's schema: Spark ignores case."""


def records_struct_type(
    include_headers: bool, typed: Mapping[str, DataType] | None = None, headers_as_map: bool = False
) -> StructType:
    """The Spark schema. `timestampType` is 0 for CreateTime, 1 for LogAppendTime.

    Args:
        typed: the types of columns that differ, and those of additional columns.
    """
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        IntegerType,
        LongType,
        MapType,
        StringType,
        StructField,
        StructType,
        TimestampType,
    )

    header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    types = (BinaryType(), BinaryType(), StringType(), IntegerType(), LongType(), TimestampType(), IntegerType())
    fields = [StructField(name, data_type) for name, data_type in zip(RECORD_COLUMNS, types, strict=True)]
    if include_headers:
        as_map = MapType(StringType(), BinaryType())
        fields.append(StructField(HEADERS_COLUMN, as_map if headers_as_map else ArrayType(header)))
    columns = {field.name: field.dataType for field in fields} | dict(typed or {})
    return StructType([StructField(name, data_type) for name, data_type in columns.items()])


def arrow_type(data_type: DataType) -> pa.DataType:
    """The Arrow type in which Spark exchanges columns of this type, with timestamps in UTC. Raises TypeError: there is
    none."""
    from pyspark.sql.pandas.types import to_arrow_type

    # The time zone is a parameter from PySpark 4.2 on.
    zone: dict[str, Any] = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_type).parameters else {}
    return to_arrow_type(data_type, **zone)


def rename_columns(batches: Iterator[pa.RecordBatch], columns: Columns) -> Iterator[pa.RecordBatch]:
    """The batches, whose columns are the keys of `columns`, with the user's spelling of the names."""
    return (batch.rename_columns(list(columns.values())) for batch in batches)
