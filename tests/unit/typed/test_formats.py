"""What formats have in common."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pyspark_kafka_meta import typed
from pyspark_kafka_meta.errors import ValueSchemaError
from pyspark_kafka_meta.typed.formats import ConnectType, Schema, SchemaText, compiled_decoder, formats, schema_of
from pyspark_kafka_meta.typed.protobuf.schema import descriptor_set
from tests.unit.typed.digits import Digits

ID_FILE = b"\x0a\x08id.proto\x22\x10\x0a\x02Id\x12\x0a\x0a\x02id\x18\x01\x20\x01\x28\x05b\x06proto3"
"""A FileDescriptorProto: message Id { int32 id = 1; }"""


@pytest.mark.parametrize("made", ["parsed", "type"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("avro", '["null", "string"]'),
        ("protobuf", base64.b64encode(descriptor_set([ID_FILE])).decode()),
        ("json", '{"type": "object", "properties": {"a": {"type": "string"}}}'),
    ],
)
def test_a_schema_is_parsed_and_its_type_made_once_for_all_uses(name: str, text: str, made: str) -> None:
    first, second = (getattr(schema_of(formats()[name], SchemaText(text)), made) for _ in range(2))
    assert first is second


def record(name: str, kind: Any = "int", **others: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": "a", "type": kind, **others}]}


STATES = {"type": "enum", "name": "x.State", "symbols": ["A", "B"]}


@pytest.mark.parametrize(
    ("name", "first", "second", "are_equal"),
    [
        ("avro", record("x.R", doc="a"), {**record("y.S"), "doc": "b"}, True),
        ("avro", record("R", ["null", record("x.R")]), record("R", ["null", record("y.S")]), True),
        ("avro", record("x.R", ["null", "x.R"]), record("y.S", ["null", "y.S"]), True),
        ("avro", record("R", ["int", record("x.R")]), record("R", ["int", record("y.S")]), False),
        ("avro", record("R", STATES), record("R", {**STATES, "namespace": "", "name": "y.State"}), True),
        ("avro", record("R", STATES), record("R", {**STATES, "name": "x.Status"}), False),
        ("avro", record("R", aliases=["b"]), record("S", aliases=["b"]), False),
        ("avro", record("R", default=1), record("R", default=2), False),
        ("avro", record("R"), record("R", "long"), False),
        ("json", {"title": "A", "type": "integer", "minimum": 1}, {"title": "B", "type": "integer"}, True),
        ("json", {"type": "string"}, {}, False),
    ],
)
def test_schemas_that_are_read_in_the_same_way_are_equal(name: str, first: Any, second: Any, are_equal: bool) -> None:
    schemas = [formats()[name](SchemaText(json.dumps(each))) for each in (first, second)]
    assert (schemas[0].read_as == schemas[1].read_as) is are_equal


def connect_named(kind: str, name: str, **parameters: str) -> dict[str, Any]:
    return {"type": kind, "connect.version": 1, "connect.name": name, "connect.parameters": parameters}


ROW = {
    "type": "record",
    "name": "shop.Row",
    "connect.name": "shop.Row",
    "fields": [
        {"name": "at", "type": ["null", connect_named("long", "io.debezium.time.MicroTimestamp")]},
        {"name": "days", "type": {"type": "array", "items": connect_named("int", "io.debezium.time.Date")}},
        {"name": "sums", "type": {"type": "map", "values": connect_named("bytes", "Decimal", scale="2")}},
        {"name": "id", "type": "long"},
    ],
}


def test_avro_names_the_types_of_kafka_connect_by_the_paths_of_fields() -> None:
    envelope = {
        "type": "record",
        "name": "shop.Envelope",
        "fields": [{"name": "before", "type": ["null", ROW]}, {"name": "after", "type": ["null", "shop.Row"]}],
    }

    found = formats()["avro"](SchemaText(json.dumps(envelope))).connect_types

    of_row = {
        "": ConnectType("shop.Row", {}),
        ".at": ConnectType("io.debezium.time.MicroTimestamp", {}),
        ".days.element": ConnectType("io.debezium.time.Date", {}),
        ".sums.value": ConnectType("Decimal", {"scale": "2"}),
    }
    assert found == {side + path: each for side in ("before", "after") for path, each in of_row.items()}


def test_json_schema_names_the_types_of_kafka_connect_by_the_paths_of_fields() -> None:
    time = {"type": "integer", "title": "io.debezium.time.MicroTimestamp", "connect.type": "int64"}
    days = {"type": "integer", "title": "io.debezium.time.Date", "connect.type": "int32"}
    total = {"type": "number", "title": "Decimal", "connect.type": "bytes", "connect.parameters": {"scale": "2"}}
    row = {
        "type": "object",
        "title": "shop.Row",
        "properties": {
            "at": {"oneOf": [{"type": "null", "title": "Not included"}, time]},
            "days": {"type": "array", "items": days},
            "sums": {"type": "object", "additionalProperties": total},
            "own": {"type": "string", "title": "of its author"},
        },
    }
    envelope = {"type": "object", "properties": {"after": {"$ref": "#/definitions/row"}}, "definitions": {"row": row}}

    assert formats()["json"](SchemaText(json.dumps(envelope))).connect_types == {
        "after.at": ConnectType("io.debezium.time.MicroTimestamp", {}),
        "after.days.element": ConnectType("io.debezium.time.Date", {}),
        "after.sums.value": ConnectType("Decimal", {"scale": "2"}),
    }


def test_a_folder_with_a_schema_is_a_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "__init__.py").write_text("from tests.unit.typed.digits import Digits as FORMAT")
    monkeypatch.setattr(typed, "__path__", [*typed.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, f"{typed.__name__}.other", raising=False)

    assert formats.__wrapped__() == {**formats(), "digits": Digits}


MICROS, NANOS, MILLIS, DATE = (
    f"io.debezium.time.{name}" for name in ("MicroTimestamp", "NanoTimestamp", "Timestamp", "Date")
)
DECIMAL, TIMESTAMP = (f"org.apache.kafka.connect.data.{name}" for name in ("Decimal", "Timestamp"))
MOMENT = connect_named("long", TIMESTAMP) | {"logicalType": "timestamp-millis"}


def row(name: str, kind: Any) -> Schema:
    """The schema of a row with the column `at`, as a converter of Kafka Connect registers it."""
    if name == "avro":
        fields = [{"name": "at", "type": ["null", kind]}]
        return schema_of(
            formats()[name], SchemaText(json.dumps(connect_named("record", "Row") | {"name": "Row", "fields": fields}))
        )
    return schema_of(formats()[name], SchemaText(json.dumps({"type": "object", "properties": {"at": kind}})))


def avro_decimal(scale: int) -> dict[str, Any]:
    logical = {"logicalType": "decimal", "scale": scale, "precision": 64}
    return connect_named("bytes", DECIMAL, scale=str(scale)) | logical


def titled(kind: str, connect: str, title: str | None = None, **parameters: str) -> dict[str, Any]:
    named = {"title": title, "connect.parameters": parameters} if title else {}
    return {"type": kind, "connect.type": connect, **named}


@pytest.mark.parametrize(
    ("name", "given", "own"),
    [
        ("avro", connect_named("long", MICROS), connect_named("long", NANOS)),
        *[("avro", connect_named("long", each), MOMENT) for each in (MICROS, NANOS, MILLIS)],
        *[("avro", MOMENT, connect_named("long", each)) for each in (MICROS, NANOS, MILLIS)],
        ("avro", "long", MOMENT),
        ("avro", "long", connect_named("long", MICROS)),
        ("avro", "int", connect_named("int", DATE)),
        ("avro", avro_decimal(-2), avro_decimal(-3)),
        ("avro", avro_decimal(70), avro_decimal(71)),
        ("avro", avro_decimal(70), avro_decimal(2)),
        ("avro", "bytes", avro_decimal(2)),
        ("json", titled("integer", "int64", MICROS), titled("integer", "int64", TIMESTAMP)),
        ("json", titled("integer", "int64"), titled("integer", "int64", MICROS)),
        ("json", titled("integer", "int32"), titled("integer", "int32", DATE)),
        ("json", titled("string", "bytes", DECIMAL, scale="2"), titled("string", "bytes", DECIMAL, scale="4")),
        ("json", titled("string", "bytes"), titled("string", "bytes", DECIMAL, scale="4")),
    ],
)
def test_numbers_of_another_unit_or_scale_are_not_read(name: str, given: Any, own: Any) -> None:
    """A column of microseconds may once have been one of milliseconds, and a bigint a timestamp."""
    with pytest.raises(ValueSchemaError, match=r"at.*: the writer's .* cannot be read as "):
        compiled_decoder(row(name, own), row(name, given), True)


@pytest.mark.parametrize(
    ("name", "given", "own"),
    [
        ("avro", avro_decimal(2), avro_decimal(4)),
        ("avro", connect_named("int", "Size"), connect_named("long", "Size")),
        ("avro", "int", "long"),
        ("avro", connect_named("long", MICROS), "long"),
        ("avro", MOMENT, "long"),
        ("avro", connect_named("string", "io.debezium.data.Enum"), "string"),
        ("json", titled("integer", "int32"), titled("integer", "int64")),
        ("json", titled("string", "bytes", DECIMAL, scale="2"), titled("string", "bytes", DECIMAL, scale="2")),
    ],
)
def test_numbers_of_the_same_unit_or_as_plain_ones_are_read(name: str, given: Any, own: Any) -> None:
    assert compiled_decoder(row(name, own), row(name, given), True)


@pytest.mark.parametrize("kind", ["{}", {"type": "array", "items": "{}"}, {"type": "map", "values": ["null", "{}"]}])
def test_units_are_compared_in_arrays_and_maps(kind: Any) -> None:
    micros, millis = (
        row("avro", json.loads(json.dumps(kind).replace('"{}"', json.dumps(connect_named("long", each)))))
        for each in (MICROS, MILLIS)
    )

    with pytest.raises(ValueSchemaError, match=r"at.*: the writer's io.debezium.time.Timestamp cannot be read as "):
        compiled_decoder(micros, millis, True)


def test_schemas_without_names_of_kafka_connect_are_read_as_avro_says() -> None:
    plain, named = ({"type": "long", "logicalType": "timestamp-micros"}, connect_named("long", MICROS))
    texts = [json.dumps(record("R", kind)) for kind in ("long", plain, named)]
    long, micros, connects = (schema_of(formats()["avro"], SchemaText(text)) for text in texts)

    assert all(compiled_decoder(reader, long, False) for reader in (micros, connects))
