"""Typed columns of a DataFrame that is written: the driver finds the encoders of its keys and values."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark_kafka_meta.errors import ValueSchemaError
from pyspark_kafka_meta.options import SinkOptions
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
        ValueSchemaError, OptionError, SchemaRegistryError: as `value_schemas.typed_columns`.
    """
    names = [column.column for column in options.typed.columns]
    columns = sink_columns(schema, options.topic, names)
    if not names or not encodes:
        return columns
    from pyspark_kafka_meta.write.value_schemas import typed_columns

    types = {name: _arrow_type(schema, name) for name in names}
    return replace(columns, typed=typed_columns(options.typed, options.topic, types))


def _arrow_type(schema: StructType, name: str) -> pa.DataType:
    from pyspark.sql.pandas.types import to_arrow_type

    # The time zone is a parameter from PySpark 4.2 on.
    zone: dict[str, Any] = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_type).parameters else {}
    try:
        return to_arrow_type(schema[name].dataType, **zone)
    except TypeError:
        found = schema[name].dataType.simpleString()
        raise ValueSchemaError(f"column {name} has type {found}, which has no Arrow type: cast it") from None
