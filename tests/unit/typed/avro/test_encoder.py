"""Encoded columns equal what fastavro writes; what cannot be written is refused with its field."""

from __future__ import annotations

import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from pyspark_kafka_meta.errors import ValueSchemaError
from pyspark_kafka_meta.typed.avro.decoder import avro_decoder
from pyspark_kafka_meta.typed.avro.encoder import avro_encoder, derived_schema
from pyspark_kafka_meta.typed.avro.schema import parse_avro
from pyspark_kafka_meta.typed.formats import UnwritableValueError
from tests.budget import cases
from tests.unit.typed.avro.pairs import SchemaPair

ROWS = 20
UTC_US = pa.timestamp("us", "UTC")
INTS = {"type": "array", "items": "int"}
COLOR = {"type": "enum", "name": "color", "symbols": ["RED", "BLUE"]}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}


def record(record_name: str = "r", **fields: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": record_name,
        "fields": [{"name": name, "type": kind} for name, kind in fields.items()],
    }


def struct(**fields: pa.DataType) -> pa.StructType:
    return pa.struct(list(fields.items()))


def encoded(schema: Any, given: pa.DataType, values: list[Any]) -> list[bytes | None]:
    column = pa.array([None, *values, None], given)[1:-1]  # a slice
    array = avro_encoder(parse_avro(json.dumps(schema)), given).encode(column)
    array.validate(full=True)
    assert array.type == pa.binary()
    data: list[bytes | None] = array.to_pylist()
    return data


def by_fastavro(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


@pytest.mark.budget
def test_columns_of_random_schemas_are_encoded_as_they_were_decoded() -> None:
    """What decoders make of the values is compared with fastavro in `test_pairs`."""
    for seed in range(cases(20, 50, 550)):
        pair = SchemaPair(seed)
        expected = [pair.plain_payload() for _ in range(ROWS)]
        schema = parse_avro(json.dumps(pair.writer))
        values, faults = avro_decoder(schema, schema).decode(pa.array([None, *expected, None], pa.binary()))
        encoded = avro_encoder(schema, values.type).encode(values[1:-1])
        encoded.validate(full=True)
        assert (encoded.to_pylist(), faults) == (expected, []), f"seed {seed}"


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        (["null", "string"], None),
        (["string", "null"], "x" * 20),
        ("long", -5),
        ("double", 1.5),
        ("boolean", True),
        (INTS, [1, -200]),
        ({"type": "map", "values": ["null", "string"]}, {"a": None}),
        ({"type": "array", "items": "string"}, []),
    ],
)
def test_field_that_the_column_lacks_has_its_default_between_others_in_any_order(kind: Any, default: Any) -> None:
    inner = record(a="int", lacking=kind, b="string")
    inner["fields"][1]["default"] = default
    schema, given = record("outer", r=["null", inner]), struct(r=struct(b=pa.string(), a=pa.int32()))
    rows = [{"r": {"a": 1, "b": "x"}}, {"r": None}, {"r": {"a": -70, "b": ""}}]
    assert encoded(schema, given, rows) == [by_fastavro(schema, row) for row in rows]


