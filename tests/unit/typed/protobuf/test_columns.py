"""Protobuf and JSON values in Confluent's frames."""

from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pyspark_kafka_meta.errors import OptionError, ValueSchemaError
from pyspark_kafka_meta.options import Framing, SourceOptions
from pyspark_kafka_meta.testing.mock_registry import MockRegistry
from pyspark_kafka_meta.typed.decoding import ColumnDecoding, Malformed
from pyspark_kafka_meta.typed.formats import Fault, SchemaText
from pyspark_kafka_meta.typed.framing import HeaderFrames, guid_frame, id_header, without_message_indexes
from pyspark_kafka_meta.typed.protobuf import Protobuf
from pyspark_kafka_meta.typed.protobuf.schema import descriptor_set
from pyspark_kafka_meta.typed.reading import QuerySchemas, query_schemas


def sized(tag: int, content: bytes) -> bytes:
    return bytes([tag, len(content)]) + content


def message(name: str, field: str, *nested: bytes) -> bytes:
    """A DescriptorProto with one int32 field, of number 1."""
    of_field = sized(0x0A, field.encode()) + bytes([0x18, 1, 0x20, 1, 0x28, 5])
    return sized(0x0A, name.encode()) + sized(0x12, of_field) + b"".join(sized(0x1A, each) for each in nested)


FILE = (
    sized(0x0A, b"shop.proto")
    + sized(0x12, b"shop")
    + sized(0x22, message("Order", "id"))
    + sized(0x22, message("Refund", "amount", message("Part", "number")))
    + sized(0x62, b"proto3")
)
"""message Order { int32 id = 1; } message Refund { int32 amount = 1; message Part { int32 number = 1; } }"""
SET = SchemaText(base64.b64encode(descriptor_set([FILE])).decode())
FRAME = b"\0\0\0\0\1"
GUID = "89791762-2336-4186-9674-299b90a802e2"


def options(registry: MockRegistry | None, **given: str) -> QuerySchemas:
    url = {} if registry is None else {"schema.registry.url": registry.url}
    kafka = {"kafka.bootstrap.servers": "a:1", "subscribe": "t"}
    parsed = SourceOptions.parse({**kafka, **url, **given})
    return query_schemas(parsed.typed, parsed.topics)


@pytest.mark.parametrize(("depth", "columns"), [("1", "id"), ("2", "id next any")])
def test_omitted_field_is_named_in_a_warning(depth: str, columns: str, caplog: pytest.LogCaptureFixture) -> None:
    node = (
        '{"type": "record", "name": "n.Node", "fields": [{"name": "id", "type": "int"}, {"name": "next", "type": '
        '["null", "Node"]}, {"name": "any", "type": {"type": "array", "items": "Node"}}]}'
    )
    given = {"valueFormat": "avro", "valueSchema": node, "recursiveFieldMaxDepth": depth}
    (reader,) = options(None, **given).readers

    assert [field.name for field in reader.schema.type] == columns.split()
    assert "option valueSchema is read without the field n.Node.next: its type is recursive" in caplog.text
    assert "n.Node.any" in caplog.text
    (deeper,) = options(None, **{**given, "recursiveFieldMaxDepth": "3"}).readers
    assert deeper.pin.fingerprint != reader.pin.fingerprint


def test_message_indexes_are_taken_off() -> None:
    payloads = [b"\0a", b"\2\2b", b"\4\2\0c", b"\0", b"", b"\2", b"\3x", b"\xff" * 6]

    indexed = without_message_indexes(pa.array(payloads, pa.binary()))

    assert [indexed.kinds[kind] if kind >= 0 else None for kind in indexed.kind.tolist()] == [
        *[(0,), (1,), (1, 0), (0,)],
        *[None] * 4,
    ]
    assert indexed.payloads.to_pylist() == [b"a", b"b", b"c", b"", b"", b"", b"", b""]
    assert indexed.faults == [Fault(row, "no frame: its message indexes are malformed") for row in range(4, 8)]


@pytest.mark.parametrize(
    ("reader", "field", "read"),
    [((), "id", 0), ("shop.Order", "id", 0), ("shop.Refund", "amount", 1), ("shop.Refund.Part", "number", 2)],
)
def test_message_is_decoded_by_its_type_in_that_schema(reader: str | tuple[int, ...], field: str, read: int) -> None:
    """Fields of other types would fit by their numbers."""
    column = ColumnDecoding(Protobuf(SET._replace(message=reader)), Framing.CONFLUENT, lambda _: SET)
    values = [b"\0\x08\x05", b"\2\2\x08\x07", b"\4\2\0\x08\x09", b"\2\x10\x08\x01"]

    decoded, malformed = column.decode(pa.array([FRAME + value for value in values], pa.binary()))

    assert decoded.to_pylist() == [{field: number} if row == read else None for row, number in enumerate((5, 7, 9, 1))]
    names, name = ["shop.Order", "shop.Refund", "shop.Refund.Part"], reader or "shop.Order"
    causes = {value.row: value.cause for value in malformed}
    assert "no such message type" in causes.pop(3)
    assert causes == {row: f"it is a {other}, not a {name}" for row, other in enumerate(names) if row != read}
    assert {value.schema_id for value in malformed} == {1}


@pytest.mark.parametrize(
    ("name", "raw", "expected"),
    [(b"Sales", b"\0\x08\x05", {"id": 5}), (b"Order", b"\0\x08\x05", {"id": 5}), (b"Sales", b"\2\2\x08\x07", None)],
    ids=["renamed", "same name", "second type"],
)
def test_the_first_message_of_a_file_may_be_renamed(name: bytes, raw: bytes, expected: object) -> None:
    renamed = SchemaText(base64.b64encode(descriptor_set([FILE.replace(b"Order", name)])).decode())
    column = ColumnDecoding(Protobuf(SET), Framing.CONFLUENT, lambda _: renamed)

    assert column.decode(pa.array([FRAME + raw], pa.binary()))[0].to_pylist() == [expected]


