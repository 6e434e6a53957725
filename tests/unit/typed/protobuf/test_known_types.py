"""Known types, whose files registries do not keep, are columns of their own; groups are messages."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytest.importorskip("google.protobuf")

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory, struct_pb2  # type: ignore[import-untyped, unused-ignore]

from pyspark_kafka_meta.typed.columnar.varints import varint_bytes
from pyspark_kafka_meta.typed.formats import UnwritableValueError
from pyspark_kafka_meta.typed.protobuf.decoder import protobuf_decoder
from pyspark_kafka_meta.typed.protobuf.encoder import protobuf_encoder
from pyspark_kafka_meta.typed.protobuf.schema import ProtobufSchema, arrow_type, descriptor_set, parse_protobuf
from tests.unit.typed.protobuf.cases import FieldProto

FileProto = descriptor_pb2.FileDescriptorProto


def sized(tag: int, content: bytes) -> bytes:
    return bytes([tag]) + varint_bytes(len(content)) + content


def schema_of(file: Any) -> ProtobufSchema:
    return parse_protobuf(descriptor_set([file.SerializeToString()]))


def file_of_types(*types: str, label: int = 1) -> Any:
    """A message M with a field a, b ... of each type, whose file is imported."""
    file = FileProto(name="m.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="M")
    for number, name in enumerate(types, 1):
        message.field.add(name="abcdefgh"[number - 1], number=number, label=label, type=11, type_name=f".{name}")
    return file


def read(schema: ProtobufSchema, *payloads: bytes) -> tuple[list[Any], list[str]]:
    values, faults = protobuf_decoder(schema, schema).decode(pa.array(payloads, pa.binary()))
    values.validate(full=True)
    return values.to_pylist(), [fault.cause for fault in faults]


def written(schema: ProtobufSchema, rows: list[Any]) -> list[bytes]:
    type_ = arrow_type(schema)
    encoded: list[bytes] = protobuf_encoder(schema, type_).encode(pa.array(rows, type_)).to_pylist()
    return encoded


def test_dates_decimals_money_and_times_are_columns() -> None:
    file = file_of_types(
        "google.type.Date",
        "confluent.type.Decimal",
        "google.type.Decimal",
        "google.type.Money",
        "google.type.TimeOfDay",
        "google.type.PhoneNumber",
    )
    schema = schema_of(file)
    money = pa.struct([("currency_code", pa.string()), ("units", pa.int64()), ("nanos", pa.int32())])
    type_ = arrow_type(schema)
    assert [type_[name].type for name in "abcd"] == [pa.date32(), pa.decimal128(38, 18), pa.decimal128(38, 18), money]
    assert [field.name for field in type_["e"].type] == ["hours", "minutes", "seconds", "nanos"]
    row = (
        sized(0x0A, b"\x08\xe8\x0f\x10\x02\x18\x1d")
        + sized(0x12, sized(0x0A, (-12345).to_bytes(3, "big", signed=True)) + b"\x10\x05\x18\x02")
        + sized(0x1A, sized(0x0A, b"1.5e3"))
        + sized(0x22, sized(0x0A, b"EUR") + b"\x10\x07")
        + sized(0x32, sized(0x12, sized(0x0A, b"DE") + sized(0x12, b"110")))
    )
    expected = {
        "a": date(2024, 2, 29),
        "b": Decimal("-123.45"),
        "c": Decimal(1500),
        "d": {"currency_code": "EUR", "units": 7, "nanos": 0},
        "e": None,
        "f": {"e164_number": None, "short_code": {"region_code": "DE", "number": "110"}, "extension": ""},
    }
    assert read(schema, row) == ([expected], [])
    assert read(schema, *written(schema, [expected])) == ([expected], [])


def test_a_decimal_has_the_digits_that_kafka_connect_notes() -> None:
    file = file_of_types("confluent.type.Decimal", "confluent.type.Decimal")
    params = b"".join(
        sized(0x12, sized(0x0A, name) + sized(0x12, text)) for name, text in ((b"precision", b"10"), (b"scale", b"2"))
    )
    file.message_type[0].field[0].options.MergeFromString(varint_bytes(1088 << 3 | 2) + sized(0, params)[1:])
    schema = schema_of(file)
    assert arrow_type(schema)["a"].type == pa.decimal128(10, 2)
    value = sized(0x0A, sized(0x0A, b"\x04\xd2") + b"\x10\x04\x18\x02")
    assert read(schema, value) == ([{"a": Decimal("12.34"), "b": None}], [])
    assert written(schema, [{"a": Decimal("12.34"), "b": None}]) == [
        sized(0x0A, sized(0x0A, b"\x04\xd2") + b"\x10\x0a\x18\x02")
    ]


@pytest.mark.parametrize(
    ("name", "content", "cause"),
    [
        ("google.type.Date", b"\x10\x02", "a: a date has no year, month or day, or does not exist"),
        ("google.type.Date", b"\x08\xe7\x0f\x10\x02\x18\x1d", "a: a date has no year"),
        ("google.type.Decimal", sized(0x0A, b"x"), "a: a decimal is none"),
        ("google.type.Decimal", sized(0x0A, b"NaN"), "a: a decimal is none"),
        ("google.type.Decimal", sized(0x0A, b"1e-999999999"), "a: a decimal is none, or has more digits"),
        ("confluent.type.Decimal", sized(0x0A, b"\x7f" * 17), "a: a decimal has more digits than its column"),
        ("confluent.type.Decimal", sized(0x0A, b"\x01") + b"\x18\xff\xff\xff\xff\x07", "a: a decimal has more digits"),
        ("google.protobuf.Value", b"\x11" + b"\xff" * 8, "a: JSON has no infinite numbers and no NaN"),
        ("google.protobuf.Value", b"\x1a\x01\xff", "a: a string is not UTF-8"),
        ("google.protobuf.Struct", b"\x0a\x05\x0a", "a: a field continues after the end of its message"),
    ],
)
def test_values_without_a_column_are_faults(name: str, content: bytes, cause: str) -> None:
    good = sized(0x0A, b"") if name == "google.type.Decimal" else b""
    values, causes = read(schema_of(file_of_types(name)), good, sized(0x0A, content), good)
    assert [value is None for value in values] == [False, True, False]
    assert causes[0].startswith(cause)


def test_deep_json_is_a_fault() -> None:
    content = b"\x20\x01"
    for _ in range(120):
        content = sized(0x32, sized(0x0A, content))
    _, (cause,) = read(schema_of(file_of_types("google.protobuf.Value")), sized(0x0A, content))
    assert cause == "a: its JSON has more than 100 nested messages"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)  # fmt: skip


@given(value=JSON, fields=st.dictionaries(st.text(), JSON, max_size=3), items=st.lists(JSON, max_size=3))
@example(value=-0.0, fields={}, items=[])
@settings(max_examples=50, deadline=None)
def test_struct_value_and_list_are_protobufs_json_text(value: Any, fields: dict[str, Any], items: list[Any]) -> None:
    file = file_of_types("google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue")
    more = file_of_types(*["google.protobuf.Value"] * 4, label=3).message_type[0].field[3]
    file.message_type[0].field.append(more)
    file.dependency.append("google/protobuf/struct.proto")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(struct_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.M"))
    sent = json_format.ParseDict({"a": fields, "b": value, "c": items, "d": items}, message())
    schema = schema_of(file)
    (row,), faults = read(schema, sent.SerializeToString())
    assert faults == []
    read_back = {"a": json.loads(row["a"]), "b": json.loads(row["b"]), "c": json.loads(row["c"])}
    assert read_back == {"a": fields, "b": value, "c": items}
    assert [json.loads(item) for item in row["d"]] == items
    assert message.FromString(written(schema, [row])[0]) == sent


def test_parts_of_a_struct_are_merged_and_absent_values_are_null() -> None:
    file = file_of_types("google.protobuf.Struct", "google.protobuf.Value")
    schema = schema_of(file)
    one, other = (sized(0x0A, sized(0x0A, sized(0x0A, key) + sized(0x12, b"\x20\x01"))) for key in (b"x", b"y"))
    assert read(schema, one + sized(0x12, b"") + other, b"") == (
        [{"a": '{"x":true,"y":true}', "b": "null"}, {"a": None, "b": None}],
        [],
    )


@given(values=st.lists(JSON, min_size=2, max_size=4))
@settings(max_examples=50, deadline=None)
def test_parts_of_a_value_are_merged_as_by_protobufs_library(values: list[Any]) -> None:
    parts = [json_format.ParseDict(value, struct_pb2.Value()).SerializeToString() for value in values]
    expected = json_format.MessageToDict(struct_pb2.Value.FromString(b"".join(parts)))
    (row,), faults = read(
        schema_of(file_of_types("google.protobuf.Value")), b"".join(sized(0x0A, part) for part in parts)
    )
    assert faults == []
    assert json.loads(row["a"]) == expected


@pytest.mark.parametrize("text", ["{", "[1]", "NaN", '{"a":1e999}'])
def test_text_that_is_no_struct_is_not_written(text: str) -> None:
    with pytest.raises(UnwritableValueError, match="row 0: field a is no JSON that google"):
        written(schema_of(file_of_types("google.protobuf.Struct")), [{"a": text}])


@pytest.mark.parametrize("is_edition", [False, True])
def test_groups_are_messages(is_edition: bool) -> None:
    file = FileProto(name="g.proto", package="g", syntax="editions" if is_edition else "proto2")
    message = file.message_type.add(name="M")
    inner = message.nested_type.add(name="Part")
    inner.field.add(name="x", number=1, label=1, type=FieldProto.TYPE_INT32)
    inner.field.add(name="s", number=2, label=1, type=FieldProto.TYPE_STRING)
    kind = FieldProto.TYPE_MESSAGE if is_edition else FieldProto.TYPE_GROUP
    for name, number, label in (("part", 1, 1), ("parts", 20, 3)):
        field = message.field.add(name=name, number=number, label=label, type=kind, type_name=".g.M.Part")
        if is_edition:
            field.options.features.message_encoding = descriptor_pb2.FeatureSet.DELIMITED
    inner.field.add(name="deep", number=3, label=1, type=kind, type_name=".g.M.Deep")
    if is_edition:
        file.edition = descriptor_pb2.EDITION_2023
        inner.field[2].options.features.message_encoding = descriptor_pb2.FeatureSet.DELIMITED
    message.nested_type.add(name="Deep").field.add(name="y", number=1, label=1, type=FieldProto.TYPE_INT32)
    message.field.add(name="id", number=21, label=1, type=FieldProto.TYPE_INT32)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    library = message_factory.GetMessageClass(pool.FindMessageTypeByName("g.M"))
    rows = [
        {"part": {"x": 5, "s": "é", "deep": {"y": 1}}, "parts": [{"x": 1, "s": None, "deep": None}] * 2, "id": 3},
        {"part": None, "parts": [], "id": None},
    ]
    sent = [library(), library()]
    sent[0].part.x, sent[0].part.s, sent[0].part.deep.y, sent[0].id = 5, "é", 1, 3
    for _ in range(2):
        sent[0].parts.add(x=1)
    schema = schema_of(file)
    payloads = [each.SerializeToString() for each in sent]
    assert read(schema, *payloads * 20) == (rows * 20, [])
    assert written(schema, rows) == payloads
    assert read(schema, payloads[0][:7])[1] == ["a group does not end where it should"]
