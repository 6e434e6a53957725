"""Arrow columns to Protobuf: which encoder writes a type as a message type.

Follows Spark's `ProtobufSerializer`, for the types of columns that `schema` has. Fields are matched by name,
and written in the order of their numbers, as by Protobuf's libraries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from pyspark_kafka_meta.typed.columnar.encoders import ColumnEncoder, check_names, place_of, refuse_column
from pyspark_kafka_meta.typed.columnar.varints import varint_bytes
from pyspark_kafka_meta.typed.formats import ValueEncoder, inner_path
from pyspark_kafka_meta.typed.protobuf import column_encoders as columns
from pyspark_kafka_meta.typed.protobuf.column_encoders import Content, Encoded
from pyspark_kafka_meta.typed.protobuf.known_types import (
    CONFLUENT_DECIMAL,
    DATE,
    DECIMAL,
    DURATION,
    JSON_TYPES,
    TIMESTAMP,
)
from pyspark_kafka_meta.typed.protobuf.schema import Field, Message, ProtobufSchema, is_map
from pyspark_kafka_meta.typed.protobuf.values import NUMBERS
from pyspark_kafka_meta.typed.protobuf.wire import GROUP, LENGTH, VARINT

_32_BITS = ("int32", "sint32", "sfixed32")
_64_BITS = ("int64", "sint64", "sfixed64", "uint32", "fixed32")
_UNSIGNED_64_BITS = ("uint64", "fixed64")
_TIME_FIELDS = pa.struct([("seconds", pa.int64()), ("nanos", pa.int32())])
_DATE_FIELDS = pa.struct([(name, pa.int32()) for name in ("year", "month", "day")])
_DECIMAL_FIELDS = pa.struct([("value", pa.binary()), ("precision", pa.int64()), ("scale", pa.int32())])
_TEXT_FIELDS = pa.struct([("value", pa.string())])


def protobuf_encoder(schema: ProtobufSchema, given: pa.DataType) -> ValueEncoder:
    """The encoder of columns of the type `given`.

    A field of the schema that the type lacks is not written, nor is null, which is refused only in a required field, a
    list or a map. Raises ValueSchemaError: columns of the type cannot be written with the schema.
    """
    return ValueEncoder(_Compiler(schema).message(schema.messages[schema.message], given, "").encoded)


@dataclass(frozen=True, slots=True)
class _Compiler:
    schema: ProtobufSchema

    def message(self, message: Message, given: pa.DataType, path: str) -> Content:
        if not pa.types.is_struct(given):
            refuse_column(path, f"has type {given}, which cannot be written as Protobuf message {message.full_name}")
        check_names(given, {field.name for field in message.fields}, path, f"the Protobuf message {message.full_name}")
        encoders: list[tuple[int, ColumnEncoder]] = []
        oneofs: dict[int, list[int]] = {}
        for field in sorted(message.fields, key=lambda field: field.number):
            index, inner = given.get_field_index(field.name), inner_path(path, field.name)
            if index < 0:
                if field.required:
                    refuse_column(inner, "is missing, and the Protobuf schema requires it: add it")
                continue
            if pa.types.is_null(given[index].type) and not field.required:
                continue
            encoders.append((index, self._field(field, given[index].type, inner)))
            if field.oneof is not None:
                oneofs.setdefault(field.oneof, []).append(index)
        members = [indexes for indexes in oneofs.values() if len(indexes) > 1]
        return _bytes(columns.messages, place_of(path), encoders, members)

    def _field(self, field: Field, given: pa.DataType, path: str) -> ColumnEncoder:
        if is_map(self.schema, field) and pa.types.is_map(given):
            return partial(columns.repeated, _encoder(field, path, self._entry(field, given, path), required=True))
        if field.repeated and pa.types.is_list(given) and not is_map(self.schema, field):
            path = inner_path(path, "element")
            items = self._content(field, given.value_type, path)
            if field.packed and items.wire_type not in (LENGTH, GROUP):
                packed = _bytes(columns.packed, place_of(path), items)
                return _encoder(field, path, packed, implicit=True)
            return partial(columns.repeated, _encoder(field, path, items, required=True))
        if field.repeated:
            kind = "map" if is_map(self.schema, field) else f"repeated {field.kind}"
            refuse_column(path, f"has type {given}, which cannot be written as Protobuf {kind}")
        content = self._content(field, given, path)
        return _encoder(field, path, content, required=field.required, implicit=not field.presence)

    def _entry(self, field: Field, given: pa.MapType, path: str) -> Content:
        """Keys and values are written even if they are zero or empty."""
        types = given.key_type, given.item_type
        encoders: list[tuple[int, ColumnEncoder]] = []
        for index, part in enumerate(self.schema.messages[field.type_name].fields):
            inner = inner_path(path, part.name)
            encoders.append((index, _encoder(part, inner, self._content(part, types[index], inner), required=True)))
        return _bytes(columns.messages, place_of(path), encoders, ())

    def _content(self, field: Field, given: pa.DataType, path: str) -> Content:
        if field.is_message:
            content = self._message_content(field.type_name, given, path)
            is_group = field.kind == "group"
            return Content(GROUP, partial(columns.groups, content, field.number)) if is_group else content
        scalar = self._scalar_content(field, given, place_of(path))
        return scalar or refuse_column(path, f"has type {given}, which cannot be written as Protobuf {field.kind}")

    def _message_content(self, name: str, given: pa.DataType, path: str) -> Content:
        message = self.schema.messages.get(name)
        if message is None:
            refuse_column(path, f"has type {name}, which the Protobuf schema lacks: add the file that defines it")
        if given == pa.duration("us") and name == DURATION:
            return _bytes(columns.times, self.message(message, _TIME_FIELDS, path), True)
        if pa.types.is_timestamp(given) and given.unit == "us" and given.tz and name == TIMESTAMP:
            return _bytes(columns.times, self.message(message, _TIME_FIELDS, path), False)
        if pa.types.is_date32(given) and name == DATE:
            return _bytes(columns.dates, self.message(message, _DATE_FIELDS, path))
        if pa.types.is_decimal128(given) and name == CONFLUENT_DECIMAL:
            return _bytes(columns.decimals, self.message(message, _DECIMAL_FIELDS, path))
        if pa.types.is_decimal128(given) and name == DECIMAL:
            return _bytes(columns.decimal_texts, self.message(message, _TEXT_FIELDS, path))
        if pa.types.is_string(given) and name in JSON_TYPES:
            return _bytes(columns.json_messages, place_of(path), name)
        return self.message(message, given, path)

    def _scalar_content(self, field: Field, given: pa.DataType, place: str) -> Content | None:
        """None if the type cannot be written as the field."""
        kind, is_integer = field.kind, pa.types.is_signed_integer(given)
        is_int = is_integer and given.bit_width <= 32
        if kind == "enum":
            enum = self.schema.enums.get(field.type_name)
            if enum is None or not (is_int or pa.types.is_string(given)):
                return None
            return Content(VARINT, partial(columns.enums, place, enum))
        if kind == "string":
            return _bytes(columns.strings, place) if pa.types.is_string(given) else None
        if kind == "bytes":
            return _bytes(columns.binaries) if pa.types.is_binary(given) else None
        kinds = {
            **dict.fromkeys(_32_BITS, is_int),
            **dict.fromkeys(_64_BITS, is_integer),
            **dict.fromkeys(_UNSIGNED_64_BITS, is_integer or (pa.types.is_decimal128(given) and given.scale == 0)),
            "bool": pa.types.is_boolean(given),
            "float": pa.types.is_float32(given),
            "double": pa.types.is_floating(given) and given.bit_width >= 32,
        }
        fits = kinds.get(kind)
        return Content(NUMBERS[kind].wire_type, partial(columns.numbers, place, kind)) if fits else None


def _bytes(encoded: Callable[..., Encoded], *given: Any) -> Content:
    return Content(LENGTH, partial(encoded, *given))


def _encoder(
    field: Field, path: str, content: Content, *, required: bool = False, implicit: bool = False
) -> ColumnEncoder:
    tag = varint_bytes(field.number << 3 | content.wire_type)
    return partial(columns.singular, place_of(path), tag, content, required, implicit)
