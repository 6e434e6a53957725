"""The schemas that a batch is written with: which one, its id in the frames, and what is refused before any task."""

from __future__ import annotations

import base64
import json
import pickle
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest

from pyspark_kafka_meta.errors import (
    InvalidRowError,
    OptionError,
    SchemaRegistryError,
    UnknownSchemaError,
    ValueSchemaError,
)
from pyspark_kafka_meta.options import Framing, RegistryOptions, SinkOptions, default_options
from pyspark_kafka_meta.testing.mock_registry import MockRegistry
from pyspark_kafka_meta.typed import writing
from pyspark_kafka_meta.typed.avro import Avro
from pyspark_kafka_meta.typed.avro.encoder import derived_schema
from pyspark_kafka_meta.typed.decoding import ColumnDecoding
from pyspark_kafka_meta.typed.encoding import ColumnEncoding
from pyspark_kafka_meta.typed.formats import SchemaText
from pyspark_kafka_meta.typed.json.encoder import derived_json_schema
from pyspark_kafka_meta.typed.protobuf.schema import descriptor_set
from pyspark_kafka_meta.typed.registry.client import RegistryClient
from pyspark_kafka_meta.typed.registry.known_schemas import KnownVersions
from pyspark_kafka_meta.typed.writing import column_encodings
from tests.unit.typed.protobuf.test_columns import FILE, sized

GIVEN = pa.struct([pa.field("id", pa.int64(), nullable=False)])
V1 = json.dumps({"type": "record", "name": "Click", "fields": [{"name": "id", "type": "long"}]})
V2 = V1.replace("]}", ', {"name": "page", "type": "string", "default": "/"}]}')
VALUES = pa.array([{"id": 3}, None], GIVEN)
REGISTERS = {"auto.register.schemas": "true"}


def column(registry: MockRegistry | None, given: pa.DataType = GIVEN, **options: str) -> ColumnEncoding:
    """The typed value of a batch for topic t."""
    url = {} if registry is None else {"schema.registry.url": registry.url}
    parsed = SinkOptions.parse(
        {"kafka.bootstrap.servers": "a:1", "topic": "t", "valueFormat": "avro", **url, **options}
    )
    encodings = column_encodings(parsed.typed, parsed.topic, {"value": given}, lambda _: None, {})
    return pickle.loads(pickle.dumps(encodings["value"]))  # type: ignore[no-any-return]


def encoded(column: ColumnEncoding, values: pa.Array = VALUES) -> list[bytes | None]:
    data: list[bytes | None] = column.encode(values, 0).to_pylist()
    return data


def registered(registry: MockRegistry, subject: str) -> list[str]:
    """The texts of the subject's versions."""
    client = RegistryClient(replace(default_options(RegistryOptions), urls=(registry.url,)))
    return [client.version(subject, number).registered.schema.text for number in client.versions(subject)]


def test_values_have_the_subjects_latest_schema(registry: MockRegistry) -> None:
    for schema in ('"int"', V1, V2):
        registry.register("t-value", schema)
    assert encoded(column(registry)) == [b"\0\0\0\0\3\x06\x02/", None]
    assert encoded(column(registry, valueSchemaVersion="2")) == [b"\0\0\0\0\2\x06", None]
    assert encoded(column(registry, valueFraming="apicurio")) == [b"\0\0\0\0\0\0\0\0\3\x06\x02/", None]
    assert encoded(column(registry, valueFraming="none")) == [b"\x06\x02/", None]


@pytest.mark.parametrize("others", [{}, REGISTERS, {"valueSchema": V1}], ids=str)
def test_guid_of_the_schema_is_in_the_header(registry: MockRegistry, others: dict[str, str]) -> None:
    registry.register("t-value", V1)
    typed = column(registry, valueFraming="confluent-header", **others)
    assert encoded(typed) == [b"\x06", None]
    schema = derived_schema(GIVEN) if others == REGISTERS else V1
    assert typed.header_frame == b"\1" + UUID(registry.guid(registry.register("t-value", schema))).bytes


def test_registry_without_guids_has_none_for_headers(registry: MockRegistry) -> None:
    registry.register("t-value", V1)
    registry.has_guids = False
    with pytest.raises(
        OptionError, match=r"^'valueFraming' confluent-header needs a schema registry with GUIDs, as Con"
    ):
        column(registry, valueFraming="confluent-header")


