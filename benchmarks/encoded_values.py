"""Orders as Avro, Protobuf and JSON, with Spark's own function for each format.

Avro is written by this package's encoder, whose bytes are those of Java's; Protobuf and JSON by the usual libraries.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped, unused-ignore]
from pyspark.sql import Column
from pyspark.sql.avro.functions import from_avro, to_avro
from pyspark.sql.functions import from_json, to_json
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.protobuf.functions import from_protobuf, to_protobuf

from pyspark_kafka_meta.typed.avro.encoder import avro_encoder, derived_schema
from pyspark_kafka_meta.typed.avro.schema import parse_avro

MESSAGE = "Order"
FieldProto = descriptor_pb2.FieldDescriptorProto
PROTOBUF_TYPES = {
    pa.int64(): FieldProto.TYPE_INT64,
    pa.string(): FieldProto.TYPE_STRING,
    pa.float64(): FieldProto.TYPE_DOUBLE,
    pa.bool_(): FieldProto.TYPE_BOOL,
}
TEXTS = pa.map_(pa.string(), pa.string())
JSON_TYPES: dict[pa.DataType, dict[str, Any]] = {
    pa.int64(): {"type": "integer"},
    pa.string(): {"type": "string"},
    pa.float64(): {"type": "number"},
    pa.bool_(): {"type": "boolean"},
    TEXTS: {"type": "object", "additionalProperties": {"type": "string"}},
}


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


ORDER = pa.struct(
    [
        _required("id", pa.int64()),
        _required("created_at_ms", pa.int64()),
        _required("customer", pa.string()),
        _required("product", pa.string()),
        pa.field("comment", pa.string()),
        _required("quantity", pa.int64()),
        _required("price", pa.float64()),
        _required("is_paid", pa.bool_()),
    ]
)
LABELLED_ORDER = pa.struct([*ORDER, pa.field("labels", TEXTS)])
LINE = pa.struct(
    [_required("product", pa.string()), _required("quantity", pa.int64()), _required("price", pa.float64())]
)
NESTED_ORDER = pa.struct(
    [
        _required("id", pa.int64()),
        _required("created_at_ms", pa.int64()),
        _required("customer", pa.struct([_required("name", pa.string()), pa.field("city", pa.string())])),
        _required("lines", pa.list_(_required("element", LINE))),
        _required("tags", pa.list_(_required("element", pa.string()))),
        _required("is_paid", pa.bool_()),
    ]
)
Row = dict[str, Any]


class Encoded(NamedTuple):
    """Values of one schema.

    Attributes:
        format: as in `valueFormat`.
        schema: as it is registered.
        values: without frames, or null.
        decode, encode: Spark's own functions, from and to a column without frames.
        message_indexes: the end of the frame of Protobuf.
    """

    format: str
    schema: str
    values: list[bytes | None]
    decode: Callable[[Column], Column]
    encode: Callable[[Column], Column]
    message_indexes: bytes = b""


def orders(count: int) -> list[Row]:
    """Rows of `ORDER`; a fifth has no comment."""
    rng = random.Random(1)
    return [
        {
            "id": 1_000_000_000 + number,
            "created_at_ms": 1_700_000_000_000 + number,
            "customer": _text(rng, 32, 32),
            "product": _text(rng, 20, 60),
            "comment": None if number % 5 == 0 else _text(rng, 80, 160),
            "quantity": rng.randrange(1, 100),
            "price": rng.randrange(1, 100_000) / 100,
            "is_paid": rng.random() < 0.5,
        }
        for number in range(count)
    ]


def labelled_orders(count: int) -> list[Row]:
    """Rows of `LABELLED_ORDER`, with 1 to 4 labels."""
    rng = random.Random(2)
    names = ["color", "size", "material", "origin"]
    return [
        {**row, "labels": {name: _text(rng, 4, 12) for name in names[: rng.randint(1, 4)]}} for row in orders(count)
    ]


def nested_orders(count: int) -> list[Row]:
    """Rows of `NESTED_ORDER`, with 1 to 5 lines and 0 to 3 tags."""
    rng = random.Random(1)
    return [
        {
            "id": 1_000_000_000 + number,
            "created_at_ms": 1_700_000_000_000 + number,
            "customer": {"name": _text(rng, 32, 32), "city": None if number % 5 == 0 else _text(rng, 4, 16)},
            "lines": [_line(rng) for _ in range(rng.randrange(1, 6))],
            "tags": [_text(rng, 4, 12) for _ in range(rng.randrange(4))],
            "is_paid": rng.random() < 0.5,
        }
        for number in range(count)
    ]


def _line(rng: random.Random) -> Row:
    return {"product": _text(rng, 20, 40), "quantity": rng.randrange(1, 100), "price": rng.randrange(1, 10_000) / 100}


def _text(rng: random.Random, low: int, high: int) -> str:
    """Hexadecimal digits."""
    return rng.randbytes(high // 2).hex()[: rng.randint(low, high)]


def as_avro(kind: pa.StructType, rows: Sequence[Row]) -> Encoded:
    schema = derived_schema(kind)
    values = avro_encoder(parse_avro(schema), kind).encode(pa.array(rows, kind))
    return Encoded(
        "avro",
        schema,
        values.to_pylist(),
        partial(from_avro, jsonFormatSchema=schema),
        partial(to_avro, jsonFormatSchema=schema),
    )


def as_protobuf(rows: Sequence[Row]) -> Encoded:
    """Orders; a null is an absent field, as in proto2 each may be."""
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", syntax="proto2")
    fields = file.message_type.add(name=MESSAGE).field
    for number, field in enumerate(ORDER, 1):
        fields.add(name=field.name, number=number, type=PROTOBUF_TYPES[field.type], label=FieldProto.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    order = message_factory.GetMessageClass(pool.FindMessageTypeByName(MESSAGE))
    descriptor_set = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    return Encoded(
        "protobuf",
        base64.b64encode(file.SerializeToString()).decode(),
        [order(**row).SerializeToString() for row in rows],
        partial(from_protobuf, messageName=MESSAGE, binaryDescriptorSet=descriptor_set),
        partial(to_protobuf, messageName=MESSAGE, binaryDescriptorSet=descriptor_set),
        message_indexes=b"\0",
    )


def as_json(kind: pa.StructType, rows: Sequence[Row], indent: int | None = None) -> Encoded:
    schema = {"type": "object", "properties": {field.name: JSON_TYPES[field.type] for field in kind}}
    columns = from_arrow_schema(pa.schema(list(kind)))
    return Encoded(
        "json",
        json.dumps(schema),
        [json.dumps(row, indent=indent).encode() for row in rows],
        lambda payload: from_json(payload.cast("string"), columns),
        lambda value: to_json(value).cast("binary"),
    )


def with_nulls(encoded: Encoded) -> Encoded:
    """With 2 % nulls, as of tombstones, in all partitions."""
    values = [None if number % 49 == 0 else value for number, value in enumerate(encoded.values)]
    return encoded._replace(values=values)


ENCODED: dict[str, Callable[[int], Encoded]] = {
    "avro": lambda count: as_avro(ORDER, orders(count)),
    "nested": lambda count: as_avro(NESTED_ORDER, nested_orders(count)),
    "protobuf": lambda count: as_protobuf(orders(count)),
    "json": lambda count: as_json(ORDER, orders(count)),
    "json_indented": lambda count: as_json(ORDER, orders(count), indent=2),
    "json_maps": lambda count: as_json(LABELLED_ORDER, labelled_orders(count)),
    "avro_nulls": lambda count: with_nulls(as_avro(ORDER, orders(count))),
    "protobuf_nulls": lambda count: with_nulls(as_protobuf(orders(count))),
    "json_nulls": lambda count: with_nulls(as_json(ORDER, orders(count))),
}
"""By case: as many different values."""
