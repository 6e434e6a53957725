"""Encoded columns equal what Protobuf's own library writes; what cannot be written is refused with its field."""

from __future__ import annotations

import pickle
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("google.protobuf")

from google.protobuf import descriptor_pb2, text_format  # type: ignore[import-untyped, unused-ignore]

from pyspark_kafka_meta.errors import ValueSchemaError
from pyspark_kafka_meta.typed.formats import UnwritableValueError
from pyspark_kafka_meta.typed.protobuf.decoder import protobuf_decoder
from pyspark_kafka_meta.typed.protobuf.encoder import protobuf_encoder
from pyspark_kafka_meta.typed.protobuf.schema import ProtobufSchema, descriptor_set, parse_protobuf
from tests.budget import cases
from tests.unit.typed.protobuf.cases import RandomSchema

ROWS = 50
UTC_US, MICROS = pa.timestamp("us", "UTC"), pa.duration("us")
FILE = """
    package: "shop" dependency: "google/protobuf/timestamp.proto" dependency: "google/protobuf/duration.proto"
    enum_type { name: "Color" value { name: "RED" number: 0 } value { name: "BLUE" number: 3 }
        value { name: "AZURE" number: 3 } options { allow_alias: true } }
"""
"""Of a proto3 file, to which tests add message types."""
LABELS = {"optional": 1, "required": 2, "repeated": 3}


def field(name: str, number: int, kind: str, label: str = "optional", more: str = "") -> str:
    """A FieldDescriptorProto as text; a kind in capitals is a message type, Color the enum."""
    types = f"type: TYPE_{kind.upper()}"
    if not kind.islower():
        types = f'type: {"TYPE_ENUM" if kind == "Color" else "TYPE_MESSAGE"} type_name: ".{_full_name(kind)}"'
    return f'field {{ name: "{name}" number: {number} label: LABEL_{label.upper()} {types} {more} }}'


def _full_name(kind: str) -> str:
    return f"google.protobuf.{kind}" if kind in ("Timestamp", "Duration", "Int64Value") else f"shop.{kind}"


def message(name: str, *content: str) -> str:
    return f'message_type {{ name: "{name}" {" ".join(content)} }}'


def schema_of(*messages: str, syntax: str = "proto3") -> ProtobufSchema:
    file = text_format.Parse(f'syntax: "{syntax}" {FILE} {" ".join(messages)}', descriptor_pb2.FileDescriptorProto())
    return parse_protobuf(descriptor_set([file.SerializeToString()]))


def of_field(kind: str, label: str = "optional", more: str = "", syntax: str = "proto3") -> ProtobufSchema:
    """A message M with the field a, beside a message Inner with a number b and, in proto2, a required number c."""
    c = [field("c", 2, "int32", "required")] if syntax == "proto2" else []
    inner = message("Inner", field("b", 1, "int32"), *c)
    return schema_of(message("M", field("a", 1, kind, label, more)), inner, syntax=syntax)


def struct(**fields: pa.DataType) -> pa.StructType:
    return pa.struct(list(fields.items()))


def encoded(schema: ProtobufSchema, given: pa.DataType, values: list[Any]) -> list[bytes | None]:
    column = pa.array([None, *values, None], given)[1:-1]  # a slice
    array = protobuf_encoder(schema, given).encode(column)
    array.validate(full=True)
    assert array.type == pa.binary()
    data: list[bytes | None] = array.to_pylist()
    return data


def check_seed(seed: int) -> int:
    """Messages of the library, decoded and encoded, are the same bytes. Returns how many."""
    schema = RandomSchema(seed)
    parsed = parse_protobuf(descriptor_set(schema.files), schema.descriptor.full_name)
    payloads = [payload for _ in range(ROWS) if (payload := schema.written_payload()) is not None]
    decoder = protobuf_decoder(parsed, parsed)
    try:
        encoder = protobuf_encoder(parsed, decoder.type)
    except ValueSchemaError as error:  # a message without fields, which is no column
        assert "is missing, and the Protobuf schema requires it" in str(error), seed
        return 0
    values, faults = decoder.decode(pa.array([None, *payloads, None], pa.binary()))
    assert faults == [], seed
    written = encoder.encode(values[1:])
    written.validate(full=True)
    assert written.to_pylist() == [*payloads, None], seed
    return len(payloads)


