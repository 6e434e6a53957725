"""Descriptors become types, or one sentence says why not."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pytest

pytest.importorskip("google.protobuf")

from google.protobuf import descriptor_pb2  # type: ignore[import-untyped, unused-ignore]

from pyspark_kafka_meta.errors import ValueSchemaError
from pyspark_kafka_meta.typed.protobuf.decoder import protobuf_decoder
from pyspark_kafka_meta.typed.protobuf.schema import (
    ProtobufSchema,
    arrow_type,
    columns,
    descriptor_set,
    message_name,
    parse_protobuf,
    without_names,
)
from tests.unit.typed.protobuf.cases import FieldProto, RandomSchema, file_of


def sized(tag: int, content: bytes) -> bytes:
    return bytes([tag, len(content)]) + content


def nested_file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="n.proto", package="shop", syntax="proto3")
    file.message_type.add(name="First")
    second = file.message_type.add(name="Second")
    second.nested_type.add(name="Inner").field.add(name="x", number=1, type=FieldProto.TYPE_INT32, label=1)
    return file


def test_first_message_of_the_last_file_is_read_by_default() -> None:
    descriptor = descriptor_set([file_of("proto3", []), nested_file().SerializeToString()])
    assert parse_protobuf(descriptor).message == "shop.First"


def test_message_indexes_name_nested_types() -> None:
    descriptor = descriptor_set([nested_file().SerializeToString()])
    assert message_name(descriptor, [1, 0]) == "shop.Second.Inner"
    assert arrow_type(parse_protobuf(descriptor, "shop.Second.Inner")) == pa.struct([("x", pa.int32())])
    with pytest.raises(IndexError, match=r"\[1, 1\]"):
        message_name(descriptor, [1, 1])


@pytest.mark.parametrize(("indexes", "name"), [([0, 1], "A"), ([0, 2], "B"), ([0, 0], "A")])
def test_message_indexes_count_entries_of_maps_or_not(indexes: list[int], name: str) -> None:
    """The library's Java serializer does not, with normalize.schemas."""
    file = nested_file()
    first = file.message_type[0]
    first.nested_type.add(name="TagsEntry").options.map_entry = True
    first.nested_type.add(name="A")
    first.nested_type.add(name="B")
    assert message_name(descriptor_set([file.SerializeToString()]), indexes) == f"shop.First.{name}"


def test_unknown_message_type_is_refused() -> None:
    with pytest.raises(ValueSchemaError, match=r"no message type shop\.Third\. It has shop\.First, shop\.Second"):
        parse_protobuf(descriptor_set([nested_file().SerializeToString()]), "shop.Third")


def recursive_file() -> descriptor_pb2.FileDescriptorProto:
    """First has a Second, which has Firsts and an id."""
    file = nested_file()
    first, second = file.message_type
    first.field.add(name="s", number=1, type=FieldProto.TYPE_MESSAGE, type_name=".shop.Second", label=1)
    second.field.add(name="f", number=1, type=FieldProto.TYPE_MESSAGE, type_name=".shop.First", label=3)
    second.field.add(name="id", number=2, type=FieldProto.TYPE_INT32, label=1)
    return file


def recursive_schema(max_depth: int = 1) -> ProtobufSchema:
    return replace(parse_protobuf(descriptor_set([recursive_file().SerializeToString()])), max_depth=max_depth)


def test_recursive_field_is_left_out_by_name() -> None:
    schema = recursive_schema()
    assert arrow_type(schema) == pa.struct([("s", pa.struct([("id", pa.int32())]))])
    (field, why) = next(iter(columns(schema)[1].items()))
    assert field == "shop.Second.f"
    assert why.startswith("its type is recursive (shop.First > shop.Second > shop.First)")


def test_recursive_type_is_read_as_deep_as_the_option_says() -> None:
    schema = recursive_schema(2)
    inner = pa.struct([("s", pa.struct([("id", pa.int32())]))])
    firsts = pa.list_(pa.field("element", inner, nullable=False))
    assert arrow_type(schema) == pa.struct([("s", pa.struct([("f", firsts), ("id", pa.int32())]))])
    value = sized(0x0A, sized(0x0A, sized(0x0A, sized(0x0A, b"") + b"\x10\x09")) + b"\x10\x07")
    values, faults = protobuf_decoder(schema, schema).decode(pa.array([value]))
    assert faults == []
    assert values.to_pylist() == [{"s": {"f": [{"s": {"id": 9}}], "id": 7}}]


