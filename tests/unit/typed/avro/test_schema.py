"""`parse_avro` reads schema texts as Avro's specification says; `arrow_type` gives columns the types of `from_avro`."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from pyspark_kafka_meta.errors import ValueSchemaError
from pyspark_kafka_meta.typed.avro.decoder import avro_decoder
from pyspark_kafka_meta.typed.avro.schema import (
    Array,
    Enumeration,
    Field,
    Fixed,
    Logical,
    Map,
    Primitive,
    Record,
    Union,
    arrow_type,
    bounded,
    column_schema,
    is_nullable,
    parse_avro,
)

INT = Primitive("int")


def parsed(schema: Any, *references: Any) -> Any:
    return parse_avro(json.dumps(schema), [json.dumps(reference) for reference in references])


def record(name: str, *fields: Any, **attributes: Any) -> dict[str, Any]:
    named = [{"name": f"f{index}", "type": field} for index, field in enumerate(fields)]
    return {"type": "record", "name": name, "fields": named, **attributes}


# Types


@pytest.mark.parametrize("name", ["null", "boolean", "int", "long", "float", "double", "bytes", "string"])
def test_a_primitive_type_is_a_name_or_an_object(name: str) -> None:
    assert parsed(name) == parsed({"type": name, "connect.version": 1}) == Primitive(name)
    assert parse_avro(f" {name}\n") == Primitive(name)


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "array", "items": "int"}, Array(INT)),
        ({"type": "map", "values": {"type": "array", "items": "int"}}, Map(Array(INT))),
        (["null", "int"], Union((Primitive("null"), INT))),
        ({"type": "fixed", "name": "F", "size": 4}, Fixed("F", 4)),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"], "default": "B"}, Enumeration("E", ("A", "B"), "B")),
        (record("R", "int"), Record("R", (Field("f0", INT),))),
        ({**record("R"), "type": "error"}, Record("R", ())),
    ],
)
def test_a_complex_type(schema: Any, expected: Any) -> None:
    assert parsed(schema) == expected


def test_a_default_of_null_is_a_default() -> None:
    fields = [{"name": "a", "type": ["null", "int"], "default": None}, {"name": "b", "type": "int"}]

    schema = parsed({"type": "record", "name": "R", "fields": fields})

    assert [field.has_default for field in schema.fields] == [True, False]


# Names


def test_names_have_the_namespace_around_them_unless_they_bring_one() -> None:
    def fixed(name: str, **attributes: Any) -> dict[str, Any]:
        return {"type": "fixed", "name": name, "size": 1, **attributes}

    schema = parsed(
        record(
            "R", fixed("A"), fixed("other.B"), fixed("C", namespace="third"), fixed("D", namespace=""), namespace="n"
        )
    )

    assert schema.name == "n.R"
    assert [field.type.name for field in schema.fields] == ["n.A", "other.B", "third.C", "D"]


def test_aliases_of_types_have_the_namespace_of_the_type() -> None:
    schema = parsed({**record("n.R"), "aliases": ["Old", "m.Older"]})

    assert schema.aliases == ("n.Old", "m.Older")


def test_aliases_of_fields_are_plain_names() -> None:
    schema = parsed({"type": "record", "name": "n.R", "fields": [{"name": "a", "type": "int", "aliases": ["b", "c"]}]})

    assert schema.fields[0].aliases == ("b", "c")


def test_a_type_is_defined_once_and_then_named() -> None:
    fixed = {"type": "fixed", "name": "F", "size": 2, "namespace": "n"}

    schema = parsed(record("n.R", fixed, "F", "n.F", {"type": "F"}, {"type": "array", "items": "F"}))

    types = [field.type for field in schema.fields]
    assert types[:4] == [Fixed("n.F", 2)] * 4
    assert types[4] == Array(Fixed("n.F", 2))


def test_a_type_without_namespace_is_found_from_within_one() -> None:
    schema = parsed(record("R", {"type": "fixed", "name": "F", "size": 2}, record("n.S", "F")))

    assert schema.fields[1].type.fields[0].type == Fixed("F", 2)


def test_references_define_types() -> None:
    address = record("shop.Address", "string")
    customer = record("shop.Customer", "Address")

    schema = parsed(record("shop.Order", "Customer", "Address"), address, customer, address)

    assert [field.type.name for field in schema.fields] == ["shop.Customer", "shop.Address"]


# Logical types

DECIMAL = {"logicalType": "decimal", "precision": 9, "scale": 2}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "bytes", **DECIMAL}, Logical("decimal", 9, 2)),
        ({"type": "bytes", **DECIMAL, "scale": 0}, Logical("decimal", 9, 0)),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9}, Logical("decimal", 9, 0)),
        ({"type": "fixed", "name": "F", "size": 4, **DECIMAL}, Logical("decimal", 9, 2)),
        ({"type": "fixed", "name": "F", "size": 16, "logicalType": "uuid"}, Logical("uuid")),
        ({"type": "fixed", "name": "F", "size": 12, "logicalType": "duration"}, Logical("duration")),
        ({"type": "string", "logicalType": "uuid"}, Logical("uuid")),
        ({"type": "int", "logicalType": "date"}, Logical("date")),
        ({"type": "long", "logicalType": "timestamp-nanos"}, Logical("timestamp-nanos")),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, Logical("local-timestamp-micros")),
    ],
)
def test_a_logical_type(schema: Any, expected: Logical) -> None:
    assert parsed(schema).logical == expected


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "bytes", "logicalType": "decimal"},
        {"type": "bytes", **DECIMAL, "precision": 0},
        {"type": "bytes", **DECIMAL, "precision": "9"},
        {"type": "bytes", **DECIMAL, "scale": 10},
        {"type": "bytes", **DECIMAL, "scale": -1},
        {"type": "string", **DECIMAL},
        {"type": "fixed", "name": "F", "size": 3, **DECIMAL},
        {"type": "fixed", "name": "F", "size": 0, **DECIMAL},
        {"type": "fixed", "name": "F", "size": 15, "logicalType": "uuid"},
        {"type": "fixed", "name": "F", "size": 16, "logicalType": "duration"},
        {"type": "long", "logicalType": "date"},
        {"type": "int", "logicalType": "timestamp-millis"},
        {"type": "long", "logicalType": "time-millis"},
        {"type": "int", "logicalType": "unknown"},
        {"type": "int", "logicalType": ["date"]},
    ],
)
def test_an_invalid_logical_type_is_ignored(schema: Any) -> None:
    assert parsed(schema).logical is None


# Refused texts


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"name": "R"}, "has a type that is no name"),
        ({"type": "array"}, "has a type that is no name"),
        ({"type": "map", "items": "int"}, "has a type that is no name"),
        ({"type": {"type": "int"}}, "has a type that is no name"),
        (17, "has a type that is no name"),
        ("n.Missing", "uses the type 'n.Missing' without a definition"),
        ([], "a union that is empty"),
        (["int", ["null"]], "or has a union"),
        (["int", "int"], "the same type twice"),
        ([{"type": "array", "items": "int"}, {"type": "array", "items": "long"}], "the same type twice"),
        (record("R", {"type": "fixed", "name": "R", "size": 1}), "defines the type 'R' twice"),
        (record("int"), "defines the type 'int' twice"),
        ({"type": "record", "fields": []}, "without name"),
        ({"type": "record", "name": "R"}, "'R' has no list of fields"),
        ({"type": "record", "name": "R", "fields": [{"name": "a"}]}, "'R' has no list of fields with types"),
        ({"type": "record", "name": "R", "fields": [{"type": "int"}]}, "a type or field without name"),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}] * 2}, "two fields of the same name"),
        ({"type": "enum", "name": "E", "symbols": "A"}, "symbols that are no list of names"),
        ({"type": "enum", "name": "E", "symbols": ["A", "A"]}, "'E' has a symbol twice"),
        ({"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}, "a default that is none of its symbols"),
        ({"type": "fixed", "name": "F", "size": -1}, "'F' has no size"),
        ({"type": "fixed", "name": "F", "size": True}, "'F' has no size"),
        (record("R", aliases=[1]), "aliases that are no list of names"),
    ],
)
def test_an_impossible_schema_is_refused(schema: Any, problem: str) -> None:
    with pytest.raises(ValueSchemaError, match=problem):
        parsed(schema)


@pytest.mark.parametrize("text", ["", "{", "integer", "[" * 100_000, '{"type": "int", "default": NaN}'])
def test_a_text_that_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(ValueSchemaError, match=r"not JSON|deep"):
        parse_avro(text)


def test_a_recursive_field_is_left_out_by_name() -> None:
    nodes = {"type": "array", "items": ["string", "Node"]}
    node = record("n.Node", "int", ["null", "Node"], ["null", "string", {"type": "array", "items": "Node"}], nodes)
    alone = record("R", {"type": "map", "values": node})

    names = pa.list_(pa.field("element", pa.string()))
    node_type = pa.struct(
        [pa.field("f0", pa.int32(), nullable=False), ("f2", pa.string()), pa.field("f3", names, nullable=False)]
    )
    map_type = pa.map_(pa.string(), pa.field("value", node_type, nullable=False))
    assert arrow_type(bounded(parsed(alone), 1)[0]) == pa.struct([pa.field("f0", map_type, nullable=False)])
    assert bounded(parsed(alone), 1)[1] == {
        "n.Node.f1": "its type is recursive; 'recursiveFieldMaxDepth' says how deep it is read",
        "n.Node.f2": "a branch of its type is recursive; 'recursiveFieldMaxDepth' says how deep it is read",
        "n.Node.f3": "a branch of its type is recursive; 'recursiveFieldMaxDepth' says how deep it is read",
    }


def test_a_field_of_an_impossible_decimal_is_left_out_by_name() -> None:
    """A decimal with less precision than scale is bytes, as in Java."""
    number = {"type": "bytes", "logicalType": "decimal", "precision": 130, "scale": 127}
    table = parsed(record("T", "int", number, ["null", number], ["null", "string", number]))

    assert [field.name for field in arrow_type(bounded(table, 1)[0])] == ["f0", "f3"]
    why = "is a decimal of 127 digits after the point, and Spark's have at most 38"
    assert bounded(table, 1)[1] == {
        "T.f1": f"its type {why}",
        "T.f2": f"its type {why}",
        "T.f3": f"a branch of its type {why}",
    }
    value = b"\x02" + b"\x02\x05" + b"\x02\x02\x05" + b"\x04\x02\x05"
    result = avro_decoder(table, bounded(table, 1)[0]).decode(pa.array([value]))
    assert (result.values.to_pylist(), result.faults) == ([{"f0": 1, "f3": None}], [])


def test_a_text_may_have_comments() -> None:
    text = '/* a\n "b" */ {"type": "enum", // of "two"\n "name": "E", "symbols": ["A"], "doc": "// \\" /* no */"}'
    assert parse_avro(text) == Enumeration("E", ("A",))


def test_schemas_of_several_records_may_define_the_same_type() -> None:
    address = record("Address", "string")
    union = [record("Order", address), record("Customer", address, "Address")]

    assert parsed(union) == parsed([record("Order", "Address"), record("Customer", "Address", "Address")], address)
    with pytest.raises(ValueSchemaError, match="defines the type 'Address' twice, with a difference"):
        parsed([record("Order", address), record("Customer", record("Address", "int"))])


def test_types_that_use_others_twice_do_not_grow_without_bound() -> None:
    doubled = [record("R0", "int"), *(record(f"R{index}", f"R{index - 1}", f"R{index - 1}") for index in range(1, 40))]

    with pytest.raises(ValueSchemaError, match="more than 100000 types"):
        parsed("R39", *doubled)
    with pytest.raises(ValueSchemaError, match="more than 100000 types"):
        parsed("R39", *doubled, *({**each, "doc": "again"} for each in doubled))


def test_types_are_not_nested_too_deep() -> None:
    schema: Any = "int"
    for _ in range(100):
        schema = {"type": "array", "items": schema}

    with pytest.raises(ValueSchemaError, match="100 types deep"):
        parsed(schema)
    assert parsed(schema["items"])


# Columns


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ("null", pa.null()),
        ("boolean", pa.bool_()),
        ("int", pa.int32()),
        ("long", pa.int64()),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("bytes", pa.binary()),
        ("string", pa.string()),
        ({"type": "fixed", "name": "F", "size": 4}, pa.binary()),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, pa.string()),
        ({"type": "bytes", **DECIMAL}, pa.decimal128(9, 2)),
        ({"type": "fixed", "name": "F", "size": 4, **DECIMAL}, pa.decimal128(9, 2)),
        ({"type": "int", "logicalType": "date"}, pa.date32()),
        ({"type": "int", "logicalType": "time-millis"}, pa.int32()),
        ({"type": "long", "logicalType": "time-micros"}, pa.int64()),
        ({"type": "long", "logicalType": "timestamp-millis"}, pa.timestamp("us", "UTC")),
        ({"type": "long", "logicalType": "timestamp-micros"}, pa.timestamp("us", "UTC")),
        ({"type": "long", "logicalType": "timestamp-nanos"}, pa.int64()),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, pa.timestamp("us")),
        ({"type": "long", "logicalType": "local-timestamp-nanos"}, pa.int64()),
        ({"type": "string", "logicalType": "uuid"}, pa.string()),
        ({"type": "fixed", "name": "F", "size": 16, "logicalType": "uuid"}, pa.binary()),
        ({"type": "fixed", "name": "F", "size": 12, "logicalType": "duration"}, pa.binary()),
        ({"type": "array", "items": "int"}, pa.list_(pa.field("element", pa.int32(), nullable=False))),
        ({"type": "array", "items": ["int", "null"]}, pa.list_(pa.field("element", pa.int32()))),
        ({"type": "map", "values": "int"}, pa.map_(pa.string(), pa.field("value", pa.int32(), nullable=False))),
        ({"type": "map", "values": ["null", "int"]}, pa.map_(pa.string(), pa.int32())),
        (
            record("R", "int", ["null", "string"]),
            pa.struct([pa.field("f0", pa.int32(), nullable=False), pa.field("f1", pa.string())]),
        ),
        (["int"], pa.int32()),
        (["null"], pa.null()),
        (["int", "long"], pa.int64()),
        (["double", "null", "float"], pa.float64()),
        (["int", "string"], pa.struct([("member0", pa.int32()), ("member1", pa.string())])),
        (["int", "null", "string"], pa.struct([("member0", pa.int32()), ("member1", pa.string())])),
        (["int", "long", "float"], pa.struct([("member0", pa.int32()), ("member1", pa.int64()), ("member2", "float")])),
    ],
)
def test_columns_have_the_types_of_from_avro(schema: Any, expected: pa.DataType) -> None:
    assert arrow_type(parsed(schema)).equals(expected, check_metadata=True)


def test_a_decimal_has_as_many_digits_as_spark_has() -> None:
    connects = {"type": "bytes", "logicalType": "decimal", "precision": 64, "scale": 2}

    assert arrow_type(parsed(connects)) == pa.decimal128(38, 2)
    with pytest.raises(ValueSchemaError, match="a decimal of 39 digits after the point, and Spark's have at most 38"):
        arrow_type(parsed({**connects, "scale": 39}))


def test_a_union_is_nullable_with_null_alone() -> None:
    assert is_nullable(parsed(["int", "null"])) and is_nullable(parsed("null"))
    assert not is_nullable(parsed(["int", "string"]))


def test_a_column_of_a_union_has_no_null_branch() -> None:
    assert column_schema(parsed(["null", "int"])) == INT
    assert column_schema(parsed(["string", "null", "int"])) == Union((Primitive("string"), INT))
    assert column_schema(INT) == INT