@pytest.mark.parametrize(
    ("schema", "given", "value", "data"),
    [
        ("long", pa.int8(), -1, b"\x01"),
        ("int", pa.int16(), 2**15 - 1, b"\xfe\xff\x03"),
        ("double", pa.float32(), 1.5, b"\0" * 6 + b"\xf8\x3f"),
        ({"type": "long", "logicalType": "time-micros"}, pa.time64("ns"), 5_001_999, b"\x92\x4e"),
        ({"type": "enum", "name": "e", "symbols": [f"S{n}" for n in range(200)]}, pa.string(), "S199", b"\x8e\x03"),
        (INTS, pa.list_(pa.int8()), [1] * 70, b"\x8c\x01" + b"\x02" * 70 + b"\0"),
        (["null", "int", "long"], pa.int64(), 3, b"\x04\x06"),
        (["double", "float"], pa.float64(), 0.0, b"\0" * 9),
        (["string"], pa.string(), "a", b"\0\x02a"),
        ("long", UTC_US, -1500, b"\x03"),
        ({"type": "long", "logicalType": "timestamp-millis"}, UTC_US, -1500, b"\x03"),
        ({"type": "long", "logicalType": "timestamp-nanos"}, UTC_US, 1, b"\xd0\x0f"),
        ({"type": "long", "logicalType": "timestamp-nanos"}, pa.int64(), 1, b"\x02"),
        ({"type": "long", "logicalType": "local-timestamp-nanos"}, pa.timestamp("us"), -1, b"\xcf\x0f"),
        ({"type": "int", "logicalType": "time-millis"}, pa.time64("ns"), 2_000_001, b"\x04"),
        ({"type": "int", "logicalType": "time-millis"}, pa.int32(), 2, b"\x04"),
        ({"type": "long", "logicalType": "time-micros"}, pa.time32("ms"), 2, b"\xa0\x1f"),
        ({"type": "string", "logicalType": "uuid"}, pa.string(), "4ea9", b"\x084ea9"),
        ("long", pa.duration("us"), -1, b"\x01"),
        (DECIMAL, pa.decimal128(4, 2), Decimal("-1.28"), b"\x02\x80"),
        (DECIMAL, pa.decimal128(38, 0), Decimal("-99"), b"\x04\xd9\x54"),
        ({**DECIMAL, "precision": 64}, pa.decimal128(38, 2), Decimal("-1.28"), b"\x02\x80"),
        ({**DECIMAL, "precision": 75}, pa.decimal128(38, 0), Decimal(1), b"\x02\x64"),
        (DECIMAL, pa.binary(), b"\x01", b"\x02\x01"),
        ({"type": "fixed", "name": "f", "size": 2, "logicalType": "unknown"}, pa.binary(), b"ab", b"ab"),
        (["int", "string"], struct(member0=pa.int32(), member1=pa.string()), {"member1": ""}, b"\x02\0"),
        (
            {
                "type": "record",
                "name": "N",
                "fields": [{"name": "id", "type": "int"}, {"name": "n", "type": ["null", "N"]}],
            },
            struct(id=pa.int32(), n=struct(id=pa.int32())),
            {"id": 1, "n": {"id": 2}},
            b"\x02\x02\x04\0",
        ),
        (["int", "string"], struct(member_int=pa.int32(), member_string=pa.string()), {"member_string": ""}, b"\x02\0"),
    ],
)
def test_value_is_encoded(schema: Any, given: pa.DataType, value: Any, data: bytes) -> None:
    assert encoded(schema, given, [value, None]) == [data, None]


def test_fields_that_the_column_lacks_have_their_default_or_null() -> None:
    schema = record(a=["null", "int"], b="int", c="string", d={"type": "array", "items": DECIMAL})
    schema["fields"][2]["default"] = "xyz" * 10
    schema["fields"][3]["default"] = ["\u0001"]
    assert encoded(schema, struct(b=pa.int32()), [{"b": 1}]) == [b"\0\x02\x3c" + b"xyz" * 10 + b"\x02\x02\x01\0"]


def test_column_that_is_always_null_is_written() -> None:
    given = struct(a=pa.null(), b=pa.null(), c=pa.null())
    assert encoded(record(a=["string", "null"], b="null", c=["int", "null", "string"]), given, [{}]) == [b"\x02\x02"]


def test_no_rows_and_rows_without_bytes() -> None:
    assert encoded("string", pa.string(), []) == []
    assert encoded(record(), struct(), [{}, None, {}]) == [b"", None, b""]


@pytest.mark.parametrize(
    ("schema", "given", "problem"),
    [
        ("int", pa.int64(), "the value has type int64, which cannot be written as Avro int"),
        (record(a="int"), struct(), "field a is missing, and the Avro schema has no default for it"),
        (record(a="int"), struct(a=pa.int32(), b=pa.int32()), "field b is not in the Avro record 'r'"),
        (record(a="int"), pa.struct([("a", pa.int32()), ("a", pa.int32())]), "field a occurs twice"),
        (record(a="int"), pa.int32(), "the value has type int32, which cannot be written as Avro record r"),
        (
            record(a={"type": "array", "items": {"type": "map", "values": "float"}}),
            struct(a=pa.list_(pa.map_(pa.string(), pa.float64()))),
            "field a.element.value has type double, which cannot be written as Avro float",
        ),
        ({"type": "map", "values": "int"}, pa.map_(pa.int32(), pa.int32()), "cannot be written as Avro map"),
        (["int", "string"], pa.string(), "Avro union, which needs a struct of member0 int, member1 string"),
        (["null", "int", "string"], struct(member1=pa.int32()), "union, which needs a struct of member0 int"),
        (["int", COLOR], struct(member0=pa.int32(), member1=pa.int32()), "field member1 has type int32, which cannot"),
        (["null", "int"], pa.string(), "cannot be written as Avro int"),
        (COLOR, pa.binary(), "cannot be written as Avro enumeration color"),
        (DECIMAL, pa.decimal128(5, 3), r"cannot be written as Avro bytes \(decimal\)"),
        ({**DECIMAL, "precision": 76}, pa.decimal128(5, 1), r"cannot be written as Avro bytes \(decimal\)"),
        ({**DECIMAL, "precision": 60, "scale": 50}, pa.decimal128(28, 1), "cannot be written as Avro bytes"),
        ("bytes", pa.decimal128(5, 3), "cannot be written as Avro bytes"),
        ("bytes", pa.string(), "cannot be written as Avro bytes"),
        ({"type": "fixed", "name": "f", "size": 2}, pa.string(), "cannot be written as Avro fixed f of 2 bytes"),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, UTC_US, r"Avro long \(local-timestamp-micros\)"),
        ({"type": "int", "logicalType": "date"}, UTC_US, r"Avro int \(date\)"),
        ("int", UTC_US, "Avro int"),
        ("long", pa.time64("ns"), "Avro long"),
        ({"type": "int", "logicalType": "time-millis"}, pa.date32(), r"Avro int \(time-millis\)"),
        ({"type": "long", "logicalType": "timestamp-micros"}, pa.duration("us"), r"Avro long \(timestamp-micros\)"),
        ("string", pa.null(), "the value has type null, which cannot be written as Avro string"),
        (["string"], pa.null(), "the value has type null, which cannot be written as Avro string"),
        (["string", "int"], pa.null(), "the value has type null, which cannot be written as Avro union"),
    ],
)
def test_column_of_another_type_is_refused(schema: Any, given: pa.DataType, problem: str) -> None:
    with pytest.raises(ValueSchemaError, match=problem):
        avro_encoder(parse_avro(json.dumps(schema)), given)