@pytest.mark.budget
def test_random_messages_are_encoded_as_by_protobufs_library() -> None:
    schemas = cases(20, 40, 540)
    assert sum(map(check_seed, range(schemas))) > 35 * schemas


@pytest.mark.parametrize(
    ("kind", "given_type", "value", "data"),
    [
        ("int32", pa.int8(), -1, b"\x08" + b"\xff" * 9 + b"\x01"),
        ("int64", pa.int32(), 300, b"\x08\xac\x02"),
        ("uint32", pa.int32(), 1, b"\x08\x01"),
        ("uint64", pa.int64(), 1, b"\x08\x01"),
        ("fixed64", pa.decimal128(38, 0), Decimal(2**64 - 1), b"\x09" + b"\xff" * 8),
        ("double", pa.float32(), 1.5, b"\x09\x00\x00\x00\x00\x00\x00\xf8\x3f"),
        ("float", pa.float32(), -0.0, b"\x0d\x00\x00\x00\x80"),
        ("Color", pa.string(), "AZURE", b"\x08\x03"),
        ("Color", pa.string(), "UNKNOWN_ENUM_VALUE_Color_7", b"\x08\x07"),
        ("Color", pa.int32(), 7, b"\x08\x07"),
        ("Timestamp", UTC_US, -1, b"\x0a\x11\x08" + b"\xff" * 9 + b"\x01\x10\x98\x8c\xeb\xdc\x03"),
        ("Timestamp", struct(seconds=pa.int64(), nanos=pa.int32()), {"seconds": 0, "nanos": 1}, b"\x0a\x02\x10\x01"),
        ("Duration", MICROS, -1, b"\x0a\x0b\x10\x98\xf8" + b"\xff" * 7 + b"\x01"),
        ("Int64Value", struct(value=pa.int64()), {"value": 0}, b"\x0a\x00"),
        ("Inner", struct(), {}, b"\x0a\x00"),
    ],
)
def test_value_is_encoded(kind: str, given_type: pa.DataType, value: Any, data: bytes) -> None:
    assert encoded(of_field(kind), struct(a=given_type), [{"a": value}, {"a": None}, None]) == [data, b"", None]


@pytest.mark.parametrize(("kind", "small"), [("string", pa.string()), ("bytes", pa.binary())])
def test_large_types_of_spark_are_written(kind: str, small: pa.DataType) -> None:
    """Of `spark.sql.execution.arrow.useLargeVarTypes`, which the driver does not know of."""
    large = pa.large_string() if kind == "string" else pa.large_binary()
    values = pa.array([{"a": b"bc"}, {"a": b""}, None], struct(a=large))
    encoder = protobuf_encoder(of_field(kind), struct(a=small))
    assert encoder.encode(values).to_pylist() == [b"\x0a\x02bc", b"", None]


def test_presence_decides_whether_zero_is_written() -> None:
    values = [{"a": 0}, {"a": None}]
    given_type = struct(a=pa.int32())
    assert encoded(of_field("int32"), given_type, values) == [b"", b""]
    assert encoded(of_field("int32", syntax="proto2"), given_type, values) == [b"\x08\x00", b""]
    default = of_field("int32", more='default_value: "5"', syntax="proto2")
    assert encoded(default, given_type, [*values, {"a": 5}]) == [b"\x08\x00", b"", b"\x08\x05"]
    optional = of_field("int32", more="proto3_optional: true oneof_index: 0")
    assert encoded(optional, given_type, values) == [b"\x08\x00", b""]