@pytest.mark.parametrize(
    ("old", "new", "are_equal"),
    [
        (b"shop", b"mall", True),
        (b"Second", b"Minute", True),
        (b"n.proto", b"m.proto", True),
        (b"proto3", b"proto3" + sized(0x4A, sized(0x0A, sized(0x1A, b"comment"))), True),
        (sized(0x42, b"\x10\x00"), sized(0x42, b"\x10\x01"), True),  # packed
        (sized(0x0A, b"id"), sized(0x0A, b"no"), False),
        (b"RED", b"RAD", False),
        (b"Color", b"Shade", False),  # in the names of unknown numbers
        (b"StringValue", b"UInt64Value", False),
        (b"\x18\x05", b"\x18\x06", False),  # the number of a field
    ],
)
def test_schemas_that_are_read_in_the_same_way_are_equal(old: bytes, new: bytes, are_equal: bool) -> None:
    file = recursive_file()
    file.message_type[0].field.add(name="n", number=5, type=FieldProto.TYPE_INT64, label=3).options.packed = False
    for name, type_ in (("c", "shop.Color"), ("w", "google.protobuf.StringValue")):
        kind = FieldProto.TYPE_ENUM if name == "c" else FieldProto.TYPE_MESSAGE
        file.message_type[1].field.add(name=name, number=ord(name), type=kind, type_name=f".{type_}", label=1)
    file.enum_type.add(name="Color").value.add(name="RED", number=0)
    first = file.SerializeToString()
    assert old in first
    schemas = [parse_protobuf(descriptor_set([each])) for each in (first, first.replace(old, new))]
    assert (without_names(schemas[0]) == without_names(schemas[1])) is are_equal


def test_field_of_a_missing_type_is_left_out_by_name() -> None:
    file = nested_file()
    first = file.message_type[0]
    first.field.add(name="s", number=1, type=FieldProto.TYPE_MESSAGE, type_name=".other.Type", label=1)
    first.field.add(name="id", number=2, type=FieldProto.TYPE_INT32, label=1)
    schema = parse_protobuf(descriptor_set([file.SerializeToString()]))
    assert columns(schema)[1] == {"shop.First.s": "the Protobuf schema lacks its type other.Type"}
    values, faults = protobuf_decoder(schema, schema).decode(pa.array([sized(0x0A, b"xyz") + b"\x10\x07"]))
    assert (values.to_pylist(), faults) == ([{"id": 7}], [])


def test_doubling_types_are_refused_before_they_fill_the_memory() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="d.proto", syntax="proto3")
    for level in range(60):
        message = file.message_type.add(name=f"L{level}")
        for name, number in (("a", 1), ("b", 2)):
            field = message.field.add(name=name, number=number, label=1, type=FieldProto.TYPE_INT32)
            if level < 59:
                field.type, field.type_name = FieldProto.TYPE_MESSAGE, f".L{level + 1}"
    with pytest.raises(ValueSchemaError, match="over 100000 columns"):
        arrow_type(parse_protobuf(descriptor_set([file.SerializeToString()]), "L0"))


def test_types_are_those_of_sparks_from_protobuf() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", syntax="proto2")
    message = file.message_type.add(name="M")
    message.field.add(name="id", number=1, type=FieldProto.TYPE_SINT64, label=FieldProto.LABEL_REQUIRED)
    message.field.add(name="tags", number=2, type=FieldProto.TYPE_STRING, label=FieldProto.LABEL_REPEATED)
    for name, number, known in (
        ("at", 3, "Timestamp"),
        ("took", 4, "Duration"),
        ("count", 5, "Int32Value"),
        ("no", 6, "Empty"),
    ):
        message.field.add(
            name=name, number=number, type=FieldProto.TYPE_MESSAGE, type_name=f".google.protobuf.{known}", label=1
        )
    assert arrow_type(parse_protobuf(descriptor_set([file.SerializeToString()]))) == pa.struct(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("tags", pa.list_(pa.field("element", pa.string(), nullable=False))),
            pa.field("at", pa.timestamp("us", "UTC")),
            pa.field("took", pa.duration("us")),
            pa.field("count", pa.struct([("value", pa.int32())])),
        ]
    )


