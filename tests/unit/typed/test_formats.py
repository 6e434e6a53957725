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
from pyspark_kafka_meta.typed.formats import ConnectType, SchemaText, compiled_decoder, formats, schema_of
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


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "long", "connect.name": "{}"},
        {"type": "array", "items": {"type": "long", "connect.name": "{}"}},
        {"type": "map", "values": ["null", {"type": "long", "connect.name": "{}"}]},
    ],
)
def test_whole_numbers_of_another_unit_are_not_read(schema: object) -> None:
    """A column of microseconds may once have been one of milliseconds."""
    avro = formats()["avro"]
    record = json.dumps({"type": "record", "name": "r", "fields": [{"name": "at", "type": schema}]})
    micros, millis = (schema_of(avro, SchemaText(record.replace("{}", name))) for name in ("Micro", "Milli"))

    with pytest.raises(ValueSchemaError, match=r"at.*: the writer's Milli cannot be read as Micro"):
        compiled_decoder(micros, millis, True)
    assert compiled_decoder(millis, millis, True)