def test_a_type_that_the_reader_knows_was_not_renamed() -> None:
    """Another type came first in an earlier version."""
    order, refund = sized(0x22, message("Order", "id")), sized(0x22, message("Refund", "amount"))
    head = sized(0x0A, b"shop.proto") + sized(0x12, b"shop")
    reader, writer = (
        SchemaText(base64.b64encode(descriptor_set([head + types + sized(0x62, b"proto3")])).decode())
        for types in (order + refund, refund)
    )
    column = ColumnDecoding(Protobuf(reader), Framing.CONFLUENT, lambda _: writer)
    assert column.decode(pa.array([FRAME + b"\0\x08\x05"], pa.binary()))[0].to_pylist() == [None]


def test_message_indexes_are_in_the_header_if_the_schema_is() -> None:
    """And values are whole: the first begins as message indexes do."""
    headers = [b"\2\2", b"\2\2", b"", b"\2\2"]
    frames = pa.array([guid_frame(GUID) + indexes for indexes in headers])
    refund = SET._replace(message="shop.Refund")
    column = ColumnDecoding(Protobuf(refund), Framing.CONFLUENT, lambda _: SET)
    values = pa.array([b"\x08\x05", b"\x08\x07", b"\0\x08\x09", b"", FRAME + b"\2\2\x08\x0b"], pa.binary())

    decoded, malformed = column.decode(values, HeaderFrames(id_header("value"), np.arange(4), frames))

    assert decoded.to_pylist() == [{"amount": 5}, {"amount": 7}, None, {"amount": 0}, {"amount": 11}]
    assert malformed == [Malformed(2, f"no frame: its message indexes are malformed (schema GUID {GUID})", None)]


def test_a_message_of_another_type_than_the_named_one_is_malformed() -> None:
    refund = SET._replace(message="shop.Refund")
    column = ColumnDecoding(Protobuf(refund), Framing.CONFLUENT, lambda _: SET, ("shop.Refund",))

    decoded, malformed = column.decode(pa.array([FRAME + b"\0\x08\x05", FRAME + b"\2\2\x08\x07"], pa.binary()))

    assert decoded.to_pylist() == [None, {"amount": 7}]
    assert [(each.row, each.cause) for each in malformed] == [(0, "it is a shop.Order, not a shop.Refund")]


def test_a_registry_sends_descriptors(registry: MockRegistry) -> None:
    registry.register("t-value", base64.b64encode(FILE).decode(), kind="PROTOBUF")
    registry.register("t-key", FILE.decode(), kind="PROTOBUF")  # as Apicurio
    key, value = options(registry, valueFormat="protobuf", keyFormat="protobuf").readers

    assert value.text == key.text == SET
    assert value.schema.type == pa.struct([pa.field("id", pa.int32())])
    (refund,) = options(registry, valueFormat="protobuf", valueRecordName="shop.Refund").readers
    assert refund.schema.type.names == ["amount"]
    assert refund.pin.fingerprint != value.pin.fingerprint


def test_topics_whose_packages_differ_are_read_together(registry: MockRegistry) -> None:
    for subject, file in (("t-value", FILE), ("u-value", FILE.replace(b"shop", b"mall"))):
        registry.register(subject, base64.b64encode(file).decode(), kind="PROTOBUF")
    (reader,) = options(registry, subscribe="t,u", valueFormat="protobuf").readers
    other = SchemaText(base64.b64encode(descriptor_set([FILE.replace(b"shop", b"mall")])).decode())
    column = ColumnDecoding(reader.schema, Framing.CONFLUENT, lambda _: other)

    assert column.decode(pa.array([FRAME + b"\0\x08\x05"], pa.binary()))[0].to_pylist() == [{"id": 5}]
    with pytest.raises(ValueSchemaError, match=r"version 1 of u-value \(id 2\) .* no message type shop\.Refund"):
        options(registry, subscribe="t,u", valueFormat="protobuf", valueRecordName="shop.Refund")


def test_a_descriptor_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "shop.desc").write_bytes(descriptor_set([FILE]))

    (reader,) = options(None, valueFormat="protobuf", valueSchema=str(tmp_path / "shop.desc")).readers
    assert reader.text == SET


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"valueFraming": "apicurio"}, "'valueFraming' apicurio is not supported for protobuf"),
        ({"valueRecordName": "a.A,a.B"}, "'valueRecordName' must be one name"),
    ],
)
def test_what_protobuf_does_not_have_is_refused(registry: MockRegistry, given: dict[str, str], problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        options(registry, valueFormat="protobuf", **given)


def test_json_is_read_as_its_schema_says(registry: MockRegistry) -> None:
    schema = '{"type": "object", "properties": {"id": {"type": "integer"}}}'
    registry.register("t-value", schema, kind="JSON")
    (reader,) = options(registry, valueFormat="json").readers
    column = ColumnDecoding(reader.schema, Framing.CONFLUENT, lambda _: SchemaText("another"))

    decoded, malformed = column.decode(pa.array([FRAME + b'{"id": 5}', None, FRAME + b"{", b"{"], pa.binary()))

    assert decoded.to_pylist() == [{"id": 5}, None, None, None]
    assert [(value.row, value.schema_id) for value in malformed] == [(2, 1), (3, None)]
    assert isinstance(malformed[0], Malformed)