@pytest.mark.parametrize(
    ("feature", "value", "absent"), [("field_presence", "IMPLICIT", 0), ("field_presence", "EXPLICIT", None)]
)
def test_features_of_editions_decide_presence(feature: str, value: str, absent: object) -> None:
    file = descriptor_pb2.FileDescriptorProto(name="e.proto", syntax="editions", edition=descriptor_pb2.EDITION_2023)
    field = file.message_type.add(name="M").field.add(name="x", number=1, type=FieldProto.TYPE_INT32, label=1)
    setattr(field.options.features, feature, descriptor_pb2.FeatureSet.FieldPresence.Value(value))
    schema = parse_protobuf(descriptor_set([file.SerializeToString()]))
    assert protobuf_decoder(schema, schema).decode(pa.array([b""])).values.to_pylist() == [{"x": absent}]


def test_mutated_descriptors_are_read_or_refused() -> None:
    chance = random.Random(1)
    for seed in range(300):
        descriptor = bytearray(descriptor_set(RandomSchema(seed % 30).files))
        for _ in range(chance.randint(1, 4)):
            descriptor[chance.randrange(len(descriptor))] = chance.randrange(256)
        with suppress(ValueSchemaError):
            schema = parse_protobuf(bytes(descriptor))
            protobuf_decoder(schema, schema)


@pytest.mark.parametrize(
    ("kind", "default"),
    [(FieldProto.TYPE_INT32, "x"), (FieldProto.TYPE_INT32, "3000000000"), (FieldProto.TYPE_BYTES, "é")],
)
def test_default_of_another_type_is_refused(kind: int, default: str) -> None:
    file = descriptor_pb2.FileDescriptorProto(name="d.proto", syntax="proto2")
    file.message_type.add(name="M").field.add(name="x", number=1, type=kind, label=1, default_value=default)
    schema = parse_protobuf(descriptor_set([file.SerializeToString()]))
    with pytest.raises(ValueSchemaError, match=r"field x has a default value that is no (int32|bytes)\."):
        protobuf_decoder(schema, schema)


@pytest.mark.parametrize(("name", "number"), [("x", 2), ("y", 1)])
def test_fields_of_one_name_or_number_are_refused(name: str, number: int) -> None:
    file = file_of("proto3", [("x", 1, FieldProto.TYPE_INT32), (name, number, FieldProto.TYPE_INT32)])
    with pytest.raises(ValueSchemaError, match="M has two fields of one name or number"):
        parse_protobuf(descriptor_set([file]))


def test_keys_of_maps_are_scalars() -> None:
    file = descriptor_pb2.FileDescriptorProto.FromString(file_of("proto3", []))
    entry = file.message_type[0].nested_type.add(name="E")
    entry.options.map_entry = True
    for name, number in (("key", 1), ("value", 2)):
        entry.field.add(name=name, number=number, type=FieldProto.TYPE_MESSAGE, type_name=".M", label=1)
    with pytest.raises(ValueSchemaError, match=r"M\.E is no map entry"):
        parse_protobuf(descriptor_set([file.SerializeToString()]))


@pytest.mark.parametrize("label", [FieldProto.LABEL_OPTIONAL, FieldProto.LABEL_REPEATED])
def test_writers_schema_may_lack_an_imported_type(label: int) -> None:
    """Confluent's registry keeps no files of google.type."""
    file = nested_file()
    other = descriptor_pb2.FileDescriptorProto(name="o.proto", package="other", syntax="proto3")
    other.message_type.add(name="Type").field.add(name="x", number=1, type=FieldProto.TYPE_INT32, label=1)
    file.message_type[0].field.add(
        name="s", number=1, type=FieldProto.TYPE_MESSAGE, type_name=".other.Type", label=label
    )
    files = [other.SerializeToString(), file.SerializeToString()]
    writer, reader = parse_protobuf(descriptor_set(files[1:])), parse_protobuf(descriptor_set(files))
    value = {"x": 5}
    expected = {"s": [value] if label == FieldProto.LABEL_REPEATED else value}
    assert protobuf_decoder(writer, reader).decode(pa.array([b"\x0a\x02\x08\x05"])).values.to_pylist() == [expected]
