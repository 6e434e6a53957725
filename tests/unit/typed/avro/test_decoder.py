"""Decoded values, and faults that concern their row alone."""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from pyspark_kafka_meta.typed.avro import cursor as avro_cursor
from pyspark_kafka_meta.typed.avro import decoder as decoders
from pyspark_kafka_meta.typed.avro import items as avro_items
from pyspark_kafka_meta.typed.avro.decoder import avro_decoder
from pyspark_kafka_meta.typed.avro.schema import parse_avro
from pyspark_kafka_meta.typed.formats import Decoded
from tests.unit.typed.avro.written import long, sized

NESTED_ARRAYS = {"type": "array", "items": {"type": "array", "items": "long"}}
NULLABLE = ["null", "string"]
INTS, NULLS, MAP = (
    {"type": "array", "items": "int"},
    {"type": "array", "items": "null"},
    {"type": "map", "values": "int"},
)
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}


@pytest.fixture(autouse=True, params=[0, 1000], ids=["arrays together", "arrays one by one"])
def few(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_items, "FEW", request.param)


as_usual = pytest.mark.parametrize("few", [avro_items.FEW], indirect=True)


def record(**fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": fields[name]} for name in fields]}


def decimal(precision: int, scale: int, size: int | None = None) -> dict[str, Any]:
    base: dict[str, Any] = {"type": "bytes"} if size is None else {"type": "fixed", "name": "D", "size": size}
    return {**base, "logicalType": "decimal", "precision": precision, "scale": scale}


def decoded(schema: Any, values: Sequence[bytes | None]) -> Decoded:
    parsed = parse_avro(json.dumps(schema))
    result = avro_decoder(parsed, parsed).decode(pa.array(values, pa.binary()))
    result.values.validate(full=True)
    return result


# Values


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        ("null", b"", None),
        ("boolean", b"\1", True),
        ("int", long(-(2**31)), -(2**31)),
        ("long", long(2**63 - 1), 2**63 - 1),
        ("long", long(-(2**63)), -(2**63)),
        ("long", b"\x82\x80\0", 1),
        ("float", struct.pack("<f", 1.5), 1.5),
        ("double", struct.pack("<d", -0.1), -0.1),
        ("bytes", sized(b"\xff\0"), b"\xff\0"),
        ("string", sized("\u20ac".encode()), "\u20ac"),
        ("string", sized(b"x" * 300), "x" * 300),
        ({"type": "fixed", "name": "F", "size": 3}, b"abc", b"abc"),
        (ENUM, long(1), "B"),
        (decimal(4, 2), sized(b"\xff\x01"), Decimal("-2.55")),
        (decimal(38, 0), sized((10**38 - 1).to_bytes(16, "big")), Decimal(10**38 - 1)),
        (decimal(38, 38), sized((1 - 10**38).to_bytes(16, "big", signed=True)), Decimal("-0." + "9" * 38)),
        (decimal(4, 1), sized(b"\xff" * 20 + b"\xfe"), Decimal("-0.2")),
        (decimal(20, 1, 20), bytes(19) + b"\x0b", Decimal("1.1")),
        ({"type": "int", "logicalType": "date"}, long(-1), date(1969, 12, 31)),
        ({"type": "int", "logicalType": "time-millis"}, long(5), 5),
        (MILLIS, long(-1), datetime(1969, 12, 31, 23, 59, 59, 999000, UTC)),
        ({"type": "long", "logicalType": "timestamp-micros"}, long(1), datetime(1970, 1, 1, 0, 0, 0, 1, UTC)),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, long(1), datetime(1970, 1, 1, 0, 0, 0, 1)),
        ({"type": "long", "logicalType": "timestamp-nanos"}, long(1), 1),
        (NULLABLE, long(0), None),
        (NULLABLE, long(1) + sized(b"a"), "a"),
        (["string", "null"], long(1), None),
        (["int", "string"], long(1) + sized(b"a"), {"member0": None, "member1": "a"}),
        (["int", "null", "string"], long(2) + sized(b"a"), {"member0": None, "member1": "a"}),
        (["int", "long"], long(0) + long(7), 7),
        (record(), b"", {}),
        (record(a="int", b=NULLABLE), long(1) + long(0), {"a": 1, "b": None}),
        (record(a=record(b="int") | {"name": "S"}), long(1), {"a": {"b": 1}}),
        ({"type": "array", "items": "string"}, b"\0", []),
        ({"type": "array", "items": "string"}, long(2) + sized(b"a") + sized(b"") + b"\0", ["a", ""]),
        (INTS, long(1) + long(1) + long(-2) + long(2) + long(2) + long(3) + b"\0", [1, 2, 3]),
        (NULLS, long(10_000) + b"\0", [None] * 10_000),
        (MAP, long(2) + sized(b"a") + long(1) + sized(b"b") + long(2) + b"\0", [("a", 1), ("b", 2)]),
        (NESTED_ARRAYS, long(2) + (long(1) + long(5) + b"\0") + b"\0" + b"\0", [[5], []]),
    ],
)
def test_a_value(schema: Any, value: bytes, expected: Any) -> None:
    result = decoded(schema, [value] * 3)

    assert (result.values.to_pylist(), result.faults) == ([expected] * 3, [])


