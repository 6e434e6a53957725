"""What writing needs of typed values: the schemas of keys and values, and the encodings of columns with them.

The driver looks schemas up for each batch or micro-batch; tasks get the compiled encoders, and never ask the registry.
Follows Confluent's `AbstractKafkaAvroSerializer`, and for Protobuf its Python client, which looks descriptors up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark_kafka_meta.client_facts import SchemaLookup
from pyspark_kafka_meta.errors import OptionError, SchemaRegistryError, UnknownSchemaError, ValueSchemaError
from pyspark_kafka_meta.options import ColumnFormat, Framing, TypedValuesOptions
from pyspark_kafka_meta.typed.encoding import ColumnEncoding
from pyspark_kafka_meta.typed.formats import Schema, schema_of
from pyspark_kafka_meta.typed.framing import frame, guid_frame
from pyspark_kafka_meta.typed.reading import common_schema, given_schema
from pyspark_kafka_meta.typed.registry.client import FinalAnswers, RegisteredSchema, RegistryClient
from pyspark_kafka_meta.typed.registry.known_schemas import driver_versions

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ColumnEncoding", "FinalAnswers", "check_schema", "column_encodings"]


def column_encodings(
    options: TypedValuesOptions,
    topic: str | None,
    types: Mapping[str, pa.DataType],
    report: Callable[[SchemaLookup], None],
    answers: FinalAnswers,
) -> dict[str, ColumnEncoding]:
    """How the typed columns of a batch are encoded.

    Args:
        topic: of all rows; None if rows have a topic column.
        types: of the typed columns.
        report, answers: of `RegistryClient`.

    Raises:
        OptionError: a schema's file cannot be read, or a schema has another format.
        ValueSchemaError: a column cannot be written with its schema.
        SchemaRegistryError: the registry does not have a schema, refuses it, or does not respond.
    """
    client = None if options.registry is None else RegistryClient(options.registry, report, answers)
    return {
        column.column: _typed_column(options, column, topic, types[column.column], client) for column in options.columns
    }


def check_schema(column: ColumnFormat, schema: Schema) -> None:
    """Raises ValueSchemaError if no DataFrame can be written with a schema."""
    _ = schema.parsed
    _message_indexes(column, schema)


def _typed_column(
    options: TypedValuesOptions,
    column: ColumnFormat,
    topic: str | None,
    given: pa.DataType,
    client: RegistryClient | None,
) -> ColumnEncoding:
    subject = next(iter(column.subjects(() if topic is None else (topic,))), "")
    is_framed = column.framing is not Framing.NONE
    try:
        schema, registered = _schema(options, column, client, subject, given)
        encoder = schema.encoder(given, column.framing.is_confluents)
        indexes = _message_indexes(column, schema)
        if client is not None and options.auto_register:
            registered = client.register(subject, schema.registry_type, schema.registered_text)
        elif client is not None and registered is None and is_framed:
            registered = client.registered(subject, schema.registry_type, schema.registered_text)
    except ValueSchemaError as error:
        raise ValueSchemaError(f"column {column.column} cannot be written: {error}") from None
    except UnknownSchemaError as error:
        raise UnknownSchemaError(f"{error}: register the schema, or set 'auto.register.schemas'", error.code) from None
    if not is_framed:
        return ColumnEncoding(column.column, encoder, b"")
    assert registered is not None, "the options refuse frames without a registry"
    if column.framing is Framing.CONFLUENT_HEADER:
        return ColumnEncoding(column.column, encoder, b"", _header_frame(column, registered, indexes))
    assert registered.schema_id is not None, "it was not looked up by its GUID"
    return ColumnEncoding(column.column, encoder, frame(registered.schema_id, column.framing.id_bytes, indexes))


def _message_indexes(column: ColumnFormat, schema: Schema) -> tuple[int, ...]:
    return schema.message_indexes if column.framing.is_confluents else ()


def _header_frame(column: ColumnFormat, registered: RegisteredSchema, indexes: Sequence[int]) -> bytes:
    if registered.guid is None:
        raise OptionError(
            f"'{column.column}Framing' confluent-header needs a schema registry with GUIDs, as Confluent's has from "
            "version 8.0 on: use confluent"
        )
    try:
        return guid_frame(registered.guid, indexes)
    except ValueError:
        raise SchemaRegistryError("the schema registry responded with a schema whose 'guid' is no GUID") from None


def _schema(
    options: TypedValuesOptions, column: ColumnFormat, client: RegistryClient | None, subject: str, given: pa.DataType
) -> tuple[Schema, RegisteredSchema | None]:
    """The schema to write with, as it is registered if it is known that the subject has it."""
    registered = None
    if column.schema is not None:
        text = given_schema(column, column.schema)
    elif options.auto_register:
        text = column.format.derived(given, next(iter(column.record_names), None))
    else:
        assert client is not None and options.registry is not None, "options without a schema need a registry"
        version = driver_versions.version(options.registry, subject, column.version, client)
        text, registered = common_schema(column, [version]), version.registered
    return schema_of(column.format, text), registered