def test_repeated_numbers_are_packed_as_the_schema_says() -> None:
    given_type, values = struct(a=pa.list_(pa.int32())), [{"a": [1, 0]}, {"a": []}, {"a": None}]
    assert encoded(of_field("int32", "repeated"), given_type, values) == [b"\x0a\x02\x01\x00", b"", b""]
    assert encoded(of_field("int32", "repeated", syntax="proto2"), given_type, values) == [
        b"\x08\x01\x08\x00",
        b"",
        b"",
    ]
    unpacked = of_field("int32", "repeated", "options { packed: false }")
    assert encoded(unpacked, given_type, values) == [b"\x08\x01\x08\x00", b"", b""]


def test_fields_are_written_in_the_order_of_their_numbers() -> None:
    schema = schema_of(message("M", field("b", 2, "int32"), field("a", 1, "int32"), field("not_given", 3, "int32")))
    assert encoded(schema, struct(b=pa.int32(), a=pa.int32()), [{"a": 1, "b": 2}]) == [b"\x08\x01\x10\x02"]


def test_field_that_is_always_null_is_not_written() -> None:
    assert encoded(of_field("string"), struct(a=pa.null()), [{"a": None}, None]) == [b"", None]


def test_recursive_type_is_written_to_the_depth_of_the_columns() -> None:
    schema = schema_of(message("M", field("a", 1, "M"), field("b", 2, "int32")))
    assert encoded(schema, struct(a=struct(b=pa.int32())), [{"a": {"b": 1}}]) == [b"\x0a\x02\x10\x01"]


@pytest.mark.parametrize(
    ("kind", "label", "given_type", "problem"),
    [
        ("int32", "optional", pa.int64(), "field a has type int64, which cannot be written as Protobuf int32"),
        ("uint64", "optional", pa.decimal128(20, 1), "which cannot be written as Protobuf uint64"),
        ("float", "optional", pa.float64(), "cannot be written as Protobuf float"),
        ("string", "optional", pa.binary(), "cannot be written as Protobuf string"),
        ("bytes", "optional", pa.string(), "cannot be written as Protobuf bytes"),
        ("bool", "optional", pa.int32(), "cannot be written as Protobuf bool"),
        ("Color", "optional", pa.int64(), "cannot be written as Protobuf enum"),
        ("Timestamp", "optional", pa.timestamp("us"), "cannot be written as Protobuf message google.protobuf.Timest"),
        ("Duration", "optional", UTC_US, "cannot be written as Protobuf message google.protobuf.Duration"),
        ("int32", "repeated", pa.int32(), "cannot be written as Protobuf repeated int32"),
        ("int32", "optional", pa.list_(pa.int32()), "cannot be written as Protobuf int32"),
        ("Inner", "repeated", pa.list_(struct(x=pa.int32())), "a.element.x is not in the Protobuf message shop.Inner"),
        ("string", "required", pa.null(), "field a has type null, which cannot be written as Protobuf string"),
        ("string", "repeated", pa.map_(pa.string(), pa.string()), "cannot be written as Protobuf repeated string"),
        ("Elsewhere", "optional", pa.int32(), "field a has type shop.Elsewhere, which the Protobuf schema lacks"),
    ],
)
def test_column_of_another_type_is_refused(kind: str, label: str, given_type: pa.DataType, problem: str) -> None:
    with pytest.raises(ValueSchemaError, match=problem):
        protobuf_encoder(of_field(kind, label, syntax="proto2"), struct(a=given_type))


def test_columns_that_do_not_fit_the_message_are_refused() -> None:
    schema = of_field("int32", "required", syntax="proto2")
    twice = pa.struct([("a", pa.int32()), ("a", pa.int32())])
    for given_type, problem in (
        (struct(), "field a is missing, and the Protobuf schema requires it: add it"),
        (struct(a=pa.int32(), b=pa.int32()), "field b is not in the Protobuf message shop.M: drop it"),
        (twice, "field a occurs twice"),
        (pa.int32(), "the value has type int32, which cannot be written as Protobuf message shop.M"),
    ):
        with pytest.raises(ValueSchemaError, match=problem):
            protobuf_encoder(schema, given_type)


