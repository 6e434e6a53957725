"""Descriptors become types, or one sentence says why not."""

from __future__ import annotations

import random
from contextlib import suppress

import pyarrow as pa
import pytest

pytest.importorskip("google.protobuf")

from google.protobuf import descriptor_pb2  # type: ignore[import-untyped, unused-ignore]

from pyspark_kafka_meta.errors import ValueSchemaError
from pyspark_kafka_meta.formats.protobuf_decoder import protobuf_decoder
from pyspark_kafka_meta.formats.protobuf_schema import arrow_type, descriptor_set, message_name, parse_protobuf
from tests.unit.formats.protobuf_cases import FieldProto, RandomSchema, file_of


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


def test_unknown_message_type_is_refused() -> None:
    with pytest.raises(ValueSchemaError, match=r"no message type shop\.Third\. It has shop\.First, shop\.Second"):
        parse_protobuf(descriptor_set([nested_file().SerializeToString()]), "shop.Third")


def test_recursive_type_is_refused_by_name() -> None:
    file = nested_file()
    file.message_type[0].field.add(name="s", number=1, type=FieldProto.TYPE_MESSAGE, type_name=".shop.Second", label=1)
    file.message_type[1].field.add(name="f", number=1, type=FieldProto.TYPE_MESSAGE, type_name=".shop.First", label=3)
    with pytest.raises(
        ValueSchemaError, match=r"shop\.First is recursive \(shop\.First > shop\.Second > shop\.First\)"
    ):
        arrow_type(parse_protobuf(descriptor_set([file.SerializeToString()])))


def test_missing_type_is_named() -> None:
    file = nested_file()
    file.message_type[0].field.add(name="s", number=1, type=FieldProto.TYPE_MESSAGE, type_name=".other.Type", label=1)
    with pytest.raises(ValueSchemaError, match=r"lacks the type other\.Type of shop\.First\.s"):
        arrow_type(parse_protobuf(descriptor_set([file.SerializeToString()])))


def test_group_is_refused() -> None:
    file = nested_file()
    file.message_type[0].field.add(
        name="g", number=1, type=FieldProto.TYPE_GROUP, type_name=".shop.Second.Inner", label=1
    )
    with pytest.raises(ValueSchemaError, match=r"shop\.First\.g is a group"):
        arrow_type(parse_protobuf(descriptor_set([file.SerializeToString()])))


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
    ("feature", "value", "absent"),
    [("field_presence", "IMPLICIT", 0), ("field_presence", "EXPLICIT", None)],
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
            arrow_type(parse_protobuf(bytes(descriptor)))