def test_default_of_another_type_is_refused() -> None:
    schema = record(a="int")
    schema["fields"][0]["default"] = "text"
    with pytest.raises(ValueSchemaError, match="field a is missing, and its default in the Avro schema is not valid"):
        avro_encoder(parse_avro(json.dumps(schema)), struct())


@pytest.mark.parametrize(
    ("schema", "given", "good", "bad", "problem"),
    [
        ("int", pa.int32(), 1, None, " is null, and the schema does not allow null"),
        (["int"], pa.int32(), 1, None, " is null, and the schema does not allow null"),
        (record(b="int"), struct(b=pa.int32()), {"b": 1}, None, " is null, and the schema does not allow null"),
        (record(b="int"), struct(b=pa.int32()), {"b": 1}, {"b": None}, ".b is null, and the schema does not allow"),
        (COLOR, pa.string(), "RED", "GREEN", " is not a symbol of the schema's enum"),
        (DECIMAL, pa.decimal128(5, 2), Decimal("99.99"), Decimal("100.00"), r" does not fit .* decimal\(4, 2\)"),
        (DECIMAL, pa.decimal128(38, 0), Decimal(-99), Decimal(-100), r" does not fit .* decimal\(4, 2\)"),
        ({"type": "fixed", "name": "f", "size": 2}, pa.binary(), b"ab", b"abc", " does not have the schema's 2 bytes"),
        ({"type": "long", "logicalType": "timestamp-nanos"}, UTC_US, 0, 2**60, " is out of the range of"),
        (["int", "string"], struct(member0=pa.int32(), member1=pa.string()), {"member0": 1}, {}, " has no member that"),
        (
            ["null", "int", "string"],
            struct(member0=pa.int32(), member1=pa.string()),
            None,
            {"member0": 1, "member1": ""},
            " has more than one member that is not null",
        ),
        (INTS, pa.list_(pa.int32()), [], [1, None], ".element is null, and the schema does not allow null"),
        (
            {"type": "map", "values": COLOR},
            pa.map_(pa.string(), pa.string()),
            [("a", "RED")],
            [("a", "RED"), ("b", "")],
            ".value is not a symbol of the schema's enum",
        ),
    ],
)
def test_value_that_does_not_fit_is_named(schema: Any, given: pa.DataType, good: Any, bad: Any, problem: str) -> None:
    """Also where the record around it is optional, and null in earlier rows."""
    outer = record("outer", a=["null", record("around", c=schema)])
    rows = [{"a": {"c": good}}, {"a": None}, {"a": {"c": good}}, {"a": {"c": bad}}, {"a": {"c": good}}]
    with pytest.raises(UnwritableValueError, match=f"^row 3: field a.c{problem}"):
        encoded(outer, struct(a=struct(c=given)), rows)
    assert len(encoded(outer, struct(a=struct(c=given)), rows[:3])) == 3


def test_string_that_is_not_utf8_is_refused() -> None:
    """Spark's `to_avro` writes it, and readers refuse or change it. Bytes below a null do not count."""
    strings = pa.array([b"\xff", b"\xc3\xbc", b"\xff"]).view(pa.string())
    column = pa.StructArray.from_arrays([strings], ["a"], mask=pa.array([True, False, False]))
    encoder = avro_encoder(parse_avro(json.dumps(["null", record(a="string")])), column.type)
    assert encoder.encode(column[:2]).to_pylist() == [None, b"\x02\x04\xc3\xbc"]
    with pytest.raises(UnwritableValueError, match=r"^row 2: field a is not UTF-8"):
        encoder.encode(column)
    keys = pa.MapArray.from_arrays([0, 1, 2], strings[1:], pa.array([1, 2]))
    with pytest.raises(UnwritableValueError, match=r"^row 1: the value is not UTF-8"):
        avro_encoder(parse_avro('{"type": "map", "values": "long"}'), keys.type).encode(keys)


