"""Envelopes of a table of PostgreSQL in each format, with the fields that Debezium 3.6 writes, in its order.

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
TABLE = "shop.public.orders"
SOURCE_NAME, TRANSACTION_NAME = "io.debezium.connector.postgresql.Source", "event.block"
FieldProto = descriptor_pb2.FieldDescriptorProto


class Field(NamedTuple):
    """A field, as Kafka Connect describes it."""

    kind: pa.DataType
    connect_name: str = ""
    parameters: Mapping[str, str] = {}
    optional: bool = True
    default: str | None = None


def _required(kind: pa.DataType) -> Field:
    return Field(kind, optional=False)


COLUMNS = {
    "name": Field(pa.string()),
    "id": _required(pa.int64()),
    "price": Field(pa.decimal128(10, 2), f"{CONNECT}.Decimal", {"scale": "2", "connect.decimal.precision": "10"}),
    "day": Field(pa.int32(), f"{TIME}.Date"),
    "at": Field(pa.int64(), f"{TIME}.MicroTimestamp"),
    "seen": Field(pa.string(), f"{TIME}.ZonedTimestamp"),
    "data": Field(pa.binary()),
    "tags": Field(pa.list_(pa.string())),
    "paid": Field(pa.bool_()),
}
SNAPSHOTS = {"allowed": "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"}
SOURCE = {
    **dict.fromkeys(("version", "connector", "name"), _required(pa.string())),
    "ts_ms": _required(pa.int64()),
    "snapshot": Field(pa.string(), "io.debezium.data.Enum", SNAPSHOTS, default="false"),
    "db": _required(pa.string()),
    "sequence": Field(pa.string()),
    **dict.fromkeys(("ts_us", "ts_ns"), Field(pa.int64())),
    **dict.fromkeys(("schema", "table"), _required(pa.string())),
    **dict.fromkeys(("txId", "lsn", "xmin"), Field(pa.int64())),
    "origin": Field(pa.string()),
    "origin_lsn": Field(pa.int64()),
}
TRANSACTION = {
    "id": _required(pa.string()),
    **dict.fromkeys(("total_order", "data_collection_order"), _required(pa.int64())),
}
OTHERS = {"op": _required(pa.string()), **dict.fromkeys(("ts_ms", "ts_us", "ts_ns"), Field(pa.int64()))}
"""Fields of the envelope that are no structs."""
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
    given = {"id": key, **{name: None if rng.random() < nulls else value for name, value in values.items()}}
    return {name: given[name] for name in COLUMNS}


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


def _times(ms: int, micros: int) -> dict[str, int]:
    us = ms * 1000 + micros
    return {"ts_ms": ms, "ts_us": us, "ts_ns": us * 1000}


def envelope(change: Change, offset: int) -> dict[str, Any] | None:
    """Without values that a database rarely has: transaction, xmin and origin are null."""
    if change.op == "tombstone":
        return None
    lsn, commit = f'"{24_000_100 + offset}"', "null" if change.op == "r" else f'"{24_000_000 + offset}"'
    given = {
        **_times(1_700_000_000_000 + offset, offset % 1000),
        "version": "3.6.1.Final",
        "connector": "postgresql",
        "name": "shop",
        "snapshot": "true" if change.op == "r" else "false",
        "db": "shop",
        "sequence": f"[{commit},{lsn}]",
        "schema": "public",
        "table": "orders",
        "txId": 700 + offset,
        "lsn": 24_000_100 + offset,
    }
    return {
        "before": change.before,
        "after": change.after,
        "source": {name: given.get(name) for name in SOURCE},
        "transaction": None,
        "op": change.op,
        **_times(1_700_000_000_500 + offset, 999),
    }


# --- Avro -------------------------------------------------------------------------------------------------------------


def _avro_type(field: Field) -> dict[str, Any]:
    simple = {pa.string(): "string", pa.int64(): "long", pa.int32(): "int", pa.binary(): "bytes", pa.bool_(): "boolean"}
    if pa.types.is_list(field.kind):
        return {"type": "array", "items": ["null", "string"]}
    type_: dict[str, Any] = {"type": "bytes" if pa.types.is_decimal(field.kind) else simple[field.kind]}
    if pa.types.is_decimal(field.kind):
        type_ |= {"logicalType": "decimal", "precision": field.kind.precision, "scale": field.kind.scale}
    if field.connect_name:
        parameters = {"connect.parameters": dict(field.parameters)} if field.parameters else {}
        type_ |= {"connect.version": 1, **parameters, "connect.name": field.connect_name}
    return type_


def _avro_field(name: str, type_: Any, optional: bool = True, default: str | None = None) -> dict[str, Any]:
    """The default is of the first type of a union."""
    if not optional:
        return {"name": name, "type": type_}
    return {"name": name, "type": ["null", type_] if default is None else [type_, "null"], "default": default}


def _avro_record(full_name: str, fields: Mapping[str, Field]) -> dict[str, Any]:
    namespace, _, name = full_name.rpartition(".")
    given = [_avro_field(each, _avro_type(field), field.optional, field.default) for each, field in fields.items()]
    return {"type": "record", "name": name, "namespace": namespace, "fields": given}


def _struct(fields: Mapping[str, Field]) -> pa.StructType:
    return pa.struct([pa.field(name, field.kind, field.optional) for name, field in fields.items()])


def avro() -> Encoding:
    key = _avro_record(f"{TABLE}.Key", {"id": COLUMNS["id"]})
    value = _avro_record(f"{TABLE}.Envelope", OTHERS)
    value["fields"] = [
        _avro_field("before", _avro_record(f"{TABLE}.Value", COLUMNS)),
        _avro_field("after", "Value"),
        _avro_field("source", _avro_record(SOURCE_NAME, SOURCE), optional=False),
        _avro_field("transaction", _avro_record(TRANSACTION_NAME, TRANSACTION)),
        *value["fields"],
    ]
    key_schema, value_schema = json.dumps(key), json.dumps(value)
    kind = pa.struct(
        [
            ("before", _struct(COLUMNS)),
            ("after", _struct(COLUMNS)),
            pa.field("source", _struct(SOURCE), False),
            ("transaction", _struct(TRANSACTION)),
            *_struct(OTHERS),
        ]
    )
    key_kind = _struct({"id": COLUMNS["id"]})
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
    columns = [(name, plain.get(field.kind, "string")) for name, field in COLUMNS.items() if name != "tags"]
    value_schema = ", ".join([*(f"{name} {kind}" for name, kind in columns), "tags array<string>"])

    def encode(given: Sequence[Change]) -> tuple[list[bytes], list[bytes | None]]:
        keys = [json.dumps({"id": each.key}).encode() for each in given]
        return keys, [_json_value(each, offset, False) for offset, each in enumerate(given)]

    return Encoding("json", "id bigint", value_schema, encode, False)


def _connect_schema(field: Field) -> dict[str, Any]:
    schema: dict[str, Any] = {
        "type": "bytes" if pa.types.is_decimal(field.kind) else CONNECT_KINDS.get(field.kind, "array")
    }
    if schema["type"] == "array":
        schema["items"] = {"type": "string", "optional": True}
    schema["optional"] = field.optional
    if field.connect_name:
        schema |= {"name": field.connect_name, "version": 1}
    if field.parameters:
        schema["parameters"] = dict(field.parameters)
    return schema if field.default is None else {**schema, "default": field.default}


def _connect_fields(fields: Mapping[str, Field]) -> list[dict[str, Any]]:
    return [{**_connect_schema(field), "field": name} for name, field in fields.items()]


def _connect_struct(name: str, fields: list[dict[str, Any]], optional: bool = False, **more: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": fields, "optional": optional, "name": name, **more}


def connect_json() -> Encoding:
    """As Kafka Connect's `JsonConverter` writes them by default."""
    row = _connect_struct(f"{TABLE}.Value", _connect_fields(COLUMNS), optional=True)
    source = _connect_struct(SOURCE_NAME, _connect_fields(SOURCE), version=1)
    transaction = _connect_struct(TRANSACTION_NAME, _connect_fields(TRANSACTION), optional=True, version=1)
    structs = {"before": row, "after": row, "source": source, "transaction": transaction}
    fields = [*({**struct, "field": name} for name, struct in structs.items()), *_connect_fields(OTHERS)]
    key = _connect_struct(f"{TABLE}.Key", _connect_fields({"id": COLUMNS["id"]}))
    value = _connect_struct(f"{TABLE}.Envelope", fields, version=2)
    key_schema, value_schema = (json.dumps(schema, separators=(",", ":")) for schema in (key, value))

    def whole(schema: str, payload: bytes | None) -> bytes | None:
        return None if payload is None else b'{"schema":%s,"payload":%s}' % (schema.encode(), payload)

    def encode(given: Sequence[Change]) -> tuple[list[bytes], list[bytes | None]]:
        keys = [whole(key_schema, b'{"id":%d}' % each.key) or b"" for each in given]
        return keys, [whole(value_schema, _json_value(each, offset, True)) for offset, each in enumerate(given)]

    return Encoding("connect-json", key_schema, value_schema, encode, True)


