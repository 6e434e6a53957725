"""Schemas of Kafka Connect as JSON: their text becomes Arrow types.

Source: `org.apache.kafka.connect.json.JsonConverter.asConnectSchema`. As in Avro, Connect's own Decimal, Date and
Timestamp are decimals, dates and timestamps, and other names leave a type as it is. All columns are nullable, as those
of JSON; `optional`, `default`, `doc` and `version` do not matter.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from pyspark_kafka_meta.errors import ValueSchemaError
from pyspark_kafka_meta.typed.formats import DECIMAL, PRECISION, ConnectType, inner_path, unit
from pyspark_kafka_meta.typed.json.schema import column_type

if TYPE_CHECKING:
    import pyarrow as pa

MAX_DECIMAL_DIGITS = 38
"""Of Spark's decimals."""
DATE, TIMESTAMP = (f"org.apache.kafka.connect.data.{name}" for name in ("Date", "Timestamp"))
PRIMITIVES = {
    "boolean": "bool",
    "int8": "int8",
    "int16": "int16",
    "int32": "int32",
    "int64": "int64",
    "float": "float32",
    "double": "float64",
    "string": "string",
    "bytes": "binary",
}


class ConnectSchema(NamedTuple):
    """
    Attributes:
        kinds: as of `JsonSchema`.
        connect_types: as of `Schema`.
        units: of scalars, by their paths: see `unit`.
    """

    kinds: pa.DataType
    connect_types: Mapping[str, ConnectType]
    units: Mapping[str, str]


def parse_connect(text: str) -> ConnectSchema:
    """Raises ValueSchemaError: the text is no schema of Connect, or is nested too deeply."""
    parser = _Parser()
    try:
        return ConnectSchema(parser.kind(json.loads(text), ""), parser.connect_types, parser.units)
    except (ValueError, RecursionError):
        raise ValueSchemaError("the schema of Kafka Connect is not valid JSON, or is nested too deeply") from None


class _Parser:
    def __init__(self) -> None:
        self.connect_types: dict[str, ConnectType] = {}
        self.units: dict[str, str] = {}

    def kind(self, schema: object, path: str) -> pa.DataType:
        import pyarrow as pa

        def part(name: str, inner: object) -> pa.Field:
            return pa.field(name, self.kind(inner, inner_path(path, name)))

        named = _connect_type(schema)
        if named is not None:
            self.connect_types[path] = named
        match schema:
            case {"type": "struct", "fields": [*fields]} if fields and all(map(_is_field, fields)):
                return pa.struct([part(field["field"], field) for field in fields])
            case {"type": "array", "items": items}:
                return pa.list_(part("element", items))
            case {"type": "map", "keys": keys, "values": values}:
                return pa.map_(part("key", keys).type, part("value", values).type)
            case {"type": str(kind)} if kind in PRIMITIVES:
                found = _logical(kind, named) or pa.type_for_alias(PRIMITIVES[kind])
                self.units[path] = unit(found, named)
                return found
        where = path or "the schema of Kafka Connect"
        raise ValueSchemaError(f"{where} has no known type, or is a struct without fields")


def _connect_type(schema: object) -> ConnectType | None:
    match schema:
        case {"name": str(name), **others}:
            return ConnectType.of(name, others.get("parameters"))
    return None


def _is_field(given: object) -> bool:
    return isinstance(given, dict) and isinstance(given.get("field"), str)


def _logical(kind: str, named: ConnectType | None) -> pa.DataType | None:
    """The kind of one of Connect's own logical types, if Spark has a type for it."""
    import pyarrow as pa

    match kind, named:
        case "bytes", ConnectType(name, parameters) if name == DECIMAL:
            with suppress(KeyError, ValueError, TypeError):
                scale, precision = int(parameters["scale"]), int(parameters.get(PRECISION, MAX_DECIMAL_DIGITS))
                return pa.decimal256(precision, scale) if 0 <= scale <= precision <= MAX_DECIMAL_DIGITS else None
        case "int32", ConnectType(name) if name == DATE:
            return pa.date64()
        case "int64", ConnectType(name) if name == TIMESTAMP:
            return pa.timestamp("ms")
    return None


def kinds_of_writer(writer: ConnectSchema, reader: ConnectSchema, is_lenient: Callable[[str], bool]) -> pa.DataType:
    """The kinds as which a writer's values are read: the reader's, with the writer's digits of decimals, and without
    lenient fields that do not fit. Raises ValueSchemaError: no value can be read. The message has the field's path.

    Args:
        is_lenient: as of `SchemaText`.
    """
    return _Resolution(writer, reader, is_lenient).kind(writer.kinds, reader.kinds, "")


class _Resolution(NamedTuple):
    """Of the kinds of two schemas."""

    writer: ConnectSchema
    reader: ConnectSchema
    is_lenient: Callable[[str], bool]

    def kind(self, given: pa.DataType, to: pa.DataType, path: str) -> pa.DataType:
        import pyarrow as pa

        def part(inner: pa.DataType, wanted: pa.DataType, name: str) -> pa.DataType:
            return self.kind(inner, wanted, inner_path(path, name))

        def both(is_kind: Callable[[pa.DataType], bool]) -> bool:
            return is_kind(given) and is_kind(to)

        if both(pa.types.is_struct):
            return self._struct(given, to, path)
        if both(pa.types.is_list):
            return pa.list_(to.value_field.with_type(part(given.value_type, to.value_type, "element")))
        if both(pa.types.is_map):
            return pa.map_(part(given.key_type, to.key_type, "key"), part(given.item_type, to.item_type, "value"))
        if both(pa.types.is_decimal256):
            return to if given.scale == to.scale else given
        is_number = pa.types.is_integer(given) or pa.types.is_floating(given)
        is_wider = both(pa.types.is_integer) or (is_number and pa.types.is_floating(to))
        are_bytes = both(lambda kind: pa.types.is_decimal256(kind) or pa.types.is_binary(kind))
        own, its = self.reader.units.get(path), self.writer.units.get(path)
        if (given == to or is_wider or are_bytes) and own == its:
            return to
        place = f"{path}: " if path else ""
        raise ValueSchemaError(
            f"{place}the writer's {its or column_type(given)} cannot be read as {own or column_type(to)}"
        )

    def _struct(self, given: pa.StructType, to: pa.StructType, path: str) -> pa.DataType:
        import pyarrow as pa

        known, fields = {field.name: field.type for field in given}, []
        for name, kind in ((field.name, field.type) for field in to):
            inner = inner_path(path, name)
            try:
                fields.append((name, self.kind(known[name], kind, inner) if name in known else kind))
            except ValueSchemaError:
                if not self.is_lenient(inner):
                    raise
        if not fields:
            raise ValueSchemaError(f"{path}: no field of the writer can be read")
        return pa.struct(fields)
