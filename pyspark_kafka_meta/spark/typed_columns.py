"""Typed columns in Spark: their types in a read; in a write the driver's look-up of their encoders, with its events."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, cast

from pyspark_kafka_meta.errors import ValueSchemaError
from pyspark_kafka_meta.options import SinkOptions, SourceOptions
from pyspark_kafka_meta.spark.records_table import arrow_type

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

    from pyspark_kafka_meta.client_facts import SchemaLookup
    from pyspark_kafka_meta.typed.reading import QuerySchemas
    from pyspark_kafka_meta.typed.writing import FinalAnswers
    from pyspark_kafka_meta.write.input_columns import SinkColumns

logger = logging.getLogger(__name__)

MAX_STREAMS = 100
"""Of one process, whose final answers are kept."""


def column_types(schemas: QuerySchemas) -> dict[str, DataType]:
    """The Spark types of `QuerySchemas.types`."""
    from pyspark.sql.pandas.types import from_arrow_type

    return {name: from_arrow_type(kind, prefer_timestamp_ntz=True) for name, kind in schemas.types.items()}


def changes_struct_type(schemas: QuerySchemas, options: SourceOptions) -> StructType:
    """The Spark schema of changes. Raises ValueSchemaError as `changes.schema.changes_schema`."""
    from pyspark.sql.pandas.types import from_arrow_type

    from pyspark_kafka_meta.changes.schema import changes_schema

    assert options.changes is not None
    schema = from_arrow_type(changes_schema(schemas, options.changes).type, prefer_timestamp_ntz=True)
    return cast("StructType", schema)


@lru_cache(MAX_STREAMS)
def answers_of_stream(options: frozenset[tuple[str, str]]) -> FinalAnswers:
    """The registry's final answers to a stream with these options, its checkpoint among them. Spark makes a writer for
    each micro-batch, in a process that it keeps."""
    return {}


def columns_without_encoders(schema: StructType, options: SinkOptions) -> SinkColumns:
    """The columns to write, without asking the registry. Raises SchemaError: a column is missing, or has another
    type."""
    from pyspark_kafka_meta.write.input_columns import sink_columns  # reading needs no writing

    return sink_columns(schema, options.topic, _typed_names(options))


def with_encoders(columns: SinkColumns, schema: StructType, options: SinkOptions, answers: FinalAnswers) -> SinkColumns:
    """The columns, with the encoders of typed columns. Raises ValueSchemaError, OptionError, SchemaRegistryError: as
    `typed.writing.column_encodings`.

    Args:
        answers: see `RegistryClient`.
    """
    names = _typed_names(options)
    if not names:
        return columns
    from pyspark_kafka_meta.typed.writing import column_encodings

    types = {name: _arrow_type(schema, name) for name in names}
    lookups: list[SchemaLookup] = []
    try:
        return replace(columns, typed=column_encodings(options.typed, options.topic, types, lookups.append, answers))
    finally:
        if lookups:
            _publish(options, lookups)


def _publish(options: SinkOptions, lookups: Sequence[SchemaLookup]) -> None:
    """Events of the look-ups. Their failure must not hide an error of the look-ups; tasks meet its cause themselves."""
    from pyspark_kafka_meta.events.origin import committer_origin
    from pyspark_kafka_meta.spark.client_pool import worker_clients

    try:
        with worker_clients.client(options.client, options.events, committer_origin(None, None)) as client:
            for lookup in lookups:
                client.report(lookup)
    except Exception:
        logger.warning("publishing the requests to the schema registry failed", exc_info=True)


def _typed_names(options: SinkOptions) -> list[str]:
    return [column.column for column in options.typed.columns]


def _arrow_type(schema: StructType, name: str) -> pa.DataType:
    try:
        return arrow_type(schema[name].dataType)
    except TypeError:
        found = schema[name].dataType.simpleString()
        raise ValueSchemaError(f"column {name} has type {found}, which has no Arrow type: cast it") from None
