"""The columns of the records table, as in Spark's source (`KafkaRecordToRowConverter`), and its Arrow schema.

pyarrow is imported on first use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

HEADERS_COLUMN = "headers"
SCHEMA_ID_HEADERS_COLUMN = "schemaIdHeaders"
"""The same, or null in all rows if none of them has a header of Confluent's that names a schema. Not for Spark."""
TOMBSTONE_COLUMN = "isTombstone"
"""Whether the value is null. Not for Spark."""
RECORD_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
"""The columns of a record, in order. An optional `HEADERS_COLUMN` follows."""


def records_arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema of these columns, in the given order."""
    import pyarrow as pa

    headers = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
    types = {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestampType": pa.int32(),
        HEADERS_COLUMN: headers,
        SCHEMA_ID_HEADERS_COLUMN: headers,
        TOMBSTONE_COLUMN: pa.bool_(),
    }
    return pa.schema([(name, types[name]) for name in columns])


def rows_without_columns(count: int) -> pa.RecordBatch:
    """For a schema without columns, in which Spark counts rows. pyarrow's other ways to make a batch take the number of
    rows from the columns: 0."""
    import pyarrow as pa

    return pa.RecordBatch.from_struct_array(pa.nulls(count, pa.struct([])))