@pytest.mark.parametrize(
    ("kind", "label", "given_type", "good", "bad", "problem"),
    [
        ("int32", "required", pa.int32(), 1, None, "field m.a is null, and the schema does not allow null"),
        ("uint32", "optional", pa.int64(), 2**32 - 1, 2**32, "field m.a is not in the range of Protobuf uint32"),
        ("uint32", "optional", pa.int64(), 0, -1, "field m.a is not in the range of Protobuf uint32"),
        ("uint64", "optional", pa.decimal128(20, 0), Decimal(1), Decimal(2**64), "not in the range of Protobuf uint64"),
        ("fixed64", "optional", pa.decimal128(20, 0), None, Decimal(-1), "not in the range of Protobuf fixed64"),
        ("Color", "optional", pa.string(), "RED", "GREEN", "field m.a is not in the enum shop.Color"),
        ("Color", "optional", pa.string(), "RED", "UNKNOWN_ENUM_VALUE_Color_7", "is not in the enum shop.Color"),
        ("Color", "optional", pa.int32(), 3, 4, "is not in the enum shop.Color"),
        ("Inner", "optional", struct(c=pa.int32()), {"c": 0}, {}, "field m.a.c is null"),
        ("int32", "repeated", pa.list_(pa.int32()), [1, 2], [1, None], "field m.a.element is null"),
        ("Inner", "repeated", pa.list_(struct(c=pa.int32())), [{"c": 1}] * 3, [{"c": 1}, {}], "m.a.element.c is null"),
    ],
)
def test_value_that_does_not_fit_is_refused_with_its_row(
    kind: str, label: str, given_type: pa.DataType, good: Any, bad: Any, problem: str
) -> None:
    """Also in a message that is absent in earlier rows."""
    more = [message("Outer", field("m", 1, "M"))]
    inner = message("Inner", field("c", 1, "int32", "required"))
    schema = schema_of(*more, message("M", field("a", 1, kind, label)), inner, syntax="proto2")
    rows = [{"m": {"a": good}}, {"m": None}, {"m": {"a": good}}, {"m": {"a": bad}}, {"m": {"a": good}}]
    with pytest.raises(UnwritableValueError, match=f"^row 3: .*{problem}"):
        encoded(schema, struct(m=struct(a=given_type)), rows)
    assert len(encoded(schema, struct(m=struct(a=given_type)), rows[:3])) == 3


def test_oneof_has_one_field_at_most() -> None:
    fields = (field(name, number, "int32", more="oneof_index: 0") for number, name in enumerate("ab", 1))
    schema = schema_of(message("M", *fields, 'oneof_decl { name: "side" }'))
    given_type = struct(a=pa.int32(), b=pa.int32())
    assert encoded(schema, given_type, [{"a": 0}, {"b": 1}, {}]) == [b"\x08\x00", b"\x10\x01", b""]
    with pytest.raises(UnwritableValueError, match=r"^row 1: the value has more than one field of a oneof .* of a, b$"):
        encoded(schema, given_type, [{"a": 0}, {"a": 0, "b": 0}])


def test_string_that_is_not_utf8_is_refused() -> None:
    strings = pa.array([b"\xc3\xbc", b"\xff"]).view(pa.string())
    column = pa.StructArray.from_arrays([strings], ["a"])
    encoder = protobuf_encoder(of_field("string"), column.type)
    assert encoder.encode(column[:1]).to_pylist() == [b"\x0a\x02\xc3\xbc"]
    with pytest.raises(UnwritableValueError, match=r"^row 1: field a is not UTF-8"):
        encoder.encode(column)


def test_no_rows_and_pickled_encoders() -> None:
    encoder = protobuf_encoder(of_field("Timestamp"), struct(a=UTC_US))
    assert pickle.loads(pickle.dumps(encoder)).encode(pa.array([], struct(a=UTC_US))).to_pylist() == []
