"""The records table's schema, for Spark and for Arrow: the columns of Spark's own source (`KafkaRecordToRowConverter`).

Rows that a Python data source hands to Spark must have exactly the Arrow schema that pyspark derives from the Spark
schema; a test holds the two together. pyspark and pyarrow are imported when a schema is asked for, not before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

Columns = Mapping[str, str]
"""The columns wanted of a table, in order, each with its spelling in the user's schema: Spark ignores case there."""

HEADERS_COLUMN = "headers"
RECORD_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
"""The columns of a record, in order; `HEADERS_COLUMN` follows them where it is asked for."""


def records_struct_type(include_headers: bool) -> StructType:
    """The records table as Spark sees it. `timestampType` is 0 for CreateTime, 1 for LogAppendTime."""
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
    fields = [StructField(name, kind) for name, kind in zip(RECORD_COLUMNS, types, strict=True)]
    if include_headers:
        fields.append(StructField(HEADERS_COLUMN, ArrayType(header)))
    return StructType(fields)


def records_arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """These columns of the records table as Arrow, in the order given."""
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


def as_spelt(batches: Iterator[pa.RecordBatch], columns: Columns) -> Iterator[pa.RecordBatch]:
    """The batches, which have just these columns, with their names as the user spells them."""
    return (batch.rename_columns(list(columns.values())) for batch in batches)