def test_values_of_schema_bytes_are_written_as_they_are_in_confluents_frames(registry: MockRegistry) -> None:
    """As KafkaAvroSerializer does."""
    registry.register("t-value", '"bytes"')
    values = pa.array([b"ab", None, b"", b"\xff" * 300, b"c" * 70], pa.binary())
    raw = values.to_pylist()
    written = encoded(column(registry, pa.binary()), values)
    assert written == [None if value is None else b"\0\0\0\0\1" + value for value in raw]
    assert encoded(column(registry, pa.binary(), valueFraming="confluent-header"), values) == raw
    apicurio = encoded(column(registry, pa.binary(), valueFraming="apicurio"), values)
    assert apicurio[0] == b"\0\0\0\0\0\0\0\0\1\x04ab"

    decoding = ColumnDecoding(Avro(SchemaText('"string"')), Framing.CONFLUENT, lambda _: SchemaText('"bytes"'))
    assert decoding.decode(pa.array([b"\0\0\0\0\1ab", None, b"\0\0\0\0\1"]))[0].to_pylist() == ["ab", None, ""]
    decoding = decoding._replace(reader=Avro(SchemaText('"bytes"')))
    assert decoding.decode(pa.array(written, pa.binary()))[0].to_pylist() == raw
    decoding = decoding._replace(framing=Framing.APICURIO)
    assert decoding.decode(pa.array(apicurio, pa.binary()))[0].to_pylist() == raw


@pytest.mark.usefixtures("quick_pauses")
def test_known_latest_version_is_written_while_the_registry_is_away(
    registry: MockRegistry, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "driver_versions", KnownVersions(lambda: 0.0))
    registry.register("t-value", V1)
    assert encoded(column(registry)) == [b"\0\0\0\0\1\x06", None]
    registry.stop()
    assert encoded(column(registry)) == [b"\0\0\0\0\1\x06", None]
    assert "cannot reach the schema registry" in caplog.text
    assert "rows are written with version 1 as before" in caplog.text
    with pytest.raises(SchemaRegistryError, match="cannot reach"):
        column(registry, valueSubjectNameStrategy="record", valueRecordName="Unknown")

    registry.start()
    registry.register("t-value", V2)
    assert encoded(column(registry)) == [b"\0\0\0\0\2\x06\x02/", None]


def test_chosen_schema_must_be_registered(registry: MockRegistry, tmp_path: Path) -> None:
    file = tmp_path / "click.avsc"
    file.write_text(V1)
    registry.register("t-value", V2)
    with pytest.raises(UnknownSchemaError, match=r"subject t-value .* register the schema, or set 'auto.register"):
        column(registry, valueSchema=V1)
    registry.register("t-value", V1)
    assert encoded(column(registry, valueSchema=str(file))) == [b"\0\0\0\0\2\x06", None]


def test_schema_without_frames_needs_no_registry(registry: MockRegistry) -> None:
    assert encoded(column(None, valueSchema=V1)) == [b"\x06", None]
    assert encoded(column(registry, valueSchema=V1, valueFraming="none")) == [b"\x06", None]
    assert registry.requests == []


def test_schemas_are_registered_if_the_user_wishes(registry: MockRegistry) -> None:
    registry.register("other-value", '"int"')
    assert encoded(column(registry, **REGISTERS)) == [b"\0\0\0\0\2\x06", None]
    assert encoded(column(registry, **REGISTERS, valueSchema=V2)) == [b"\0\0\0\0\3\x06\x02/", None]
    assert registered(registry, "t-value") == [derived_schema(GIVEN), V2]


@pytest.mark.parametrize(
    ("strategy", "subject"), [("record", "shop.Click"), ("topic-record", "t-shop.Click"), ("topic", "t-value")]
)
def test_record_of_a_derived_schema_has_the_options_name(registry: MockRegistry, strategy: str, subject: str) -> None:
    column(registry, **REGISTERS, valueSubjectNameStrategy=strategy, valueRecordName="shop.Click")
    (schema,) = map(json.loads, registered(registry, subject))
    assert (schema["name"], schema["namespace"]) == ("Click", "shop")


def test_refusal_of_a_schema_has_the_registrys_reason(registry: MockRegistry) -> None:
    registry.register("t-value", V2)
    registry.incompatible = "READER_FIELD_MISSING_DEFAULT_VALUE at /fields/1"
    with pytest.raises(SchemaRegistryError, match=r"subject t-value .*READER_FIELD_MISSING_DEFAULT_VALUE at /fields/1"):
        column(registry, **REGISTERS)


def test_columns_that_do_not_fit_are_refused_before_they_are_registered(registry: MockRegistry) -> None:
    narrow = V1.replace("long", "int")
    with pytest.raises(ValueSchemaError, match="column value cannot be written: field id has type int64, which cannot"):
        column(registry, **REGISTERS, valueSchema=narrow)
    assert registry.requests == []
    registry.register("t-value", narrow)
    with pytest.raises(ValueSchemaError, match="column value cannot be written: field id has type int64, which cannot"):
        column(registry)