def test_null_values_are_null() -> None:
    result = decoded(record(a="int"), [None, long(1), None, long(2)])

    assert (result.values.to_pylist(), result.faults) == ([None, {"a": 1}, None, {"a": 2}], [])


@pytest.mark.parametrize("values", [[], [None], [None, None]])
def test_a_column_without_values(values: list[bytes | None]) -> None:
    assert decoded(record(a=NULLABLE, b=NESTED_ARRAYS), values).values.to_pylist() == values


def test_long_columns_are_decoded_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoders, "CHUNK_ROWS", 8)
    monkeypatch.setattr(decoders, "CHUNK_BYTES", 20)
    texts = ["x" * (index * 7 % 30) for index in range(100)]

    result = decoded("string", [sized(text.encode()) if text else b"" for text in texts])

    assert result.values.to_pylist() == [text or None for text in texts]
    assert [fault.row for fault in result.faults] == [row for row, text in enumerate(texts) if not text]


def test_a_slice_of_a_column() -> None:
    schema = parse_avro('"string"')
    values = pa.array([sized(b"%d" % index) for index in range(50)] + [None])

    result = avro_decoder(schema, schema).decode(values.slice(40))

    assert result.values.to_pylist() == [str(index) for index in range(40, 50)] + [None]


def test_arrays_of_many_lengths() -> None:
    lists = [[[index] * (index % 5)] * (index * 3 % 8) for index in range(60)]

    def array(items: list[bytes]) -> bytes:
        return (long(len(items)) + b"".join(items) if items else b"") + b"\0"

    values = [array([array([long(number) for number in inner]) for inner in outer]) for outer in lists]

    assert decoded(NESTED_ARRAYS, values).values.to_pylist() == lists


# Faults

TOO_LONG = "reaches over the end"


@pytest.mark.parametrize(
    ("schema", "good", "bad", "cause"),
    [
        ("boolean", b"\0", b"\2", "a boolean is neither 0 nor 1"),
        ("boolean", b"\0", b"", "ends before its last field"),
        ("boolean", b"\0", b"\1\0", "bytes follow"),
        ("int", long(1), b"", "ends before its last field"),
        ("int", long(1), b"\x80", "ends before its last field"),
        ("int", long(1), long(2**31), "more than 32 bits"),
        ("long", long(1), b"\xff" * 10 + b"\1", "more than 64 bits"),
        ("long", long(1), b"\xff" * 9 + b"\2", "more than 64 bits"),
        ("float", bytes(4), bytes(3), "ends before its last field"),
        ("double", bytes(8), bytes(9), "bytes follow"),
        ("string", sized(b"a"), long(2) + b"a", TOO_LONG),
        ("string", sized(b"a"), long(-1), "is negative"),
        ("string", sized(b"a"), long(2**62) + b"a", TOO_LONG),
        ("string", sized(b"\xc3\xa4"), sized(b"\xc3"), "not UTF-8"),
        ("string", sized(b"\xc3\xa4"), sized(b"\xed\xa0\x80"), "not UTF-8"),
        (NULLABLE, long(1) + sized(b"\xc3\xa4"), long(1) + sized(b"\xc3"), "not UTF-8"),
        (NULLABLE, long(0), long(2), "a branch that is not in the schema"),
        (NULLABLE, long(0), long(-1), "a branch that is not in the schema"),
        (ENUM, long(1), long(2), "a symbol that is not in the schema"),
        (ENUM, long(1), long(-1), "a symbol that is not in the schema"),
        ({"type": "enum", "name": "E", "symbols": []}, None, long(0), "a symbol that is not in the schema"),
        ({"type": "fixed", "name": "F", "size": 3}, b"abc", b"ab", "ends before its last field"),
        ({"type": "fixed", "name": "F", "size": 2**31 - 1}, None, b"ab", "ends before its last field"),
        (decimal(2, 0), sized(b"\x63"), sized(b"\x64"), "more digits than its type"),
        (decimal(2, 0), sized(b"\x9d"), sized(b"\x9c"), "more digits than its type"),
        (decimal(2, 0), sized(b"\x63"), sized(b""), "has no bytes"),
        (decimal(38, 0), sized(b"\1"), sized(b"\1" + bytes(16)), "more digits than its type"),
        (decimal(64, 2), sized((10**38 - 1).to_bytes(16)), sized((10**38).to_bytes(16)), "more digits than its type"),
        (decimal(38, 0), sized(b"\1"), sized(b"\0" + b"\xff" * 16), "more digits than its type"),
        (MILLIS, long(1), long(2**62), "does not fit 64 bits"),
        (INTS, b"\0", long(1), "items is larger"),
        (INTS, b"\0", long(2**60) + long(1) + b"\0", "items is larger"),
        (INTS, b"\0", long(-(2**63)) + long(1) + b"\0", "items is larger"),
        (INTS, b"\0", long(-1) + long(2) + long(1) + b"\0", "another size than it says"),
        (INTS, b"\0", long(1) + b"\x80\0", "ends before its last field"),
        (NULLS, long(9) + b"\0", long(10_001) + b"\0", "too many items without bytes"),
        (NULLS, long(9) + b"\0", long(6_000) + long(6_000) + b"\0", "too many items without bytes"),
        ({"type": "array", "items": "string"}, b"\0", long(1) + long(5) + b"a\0", TOO_LONG),
        ({"type": "array", "items": "string"}, b"\0", long(1) + sized(b"\xff") + b"\0", "not UTF-8"),
        (MAP, b"\0", long(1) + long(-4) + long(1) + b"\0", "is negative"),
    ],
)
def test_a_fault_concerns_its_row_alone(schema: Any, good: bytes | None, bad: bytes, cause: str) -> None:
    expected = decoded(schema, [good]).values[0]

    result = decoded(schema, [good, bad, good, good, bad])

    assert [fault.row for fault in result.faults] == [1, 4]
    assert all(cause in fault.cause for fault in result.faults), result.faults
    assert [result.values[row] for row in (0, 2, 3)] == [expected] * 3
    assert [result.values[row].is_valid for row in (1, 4)] == [False] * 2


