"""Schemas of the records table for Spark and Arrow, with the columns of Spark's source (`KafkaRecordToRowConverter`).

The Arrow schema must equal the one that pyspark derives from the Spark schema, which a test checks. pyspark and pyarrow
are imported on first use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

Columns = Mapping[str, str]
"""The requested columns of a table, in order, with their spelling in the user's schema: Spark ignores case."""

HEADERS_COLUMN = "headers"
RECORD_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
"""The columns of a record, in order. An optional `HEADERS_COLUMN` follows."""


def records_struct_type(include_headers: bool) -> StructType:
    """The Spark schema. `timestampType` is 0 for CreateTime, 1 for LogAppendTime."""
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        IntegerType,
        LongType,
        StringType,
        StructField,
        StructType,
        TimestampType,
    )

    header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    types = (BinaryType(), BinaryType(), StringType(), IntegerType(), LongType(), TimestampType(), IntegerType())
    fields = [StructField(name, data_type) for name, data_type in zip(RECORD_COLUMNS, types, strict=True)]
    if include_headers:
        fields.append(StructField(HEADERS_COLUMN, ArrayType(header)))
    return StructType(fields)


def records_arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema of these columns, in the given order."""
    import pyarrow as pa

    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    types = {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestampType": pa.int32(),
        HEADERS_COLUMN: pa.list_(pa.field("element", header)),
    }
    return pa.schema([(name, types[name]) for name in columns])


def rows_without_columns(count: int) -> pa.RecordBatch:
    """For a schema without columns, in which Spark counts rows. pyarrow's other ways to make a batch take the number of
    rows from the columns: 0."""
    import pyarrow as pa

    return pa.RecordBatch.from_struct_array(pa.nulls(count, pa.struct([])))


def with_user_spelling(batches: Iterator[pa.RecordBatch], columns: Columns) -> Iterator[pa.RecordBatch]:
    """The batches, whose columns are the keys of `columns`, with the user's spelling of the names."""
    return (batch.rename_columns(list(columns.values())) for batch in batches)
