"""The formats by name: what is different in each of them for the code that reads or writes columns.

A new format is a row of `FORMATS`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from pyspark_kafka_meta.errors import ValueSchemaError

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafka_meta.typed.avro.schema import AvroSchema
    from pyspark_kafka_meta.typed.json.schema import JsonSchema
    from pyspark_kafka_meta.typed.protobuf.schema import ProtobufSchema
    from pyspark_kafka_meta.typed.values import ValueDecoder, ValueEncoder

FIRST_MESSAGE = (0,)
"""Confluent's message indexes of the first message type of a file."""
COMPILED_SCHEMAS = 1_000
"""A process keeps as many schemas, their types, and compiled pairs of schemas: each batch of records needs them."""


class SchemaText(NamedTuple):
    """A schema as its author wrote it.

    Attributes:
        text: of the schema; of Protobuf a FileDescriptorSet in Base64.
        references: texts of the schemas that it refers to by name, each after those that it refers to itself; of
            Protobuf the set has them, of JSON the name is their `$id`.
        message: the message type of Protobuf, by full name or by Confluent's message indexes; empty for the first.
        max_depth: how often a recursive type of Avro or Protobuf becomes columns in itself.
        stable_members: members of Avro's unions are named after their types.
    """

    text: str
    references: tuple[str, ...] = ()
    message: str | tuple[int, ...] = ()
    max_depth: int = 1
    stable_members: bool = False


@dataclass(frozen=True, slots=True)
class Format:
    """What code outside of this package needs of a format. All functions raise ValueSchemaError.

    Attributes:
        title: in texts for users.
        registry_type: the format's `schemaType` in a schema registry.
        parse: a schema, which may be recursive.
        arrow_type: of a column with a schema.
        left_out: why fields of a schema have no column, by their names.
        decoder: from a writer's schema to a reader's schema, compiled once in a process.
        encoder: of columns of a type, with a schema.
        any_of: the schema of values that have one of several schemas; None if there is none.
        derived: the schema of a type, whose record has this full name, or any. None if there is no rule for it.
        confluent_decoder, confluent_encoder: of values that Confluent's serializers write; None for `decoder` and
            `encoder`.
        message_indexes: of a schema's message type, with which Confluent's frames end. None if they do not.
        registered_text: of a schema, to look it up in a registry.
        read_as: equal for schemas by which the same values are read as the same columns.
        record_name: the full name of a schema's record or message type, of JSON its title; None if it has none.
    """

    title: str
    registry_type: str
    parse: Callable[[SchemaText], object]
    arrow_type: Callable[[SchemaText], pa.DataType]
    decoder: Callable[[SchemaText, SchemaText], ValueDecoder]
    encoder: Callable[[SchemaText, pa.DataType], ValueEncoder]
    any_of: Callable[[Sequence[SchemaText]], SchemaText] | None = None
    derived: Callable[[pa.DataType, str | None], SchemaText] | None = None
    confluent_decoder: Callable[[SchemaText, SchemaText], ValueDecoder] | None = None
    confluent_encoder: Callable[[SchemaText, pa.DataType], ValueEncoder] | None = None
    message_indexes: Callable[[SchemaText], tuple[int, ...]] | None = None
    record_name: Callable[[SchemaText], str | None] = lambda _: None
    registered_text: Callable[[SchemaText], str] = lambda schema: schema.text
    read_as: Callable[[SchemaText], Hashable] = lambda schema: schema
    left_out: Callable[[SchemaText], Mapping[str, str]] = lambda _: {}


@lru_cache(COMPILED_SCHEMAS)
def _avro(schema: SchemaText) -> AvroSchema:
    from pyspark_kafka_meta.typed.avro.schema import parse_avro

    return parse_avro(schema.text, schema.references)


def _avro_reader(schema: SchemaText) -> AvroSchema:
    from pyspark_kafka_meta.typed.avro.schema import bounded

    return bounded(_avro(schema), schema.max_depth, schema.stable_members)


@lru_cache(COMPILED_SCHEMAS)
def _avro_type(schema: SchemaText) -> pa.DataType:
    from pyspark_kafka_meta.typed.avro.schema import arrow_type

    return arrow_type(_avro_reader(schema))


