"""Schemas of Kafka Connect become columns; values of one schema are read with another."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from pyspark_kafka_meta.errors import ValueSchemaError
from pyspark_kafka_meta.typed.formats import DECIMAL, ConnectType, Schema, SchemaText, formats
from tests.unit.typed.connect_json.written import (
    causes,
    connects,
    debeziums,
    decimal,
    of,
    rows,
    struct,
    unscaled,
    value,
)


def schema(document: Any) -> Schema:
    return formats()["connect-json"](SchemaText(json.dumps(document)))


@pytest.mark.parametrize(
    ("document", "column"),
    [
        (of("boolean"), pa.bool_()),
        (of("int8"), pa.int8()),
        (of("int16"), pa.int16()),
        (of("int32"), pa.int32()),
        (of("int64"), pa.int64()),
        (of("float"), pa.float32()),
        (of("double"), pa.float64()),
        (of("string"), pa.string()),
        (of("bytes"), pa.binary()),
        ({"type": "array", "items": of("int32")}, pa.list_(pa.field("element", pa.int32()))),
        ({"type": "map", "keys": of("string"), "values": of("int8")}, pa.map_(pa.string(), pa.int8())),
        ({"type": "map", "keys": of("int64"), "values": of("bytes")}, pa.map_(pa.int64(), pa.binary())),
        (struct(a="int8", b=struct(c="string")), pa.struct({"a": pa.int8(), "b": pa.struct({"c": pa.string()})})),
        (connects("int32", "Date"), pa.date32()),
        (connects("int32", "Time"), pa.int32()),
        (connects("int64", "Timestamp"), pa.timestamp("us", "UTC")),
        (connects("string", "Date"), pa.string()),
        (decimal(2), pa.decimal128(38, 2)),
        (decimal(2, 5), pa.decimal128(5, 2)),
        (decimal(10, 64), pa.binary()),
        (decimal(-2), pa.binary()),
        (decimal(39, 40), pa.binary()),
        (connects("bytes", "Decimal"), pa.binary()),
        (debeziums("int64", "MicroTimestamp"), pa.int64()),
    ],
)
def test_a_schema_becomes_a_column(document: Any, column: pa.DataType) -> None:
    assert schema(document).type == column


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "1", "null", '"int8"', "{}", '{"type": "int128"}', '{"type": "map"}', "[" * 100_000),
        '{"type": "struct", "fields": []}',
        '{"type": "struct", "fields": [{"type": "int8"}]}',
        '{"type": "array", "items": {}}',
        '{"type":"array","items":' * 10_000 + '{"type":"int8"}' + "}" * 10_000,
    ],
)
def test_what_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(ValueSchemaError):
        _ = formats()["connect-json"](SchemaText(text)).type


def test_types_of_kafka_connect_are_named_by_the_paths_of_fields() -> None:
    row = struct("shop.Row", at=debeziums("int64", "MicroTimestamp"), sum=decimal(2), plain="int64")
    days = {"type": "array", "items": debeziums("int32", "Date")}
    sums = {"type": "map", "keys": debeziums("int32", "Date"), "values": decimal(1)}

    found = schema(struct("shop.Envelope", after=row, days=days, sums=sums))

    assert (found.name, found.connect_types) == (
        "shop.Envelope",
        {
            "": ConnectType("shop.Envelope", {}),
            "after": ConnectType("shop.Row", {}),
            "after.at": ConnectType("io.debezium.time.MicroTimestamp", {}),
            "after.sum": ConnectType(DECIMAL, {"scale": "2"}),
            "days.element": ConnectType("io.debezium.time.Date", {}),
            "sums.key": ConnectType("io.debezium.time.Date", {}),
            "sums.value": ConnectType(DECIMAL, {"scale": "1"}),
        },
    )


@pytest.mark.parametrize(
    ("first", "second", "are_equal"),
    [
        (struct("a.Value", x="int8"), struct("b.Value", x={**of("int8"), "doc": "d", "default": 1}), True),
        (struct(x="int8"), struct(x="int16"), False),
        (struct(x=debeziums("int64", "Timestamp")), struct(x=debeziums("int64", "MicroTimestamp")), False),
    ],
)
def test_schemas_that_are_read_in_the_same_way_are_equal(first: Any, second: Any, are_equal: bool) -> None:
    assert (schema(first).read_as == schema(second).read_as) is are_equal


@pytest.mark.parametrize(
    ("writer", "reader", "payload", "read"),
    [
        (struct(a="int8", b="int8"), struct(b="int8", c="string"), {"a": 1, "b": 2}, {"b": 2, "c": None}),
        (of("int16"), of("int64"), -5, -5),
        (of("int64"), of("int8"), -5, -5),
        (of("int64"), of("double"), 2**53, 2.0**53),
        (of("float"), of("double"), 1.5, 1.5),
        (of("double"), of("float"), 1.5, 1.5),
        (decimal(2), decimal(4), unscaled(-123), Decimal("-1.23")),
        (decimal(4), decimal(2), unscaled(12300), Decimal("1.23")),
        (decimal(2, 9), decimal(2, 5), unscaled(123), Decimal("1.23")),
        (decimal(2, 65), decimal(2, 5), unscaled(123), Decimal("1.23")),
        (decimal(2, 5), decimal(2, 65), unscaled(123), b"\x7b"),
        ({"type": "array", "items": of("int8")}, {"type": "array", "items": of("int32")}, [1, None], [1, None]),
        (struct("a", x="int8"), struct("b", x="int8"), {"x": 1}, {"x": 1}),
        (of("string", "io.debezium.data.Enum"), of("string"), "a", "a"),
    ],
)
def test_values_of_another_schema_are_read_by_field_names(writer: Any, reader: Any, payload: Any, read: Any) -> None:
    assert rows(reader, value(writer, payload), None) == [read, None]


@pytest.mark.parametrize(
    ("writer", "reader", "payload", "cause"),
    [
        (of("string"), of("bytes"), "AAAA", "the writer's string cannot be read as binary"),
        (of("string"), of("int32"), "1", "the writer's string cannot be read as int32"),
        (of("double"), of("int32"), 1, "the writer's double cannot be read as int32"),
        (of("bytes"), decimal(2), "AAAA", f"the writer's binary cannot be read as {DECIMAL} of scale 2"),
        (decimal(70), decimal(2), "Bw==", f"the writer's {DECIMAL} of scale 70 cannot be read as {DECIMAL} of scale 2"),
        (decimal(-2), decimal(-3), "Bw==", f"the writer's {DECIMAL} of scale -2 cannot be read as "),
        (decimal(5, 3), decimal(6, 3), "Bw==", f"the writer's {DECIMAL} of scale 5 cannot be read as "),
        (decimal(2), decimal(4, 65), "Bw==", f"the writer's {DECIMAL} of scale 2 cannot be read as "),
        (of("bytes"), decimal(-2), "Bw==", f"the writer's binary cannot be read as {DECIMAL} of scale -2"),
        (
            struct(a=struct(at=debeziums("int64", "Timestamp"))),
            struct(a=struct(at=debeziums("int64", "MicroTimestamp"))),
            {"a": {"at": 1}},
            "a.at: the writer's io.debezium.time.Timestamp cannot be read as io.debezium.time.MicroTimestamp",
        ),
        (connects("int32", "Date"), of("int32"), 1, "the writer's org.apache.kafka.connect.data.Date cannot be read"),
        ({"type": "array", "items": of("string")}, {"type": "array", "items": of("int8")}, [], "element: the writer's"),
        (decimal(4), decimal(2), unscaled(12301), "a decimal has more digits than its column"),
        (decimal(2, 9), decimal(4, 5), unscaled(12301), "a decimal has more digits than its column"),
        ({"type": "int128"}, of("int8"), 1, "the schema of Kafka Connect has no known type"),
    ],
)
def test_values_of_an_unfitting_schema_are_malformed_alone(writer: Any, reader: Any, payload: Any, cause: str) -> None:
    found = causes(reader, [value(reader, None), value(writer, payload), None, value(reader, None)])

    assert list(found) == [1]
    assert found[1].startswith(cause)


SOURCE_TYPES = [of("int64"), of("string"), struct(a="int8")]


@pytest.mark.parametrize("given", SOURCE_TYPES, ids=["int64", "string", "struct"])
@pytest.mark.parametrize("own", SOURCE_TYPES, ids=["int64", "string", "struct"])
def test_lenient_fields_of_another_type_are_null(given: Any, own: Any) -> None:
    """Fields of a connector's source got other types in later versions."""
    reader, writer = (struct(source=struct(scn=scn, db="string"), op="string") for scn in (own, given))
    sample = {"int64": 5, "string": "5", "struct": {"a": 5}}[given["type"]]
    format_, text = formats()["connect-json"], SchemaText(json.dumps(reader), lenient_fields=("source",))
    values = [
        value(writer, {"source": {"scn": sample, "db": "d"}, "op": "c"}),
        value(writer, None),
        value(reader, None),
    ]

    decoded = format_(text).decoder(format_(text), False).decode(pa.array(values))

    expected = {"source": {"scn": sample if given == own else None, "db": "d"}, "op": "c"}
    assert (decoded.values.to_pylist(), decoded.faults) == ([expected, None, None], [])


def test_other_fields_are_not_lenient() -> None:
    reader, writer = (struct(after=struct(scn=kind), source=struct(scn=kind)) for kind in ("int64", "string"))
    format_, text = formats()["connect-json"], SchemaText(json.dumps(reader), lenient_fields=("source",))

    decoded = format_(text).decoder(format_(text), False).decode(pa.array([value(writer, None)]))

    assert [fault.cause for fault in decoded.faults] == ["after.scn: the writer's string cannot be read as int64"]


def test_a_lenient_field_of_which_nothing_fits_is_null() -> None:
    reader, writer = (struct(source=struct(scn=kind), op="string") for kind in ("int64", "string"))
    format_, text = formats()["connect-json"], SchemaText(json.dumps(reader), lenient_fields=("source",))

    decoded = (
        format_(text)
        .decoder(format_(text), False)
        .decode(pa.array([value(writer, {"source": {"scn": "5"}, "op": "c"})]))
    )

    assert (decoded.values.to_pylist(), decoded.faults) == ([{"source": None, "op": "c"}], [])
