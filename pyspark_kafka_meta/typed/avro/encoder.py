"""Arrow columns to Avro: which encoder writes a type as a schema, and the schema of a type.

Follows Spark's `AvroSerializer` and `SchemaConverters.toAvroType`. Fields are matched by name.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from pyspark_kafka_meta.errors import ValueSchemaError
from pyspark_kafka_meta.typed.avro import column_encoders as columns
from pyspark_kafka_meta.typed.avro.column_encoders import LARGEST_DECIMAL_DIGITS, decimal_bytes
from pyspark_kafka_meta.typed.avro.defaults import encode_default
from pyspark_kafka_meta.typed.avro.schema import (
    Array,
    AvroSchema,
    Enumeration,
    Field,
    Fixed,
    Logical,
    Map,
    Primitive,
    Record,
    Recursive,
    Union,
    column_schema,
    is_nullable,
    member_names,
)
from pyspark_kafka_meta.typed.columnar.encoders import (
    ColumnEncoder,
    EncodedRows,
    check_names,
    place_of,
    refuse_column,
    valid_rows,
)
from pyspark_kafka_meta.typed.formats import ValueEncoder, inner_path

_PER_SECOND = {"s": 1, "ms": 10**3, "millis": 10**3, "us": 10**6, "micros": 10**6, "ns": 10**9, "nanos": 10**9}
TOP_LEVEL_NAME = "topLevelRecord"
_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")


def avro_encoder(schema: AvroSchema, given: pa.DataType, *, is_raw: bool = False) -> ValueEncoder:
    """The encoder of columns of the type `given`.

    A field of the schema that the type lacks is written as its default, else as null. The type may be nullable where
    the schema is not: then nulls are refused when they occur. Raises ValueSchemaError: columns of the type cannot be
    written with the schema.

    Args:
        is_raw: whether values of a schema that is `bytes` are written without their length.
    """
    is_bytes = isinstance(schema, Primitive) and schema.type == "bytes"
    root = _encoder(schema, given, "", has_length=not (is_raw and is_bytes))
    return ValueEncoder(partial(_encoded, root))


def _encoded(root: ColumnEncoder, values: pa.Array) -> pa.BinaryArray:
    valid = valid_rows(values) if values.null_count else None
    rows = EncodedRows(len(values))
    root(rows, values, valid)
    return rows.to_array(valid)


def _encoder(schema: AvroSchema, given: pa.DataType, path: str, has_length: bool = True) -> ColumnEncoder:
    """`has_length` is of bytes."""
    encoder: ColumnEncoder | None = None
    match schema:
        case Recursive():
            return _encoder(schema.record, given, path)
        case Record() if pa.types.is_struct(given):
            encoder = _record_encoder(schema, given, path)
        case Array(items) if pa.types.is_list(given):
            item = _encoder(items, given.value_type, inner_path(path, "element"))
            encoder = partial(columns.arrays, place_of(path), item)
        case Map(values) if pa.types.is_map(given) and pa.types.is_string(given.key_type):
            value = _encoder(values, given.item_type, inner_path(path, "value"))
            key = partial(columns.strings, place_of(path), True, True)
            entry = partial(columns.records, place_of(path), [(0, key), (1, value)])
            encoder = partial(columns.maps, place_of(path), entry)
        case Union():
            encoder = _union_encoder(schema, given, path)
        case Enumeration(symbols=symbols) if pa.types.is_string(given):
            encoder = partial(columns.enums, place_of(path), symbols)
        case Primitive("int" | "long"):
            encoder = _integer_encoder(schema, given, place_of(path))
        case Primitive() | Fixed():
            encoder = _scalar_encoder(schema, given, place_of(path), has_length)
    return encoder or refuse_column(path, f"has type {given}, which cannot be written as Avro {_text(schema)}")


def _record_encoder(record: Record, given: pa.StructType, path: str) -> ColumnEncoder:
    check_names(given, {field.name for field in record.fields}, path, f"the Avro record {record.name!r}")
    fields: list[tuple[int, ColumnEncoder] | bytes] = []
    for field in record.fields:
        inner = inner_path(path, field.name)
        if (index := given.get_field_index(field.name)) >= 0:
            fields.append((index, _encoder(field.type, given[index].type, inner)))
        else:
            fields.append(_default(field, inner))
    return partial(columns.records, place_of(path), fields)


def _default(field: Field, path: str) -> bytes:
    if not field.has_default and not is_nullable(field.type):
        refuse_column(path, "is missing, and the Avro schema has no default for it: add it")
    try:
        return encode_default(field.type, field.default)
    except (ValueError, RecursionError) as error:
        return refuse_column(path, f"is missing, and its default in the Avro schema is not valid: {error}")


def _union_encoder(union: Union, given: pa.DataType, path: str) -> ColumnEncoder | None:
    column = column_schema(union)
    null_branch = _branch(union, Primitive("null")) if is_nullable(union) else None
    if pa.types.is_null(given) and null_branch is not None:
        column = Primitive("null")
    if not isinstance(column, Union):
        encoder = _encoder(column, given, path)
        return partial(columns.branches, place_of(path), _branch(union, column), null_branch, encoder)
    named = [field.name for field in given] if pa.types.is_struct(given) else []
    if all(named != member_names(replace(column, stable=stable)) for stable in (False, True)):
        return None
    branches = [
        (_branch(union, branch), _encoder(branch, field.type, inner_path(path, field.name)))
        for branch, field in zip(column.branches, given, strict=True)
    ]
    return partial(columns.unions, place_of(path), branches, null_branch)


def _branch(union: Union, schema: AvroSchema) -> int:
    """The index of a branch. A primitive type is found by its name, as no union has two of the same."""
    kinds = [branch.type if isinstance(branch, Primitive) else branch for branch in union.branches]
    return kinds.index(schema.type if isinstance(schema, Primitive) else schema)


def _integer_encoder(schema: Primitive, given: pa.DataType, place: str) -> ColumnEncoder | None:
    """Integers are written as they are, whatever the logical type says, as by Spark."""
    kind, _, unit = (schema.logical.name if schema.logical else "").rpartition("-")
    is_long, as_it_is = schema.type == "long", partial(columns.integers, place, 1, 1)
    if pa.types.is_signed_integer(given):
        return as_it_is if is_long or given.bit_width <= 32 else None
    if pa.types.is_date32(given):
        return as_it_is if unit == "date" else None
    if pa.types.is_duration(given):
        return as_it_is if is_long and not schema.logical and given.unit == "us" else None
    if pa.types.is_timestamp(given):
        needed, default_unit = "timestamp" if given.tz else "local-timestamp", "millis" if is_long else ""
    elif pa.types.is_time(given):
        needed, default_unit = "time", ""
    else:
        return None
    if not schema.logical:  # Spark writes timestamps as milliseconds, if a long does not say its unit
        kind, unit = needed, default_unit
    if kind != needed or not unit:
        return None
    there, here = _PER_SECOND[unit], _PER_SECOND[given.unit]
    return partial(columns.integers, place, max(there // here, 1), max(here // there, 1))


def _scalar_encoder(
    schema: Primitive | Fixed, given: pa.DataType, place: str, has_length: bool
) -> ColumnEncoder | None:
    if isinstance(schema, Fixed) and pa.types.is_binary(given):
        return partial(columns.fixed, place, schema.size_bytes)
    if pa.types.is_decimal128(given):
        return _decimal_encoder(schema, given, place, has_length)
    match schema:
        case Primitive("null") if pa.types.is_null(given):
            return columns.nulls
        case Primitive("boolean") if pa.types.is_boolean(given):
            return partial(columns.booleans, place)
        case Primitive("float") if pa.types.is_float32(given):
            return partial(columns.floats, place, pa.float32())
        case Primitive("double") if pa.types.is_float32(given) or pa.types.is_float64(given):
            return partial(columns.floats, place, pa.float64())
        case Primitive("string") if pa.types.is_string(given):
            return partial(columns.strings, place, True, True)
        case Primitive("bytes") if pa.types.is_binary(given):
            return partial(columns.strings, place, False, has_length)
    return None


def _decimal_encoder(
    schema: Primitive | Fixed, given: pa.Decimal128Type, place: str, has_length: bool
) -> ColumnEncoder | None:
    logical = schema.logical
    if logical is None or logical.name != "decimal" or given.scale > logical.scale:
        return None
    more_digits = logical.scale - given.scale
    if more_digits and max(logical.precision + 1, given.precision + more_digits) > LARGEST_DECIMAL_DIGITS:
        return None  # Arrow cannot rescale to so many
    size_bytes = schema.size_bytes if isinstance(schema, Fixed) else None
    return partial(columns.decimals, place, logical, size_bytes, has_length)


def _text(schema: AvroSchema) -> str:
    """A type in an error text."""
    match schema:
        case Primitive(kind, None):
            return kind
        case Primitive(kind, Logical(name)):
            return f"{kind} ({name})"
        case Union() if isinstance(column := column_schema(schema), Union):
            members = (f"member{index} {_text(branch)}" for index, branch in enumerate(column.branches))
            return f"union, which needs a struct of {', '.join(members)}"
        case Union():
            return _text(column_schema(schema))
        case Fixed(name, size, None):
            return f"fixed {name} of {size} bytes"
        case Fixed(name, size, Logical(logical)):
            return f"fixed {name} of {size} bytes ({logical})"
        case Record(name) | Recursive(name):
            return f"record {name}"
        case Enumeration(name):
            return f"enumeration {name}"
        case _:
            return type(schema).__name__.lower()


# --- the schema of a type ---------------------------------------------------------------------------------------------


def derived_schema(given: pa.DataType, name: str = TOP_LEVEL_NAME) -> str:
    """The schema of columns of this type, which have no null. It is that of Spark's `to_avro`, but a field that may be
    null has the default null: a later schema can have further such fields, and readers with it read older records.
    Raises ValueSchemaError: Avro has no such type, or no such name of a field or record.

    Args:
        name: full name of the record.
    """
    if not all(map(_NAME.fullmatch, name.split("."))):
        raise ValueSchemaError(f"Avro does not allow the name {name}: use letters, digits and _ only")
    namespace, _, name = name.rpartition(".")
    return json.dumps(_derived(given, "", name, namespace))


def _derived(given: pa.DataType, path: str, name: str, namespace: str) -> Any:
    """`name` is of the field; a record in it has this name too."""
    full_name = f"{namespace}.{name}" if namespace else name
    if pa.types.is_struct(given):
        fields = [_derived_field(field, inner_path(path, field.name), full_name) for field in given]
        return {"type": "record", "name": name, "namespace": namespace, "fields": fields}
    if pa.types.is_list(given):
        items = _derived(given.value_type, inner_path(path, "element"), name, namespace)
        return {"type": "array", "items": _or_null(items, given.value_field)}
    if pa.types.is_map(given) and pa.types.is_string(given.key_type):
        values = _derived(given.item_type, inner_path(path, "value"), name, namespace)
        return {"type": "map", "values": _or_null(values, given.item_field)}
    if pa.types.is_decimal128(given):
        digits = {"precision": given.precision, "scale": given.scale}
        size = decimal_bytes(given.precision)
        return {"type": "fixed", "name": f"{full_name}.fixed", "size": size, "logicalType": "decimal", **digits}
    return _derived_scalar(given) or refuse_column(path, f"has type {given}, which Avro does not have")


def _derived_field(field: pa.Field, path: str, namespace: str) -> dict[str, Any]:
    if not _NAME.fullmatch(field.name):
        refuse_column(path, "has a name that Avro does not allow: use letters, digits and _ only, and no digit first")
    default = {"default": None} if field.nullable else {}
    return {"name": field.name, "type": _or_null(_derived(field.type, path, field.name, namespace), field), **default}


def _or_null(schema: Any, field: pa.Field) -> Any:
    return ["null", schema] if field.nullable and schema != "null" else schema


def _derived_scalar(given: pa.DataType) -> Any:
    """None if Avro has no such type."""
    if pa.types.is_timestamp(given):
        return {"type": "long", "logicalType": f"{'' if given.tz else 'local-'}timestamp-micros"}
    if pa.types.is_time(given):
        return {"type": "long", "logicalType": "time-micros"}
    if pa.types.is_date32(given):
        return {"type": "int", "logicalType": "date"}
    if pa.types.is_signed_integer(given):
        return "long" if given.bit_width == 64 else "int"
    names = {
        pa.null(): "null",
        pa.bool_(): "boolean",
        pa.float32(): "float",
        pa.float64(): "double",
        pa.string(): "string",
        pa.binary(): "bytes",
        pa.duration("us"): {"type": "long", "spark.sql.catalyst.type": "interval day to second"},
    }
    return names.get(given)
