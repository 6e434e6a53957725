"""Debezium's envelopes of a table, as each format has them, with what Debezium says about the source in PostgreSQL.

Avro and connect-json have Debezium's types; in JSON and Protobuf dates are days, timestamps microseconds, and decimals
texts, as of `decimal.handling.mode=string`.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped, unused-ignore]

from pyspark_kafka_meta.kafka.records.schema import records_arrow_schema
from pyspark_kafka_meta.options import Framing, SourceOptions
from pyspark_kafka_meta.testing import MockRegistry
from pyspark_kafka_meta.typed.avro.encoder import avro_encoder
from pyspark_kafka_meta.typed.avro.schema import parse_avro
from pyspark_kafka_meta.typed.framing import frame

UNAVAILABLE = "__debezium_unavailable_value"
CONNECT, TIME = "org.apache.kafka.connect.data", "io.debezium.time"
FieldProto = descriptor_pb2.FieldDescriptorProto
COLUMNS: Mapping[str, tuple[pa.DataType, str, Mapping[str, str]]] = {
    "name": (pa.string(), "", {}),
    "id": (pa.int64(), "", {}),
    "price": (pa.decimal128(10, 2), f"{CONNECT}.Decimal", {"scale": "2", "connect.decimal.precision": "10"}),
    "day": (pa.int32(), f"{TIME}.Date", {}),
    "at": (pa.int64(), f"{TIME}.MicroTimestamp", {}),
    "seen": (pa.string(), f"{TIME}.ZonedTimestamp", {}),
    "data": (pa.binary(), "", {}),
    "tags": (pa.list_(pa.string()), "", {}),
    "paid": (pa.bool_(), "", {}),
}
"""Type, name of the type, and its parameters."""
SOURCE = {
    **dict.fromkeys(("version", "connector", "name"), pa.string()),
    "ts_ms": pa.int64(),
    **dict.fromkeys(("snapshot", "db", "sequence", "schema", "table"), pa.string()),
    **dict.fromkeys(("txId", "lsn"), pa.int64()),
}
CONNECT_KINDS = {
    pa.string(): "string",
    pa.int64(): "int64",
    pa.int32(): "int32",
    pa.binary(): "bytes",
    pa.bool_(): "boolean",
}
PROTOBUF_KINDS = {
    pa.string(): FieldProto.TYPE_STRING,
    pa.int64(): FieldProto.TYPE_INT64,
    pa.int32(): FieldProto.TYPE_INT32,
    pa.binary(): FieldProto.TYPE_BYTES,
    pa.bool_(): FieldProto.TYPE_BOOL,
}
Row = dict[str, Any]


class Change(NamedTuple):
    """A record: `op` is also tombstone, of which both rows are None."""

    op: str
    key: int
    after: Row | None
    before: Row | None


class Encoding(NamedTuple):
    """
    Attributes:
        key_schema, value_schema: as they are registered, or options.
        encode: keys and values, without frames.
        is_typed: whether it has Debezium's types.
    """

    format: str
    key_schema: str
    value_schema: str
    encode: Callable[[Sequence[Change]], tuple[list[bytes], list[bytes | None]]]
    is_typed: bool


def row(rng: random.Random, key: int, nulls: float = 0.1) -> Row:
    micros = f"{rng.randrange(10**6):06}"
    values = {
        "name": rng.randbytes(rng.randrange(5, 40)).hex(),
        "price": Decimal(rng.randrange(-(10**8), 10**8)).scaleb(-2),
        "day": rng.randrange(-20_000, 40_000),
        "at": rng.randrange(-(10**15), 2 * 10**15),
        "seen": f"2024-0{rng.randrange(1, 10)}-11T{rng.randrange(10, 24)}:59:{rng.randrange(10, 60)}.{micros}Z",
        "data": rng.randbytes(rng.randrange(0, 30)),
        "tags": [rng.randbytes(3).hex() for _ in range(rng.randrange(3))],
        "paid": rng.random() < 0.5,
    }
    return {"id": key, **{name: None if rng.random() < nulls else value for name, value in values.items()}}


def changes(seed: int, count: int) -> Iterator[Change]:
    """Of a table with keys 0 to 99: deletes with tombstones, tombstones alone, unsent columns, messages."""
    rng = random.Random(seed)
    while count > 0:
        count -= 1
        key, op = rng.randrange(100), rng.choices("ccuuuurdxm", k=1)[0]
        after, before = row(rng, key), row(rng, key)
        if op == "u" and rng.random() < 0.2:
            unsent: Row = {"name": UNAVAILABLE, "data": UNAVAILABLE.encode(), "tags": [UNAVAILABLE]}
            after |= {name: value for name, value in unsent.items() if rng.random() < 0.6}
        if op == "d":
            full = rng.random() < 0.5
            yield Change("d", key, None, before if full else dict.fromkeys(before) | {"id": key})
        if op == "x" or (op == "d" and rng.random() < 0.9):
            yield Change("tombstone", key, None, None)
        elif op != "d":
            yield Change(op, key, None if op == "m" else after, before if op == "u" else None)


def envelope(change: Change, offset: int) -> dict[str, Any] | None:
    if change.op == "tombstone":
        return None
    source = {
        "version": "3.6.1.Final",
        "connector": "postgresql",
        "name": "shop",
        "ts_ms": 1_700_000_000_000 + offset,
        "snapshot": "true" if change.op == "r" else "false",
        "db": "shop",
        "sequence": f'["{24_000_000 + offset}","{24_000_100 + offset}"]',
        "schema": "public",
        "table": "orders",
        "txId": 700 + offset,
        "lsn": 24_000_100 + offset,
    }
    return {
        "before": change.before,
        "after": change.after,
        "source": source,
        "op": change.op,
        "ts_ms": 1_700_000_000_500,
    }


# --- Avro -------------------------------------------------------------------------------------------------------------


def _avro_field(name: str, kind: pa.DataType, connect_name: str, parameters: Mapping[str, str]) -> dict[str, Any]:
    simple = {pa.string(): "string", pa.int64(): "long", pa.int32(): "int", pa.binary(): "bytes", pa.bool_(): "boolean"}
    if pa.types.is_list(kind):
        type_: Any = {"type": "array", "items": ["null", "string"]}
    elif pa.types.is_decimal(kind):
        type_ = {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    else:
        type_ = {"type": simple[kind]}
    if connect_name:
        type_ |= {"connect.name": connect_name, "connect.parameters": dict(parameters)}
    return {"name": name, "type": type_ if name == "id" else ["null", type_]}


def _record(name: str, fields: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": fields}


def avro() -> Encoding:
    value = _record("Value", [_avro_field(name, *about) for name, about in COLUMNS.items()])
    source = _record("Source", [_avro_field(name, kind, "", {}) for name, kind in SOURCE.items()])
    images: list[Any] = [{"name": "before", "type": ["null", value]}, {"name": "after", "type": ["null", "Value"]}]
    others = [_avro_field("op", pa.string(), "", {}), _avro_field("ts_ms", pa.int64(), "", {})]
    value_schema = json.dumps(_record("Envelope", [*images, {"name": "source", "type": source}, *others]))
    key_schema = json.dumps(_record("Key", [_avro_field("id", *COLUMNS["id"])]))
    image = pa.struct([pa.field(name, kind, name != "id") for name, (kind, *_) in COLUMNS.items()])
    kind = pa.struct(
        [
            ("before", image),
            ("after", image),
            pa.field("source", pa.struct(list(SOURCE.items())), False),
            ("op", pa.string()),
            ("ts_ms", pa.int64()),
        ]
    )
    key_kind = pa.struct([pa.field("id", pa.int64(), False)])
    encode_key = avro_encoder(parse_avro(key_schema), key_kind).encode
    encode_value = avro_encoder(parse_avro(value_schema), kind).encode

    def encode(given: Sequence[Change]) -> tuple[list[bytes], list[bytes | None]]:
        keys = encode_key(pa.array([{"id": each.key} for each in given], key_kind)).to_pylist()
        values = pa.array([envelope(each, offset) for offset, each in enumerate(given)], kind)
        return keys, encode_value(values).to_pylist()

    return Encoding("avro", key_schema, value_schema, encode, True)


# --- JSON -------------------------------------------------------------------------------------------------------------


def _in_json(row: Row | None, is_typed: bool) -> Row | None:
    def shown(name: str, value: Any) -> Any:
        if name == "data" or (name == "price" and is_typed):
            number = int(value.scaleb(2)) if name == "price" else 0
            data = number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True) if name == "price" else value
            return base64.b64encode(data).decode()
        return str(value) if name == "price" else value

    return row and {name: None if value is None else shown(name, value) for name, value in row.items()}


def _json_value(change: Change, offset: int, is_typed: bool) -> bytes | None:
    value = envelope(change, offset)
    images = {side: _in_json(getattr(change, side), is_typed) for side in ("before", "after")}
    return None if value is None else json.dumps(value | images, separators=(",", ":")).encode()


def plain_json() -> Encoding:
    plain = {
        pa.string(): "string",
        pa.int64(): "bigint",
        pa.int32(): "int",
        pa.binary(): "binary",
        pa.bool_(): "boolean",
    }
    columns = [(name, plain.get(kind, "string")) for name, (kind, *_) in COLUMNS.items() if name != "tags"]
    value_schema = ", ".join([*(f"{name} {kind}" for name, kind in columns), "tags array<string>"])

    def encode(given: Sequence[Change]) -> tuple[list[bytes], list[bytes | None]]:
        keys = [json.dumps({"id": each.key}).encode() for each in given]
        return keys, [_json_value(each, offset, False) for offset, each in enumerate(given)]

    return Encoding("json", "id bigint", value_schema, encode, False)


def _connect_field(name: str, kind: pa.DataType, connect_name: str, parameters: Mapping[str, str]) -> dict[str, Any]:
    type_ = "bytes" if pa.types.is_decimal(kind) else CONNECT_KINDS.get(kind, "array")
    items = {"items": {"type": "string", "optional": True}} if type_ == "array" else {}
    named = {"name": connect_name, "version": 1, "parameters": dict(parameters)} if connect_name else {}
    return {"type": type_, "optional": name != "id", **items, **named, "field": name}


def connect_json() -> Encoding:
    def struct(fields: list[dict[str, Any]], **others: Any) -> dict[str, Any]:
        return {"type": "struct", "fields": fields, **others}

    image = struct([_connect_field(name, *about) for name, about in COLUMNS.items()], optional=True, name="Value")
    source = struct([_connect_field(name, kind, "", {}) for name, kind in SOURCE.items()], optional=False)
    others = [_connect_field("op", pa.string(), "", {}), _connect_field("ts_ms", pa.int64(), "", {})]
    fields = [{**image, "field": "before"}, {**image, "field": "after"}, {**source, "field": "source"}, *others]
    value_schema = json.dumps(struct(fields, optional=False, name="Envelope", version=2), separators=(",", ":"))
    key = struct([_connect_field("id", *COLUMNS["id"])], optional=False, name="Key")
    key_schema = json.dumps(key, separators=(",", ":"))

    def whole(schema: str, payload: bytes | None) -> bytes | None:
        return None if payload is None else b'{"schema":%s,"payload":%s}' % (schema.encode(), payload)

    def encode(given: Sequence[Change]) -> tuple[list[bytes], list[bytes | None]]:
        keys = [whole(key_schema, b'{"id":%d}' % each.key) or b"" for each in given]
        return keys, [whole(value_schema, _json_value(each, offset, True)) for offset, each in enumerate(given)]

    return Encoding("connect-json", key_schema, value_schema, encode, True)


# --- Protobuf ---------------------------------------------------------------------------------------------------------


def protobuf() -> Encoding:
    file = descriptor_pb2.FileDescriptorProto(name="envelope.proto", syntax="proto2")

    def message(name: str, fields: Mapping[str, Any]) -> None:
        made = file.message_type.add(name=name)
        for number, (field, kind) in enumerate(fields.items(), 1):
            label = FieldProto.LABEL_REPEATED if field == "tags" else FieldProto.LABEL_OPTIONAL
            if isinstance(kind, str):
                made.field.add(
                    name=field, number=number, label=label, type=FieldProto.TYPE_MESSAGE, type_name=f".{kind}"
                )
            else:
                type_ = PROTOBUF_KINDS.get(kind, FieldProto.TYPE_STRING)
                made.field.add(name=field, number=number, label=label, type=type_)

    sides = {"before": "Value", "after": "Value", "source": "Source", "op": pa.string(), "ts_ms": pa.int64()}
    message("Envelope", sides)
    message("Value", {name: kind for name, (kind, *_) in COLUMNS.items()})
    message("Source", SOURCE)
    key_file = descriptor_pb2.FileDescriptorProto(name="key.proto", syntax="proto2")
    key_file.message_type.add(name="Key").field.add(
        name="id", number=1, label=FieldProto.LABEL_OPTIONAL, type=FieldProto.TYPE_INT64
    )
    pool = descriptor_pool.DescriptorPool()
    for each in (file, key_file):
        pool.AddSerializedFile(each.SerializeToString())
    envelope_class, key_class = (
        message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in ("Envelope", "Key")
    )

    def without_nulls(row: Row | None) -> Row:
        return {
            name: str(value) if name == "price" else value for name, value in (row or {}).items() if value is not None
        }

    def encoded(change: Change, offset: int) -> bytes | None:
        value = envelope(change, offset)
        if value is None:
            return None
        images = {side: without_nulls(value.pop(side)) for side in ("before", "after") if value[side]}
        value = {name: each for name, each in value.items() if each is not None}
        data: bytes = envelope_class(**value, **images).SerializeToString()
        return data

    def encode(given: Sequence[Change]) -> tuple[list[bytes], list[bytes | None]]:
        keys = [key_class(id=each.key).SerializeToString() for each in given]
        return keys, [encoded(each, offset) for offset, each in enumerate(given)]

    texts = [base64.b64encode(each.SerializeToString()).decode() for each in (key_file, file)]
    return Encoding("protobuf", texts[0], texts[1], encode, False)


ENCODINGS = {"avro": avro, "json": plain_json, "connect-json": connect_json, "protobuf": protobuf}
REGISTERED = ("avro", "protobuf")


def options_of(encoding: Encoding, registry: MockRegistry, **more: str) -> tuple[SourceOptions, tuple[bytes, bytes]]:
    """The options of a query over the changes of topic t, and what is before each key and value."""
    schemas, frames = {"key": encoding.key_schema, "value": encoding.value_schema}, (b"", b"")
    given = {f"{side}Schema": schema for side, schema in schemas.items()}
    if encoding.format in REGISTERED:
        kind, indexes = encoding.format.upper(), b"\0" if encoding.format == "protobuf" else b""
        ids = [registry.register(f"t-{side}", schema, kind) for side, schema in schemas.items()]
        key_frame, value_frame = (frame(each, Framing.CONFLUENT.id_bytes) + indexes for each in ids)
        given, frames = {"schema.registry.url": registry.url}, (key_frame, value_frame)
    given |= {"kafka.bootstrap.servers": "a:1", "subscribe": "t", "valueFormat": encoding.format, "changes": "debezium"}
    return SourceOptions.parse({**given, **more}), frames


def raw_batch(columns: Sequence[str], keys: Sequence[bytes], values: Sequence[bytes | None], number: int = 0) -> Any:
    """Records as they are read from the partition with this number.

    Args:
        columns: `raw_columns` of what converts them.
    """
    count, schema = len(keys), records_arrow_schema(columns)
    location = {"topic": ["t"] * count, "partition": [number] * count, "offset": range(count)}
    given = {"key": keys, "value": values, **location, "schemaIdHeaders": [None] * count}
    return pa.RecordBatch.from_arrays([pa.array(given[field.name], field.type) for field in schema], schema=schema)
