"""Records with typed columns, and what becomes of malformed values."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from pyspark_kafka_meta.errors import MalformedRecordError, SchemaRegistryError, UnknownSchemaError
from pyspark_kafka_meta.kafka.records.schema import records_arrow_schema
from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.options import Framing, OnMalformedRecord
from pyspark_kafka_meta.typed.avro import Avro
from pyspark_kafka_meta.typed.decoding import ColumnDecoding, Malformed, MalformedCount, TypedRows
from pyspark_kafka_meta.typed.formats import SchemaText
from pyspark_kafka_meta.typed.framing import frame, guid_frame, id_header
from pyspark_kafka_meta.typed.json import Json
from tests.unit.typed.digits import Digits

READER = SchemaText("0")
HEADER = id_header("value")
GUID = "89791762-2336-4186-9674-299b90a802e2"
WRITERS: dict[int | str, SchemaText] = {
    1: READER,
    2: SchemaText("100"),
    3: SchemaText("unresolvable"),
    GUID: SchemaText("1000"),
}


def writer(key: int | str) -> SchemaText:
    if key == 500:
        raise SchemaRegistryError("the schema registry failed", 500)
    if key not in WRITERS:
        raise UnknownSchemaError(f"the registry does not have {key}", 40403)
    return WRITERS[key]


def framed(schema_id: int, payload: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + payload


def typed_rows(
    columns: list[str], on_malformed: OnMalformedRecord = OnMalformedRecord.RECORD, framing: Framing = Framing.CONFLUENT
) -> TypedRows:
    typed = {"value": ColumnDecoding(Digits(READER), framing, writer)}
    return TypedRows(columns, typed, on_malformed)


def records(
    rows: TypedRows, values: Sequence[bytes | None], headers: Sequence[list[tuple[str, bytes | None]] | None] = ()
) -> pa.RecordBatch:
    """A batch as the decoder of records yields it.

    Args:
        headers: of the first records; others have none.
    """
    count = len(values)
    columns: dict[str, Sequence[Any]] = {
        "key": [b"k"] * count,
        "value": values,
        "topic": ["t"] * count,
        "partition": [3] * count,
        "offset": list(range(40, 40 + count)),
        **{name: [*headers, *([None] * (count - len(headers)))] for name in ("headers", "schemaIdHeaders")},
    }
    schema = records_arrow_schema(rows.raw_columns)
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[name], schema.field(name).type) for name in rows.raw_columns], schema=schema
    )


def test_values_are_decoded_by_the_schemas_of_their_writers_and_keep_their_order() -> None:
    rows = typed_rows(["offset", "value"])

    batch = rows.convert(records(rows, [framed(2, b"5"), framed(1, b"6"), None, framed(2, b"7"), framed(1, b"8")]))

    assert batch.to_pydict() == {"offset": [40, 41, 42, 43, 44], "value": [105, 6, None, 107, 8]}
    assert rows.malformed == {}


def test_one_writer_is_decoded_at_once() -> None:
    rows = typed_rows(["value", "value_error"])

    batch = rows.convert(records(rows, [framed(2, b"5"), None, framed(2, b"6")]))

    assert batch.to_pydict() == {"value": [105, None, 106], "value_error": [None, None, None]}


def test_bytes_are_beside_the_value_or_alone() -> None:
    values = [framed(2, b"5"), b"x", None]
    rows = typed_rows(["value_raw", "value"], OnMalformedRecord.NULL)
    alone = typed_rows(["offset", "value_raw"])

    assert rows.convert(records(rows, values)).to_pydict() == {"value_raw": values, "value": [105, None, None]}
    assert alone.convert(records(alone, values)).to_pydict() == {"offset": [40, 41, 42], "value_raw": values}


BAD = [
    (b"12", None, "no frame: 2 bytes are shorter than a frame of 5 bytes"),
    (b"{}{}{}", None, "no frame: its first byte is not 0"),
    (framed(1, b"x"), 1, "not digits"),
    (framed(3, b"1"), 3, "the writer's schema cannot be read as the reader's"),
    (framed(99, b"1"), 99, "the registry does not have 99"),
]


def test_a_malformed_value_is_null_with_its_cause_schema_and_bytes_beside_it() -> None:
    rows = typed_rows(["value", "value_error"])
    values = [value for raw, _, _ in BAD for value in (framed(1, b"5"), raw)]

    batch = rows.convert(records(rows, values))

    assert batch.column("value").to_pylist() == [5, None] * len(BAD)
    assert batch.column("value_error").to_pylist() == [
        error for raw, schema_id, cause in BAD for error in (None, {"cause": cause, "schema_id": schema_id, "raw": raw})
    ]
    assert rows.malformed == {("value", TopicPartition("t", 3)): MalformedCount(5, 41, BAD[0][2], None)}


@pytest.mark.parametrize(("raw", "schema_id", "cause"), BAD)
def test_a_malformed_value_fails_with_its_place(raw: bytes, schema_id: int | None, cause: str) -> None:
    rows = typed_rows(["value"], OnMalformedRecord.FAIL)

    with pytest.raises(MalformedRecordError) as caught:
        rows.convert(records(rows, [framed(1, b"5"), raw]))

    error = caught.value
    assert (error.topic, error.partition, error.offset, error.schema_id) == ("t", 3, 41, schema_id)
    assert str(error).startswith("t-3 at offset 41: the value")
    assert cause in str(error)
    assert "to record to read the cause and the bytes as a row, or to null to read a null without" in str(error)
    assert ("'valueSchemaVersion'" in str(error)) == ("cannot be read as the reader's" in cause)
    assert ("Azure's, which are not read" in str(error)) == cause.startswith("no frame")


def test_malformed_values_can_be_null_alone() -> None:
    rows = typed_rows(["value"], OnMalformedRecord.NULL)

    assert rows.convert(records(rows, [b"x", framed(1, b"5")])).to_pydict() == {"value": [None, 5]}


def test_a_registry_that_fails_is_no_malformed_value() -> None:
    rows = typed_rows(["value"], OnMalformedRecord.NULL)

    with pytest.raises(SchemaRegistryError):
        rows.convert(records(rows, [framed(500, b"5")]))


def test_a_record_of_another_name_is_malformed_even_if_its_fields_fit() -> None:
    def record(name: str, *fields: str) -> SchemaText:
        return SchemaText(f'{{"type": "record", "name": "shop.{name}", "fields": [{", ".join(fields)}]}}')

    number, note = '{"name": "id", "type": "long"}', '{"name": "note", "type": "string", "default": ""}'
    order, older, customer = record("Order", number, note), record("Order", number), record("Customer", number)
    writers: dict[int | str, SchemaText] = {1: order, 2: older, 3: customer}
    column = ColumnDecoding(Avro(order), Framing.CONFLUENT, writers.__getitem__, ("shop.Order",))

    decoded, malformed = column.decode(pa.array([framed(1, b"\x0a\2a"), framed(3, b"\x0a"), framed(2, b"\x0a")]))

    assert decoded.to_pylist() == [{"id": 5, "note": "a"}, None, {"id": 5, "note": ""}]
    assert malformed == [Malformed(1, "it is a shop.Customer, not a shop.Order", 3, True)]


def test_json_of_another_title_is_malformed_if_one_is_named() -> None:
    def titled(title: str) -> SchemaText:
        return SchemaText(f'{{{title}"type": "object", "properties": {{"id": {{"type": "integer"}}}}}}')

    order, refund, untitled = titled('"title": "shop.Order", '), titled('"title": "shop.Refund", '), titled("")
    writers: dict[int | str, SchemaText] = {1: order, 2: refund, 3: untitled}
    values = pa.array([framed(number, b'{"id": 5}') for number in (1, 2, 3)])

    column = ColumnDecoding(Json(order), Framing.CONFLUENT, writers.__getitem__, ("shop.Order",))
    decoded, malformed = column.decode(values)
    assert decoded.to_pylist() == [{"id": 5}, None, {"id": 5}]
    assert malformed == [Malformed(1, "it is a shop.Refund, not a shop.Order", 2, True)]
    assert column._replace(record_names=()).decode(values)[1] == []
    assert column._replace(record_names=("shop.Bill",)).decode(values)[0].to_pylist() == [{"id": 5}, None, {"id": 5}]

    writers[3] = SchemaText("no JSON")
    assert column.decode(values)[1] == malformed


def test_values_without_frames_have_the_readers_schema() -> None:
    rows = typed_rows(["value", "value_error"], framing=Framing.NONE)

    batch = rows.convert(records(rows, [b"5", b"x"]))

    assert batch.to_pydict() == {
        "value": [5, None],
        "value_error": [None, {"cause": "not digits", "schema_id": None, "raw": b"x"}],
    }


def test_content_ids_of_apicurios_headers_name_the_schema() -> None:
    rows = typed_rows(["value", "value_error"], framing=Framing.APICURIO_HEADER)
    header, content_id = "apicurio.value.contentId", (2).to_bytes(8)
    values = [b"5", b"6", None, b"7", b"8", b"9"]
    headers: list[list[tuple[str, bytes | None]] | None] = [
        [(header, content_id)],
        [("apicurio.value.globalId", content_id)],
        [(header, content_id)],
        [(header, b"\2")],
        None,
        [(header, (99).to_bytes(8)), ("a", b"")],
    ]

    batch = rows.convert(records(rows, values, headers)).to_pydict()

    assert batch["value"] == [105, None, None, None, None, None]
    causes = [error and error["cause"][:59] for error in batch["value_error"]]
    without = "no frame: it has no header apicurio.value.contentId with a c"[:59]
    assert causes == [None, without, None, without, without, "the registry does not have 99"]
    assert rows.convert(records(rows, [b"5"])).to_pydict()["value"] == [None]


@pytest.mark.parametrize(
    ("value", "whose"),
    [
        (b"\3\5" + bytes(16) + b"x", "AWS Glue's"),
        (bytes(4) + b"0123456789abcdef0123456789abcdef" + b"x", "Azure's"),
        (b"\3" + bytes(5), None),
    ],
)
def test_frames_of_other_registries_are_named(value: bytes, whose: str | None) -> None:
    rows = typed_rows(["value", "value_error"])

    cause = rows.convert(records(rows, [value])).to_pydict()["value_error"][0]["cause"]

    assert (f"its frame may be {whose}, which is not read" in cause) == (whose is not None)


OTHER_GUID = "00000000-0000-4000-8000-000000000007"
IN_HEADER: list[tuple[bytes | None, list[tuple[str, bytes | None]] | None, Any]] = [
    (b"5", [(HEADER, guid_frame(GUID))], 1005),
    (framed(2, b"6"), None, 106),
    (framed(1, b"7"), [("trace", b"a"), (HEADER, None)], 7),
    (b"8", [(HEADER, b"nonsense"), ("trace", b"a"), (HEADER, guid_frame(GUID) + b"more")], 1008),
    (b"9", [(HEADER, frame(2, 4))], 109),
    (framed(1, b"1"), [("__key_schema_id", guid_frame(GUID))], 1),
    (None, [(HEADER, guid_frame(GUID))], None),
    (b"2", [(HEADER, guid_frame(GUID)), (HEADER, b"")], f"no frame: its header {HEADER} is malformed"),
    (framed(1, b"2"), [(HEADER, b"\1" + b"x" * 15)], f"no frame: its header {HEADER} is malformed"),
    (b"2", [(HEADER, b"\0\xff\xff\xff\xff")], f"no frame: its header {HEADER} is malformed"),
    (b"x", [(HEADER, guid_frame(GUID))], f"not digits (schema GUID {GUID})"),
    (b"2", [(HEADER, guid_frame(OTHER_GUID))], f"the registry does not have {OTHER_GUID}"),
    (b"2", [(HEADER, frame(99, 4))], "the registry does not have 99"),
]


@pytest.mark.parametrize("framing", [Framing.CONFLUENT, Framing.CONFLUENT_HEADER])
def test_the_last_header_names_the_schema_or_else_the_frame(framing: Framing) -> None:
    """As in Confluent's DualSchemaIdDeserializer."""
    rows = typed_rows(["value", "value_error"], framing=framing)
    values, headers, expected = zip(*IN_HEADER, strict=True)

    batch = rows.convert(records(rows, values, headers)).slice(0).to_pydict()

    causes = [error and error["cause"] for error in batch["value_error"]]
    assert [value if cause is None else cause for value, cause in zip(batch["value"], causes, strict=True)] == list(
        expected
    )
    assert [error["schema_id"] for error in batch["value_error"] if error] == [None] * 5 + [99]
    assert batch["value_error"][10]["raw"] == b"x"