def _avro_left_out(schema: SchemaText) -> Mapping[str, str]:
    from pyspark_kafka_meta.typed.avro.schema import left_out

    return left_out(_avro(schema), schema.max_depth)


def _avro_name(schema: SchemaText) -> str | None:
    from pyspark_kafka_meta.typed.avro.schema import Record

    parsed = _avro(schema)
    return parsed.name if isinstance(parsed, Record) else None


def _avro_read_as(schema: SchemaText) -> str:
    from pyspark_kafka_meta.typed.avro.schema import without_names

    return repr(without_names(_avro(schema)))


@lru_cache(COMPILED_SCHEMAS)
def _avro_decoder(writer: SchemaText, reader: SchemaText) -> ValueDecoder:
    from pyspark_kafka_meta.typed.avro.decoder import avro_decoder

    return avro_decoder(_avro(writer), _avro_reader(reader))


def _is_avro_bytes(schema: SchemaText) -> bool:
    from pyspark_kafka_meta.typed.avro.schema import Primitive

    match _avro(schema):
        case Primitive("bytes"):
            return True
    return False


@lru_cache(COMPILED_SCHEMAS)
def _confluent_avro_decoder(writer: SchemaText, reader: SchemaText) -> ValueDecoder:
    from pyspark_kafka_meta.typed.avro.raw_bytes import RawBytesDecoder

    decoder = _avro_decoder(writer, reader)
    return RawBytesDecoder(decoder) if _is_avro_bytes(writer) else decoder


def _avro_union(schemas: Sequence[SchemaText]) -> SchemaText:
    references = dict.fromkeys(reference for schema in schemas for reference in schema.references)
    return SchemaText(json.dumps([json.loads(schema.text) for schema in schemas]), tuple(references))


def _avro_encoder(schema: SchemaText, given: pa.DataType) -> ValueEncoder:
    from pyspark_kafka_meta.typed.avro.encoder import avro_encoder

    return avro_encoder(_avro(schema), given)


def _confluent_avro_encoder(schema: SchemaText, given: pa.DataType) -> ValueEncoder:
    from pyspark_kafka_meta.typed.avro.raw_bytes import RawBytesEncoder

    encoder = _avro_encoder(schema, given)
    return RawBytesEncoder(encoder) if _is_avro_bytes(schema) else encoder


def _avro_derived(given: pa.DataType, name: str | None) -> SchemaText:
    from pyspark_kafka_meta.typed.avro.encoder import TOP_LEVEL_NAME, derived_schema

    return SchemaText(derived_schema(given, name or TOP_LEVEL_NAME))


@lru_cache(COMPILED_SCHEMAS)
def _protobuf(schema: SchemaText) -> ProtobufSchema:
    from pyspark_kafka_meta.typed.protobuf.schema import message_name, parse_protobuf

    descriptor, message = base64.b64decode(schema.text), schema.message or None
    if isinstance(message, tuple):
        try:
            message = message_name(descriptor, message)
        except (IndexError, ValueError, KeyError) as error:
            raise ValueSchemaError(f"its schema has no such message type: {error}") from None
    return replace(parse_protobuf(descriptor, message), max_depth=schema.max_depth)


@lru_cache(COMPILED_SCHEMAS)
def _protobuf_type(schema: SchemaText) -> pa.DataType:
    from pyspark_kafka_meta.typed.protobuf.schema import arrow_type

    return arrow_type(_protobuf(schema))


def _protobuf_left_out(schema: SchemaText) -> Mapping[str, str]:
    from pyspark_kafka_meta.typed.protobuf.schema import left_out

    return left_out(_protobuf(schema))


def _protobuf_name(schema: SchemaText) -> str:
    return _protobuf(schema).message


def _protobuf_read_as(schema: SchemaText) -> str:
    from pyspark_kafka_meta.typed.protobuf.schema import without_names

    return without_names(_protobuf(schema))