def test_derived_schema_is_that_of_spark_with_defaults() -> None:
    """`SchemaConverters.toAvroType` of spark-avro 4.2.0 returned this for the same columns, with null after each type
    and without defaults.
    """
    given = struct(
        boolean=pa.bool_(),
        byte=pa.int8(),
        integer=pa.int32(),
        long=pa.int64(),
        float=pa.float32(),
        double=pa.float64(),
        text=pa.string(),
        data=pa.binary(),
        day=pa.date32(),
        instant=UTC_US,
        local=pa.timestamp("us"),
        interval=pa.duration("us"),
        price=pa.decimal128(10, 2),
        prices=pa.list_(pa.decimal128(38, 2)),
        nothing=pa.null(),
        map=pa.map_(pa.string(), pa.int16()),
        inner=struct(items=pa.list_(struct(a=pa.int32()))),
    )
    given = pa.struct([pa.field("always", pa.string(), nullable=False), *given])
    logical = {"day": "date", "instant": "timestamp-micros", "local": "local-timestamp-micros"}
    fixed = {"type": "fixed", "logicalType": "decimal", "scale": 2}
    price = {**fixed, "name": "topLevelRecord.price.fixed", "size": 5, "precision": 10}
    prices = {**fixed, "name": "topLevelRecord.prices.fixed", "size": 16, "precision": 38}
    item = {**optional_fields("items", a="int"), "namespace": "topLevelRecord.inner"}
    items = {"type": "array", "items": ["null", item]}
    inner = {**optional_fields("inner", items=items), "namespace": "topLevelRecord"}
    optional = {
        "boolean": "boolean",
        "byte": "int",
        "integer": "int",
        "long": "long",
        "float": "float",
        "double": "double",
        "text": "string",
        "data": "bytes",
        "day": {"type": "int", "logicalType": logical["day"]},
        "instant": {"type": "long", "logicalType": logical["instant"]},
        "local": {"type": "long", "logicalType": logical["local"]},
        "interval": {"type": "long", "spark.sql.catalyst.type": "interval day to second"},
        "price": price,
        "prices": {"type": "array", "items": ["null", prices]},
        "map": {"type": "map", "values": ["null", "int"]},
        "inner": inner,
    }
    expected = optional_fields("topLevelRecord", **optional, nothing="null")
    always = {"name": "always", "type": "string"}
    fields = {field["name"]: field for field in [always, *expected["fields"]]}
    derived = derived_schema(given)
    assert json.loads(derived) == {**expected, "namespace": "", "fields": [fields[field.name] for field in given]}
    avro_encoder(parse_avro(derived), given)
    assert derived_schema(pa.string()) == '"string"'


def optional_fields(name: str, **types: Any) -> dict[str, Any]:
    fields = {field: kind if kind == "null" else ["null", kind] for field, kind in types.items()}
    schema = record(name, **fields)
    return {**schema, "fields": [{**field, "default": None} for field in schema["fields"]]}


def test_later_derived_schema_reads_records_of_an_earlier_one() -> None:
    earlier = struct(id=pa.int64(), inner=struct(a=pa.int32()))
    later = struct(id=pa.int64(), inner=struct(a=pa.int32(), b=pa.decimal128(5, 2)), note=pa.string())
    written = parse_avro(derived_schema(earlier, "shop.Order"))
    values = avro_encoder(written, earlier).encode(pa.array([{"id": 1, "inner": {"a": 2}}, {}], earlier))
    read = avro_decoder(written, parse_avro(derived_schema(later, "shop.Order"))).decode(values)
    assert (read.values.to_pylist(), read.faults) == (
        [{"id": 1, "inner": {"a": 2, "b": None}, "note": None}, {"id": None, "inner": None, "note": None}],
        [],
    )


@pytest.mark.parametrize("name", ["shop.Order-1", "shop.", "Order$A", "1", "an order"])
def test_name_that_avro_does_not_allow_is_refused(name: str) -> None:
    with pytest.raises(ValueSchemaError, match="does not allow the name"):
        derived_schema(struct(a=pa.int64()), name)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (struct(a=struct(**{"a b": pa.int32()})), "field a.a b has a name that Avro does not allow"),
        (struct(a=pa.map_(pa.int32(), pa.int32())), "field a has type map<int32, int32>, which Avro does not have"),
        (pa.month_day_nano_interval(), "the value has type month_day_nano_interval, which Avro does not have"),
    ],
)
def test_type_that_avro_does_not_have_is_refused(given: pa.DataType, problem: str) -> None:
    with pytest.raises(ValueSchemaError, match=problem):
        derived_schema(given)
