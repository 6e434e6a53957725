"""JSON texts of columns: what Python's `json` and this package's decoder read from them, and what is refused."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_kafka_meta.errors import ValueSchemaError
from pyspark_kafka_meta.typed.formats import UnwritableValueError
from pyspark_kafka_meta.typed.json.decoder import JsonDecoder
from pyspark_kafka_meta.typed.json.encoder import derived_json_schema, json_encoder
from pyspark_kafka_meta.typed.json.schema import parse_json_schema

UTC_US = pa.timestamp("us", "UTC")
STRING, INTEGER = {"type": "string"}, {"type": "integer"}
LINE = pa.struct([pa.field("sku", pa.string(), nullable=False), pa.field("count", pa.int64())])
ORDER = pa.struct(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("price", pa.float64()),
        pa.field('the "name"', pa.string()),
        pa.field("paid", pa.bool_()),
        pa.field("day", pa.date32()),
        pa.field("at", UTC_US),
        pa.field("lines", pa.list_(LINE)),
        pa.field("codes", pa.list_(pa.field("element", pa.int64(), nullable=False))),
        pa.field("tags", pa.map_(pa.string(), pa.string())),
        pa.field("inner", pa.struct([("deep", pa.struct([("x", pa.string())]))])),
    ]
)


def struct(**fields: pa.DataType) -> pa.StructType:
    return pa.struct(list(fields.items()))


def an_object(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required or []}


def encoded(schema: Any, given_type: pa.DataType, values: list[Any]) -> list[str | None]:
    column = pa.array([None, *values, None], given_type)[1:-1]  # a slice
    array = json_encoder(parse_json_schema(json.dumps(schema)), given_type).encode(column)
    array.validate(full=True)
    assert array.type == pa.binary()
    return [None if data is None else data.decode() for data in array.to_pylist()]


def spark_type(*types: Any) -> dict[str, Any]:
    """A type of Spark with fields a, b ..."""
    fields = [{"name": name, "type": kind, "nullable": True} for name, kind in zip("abcdef", types, strict=False)]
    return {"type": "struct", "fields": fields}


TEXTS = st.text(max_size=12) | st.sampled_from(['"', "\\", "\n\x00", "é😀\u2028", "</script>", ""])
INTEGERS = st.integers(-(2**63), 2**63 - 1)


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


ORDERS = st.fixed_dictionaries(
    {
        "id": INTEGERS,
        "price": maybe(st.floats(allow_nan=False, allow_infinity=False)),
        'the "name"': maybe(TEXTS),
        "paid": maybe(st.booleans()),
        "day": maybe(st.dates()),
        "at": maybe(st.datetimes(timezones=st.just(UTC))),
        "lines": maybe(st.lists(maybe(st.fixed_dictionaries({"sku": TEXTS, "count": maybe(INTEGERS)})), max_size=3)),
        "codes": maybe(st.lists(INTEGERS, max_size=3)),
        "tags": maybe(st.dictionaries(TEXTS, maybe(TEXTS), max_size=3).map(lambda tags: [*tags.items()])),
        "inner": maybe(st.fixed_dictionaries({"deep": maybe(st.fixed_dictionaries({"x": maybe(TEXTS)}))})),
    }
)


@given(rows=st.lists(maybe(ORDERS), max_size=4))
@settings(max_examples=60, deadline=None)
def test_values_with_a_derived_schema_come_back(rows: list[Any]) -> None:
    values = pa.array(rows, ORDER)
    schema = parse_json_schema(derived_json_schema(ORDER))
    texts = json_encoder(schema, ORDER).encode(values)
    decoded, faults = JsonDecoder(schema).decode(texts)
    assert faults == []
    assert decoded.to_pylist() == values.to_pylist()
    for text, row in zip(texts.to_pylist(), rows, strict=True):
        if row is not None:
            plain = {
                name: row[name] for name in ("id", "price", 'the "name"', "paid", "codes") if row[name] is not None
            }
            assert json.loads(text).items() >= plain.items()


@pytest.mark.parametrize(
    ("schema", "given_type", "value", "text"),
    [
        ({"type": "integer"}, pa.int8(), -1, "-1"),
        ({"type": "number"}, pa.float32(), 0.1, "0.1"),
        ({"type": "number"}, pa.float64(), 1e300, "1e+300"),
        ({"type": "number"}, pa.int64(), 2**60, str(2**60)),
        ({"type": "number"}, pa.decimal128(38, 2), Decimal("123456789012345678901234567890.10"), None),
        ({"type": "boolean"}, pa.bool_(), True, "true"),
        ({"type": "string"}, pa.string(), 'a"\\\n\x01é/', r'"a\"\\\n\u0001é/"'),
        ({"type": "string", "format": "date"}, pa.date32(), date(987, 6, 5), '"0987-06-05"'),
        (
            {"type": "string", "format": "date-time"},
            UTC_US,
            datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
            '"2024-01-02T03:04:05.000006Z"',
        ),
        ({"type": "array", "items": INTEGER}, pa.list_(pa.int32()), [], "[]"),
        ({"type": "object", "additionalProperties": INTEGER}, pa.map_(pa.string(), pa.int32()), [("a", 1)], '{"a":1}'),
        (an_object(a=STRING), struct(a=pa.string()), {"a": None}, "{}"),
        (an_object(a={}), struct(a=pa.string()), {"a": None}, "{}"),
        (an_object(["a"], a={}), struct(a=pa.string()), {"a": None}, '{"a":null}'),
        *(
            (an_object(a={}), struct(a=pa.string()), {"a": text}, f'{{"a":{written}}}')
            for text, written in (
                ('{"b": [1.50]}', '{"b":[1.50]}'),
                ("[]", "[]"),
                ("{b}", '"{b}"'),
                ("1", '"1"'),
                ('a"', r'"a\""'),
            )
        ),
        (
            an_object(a=True),
            struct(a=struct(b=pa.int64(), c=pa.list_(pa.string()))),
            {"a": {"b": 1, "c": ["x", None]}},
            '{"a":{"b":1,"c":["x",null]}}',
        ),
        (an_object(a=STRING, b=STRING, c=STRING), struct(c=pa.string(), a=pa.string()), {"a": "1"}, '{"a":"1"}'),
    ],
)
def test_value_is_written(schema: Any, given_type: pa.DataType, value: Any, text: str | None) -> None:
    assert encoded(schema, given_type, [value, None]) == [text or str(value), None]


def test_types_that_only_spark_has_are_written() -> None:
    schema = spark_type("binary", "timestamp_ntz", "decimal(12,4)", "short")
    given_type = struct(a=pa.binary(), b=pa.timestamp("us"), c=pa.decimal128(10, 2), d=pa.int8())
    value = {"a": b"\xff\x00", "b": datetime(1969, 12, 31, 23, 59, 59), "c": Decimal("-1.50"), "d": 7}
    text = '{"a":"/wA=","b":"1969-12-31T23:59:59.000000","c":-1.50,"d":7}'
    assert encoded(schema, given_type, [value, {}]) == [text, "{}"]


def test_large_types_of_spark_are_written() -> None:
    """Of `spark.sql.execution.arrow.useLargeVarTypes`, which the driver does not know of."""
    keys = {"type": "map", "keyType": "string", "valueType": "string"}
    encoder = json_encoder(
        parse_json_schema(json.dumps(spark_type("string", "binary", keys))),
        struct(a=pa.string(), b=pa.binary(), c=pa.map_(pa.string(), pa.string())),
    )
    given_type = struct(a=pa.large_string(), b=pa.large_binary(), c=pa.map_(pa.large_string(), pa.large_string()))
    values = pa.array([{}, {"a": "\n"}, None], given_type)[1:]
    assert encoder.encode(values).to_pylist() == [b'{"a":"\\n"}', None]
    values = pa.array([{"a": '"', "b": b"x", "c": [("k", "v")]}], given_type)
    assert encoder.encode(values).to_pylist() == [b'{"a":"\\"","b":"eA==","c":{"k":"v"}}']


@pytest.mark.parametrize(
    "allowed", [{"type": ["string", "null"]}, {"anyOf": [{"type": "null"}, STRING]}, {"enum": ["a", None]}]
)
def test_null_is_written_where_a_value_is_required(allowed: Any) -> None:
    schema = an_object(["a"], a=allowed, b=allowed, c={"type": "array", "items": allowed})
    given_type = struct(a=pa.string(), b=pa.string(), c=pa.list_(pa.string()))
    assert encoded(schema, given_type, [{"c": [None]}, None]) == ['{"a":null,"c":[null]}', None]


def test_required_properties_of_all_parts_of_a_schema_are_known() -> None:
    schema = {
        "allOf": [an_object(["a"], a=STRING), {"$ref": "#/definitions/part"}],
        "definitions": {"part": an_object(["b"], b=STRING)},
    }
    with pytest.raises(ValueSchemaError, match=r"^field b is missing, and the JSON schema requires it: add it"):
        encoded(schema, struct(a=pa.string()), [])
    with pytest.raises(UnwritableValueError, match=r"^row 0: field a is null"):
        encoded(schema, struct(a=pa.string(), b=pa.string()), [{"b": ""}])


def test_required_property_that_the_schema_does_not_describe_is_refused() -> None:
    """Each value would lack it."""
    schema = an_object(a=an_object(["b", "c"], b=STRING))
    with pytest.raises(ValueSchemaError, match=r"^field a.c is missing, .* requires it: add it, also to the schema's "):
        encoded(schema, struct(a=struct(b=pa.string())), [])


@pytest.mark.parametrize(
    ("schema", "given_type", "problem"),
    [
        (INTEGER, pa.float64(), "the value has type double, which cannot be written where the JSON schema has int64"),
        (STRING, pa.date32(), "has type date32.*, which cannot be written where the JSON schema has string"),
        (STRING, pa.binary(), "cannot be written where the JSON schema has string"),
        ({"type": "string", "format": "date-time"}, pa.timestamp("us"), "cannot be written where"),
        (an_object(a=an_object(b=STRING)), struct(a=struct(c=pa.string())), "a.c is not in the JSON schema: drop"),
        (an_object(a=STRING), pa.struct([("a", pa.string())] * 2), "field a occurs twice"),
        (an_object(a=STRING), struct(), "the value has no fields"),
        ({"type": "object", "additionalProperties": STRING}, pa.map_(pa.int32(), pa.string()), "cannot be written"),
        ({"type": "array", "items": STRING}, pa.list_(pa.bool_()), "field element has type bool"),
        (spark_type("decimal(4,2)"), struct(a=pa.decimal128(5, 2)), "field a has type decimal.*5, 2"),
        (spark_type("integer"), struct(a=pa.int64()), "field a has type int64"),
        ({}, pa.map_(pa.int32(), pa.string()), "cannot be written where"),
    ],
)
def test_column_of_another_type_is_refused(schema: Any, given_type: pa.DataType, problem: str) -> None:
    with pytest.raises(ValueSchemaError, match=problem):
        encoded(schema, given_type, [])


@pytest.mark.parametrize(
    ("schema", "given_type", "good", "bad", "problem"),
    [
        (STRING, pa.string(), "a", None, "field m.a is null, and the schema does not allow null"),
        ({"type": "number"}, pa.float64(), 1.0, float("nan"), "field m.a is NaN or infinite, which JSON does not have"),
        ({"type": "number"}, pa.float32(), 1.0, float("-inf"), "field m.a is NaN or infinite"),
        ({"type": "string", "format": "date"}, pa.date32(), 0, 2_932_897, "field m.a is not in the years 0 to 9999"),
        ({"type": "string", "format": "date-time"}, UTC_US, 0, -(2**62), "field m.a is not in the years 0 to 9999"),
        ({"type": "array", "items": STRING}, pa.list_(pa.string()), ["", ""], ["", None], "field m.a.element is null"),
        (
            {"type": "object", "additionalProperties": STRING},
            pa.map_(pa.string(), pa.string()),
            [("a", "")],
            [("a", None)],
            "field m.a.value is null",
        ),
    ],
)
def test_value_that_does_not_fit_is_refused_with_its_row(
    schema: Any, given_type: pa.DataType, good: Any, bad: Any, problem: str
) -> None:
    """Also in an object that is absent in earlier rows."""
    outer, outer_type = an_object(m=an_object(["a"], a=schema)), struct(m=struct(a=given_type))
    rows = [{"m": {"a": good}}, {"m": None}, None, {"m": {"a": bad}}, {"m": {"a": good}}]
    with pytest.raises(UnwritableValueError, match=f"^row 3: {problem}"):
        encoded(outer, outer_type, rows)
    assert len(encoded(outer, outer_type, rows[:3])) == 3


def test_string_that_is_not_utf8_is_refused() -> None:
    strings = pa.array([b"\xc3\xbc", b"\xff"]).view(pa.string())
    encoder = json_encoder(parse_json_schema('{"type": "string"}'), pa.string())
    assert encoder.encode(strings[:1]).to_pylist() == ['"ü"'.encode()]
    with pytest.raises(UnwritableValueError, match=r"^row 1: the value is not UTF-8"):
        encoder.encode(strings)


def test_derived_schema_names_types_and_required_properties() -> None:
    given_type = pa.struct([pa.field("id", pa.int32(), nullable=False), ("codes", pa.list_(pa.string()))])
    assert json.loads(derived_json_schema(given_type, "shop.Order")) == {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "shop.Order",
        "type": "object",
        "properties": {"id": INTEGER, "codes": {"type": "array", "items": {"type": ["string", "null"]}}},
        "required": ["id"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize("given_type", [pa.decimal128(10, 2), pa.binary(), pa.timestamp("us"), pa.duration("us")])
def test_type_without_a_derived_schema_is_refused(given_type: pa.DataType) -> None:
    with pytest.raises(ValueSchemaError, match=r"^field a has type .*, which JSON Schema does not have: cast it"):
        derived_json_schema(struct(a=given_type))


def test_no_rows_and_pickled_encoders() -> None:
    encoder = json_encoder(parse_json_schema(derived_json_schema(ORDER)), ORDER)
    assert pickle.loads(pickle.dumps(encoder)).encode(pa.array([], ORDER)).to_pylist() == []
