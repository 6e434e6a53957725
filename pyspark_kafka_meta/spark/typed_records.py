"""Typed columns in Spark: their types, and the conversion of records in a task, with its events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from pyspark_kafka_meta.kafka.metadata.event_recorder import EventRecorder
from pyspark_kafka_meta.kafka.metadata.refresh_events import LookupDetails, MalformedDetails
from pyspark_kafka_meta.model import RefreshReason
from pyspark_kafka_meta.options import OnMalformedRecord, RegistryOptions
from pyspark_kafka_meta.typed.decoding import (
    ERROR_SUFFIX,
    ERROR_TYPE,
    RAW_SUFFIX,
    ColumnDecoding,
    TypedRows,
)
from pyspark_kafka_meta.typed.formats import SchemaText
from pyspark_kafka_meta.typed.query_schemas import QuerySchemas, ReaderSchema
from pyspark_kafka_meta.typed.registry.client import RegisteredSchema, RegistryClient, RegistryLookup
from pyspark_kafka_meta.typed.registry.known_schemas import worker_schemas

if TYPE_CHECKING:
    from pyspark.sql.types import DataType


def column_types(schemas: QuerySchemas) -> dict[str, DataType]:
    """The Spark types of the typed columns, and of the columns with their bytes and what is wrong with them."""
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import BinaryType

    types = {
        reader.column.column: from_arrow_type(reader.format.arrow_type(reader.schema), prefer_timestamp_ntz=True)
        for reader in schemas.readers
    }
    names = sorted(types, reverse=True)
    if schemas.typed.includes_raw:
        types |= {f"{column}{RAW_SUFFIX}": BinaryType() for column in names}
    if schemas.typed.on_malformed is OnMalformedRecord.RECORD:
        types |= {f"{column}{ERROR_SUFFIX}": from_arrow_type(ERROR_TYPE) for column in names}
    return types


@contextmanager
def typed_rows(
    schemas: QuerySchemas, known: Sequence[RegisteredSchema], columns: Sequence[str], events: EventRecorder
) -> Iterator[TypedRows]:
    """The conversion of the records of one task. Its malformed records are events at the end.

    Args:
        known: schemas that need not be fetched.
    """
    registry = schemas.typed.registry
    client = None
    if registry is not None:
        client = RegistryClient(registry, partial(record_lookup, events, RefreshReason.UNKNOWN_SCHEMA))
        worker_schemas.add(registry, known)
    typed = {
        reader.column.column: ColumnDecoding(
            reader.format,
            reader.column.framing,
            reader.schema,
            partial(_writer, reader, registry, client, schemas.typed.on_malformed is OnMalformedRecord.FAIL),
            reader.column.record_names,
            reader.column.column,
        )
        for reader in schemas.readers
    }
    rows = TypedRows(columns, typed, schemas.typed.on_malformed)
    try:
        yield rows
    finally:
        for (column, partition), count in rows.malformed.items():
            details = MalformedDetails(
                error=f"offset {count.offset}: {count.cause}",
                schema_id=count.schema_id,
                malformed_column=column,
                malformed_records=count.records,
            )
            events.record_malformed(partition, details)


def _writer(
    reader: ReaderSchema, registry: RegistryOptions | None, client: RegistryClient | None, fails: bool, key: int | str
) -> SchemaText:
    """The schema of an id or GUID in a frame. A task that would fail asks the registry first, so its repetition does
    not fail because of what the registry did not know a moment ago."""
    assert registry is not None and client is not None, "the options refuse frames without a registry"
    kind, subject = reader.format.registry_type, reader.column.subject
    return worker_schemas.schema(registry, key, kind, client, asks_again=fails, subject=subject).schema


def record_lookup(events: EventRecorder, reason: RefreshReason, lookup: RegistryLookup) -> None:
    """Publish an event of a request to the registry. The reason of a registration is its own."""
    details = LookupDetails(
        latency_ms=lookup.latency_ms,
        error=lookup.error,
        schema_id=lookup.schema_id,
        schema_guid=lookup.schema_guid,
        schema_subject=lookup.subject,
    )
    events.record_lookup(RefreshReason.REGISTRATION if lookup.is_registration else reason, details)