def test_a_fault_names_the_field() -> None:
    schema = record(a="int", b={"type": "array", "items": record(c="string") | {"name": "S"}})

    result = decoded(schema, [long(1) + long(1) + sized(b"\xff") + b"\0"])

    assert [fault.cause for fault in result.faults] == ["field 'b.element.c': a string is not UTF-8"]


def test_the_first_fault_of_a_row_is_its_cause() -> None:
    result = decoded(record(a="boolean", b="boolean", c="string"), [b"\2\3" + long(-1)])

    assert [fault.cause for fault in result.faults] == ["field 'a': a boolean is neither 0 nor 1"]


# Bounds


@as_usual
@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ("string", long(2**31) + b"a"),
        ({"type": "array", "items": "long"}, long(2**40) + b"a"),
        (NULLS, long(2**40) + b"\0"),
        (
            {"type": "array", "items": {"type": "array", "items": "null"}},
            long(10_000) + (long(100) + b"\0") * 10_000 + b"\0",
        ),
        (NULLS, long(1) * 500_000 + b"\0"),
        ({"type": "fixed", "name": "F", "size": 2**31 - 1}, b"abc"),
    ],
)
def test_a_length_allocates_nothing(schema: Any, value: bytes) -> None:
    tracemalloc.start()
    result = decoded(schema, [value])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert len(result.faults) == 1
    assert peak < 10_000_000


def test_items_without_bytes_of_many_values_are_not_held_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_cursor, "MAX_EMPTY_ITEMS_OF_CHUNK", 20_000)
    values = [long(count) + b"\0" for count in (10_000, 1, 10_001, 10_000, 9_000, 2)]
    result = decoded(NULLS, values)

    assert [fault.row for fault in result.faults] == [2]
    assert [None if value is None else len(value) for value in result.values.to_pylist()] == [
        10_000,
        1,
        None,
        10_000,
        9_000,
        2,
    ]


@as_usual
@pytest.mark.parametrize("schema", [{"type": "array", "items": "long"}, {"type": "array", "items": ["null", "string"]}])
@pytest.mark.timeout(60)
def test_a_long_array_does_not_take_a_round_for_each_item(schema: Any) -> None:
    count = 200_000
    value = long(count) + b"\0" * count + b"\0"

    result = avro_decoder(parse_avro(json.dumps(schema)), parse_avro(json.dumps(schema))).decode(pa.array([value]))

    assert len(result.values[0]) == count