def test_headers_of_a_slice_belong_to_its_rows() -> None:
    rows = typed_rows(["value"])
    values, headers, _ = zip(*IN_HEADER[:6], strict=True)
    batch = records(rows, values, headers)

    for start in range(len(values)):
        expected = [value for _, _, value in IN_HEADER[start:6]]
        assert rows.convert(batch.slice(start)).column("value").to_pylist() == expected


def test_headers_that_are_read_too_are_left_as_they_are() -> None:
    rows = typed_rows(["value", "headers"])

    batch = rows.convert(records(rows, [b"5"], [[(HEADER, guid_frame(GUID))]]))

    assert batch.to_pylist() == [{"value": 1005, "headers": [{"key": HEADER, "value": guid_frame(GUID)}]}]


def test_only_requested_columns_are_decoded() -> None:
    rows = typed_rows(["key", "offset"], OnMalformedRecord.FAIL)

    assert typed_rows(["value"], framing=Framing.APICURIO).raw_columns == ["value", "topic", "partition", "offset"]
    assert rows.raw_columns == ["key", "offset"]
    assert rows.convert(records(rows, [b"x"])).to_pydict() == {"key": [b"k"], "offset": [40]}


def test_the_error_alone_can_be_requested() -> None:
    rows = typed_rows(["value_error"])

    assert rows.convert(records(rows, [framed(1, b"5"), b""])).to_pydict()["value_error"][0] is None


def test_many_different_unknown_ids_take_little_time() -> None:
    rows = typed_rows(["value", "value_error"])
    values = [framed(1_000 + number, b"5") for number in range(20_000)]

    started = time.process_time()
    batch = rows.convert(records(rows, [framed(1, b"5"), *values]))

    assert time.process_time() - started < 10
    assert batch.column("value").null_count == 20_000
    assert batch.column("value")[0].as_py() == 5
    assert batch.column("value_error")[20_000].as_py()["schema_id"] == 20_999
