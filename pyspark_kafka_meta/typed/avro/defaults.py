"""Default values of Avro fields: JSON in the schema, which becomes the Avro encoding of the value."""

from __future__ import annotations

import struct
from typing import Any

from pyspark_kafka_meta.typed.avro.schema import (
    Array,
    AvroSchema,
    Enumeration,
    Field,
    Fixed,
    Map,
    Primitive,
    Record,
    Recursive,
    Union,
)
from pyspark_kafka_meta.typed.columnar.varints import zigzag_bytes


def encode_default(schema: AvroSchema, default: Any) -> bytes:
    """The Avro encoding of a default value, which is JSON. Bytes are text of the code points 0 to 255. The default of a
    union has the first branch that it fits (1.12; before, it had to fit the first). Java looks less closely: there null
    fits an array, and 1.5 an int. Raises ValueError: the value does not fit the schema."""
    match schema, default:
        case Primitive() | Fixed() | Enumeration(), _:
            return _encode_scalar(schema, default)
        case Recursive(), _:
            return encode_default(schema.record, default)
        case Array(items), list():
            return _block([encode_default(items, item) for item in default])
        case Map(values), dict():
            key = Primitive("string")
            return _block([encode_default(key, name) + encode_default(values, default[name]) for name in default])
        case Record(fields=fields), dict():
            return b"".join(_encode_field(field, default) for field in fields)
        case Union(branches), _:
            for index, branch in enumerate(branches):
                try:
                    return zigzag_bytes(index) + encode_default(branch, default)
                except ValueError:
                    continue
    raise ValueError("the default does not have the field's type")


def _encode_scalar(schema: Primitive | Fixed | Enumeration, value: Any) -> bytes:
    try:
        encoded = _scalar(schema, value)
    except (UnicodeEncodeError, OverflowError):
        encoded = None
    if encoded is None:
        raise ValueError("the default does not have the field's type")
    return encoded


def _scalar(schema: Primitive | Fixed | Enumeration, value: Any) -> bytes | None:
    match schema, value:
        case Primitive("null"), None:
            return b""
        case Primitive("boolean"), bool():
            return bytes([value])
        case Primitive("int" | "long" as kind), int() if type(value) is int:
            bits = 31 if kind == "int" else 63
            if -(2**bits) <= value < 2**bits:
                return zigzag_bytes(value)
        case Primitive("float" | "double" as kind), int() | float() if type(value) is not bool:
            return struct.pack("<f" if kind == "float" else "<d", float(value))
        case Primitive("string"), str():
            return _sized(value.encode())
        case Primitive("bytes"), str():
            return _sized(value.encode("latin-1"))
        case Fixed(size_bytes=size), str() if len(value) == size:
            return value.encode("latin-1")
        case Enumeration(symbols=symbols), str() if value in symbols:
            return zigzag_bytes(symbols.index(value))
    return None


def _encode_field(field: Field, record: dict[str, Any]) -> bytes:
    if field.name not in record and not field.has_default:
        raise ValueError(f"the default of a record lacks the field {field.name!r}")
    return encode_default(field.type, record.get(field.name, field.default))


def _block(items: list[bytes]) -> bytes:
    """Items of an array or a map, in one block, and the end of blocks."""
    return (zigzag_bytes(len(items)) + b"".join(items) if items else b"") + b"\0"


def _sized(data: bytes) -> bytes:
    return zigzag_bytes(len(data)) + data