# --- Protobuf ---------------------------------------------------------------------------------------------------------


def _protobuf_file(name: str) -> Any:
    return descriptor_pb2.FileDescriptorProto(name=name, syntax="proto2")


def _add_message(file: Any, name: str, fields: Mapping[str, Field], messages: Mapping[str, str] | None = None) -> None:
    """
    Args:
        messages: the types of the fields before the others.
    """
    message = file.message_type.add(name=name)
    for field, type_name in (messages or {}).items():
        message.field.add(name=field, type=FieldProto.TYPE_MESSAGE, type_name=f".{type_name}")
    for field, (kind, *_) in fields.items():
        message.field.add(name=field, type=PROTOBUF_KINDS.get(kind, FieldProto.TYPE_STRING))
    for number, added in enumerate(message.field, 1):
        added.number = number
        added.label = FieldProto.LABEL_REPEATED if added.name == "tags" else FieldProto.LABEL_OPTIONAL


def protobuf() -> Encoding:
    key_file, file = _protobuf_file("key.proto"), _protobuf_file("envelope.proto")
    _add_message(key_file, "Key", {"id": COLUMNS["id"]})
    structs = {"before": "Value", "after": "Value", "source": "Source", "transaction": "Block"}
    _add_message(file, "Envelope", OTHERS, structs)
    for name, fields in (("Value", COLUMNS), ("Source", SOURCE), ("Block", TRANSACTION)):
        _add_message(file, name, fields)
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
