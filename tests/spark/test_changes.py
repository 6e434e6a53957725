"""Changes of databases as rows, on Kafka: formats, batches, streams, malformed records, topics of several tables."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession

from pyspark_kafka_meta.testing import MockRegistry
from tests.marks import thorough_after
from tests.spark.test_typed_values import framed
from tests.spark.traces import run_to_the_end
from tests.unit.typed.connect_json.written import debeziums, decimal, of, struct, unscaled
from tests.unit.typed.connect_json.written import value as value_with

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

CONNECT, TIME = "org.apache.kafka.connect.data", "io.debezium.time"
KEY: dict[str, Any] = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "int"}]}
DECIMAL = {
    "type": "bytes",
    "connect.name": f"{CONNECT}.Decimal",
    "connect.parameters": {"scale": "2", "connect.decimal.precision": "8"},
    "logicalType": "decimal",
    "precision": 8,
    "scale": 2,
}
ROW: dict[str, Any] = {
    "type": "record",
    "name": "Value",
    "fields": [
        {"name": "name", "type": ["null", "string"]},
        {"name": "id", "type": "int"},
        {"name": "day", "type": ["null", {"type": "int", "connect.name": f"{TIME}.Date"}]},
        {"name": "at", "type": ["null", {"type": "long", "connect.name": f"{TIME}.MicroTimestamp"}]},
        {"name": "price", "type": ["null", DECIMAL]},
    ],
}
ENVELOPE: dict[str, Any] = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {"name": "before", "type": ["null", ROW], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {
            "name": "source",
            "type": {
                "type": "record",
                "name": "Source",
                "fields": [
                    {"name": "ts_ms", "type": "long"},
                    {"name": "snapshot", "type": ["null", "string"]},
                    {"name": "lsn", "type": ["null", "long"]},
                    {"name": "sequence", "type": ["null", "string"]},
                ],
            },
        },
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ],
}


def envelope(op: str, after: Any = None, before: Any = None, snapshot: str = "false") -> dict[str, Any]:
    source = {"ts_ms": 1_000, "snapshot": snapshot, "lsn": 5, "sequence": '["4","5"]'}
    return {"before": before, "after": after, "source": source, "op": op, "ts_ms": 2_000}


def row(number: int, name: str | None) -> dict[str, Any]:
    return {"id": number, "name": name, "day": 19_782, "at": 1_700_000_000_000_001, "price": Decimal(number).scaleb(-2)}


def named(image: dict[str, Any] | None) -> dict[str, Any] | None:
    """What JSON has of a row."""
    return image and {"id": image["id"], "name": image["name"]}


CHANGES: list[tuple[int, dict[str, Any] | None]] = [
    (1, envelope("r", row(1, "a"), snapshot="last")),
    (2, envelope("c", row(2, "b"))),
    (2, envelope("u", row(2, "__debezium_unavailable_value"), row(2, "b"))),
    (1, envelope("d", before=row(1, "a"))),
    (1, None),
    (3, None),
]
"""Values by key."""
OPS = ["r", "c", "u", "d", "tombstone"]


@pytest.fixture
def registry() -> Iterator[MockRegistry]:
    with MockRegistry() as registry:
        yield registry


@pytest.fixture
def read(spark: SparkSession, kafka: Any, topic: str) -> Callable[..., DataFrame]:
    """The changes of the topic, as a batch or a stream."""

    def load(is_stream: bool = False, **options: str) -> DataFrame:
        given = {
            "kafka.bootstrap.servers": kafka.bootstrap_servers,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "changes": "debezium",
            **options,
        }
        return (spark.readStream if is_stream else spark.read).format("kafkameta").options(**given).load()

    return load


@pytest.fixture
def avro(topic: str, produce: Any, registry: MockRegistry) -> dict[str, str]:
    """The options of a topic with `CHANGES` in Avro."""
    key_id = registry.register(f"{topic}-key", json.dumps(KEY))
    value_id = registry.register(f"{topic}-value", json.dumps(ENVELOPE))
    records = [
        {"key": framed(key_id, KEY, {"id": key}), "value": None if value is None else framed(value_id, ENVELOPE, value)}
        for key, value in CHANGES
    ]
    produce(topic, records, partition=0)
    return {"valueFormat": "avro", "schema.registry.url": registry.url}


def rows_of(frame: DataFrame) -> list[Row]:
    return frame.orderBy("_change.offset").collect()


def check_changes(rows: Sequence[Row]) -> None:
    assert [each._change.op for each in rows] == OPS
    assert [(each.id, each.name) for each in rows] == [(1, "a"), (2, "b"), (2, None), (1, "a"), (3, None)]
    assert [each._change.deleted for each in rows] == [False, False, False, True, True]
    assert [each._change.snapshot for each in rows] == ["last", None, None, None, None]
    assert [each._change.unavailable for each in rows] == [[], [], ["name"], [], []]


def test_avro_becomes_rows_of_the_table(read: Callable[..., DataFrame], avro: dict[str, str]) -> None:
    frame = read(**avro)
    kinds = {field.name: field.dataType.simpleString() for field in frame.schema if field.name != "_change"}
    expected = {"id": "int", "name": "string", "day": "date", "at": "timestamp_ntz", "price": "decimal(8,2)"}
    assert kinds == expected
    assert [field.name for field in frame.schema if not field.nullable] == ["id", "_change"]

    rows = rows_of(frame)
    check_changes(rows)
    assert rows[1].day == date(2024, 2, 29)
    assert (rows[1].at, rows[1].price) == (datetime(2023, 11, 14, 22, 13, 20, 1), Decimal("0.02"))
    assert [each._change.sequence for each in rows] == [each._change.offset for each in rows] == [0, 1, 2, 3, 5]
    assert (rows[0]._change.source.lsn, rows[4]._change.source) == (5, None)


@pytest.mark.thorough
def test_a_stream_reads_the_same_rows(
    read: Callable[..., DataFrame], avro: dict[str, str], tmp_path: Path, spark: SparkSession
) -> None:
    sink = read(is_stream=True, **avro).writeStream.format("parquet").option("path", str(tmp_path / "rows"))
    query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    run_to_the_end(query.start, tmp_path / "checkpoint")

    check_changes(rows_of(spark.read.parquet(str(tmp_path / "rows"))))


def test_the_position_in_the_database_orders_changes_if_told_to(
    read: Callable[..., DataFrame], avro: dict[str, str]
) -> None:
    frame = read(**avro, changeOrder="source")

    assert (
        frame.select("_change.sequence").schema[0].dataType.simpleString() == "struct<position:string,sequence:bigint>"
    )
    sequences = [each._change.sequence for each in rows_of(frame)]
    assert {sequence.position for sequence in sequences} == {f"{4:020}/{5:020}"}
    assert [sequence.sequence for sequence in sequences] == [0, 1, 2, 3], "without the tombstone"


def test_a_restarted_stream_has_the_columns_that_were_added_meanwhile(
    read: Callable[..., DataFrame], topic: str, produce: Any, tmp_path: Path, spark: SparkSession
) -> None:
    """And a newer connector sends more about the source."""

    def produced(number: int, source: dict[str, str], **columns: str) -> None:
        row = struct(**columns)
        schema = struct(before=of(row), after=of(row), source=struct(**source), op="string")
        after = dict.fromkeys(columns, number)
        value = value_with(schema, envelope("c", after) | {"source": dict.fromkeys(source, 1)})
        produce(topic, [{"key": value_with(struct(id="int32"), {"id": number}), "value": value}])

    def run() -> None:
        frame = read(is_stream=True, valueFormat="connect-json")
        sink = frame.writeStream.format("parquet").option("path", str(tmp_path / "rows"))
        query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        run_to_the_end(query.start, tmp_path / "checkpoint")

    produced(1, {"lsn": "int64"}, id="int32")
    run()
    produced(2, {"lsn": "int64", "txId": "int64"}, price="int64", id="int32")
    run()
    rows = spark.read.option("mergeSchema", True).parquet(str(tmp_path / "rows"))
    assert sorted((each.id, each.price) for each in rows.collect()) == [(1, None), (2, 2)]

    produced(3, {"lsn": "int64"}, id="int32")
    with pytest.raises(StreamingQueryException, match="with other columns"):
        run()


@pytest.mark.thorough
def test_values_with_their_schemas_become_rows_of_the_table(
    read: Callable[..., DataFrame], topic: str, produce: Any
) -> None:
    row_schema = struct(
        id="int32",
        name="string",
        day=debeziums("int32", "Date"),
        at=debeziums("int64", "MicroTimestamp"),
        price=decimal(2),
    )
    source = struct(ts_ms="int64", snapshot="string", lsn="int64", sequence="string")
    schema = struct(before=of(row_schema), after=of(row_schema), source=source, op="string", ts_ms="int64")

    def written(image: dict[str, Any] | None) -> dict[str, Any] | None:
        return image and {**image, "price": unscaled(int(image["price"].scaleb(2)))}

    produce(
        topic,
        [
            {
                "key": value_with(struct(id="int32"), {"id": key}),
                "value": change
                and value_with(
                    schema, {**change, "before": written(change["before"]), "after": written(change["after"])}
                ),
            }
            for key, change in CHANGES
        ],
        partition=0,
    )

    rows = rows_of(read(valueFormat="connect-json"))
    check_changes(rows)
    assert (rows[1].day, rows[1].at) == (date(2024, 2, 29), datetime(2023, 11, 14, 22, 13, 20, 1))
    assert rows[1].price == Decimal("0.02")


KEY_FILE = """
name: "key.proto" syntax: "proto3"
message_type { name: "Key" field { name: "id" number: 1 type: TYPE_INT32 label: LABEL_OPTIONAL } }
"""
ENVELOPE_FILE = """
name: "envelope.proto" syntax: "proto3"
message_type {
  name: "Envelope"
  field { name: "before" number: 1 type: TYPE_MESSAGE type_name: ".Value" label: LABEL_OPTIONAL }
  field { name: "after" number: 2 type: TYPE_MESSAGE type_name: ".Value" label: LABEL_OPTIONAL }
  field { name: "source" number: 3 type: TYPE_MESSAGE type_name: ".Source" label: LABEL_OPTIONAL }
  field { name: "op" number: 4 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "ts_ms" number: 5 type: TYPE_INT64 label: LABEL_OPTIONAL }
}
message_type {
  name: "Value"
  field { name: "id" number: 1 type: TYPE_INT32 label: LABEL_OPTIONAL }
  field { name: "name" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL proto3_optional: true oneof_index: 0 }
  oneof_decl { name: "_name" }
}
message_type {
  name: "Source"
  field { name: "ts_ms" number: 1 type: TYPE_INT64 label: LABEL_OPTIONAL }
  field { name: "snapshot" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "lsn" number: 3 type: TYPE_INT64 label: LABEL_OPTIONAL }
  field { name: "sequence" number: 4 type: TYPE_STRING label: LABEL_OPTIONAL }
}
"""


@pytest.mark.thorough
def test_protobuf_becomes_rows_of_the_table(
    read: Callable[..., DataFrame], topic: str, produce: Any, registry: MockRegistry
) -> None:
    pytest.importorskip("google.protobuf")
    from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory, text_format  # type: ignore[import-untyped, unused-ignore]

    pool = descriptor_pool.DescriptorPool()

    def writer(side: str, text: str, name: str) -> Callable[[Any], bytes]:
        file = text_format.Parse(text, descriptor_pb2.FileDescriptorProto()).SerializeToString()
        schema_id = registry.register(f"{topic}-{side}", base64.b64encode(file).decode(), "PROTOBUF")
        pool.AddSerializedFile(file)
        message = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
        head = b"\0" + schema_id.to_bytes(4, "big") + b"\0"
        return lambda value: head + json_format.ParseDict(value, message()).SerializeToString()

    key, value = writer("key", KEY_FILE, "Key"), writer("value", ENVELOPE_FILE, "Envelope")
    plain = [
        (number, of and {**of, "before": named(of["before"]), "after": named(of["after"])}) for number, of in CHANGES
    ]
    produce(topic, [{"key": key({"id": number}), "value": of and value(of)} for number, of in plain], partition=0)

    frame = read(**{"valueFormat": "protobuf", "schema.registry.url": registry.url})
    assert [field.name for field in frame.schema if not field.nullable] == ["id", "_change"]
    check_changes(rows_of(frame))


@pytest.mark.parametrize("schema", thorough_after(1, ["row", "envelope"]))
def test_json_needs_the_type_of_the_row_alone(
    read: Callable[..., DataFrame], topic: str, produce: Any, schema: str
) -> None:
    plain = [
        (key, value and {**value, "before": named(value["before"]), "after": named(value["after"])})
        for key, value in CHANGES
    ]
    records = [{"key": json.dumps({"id": key}), "value": value and json.dumps(value)} for key, value in plain]
    produce(topic, records, partition=0)
    row_type = "struct<id int, name string>"
    given = (
        row_type
        if schema == "row"
        else f"op string, before {row_type}, after {row_type}, source struct<snapshot string>"
    )

    check_changes(rows_of(read(valueFormat="json", valueSchema=given, keySchema="id int")))


def test_malformed_records_are_rows_with_a_cause(read: Callable[..., DataFrame], topic: str, produce: Any) -> None:
    good, values = json.dumps(envelope("c", {"id": 1})), ["{", '{"op": "x"}', '{"op": "c"}']
    produce(topic, [{"key": '{"id": 1}', "value": value} for value in [good, *values]], partition=0)
    produce(topic, [{"key": None, "value": good}], partition=0)
    rows = rows_of(read(valueFormat="json", valueSchema="id int", keySchema="id int", onMalformedRecord="record"))

    assert [each._change.op for each in rows] == ["c", None, None, None, None]
    causes = [each._change.error.cause for each in rows[1:]]
    assert [cause.partition(" ")[0] for cause in causes[1:]] == ["its", "it", "it"]
    assert [bytes(each._change.error.raw).decode() for each in rows[1:]] == [*values, good]


def test_upserts_are_rows_and_null_deletes(read: Callable[..., DataFrame], topic: str, produce: Any) -> None:
    values = ['{"a": 1, "__deleted": "false"}', '{"a": 2, "__deleted": "true"}', None]
    records = [{"key": "one", "value": values[0]}, {"key": "two", "value": values[1]}, {"key": "one", "value": None}]
    produce(topic, records, partition=0)
    options = {"changes": "upsert", "valueFormat": "json", "valueSchema": "a int", "keyFormat": "bytes"}
    frame = read(**options)

    assert frame.columns == ["key", "a", "_change"]
    found = [(bytes(each.key).decode(), each.a, each._change.op, each._change.deleted) for each in rows_of(frame)]
    assert found == [("one", 1, "u", False), ("two", 2, "d", True), ("one", None, "tombstone", True)]