def test_subject_that_is_missing_or_of_another_format_is_refused(registry: MockRegistry) -> None:
    with pytest.raises(
        UnknownSchemaError, match=r"subject t-value .*register the schema, or set 'auto.register.schemas'"
    ):
        column(registry)
    registry.register("t-value", "{}", kind="JSON")
    with pytest.raises(OptionError, match="is JSON, not Avro"):
        column(registry)


@pytest.mark.parametrize(
    ("given", "framed"),
    [
        ({}, b"\0\0\0\0\1\0"),
        ({"valueRecordName": "shop.Refund"}, b"\0\0\0\0\1\2\2"),
        ({"valueRecordName": "shop.Refund.Part"}, b"\0\0\0\0\1\4\2\0"),
        ({"valueFraming": "none"}, b""),
    ],
)
def test_frames_of_protobuf_name_the_message_type(registry: MockRegistry, given: dict[str, str], framed: bytes) -> None:
    registry.register("t-value", base64.b64encode(FILE).decode(), kind="PROTOBUF")
    named = {"shop.Refund": "amount", "shop.Refund.Part": "number"}.get(given.get("valueRecordName", ""), "id")
    values = pa.array([{named: 5}, None], pa.struct([(named, pa.int32())]))
    assert encoded(column(registry, values.type, valueFormat="protobuf", **given), values) == [
        framed + b"\x08\x05",
        None,
    ]


def test_file_of_protobuf_is_looked_up_as_a_descriptor(registry: MockRegistry, tmp_path: Path) -> None:
    given = {"valueFormat": "protobuf", "valueSchema": str(tmp_path / "shop.desc")}
    (tmp_path / "shop.desc").write_bytes(descriptor_set([sized(0x0A, b"google/protobuf/any.proto"), FILE]))
    kind = pa.struct([("id", pa.int32())])
    assert encoded(column(None, kind, **given), pa.array([{"id": 5}], kind)) == [b"\x08\x05"]
    with pytest.raises(UnknownSchemaError, match=r"subject t-value .* register the schema"):
        column(registry, kind, **given)
    registry.register("t-value", base64.b64encode(FILE).decode(), kind="PROTOBUF")
    assert column(registry, kind, **given).frame == b"\0\0\0\0\1\0"

    (tmp_path / "shop.desc").write_bytes(descriptor_set([sized(0x0A, b"money.proto"), FILE]))
    with pytest.raises(ValueSchemaError, match=r"^column value cannot be written: its .* imports money.proto: define"):
        column(registry, kind, **given)


def test_schema_of_protobuf_is_not_registered(registry: MockRegistry) -> None:
    """Apicurio takes a descriptor, and cannot return it."""
    with pytest.raises(
        OptionError, match=r"'auto.register.schemas' is not supported for protobuf: register the schema"
    ):
        column(registry, valueFormat="protobuf", **REGISTERS)


@pytest.mark.parametrize("others", [{}, REGISTERS], ids=str)
def test_type_of_spark_is_no_json_schema_for_a_registry(registry: MockRegistry, others: dict[str, str]) -> None:
    spark_type = {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}
    given = {"valueFormat": "json", "valueSchema": json.dumps(spark_type), **others}
    with pytest.raises(ValueSchemaError, match=r"value cannot be written: its schema is a type of Spark, which no reg"):
        column(registry, **given)
    assert registry.requests == []


def test_json_has_the_subjects_schema_a_derived_one_or_none(registry: MockRegistry) -> None:
    assert encoded(column(registry, valueFormat="json", **REGISTERS)) == [b'\0\0\0\0\1{"id":3}', None]
    assert registered(registry, "t-value") == [derived_json_schema(GIVEN)]
    assert encoded(column(registry, valueFormat="json")) == [b'\0\0\0\0\1{"id":3}', None]
    schema = '{"properties": {"id": {"type": "number"}}}'
    assert encoded(column(None, valueFormat="json", valueSchema=schema)) == [b'{"id":3}', None]


def test_value_that_does_not_fit_is_named_by_its_row_in_the_task() -> None:
    typed = column(None, valueSchema=V1)
    with pytest.raises(InvalidRowError, match=r"^row 101 cannot be written with the schema of value: field id is null"):
        typed.encode(pa.array([{"id": 1}, {"id": None}], pa.struct([("id", pa.int64())])), 100)