@lru_cache(COMPILED_SCHEMAS)
def _protobuf_decoder(writer: SchemaText, reader: SchemaText) -> ValueDecoder:
    from pyspark_kafka_meta.typed.protobuf.decoder import protobuf_decoder

    written, read = _protobuf(writer), _protobuf(reader)
    is_first = writer.message in ((), FIRST_MESSAGE)
    is_in_both = read.message in written.messages or written.message in read.messages
    if written.message != read.message and (is_in_both or not is_first):
        # The first type of a file may have been renamed; numbers of fields of any other one would fit by chance.
        raise ValueSchemaError(f"it is a {written.message}, not a {read.message}")
    return protobuf_decoder(written, read)


def _protobuf_encoder(schema: SchemaText, given: pa.DataType) -> ValueEncoder:
    from pyspark_kafka_meta.typed.protobuf.encoder import protobuf_encoder

    return protobuf_encoder(_protobuf(schema), given)


def _protobuf_indexes(schema: SchemaText) -> tuple[int, ...]:
    from pyspark_kafka_meta.typed.protobuf.schema import message_indexes

    return message_indexes(base64.b64decode(schema.text), _protobuf(schema).message)


def _protobuf_file(schema: SchemaText) -> str:
    from pyspark_kafka_meta.typed.protobuf.schema import only_file

    return base64.b64encode(only_file(base64.b64decode(schema.text))).decode()


@lru_cache(COMPILED_SCHEMAS)
def _json(schema: SchemaText) -> JsonSchema:
    from pyspark_kafka_meta.typed.json.schema import parse_json_schema

    return parse_json_schema(schema.text, schema.references)


@lru_cache(COMPILED_SCHEMAS)
def _json_type(schema: SchemaText) -> pa.DataType:
    return _json(schema).type


def _json_kinds(schema: SchemaText) -> pa.DataType:
    return _json(schema).kinds


@lru_cache(COMPILED_SCHEMAS)
def _json_decoder(_: SchemaText, reader: SchemaText) -> ValueDecoder:
    """JSON names its fields, so the writer's schema does not matter."""
    from pyspark_kafka_meta.typed.json.decoder import json_decoder

    return json_decoder(_json(reader))


@lru_cache(COMPILED_SCHEMAS)
def _json_name(schema: SchemaText) -> str | None:
    """The title, by which Confluent's serializers name a record."""
    try:
        parsed = json.loads(schema.text)
    except (ValueError, RecursionError):
        return None
    title = parsed.get("title") if isinstance(parsed, dict) else None
    return title if isinstance(title, str) else None


def _json_encoder(schema: SchemaText, given: pa.DataType) -> ValueEncoder:
    from pyspark_kafka_meta.typed.json.encoder import json_encoder

    return json_encoder(_json(schema), given)


def _json_derived(given: pa.DataType, name: str | None) -> SchemaText:
    from pyspark_kafka_meta.typed.json.encoder import derived_json_schema

    return SchemaText(derived_json_schema(given, name))


def _json_text(schema: SchemaText) -> str:
    if _json(schema).nullable is None:
        raise ValueSchemaError("its schema is a type of Spark, which no registry has: give a JSON Schema")
    return schema.text


FORMATS: Mapping[str, Format] = {
    "avro": Format(
        "Avro",
        "AVRO",
        _avro,
        _avro_type,
        _avro_decoder,
        _avro_encoder,
        _avro_union,
        _avro_derived,
        _confluent_avro_decoder,
        _confluent_avro_encoder,
        record_name=_avro_name,
        read_as=_avro_read_as,
        left_out=_avro_left_out,
    ),
    "protobuf": Format(
        "Protobuf",
        "PROTOBUF",
        _protobuf,
        _protobuf_type,
        _protobuf_decoder,
        _protobuf_encoder,
        message_indexes=_protobuf_indexes,
        record_name=_protobuf_name,
        registered_text=_protobuf_file,
        read_as=_protobuf_read_as,
        left_out=_protobuf_left_out,
    ),
    "json": Format(
        "JSON",
        "JSON",
        _json,
        _json_type,
        _json_decoder,
        _json_encoder,
        derived=_json_derived,
        record_name=_json_name,
        registered_text=_json_text,
        read_as=_json_kinds,
    ),
}
