"""JSON Schemas and Spark's types become Arrow types, or one sentence says which part cannot."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import (
    ArrayType,
    DateType,
    DecimalType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

from pyspark_kafka_meta.errors import ValueSchemaError
from pyspark_kafka_meta.typed.json.schema import column_type, parse_json_schema, spark_type_json


def type_of(schema: Any) -> pa.DataType:
    return parse_json_schema(json.dumps(schema)).type


def list_of(type_: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", type_))


@pytest.mark.parametrize(
    ("schema", "type_"),
    [
        ({"type": "integer"}, pa.int64()),
        ({"type": "number"}, pa.float64()),
        ({"type": ["integer", "number"]}, pa.float64()),
        ({"type": ["null", "string"]}, pa.string()),
        ({"type": "string", "format": "date"}, pa.date32()),
        ({"type": "string", "format": "date-time"}, pa.timestamp("us", "UTC")),
        ({"type": "string", "format": "email"}, pa.string()),
        ({"enum": ["a", "b", None]}, pa.string()),
        ({"const": 5}, pa.int64()),
        ({"oneOf": [{"type": "null"}, {"type": "boolean"}]}, pa.bool_()),
        ({"oneOf": [{"type": "null", "title": "Not included"}, {"type": "boolean"}]}, pa.bool_()),
        ({"anyOf": [{"type": "boolean"}, {"type": ["null"]}]}, pa.bool_()),
        ({"oneOf": [{"const": "a", "title": "A"}, {"enum": ["b", "c"]}]}, pa.string()),
        ({"anyOf": [{"type": "integer"}, {"type": "number"}, {"type": "null"}]}, pa.float64()),
        ({"anyOf": [{"type": "string", "format": "date"}, {"type": "string"}]}, pa.string()),
        ({"anyOf": [{"type": "string", "format": "date"}, {"const": "1970-01-01", "format": "date"}]}, pa.date32()),
        ({"allOf": [{"type": "string", "format": "date"}], "anyOf": [{"minLength": 1}, {"not": {}}]}, pa.date32()),
        (
            {"properties": {"a": {"type": "integer"}}, "anyOf": [{"required": ["a"]}, {"minProperties": 1}]},
            pa.struct([("a", pa.int64())]),
        ),
        (
            {
                "properties": {"lat": {"type": "number"}, "station": {"type": "string"}},
                "anyOf": [{"required": ["lat"]}, {"required": ["station"], "properties": {"lat": {"not": {}}}}],
            },
            pa.struct([("lat", pa.float64()), ("station", pa.string())]),
        ),
        ({"type": "array", "items": {"type": "string"}}, list_of(pa.string())),
        ({"type": "object", "additionalProperties": {"type": "number"}}, pa.map_(pa.string(), pa.float64())),
        ({"properties": {"a": {"type": "integer"}}, "required": ["a"]}, pa.struct([("a", pa.int64())])),
        ({"$ref": "#/$defs/x~1y", "$defs": {"x/y": {"type": "boolean"}}}, pa.bool_()),
        ({"$ref": "#/$defs/List%5Bx%5D", "$defs": {"List[x]": {"type": "boolean"}}}, pa.bool_()),
        (
            {
                "allOf": [{"$ref": "#/definitions/base"}, {"properties": {"b": {"type": "string"}}}],
                "definitions": {"base": {"type": "object", "properties": {"a": {"type": "integer"}}}},
            },
            pa.struct([("a", pa.int64()), ("b", pa.string())]),
        ),
        (
            {
                "allOf": [{"$ref": "#/$defs/person"}],
                "properties": {"boss": {"$ref": "#/$defs/person"}},
                "$defs": {"person": {"properties": {"name": {"type": "string"}}}},
            },
            pa.struct([("name", pa.string()), ("boss", pa.struct([("name", pa.string())]))]),
        ),
    ],
)
def test_json_schema_has_type(schema: Any, type_: pa.DataType) -> None:
    assert type_of(schema) == type_


ANY = pa.large_string()
FREE_FORM: list[Any] = [
    {},
    True,
    {"type": 5},
    {"type": "null"},
    {"type": ["string", "integer"]},
    {"enum": [{"a": 1}]},
    {"allOf": 5},
    {"allOf": [{"$ref": "other.json"}, {"properties": {"a": {"type": "integer"}}}]},
    {"type": "object"},
    {"type": "object", "additionalProperties": True},
    {"type": "object", "patternProperties": {"^x": {"type": "integer"}}},
    {"type": "array"},
    {"type": "array", "items": [{"type": "string"}]},
    {"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "string"}},
    {"anyOf": [{"type": "number"}, {"type": "string"}]},
    {"anyOf": [{"type": "string"}, {"type": "array"}]},
    {"anyOf": [{"type": "string"}, {"minLength": 5}]},
    {"anyOf": []},
    {"oneOf": [{"properties": {"a": {"type": "integer"}}}, {"properties": {"b": {"type": "integer"}}}]},
    {"properties": {"a": {"type": "integer"}}, "oneOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]},
    {"$ref": "other.json"},
    {"$ref": "#anchor"},
    {"$ref": "#/$defs/none"},
]
TREE = {"properties": {"v": {"type": "integer"}, "kids": {"items": {"$ref": "#/$defs/tree"}}}}


@pytest.mark.parametrize(
    ("schema", "kinds"),
    [
        *((each, ANY) for each in FREE_FORM),
        ({"type": "array", "items": {}}, list_of(ANY)),
        ({"type": "object", "additionalProperties": {}}, pa.map_(pa.string(), ANY)),
        ({"properties": {"me": {"$ref": "#"}}}, pa.struct([("me", pa.struct([("me", ANY)]))])),
        ({"$ref": "#/$defs/tree", "$defs": {"tree": TREE}}, pa.struct([("v", pa.int64()), ("kids", list_of(ANY))])),
        (
            {"allOf": [{"$ref": "#/$defs/tree"}], "$defs": {"tree": TREE}},
            pa.struct([("v", pa.int64()), ("kids", list_of(ANY))]),
        ),
    ],
)
def test_what_has_no_single_type_is_of_free_form(schema: Any, kinds: pa.DataType) -> None:
    inner = parse_json_schema(json.dumps({"properties": {"a": schema, "b": {"type": "string"}}}))
    assert parse_json_schema(json.dumps(schema)).kinds == kinds
    if "$ref" not in json.dumps(schema):
        assert inner.kinds == pa.struct([("a", kinds), ("b", pa.string())])
        assert inner.type == pa.struct([("a", column_type(kinds)), ("b", pa.string())])


def test_references_to_other_documents_are_followed_from_there() -> None:
    order = {
        "$id": "order.json",
        "properties": {
            "to": {"$ref": "address.json"},
            "from": {"$ref": "address.json#/$defs/place"},
            "own": {"$ref": "order.json#/$defs/place"},
            "other": {"$ref": "unknown.json"},
        },
        "$defs": {"place": {"type": "integer"}},
    }
    address = {
        "$id": "address.json",
        "properties": {"place": {"$ref": "#/$defs/place"}, "lines": {"items": {"$ref": "line.json#"}}},
        "$defs": {"place": {"type": "string"}},
    }
    line = {"$id": "line.json", "type": "boolean"}
    to = pa.struct([("place", pa.string()), ("lines", list_of(pa.bool_()))])
    assert parse_json_schema(json.dumps(order), [json.dumps(line), json.dumps(address)]).kinds == pa.struct(
        [("to", to), ("from", pa.string()), ("own", pa.int64()), ("other", ANY)]
    )


def test_type_that_json_does_not_have_is_refused() -> None:
    with pytest.raises(ValueSchemaError, match="the type of value"):
        type_of({"type": "struct", "fields": [{"name": "a", "type": "interval"}]})


def test_text_that_is_not_json_is_refused() -> None:
    for text in ("{", "[" * 100_000):
        with pytest.raises(ValueSchemaError):
            parse_json_schema(text)


@pytest.mark.parametrize(
    "doubled",
    [
        lambda reference: {"properties": {"a": reference, "b": reference}},
        lambda reference: {"anyOf": [reference, reference]},
        lambda reference: {"allOf": [reference, reference]},
    ],
)
def test_references_that_double_are_refused_before_they_fill_the_memory(
    doubled: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_kafka_meta.typed.json.schema.MAX_COLUMNS", 1_000)
    levels = {f"l{level}": doubled({"$ref": f"#/$defs/l{level + 1}"}) for level in range(50)}
    with pytest.raises(ValueSchemaError, match="over 1000 columns"):
        type_of({"$ref": "#/$defs/l0", "$defs": {**levels, "l50": {"type": "string"}}})


def of_json_schema(levels: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(levels):
        schema = {"properties": {"a/b": schema}}
    return schema


def of_spark(levels: int) -> Any:
    type_: Any = "string"
    for _ in range(levels):
        type_ = {"type": "struct", "fields": [{"name": "a.b", "type": type_}]}
    return type_


@pytest.mark.parametrize(("nested", "name"), [(of_json_schema, "a/b"), (of_spark, "a.b")])
def test_a_hundred_levels_have_a_type_whatever_their_names_are(nested: Callable[[int], Any], name: str) -> None:
    expected = pa.string()
    for _ in range(100):
        expected = pa.struct([(name, expected)])
    assert type_of(nested(100)) == expected
    with pytest.raises(ValueSchemaError, match="100 levels"):
        type_of(nested(101))


def test_sparks_type_is_a_schema_too() -> None:
    given = StructType(
        [
            StructField("a", LongType()),
            StructField("b", ArrayType(StructType([StructField("c", DateType())]))),
            StructField("m", MapType(StringType(), DecimalType(10, 2))),
            StructField("n", TimestampNTZType()),
        ]
    )
    assert parse_json_schema(given.json()).type == pa.struct(
        [
            ("a", pa.int64()),
            ("b", list_of(pa.struct([("c", pa.date32())]))),
            ("m", pa.map_(pa.string(), pa.decimal128(10, 2))),
            ("n", pa.timestamp("us")),
        ]
    )


ROW = pa.struct([("id", pa.int64()), ("x", pa.float64())])


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("id BIGINT, x DOUBLE", ROW),
        (" id long NOT NULL COMMENT 'a, b' , x: double ", ROW),
        ("struct<id:bigint,x:double>", ROW),
        ("array<struct<id:bigint,x:double>>", list_of(ROW)),
        ("map<string,bigint>", pa.map_(pa.string(), pa.int64())),
        (ArrayType(LongType()).json(), list_of(pa.int64())),
        (MapType(StringType(), LongType()).json(), pa.map_(pa.string(), pa.int64())),
        ('"long"', pa.int64()),
        ("bigint", pa.int64()),
        ("decimal(12,2)", pa.decimal128(12, 2)),
        ("`a b` Dec(3), `c``d` DECIMAL", pa.struct([("a b", pa.decimal128(3, 0)), ("c`d", pa.decimal128(10, 0))])),
        (
            "a STRUCT<b: VARCHAR(5), c ARRAY<TINYINT>>, t TIMESTAMP_LTZ, n TIMESTAMP_NTZ",
            pa.struct(
                [
                    ("a", pa.struct([("b", pa.string()), ("c", list_of(pa.int8()))])),
                    ("t", pa.timestamp("us", "UTC")),
                    ("n", pa.timestamp("us")),
                ]
            ),
        ),
    ],
)
def test_types_of_spark_have_the_same_type_in_any_form(text: str, type_: pa.DataType) -> None:
    assert parse_json_schema(text).type == type_


@pytest.mark.parametrize(
    "text", ["", "a", "a int,", "a int b", "array<int", "map<int>", "a int)", "`a int", "a not", "array<" * 100_000]
)
def test_text_that_is_no_type_of_spark_is_refused(text: str) -> None:
    with pytest.raises(ValueSchemaError):
        parse_json_schema(text)


def test_a_column_becomes_the_type_of_spark_that_spark_makes_of_it() -> None:
    atomic = "boolean, byte, short, integer, long, float, double, binary, date, timestamp, timestamp_ntz, string"
    fields = ", ".join(
        f"`a-{number}` {name}" for number, name in enumerate(atomic.replace("long", "bigint").split(", "))
    )
    kind = parse_json_schema(f"a struct<{fields}>, b map<string, array<decimal(38, 18)>>").type

    assert spark_type_json(kind) == from_arrow_type(kind, prefer_timestamp_ntz=True).json()
    assert parse_json_schema(spark_type_json(kind)).type == kind
