"""Typed columns of a DataFrame that is written: the driver finds the encoders of its keys and values."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark_kafka_meta.errors import ValueSchemaError
from pyspark_kafka_meta.options import SinkOptions
from pyspark_kafka_meta.spark.records_table import arrow_type
from pyspark_kafka_meta.write.input_columns import SinkColumns, sink_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


def typed_sink_columns(schema: StructType, options: SinkOptions, *, encodes: bool = True) -> SinkColumns:
    """The columns to write, with the encoders of typed columns.

    Args:
        encodes: whether tasks will write the columns.

    Raises:
        SchemaError: a column is missing, or has another type.
        ValueSchemaError, OptionError, SchemaRegistryError: as `value_schemas.column_encodings`.
    """
    names = [column.column for column in options.typed.columns]
    columns = sink_columns(schema, options.topic, names)
    if not names or not encodes:
        return columns
    from pyspark_kafka_meta.write.value_schemas import column_encodings

    types = {name: _arrow_type(schema, name) for name in names}
    return replace(columns, typed=column_encodings(options.typed, options.topic, types))


def _arrow_type(schema: StructType, name: str) -> pa.DataType:
    try:
        return arrow_type(schema[name].dataType)
    except TypeError:
        found = schema[name].dataType.simpleString()
        raise ValueSchemaError(f"column {name} has type {found}, which has no Arrow type: cast it") from None
