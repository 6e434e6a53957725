"""Avro values as columns, with a schema registry: batches, streams, restarts, schemas that evolve, malformed values."""

from __future__ import annotations

import base64
import io
import itertools
import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery
from pyspark.sql.types import StructType

from pyspark_kafka_meta.testing import MockRegistry
from tests.marks import thorough_after
from tests.spark.traces import run_to_the_end
from tests.unit.typed.connect_json.written import decimal, struct, unscaled
from tests.unit.typed.connect_json.written import value as value_with

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

ID_FILE = b"\x0a\x08id.proto\x22\x10\x0a\x02Id\x12\x0a\x0a\x02id\x18\x01\x20\x01\x28\x05b\x06proto3"
"""A FileDescriptorProto: message Id { int32 id = 1; }"""
ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": ["null", "string"]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {"name": "weight", "type": "double"},
        {"name": "gift", "type": "boolean"},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 4}},
    ],
}
V1: dict[str, Any] = {"type": "record", "name": "Click", "fields": [{"name": "id", "type": "int"}]}
V2: dict[str, Any] = {**V1, "fields": [*V1["fields"], {"name": "page", "type": "string", "default": "/"}]}
V3: dict[str, Any] = {**V2, "fields": [{"name": "id", "type": "long"}, V2["fields"][1]]}
TAGS = {"name": "tags", "type": {"type": "array", "items": "string"}, "default": ["none"]}
V4: dict[str, Any] = {**V3, "fields": [V3["fields"][0], TAGS]}
V5: dict[str, Any] = {**V4, "fields": [TAGS, {"name": "number", "type": "long", "aliases": ["id"]}]}
VERSIONS = (V1, V2, V3, V4, V5)
FORWARD_COMPATIBLE = (2, 4)
"""Versions that the version before can read: V3 widens a number, V5 gives a field another name."""


def order(number: int) -> dict[str, Any]:
    return {
        "id": number * 10**12 - 5,
        "customer": None if number % 3 == 0 else f"customer {number} é",
        "price": Decimal(number * 7 - 500).scaleb(-2),
        "at": datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=number, microseconds=number),
        "day": date(1969, 12, 1) + timedelta(days=number),
        "state": ("NEW", "PAID")[number % 2],
        "tags": [f"tag {index}" for index in range(number % 4)],
        "counts": {f"k{index}": -index for index in range(number % 3)},
        "weight": number / 7,
        "gift": number % 2 == 0,
        "hash": number.to_bytes(4, "big"),
    }


def written(version: int, number: int) -> dict[str, Any]:
    """A click of a version."""
    click = {"id": number, "number": number, "page": f"/{number}", "tags": [f"tag {number}"]}
    return {field["name"]: click[field["name"]] for field in VERSIONS[version - 1]["fields"]}


def read_as(version: int, writer: int, number: int) -> str:
    """The JSON of a click of a version in a row of another one."""
    given = written(writer, number)
    defaults = {"id": number, "number": number, "page": "/", "tags": ["none"]}
    click = {field["name"]: {**defaults, **given}[field["name"]] for field in VERSIONS[version - 1]["fields"]}
    return json.dumps(click, separators=(",", ":"))


def encoded(schema: dict[str, Any], value: Any) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(schema), value)
    return buffer.getvalue()


def framed(schema_id: int, schema: dict[str, Any], value: Any) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + encoded(schema, value)


@pytest.fixture
def read(spark: SparkSession, kafka: Any, topic: str, registry: MockRegistry) -> Callable[..., DataFrame]:
    """The topic with typed values, as a batch or a stream."""

    def load(is_stream: bool = False, **options: str) -> DataFrame:
        given = {
            "kafka.bootstrap.servers": kafka.bootstrap_servers,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "valueFormat": "avro",
            "schema.registry.url": registry.url,
            **options,
        }
        return (spark.readStream if is_stream else spark.read).format("kafkameta").options(**given).load()

    return load


class Query:
    """A stream of typed values to files of JSON, which tests restart."""

    def __init__(self, read: Callable[..., DataFrame], folder: Path, **options: str) -> None:
        self._read, self._folder, self._options = read, folder, options
        self.checkpoint = folder / "checkpoint"

    def start(self, **options: str) -> StreamingQuery:
        """Until nothing is new."""
        return self._sink(**options).trigger(availableNow=True).start()

    def keep_running(self, **options: str) -> StreamingQuery:
        return self._sink(**options).start()

    def run(self, **options: str) -> None:
        run_to_the_end(lambda: self.start(**options), self.checkpoint)

    def _sink(self, **options: str) -> DataStreamWriter:
        rows = self._read(is_stream=True, **self._options, **options).selectExpr("to_json(value) AS value")
        sink = rows.writeStream.format("text").option("path", str(self._folder / "rows"))
        return sink.option("checkpointLocation", str(self.checkpoint))

    def values(self) -> Counter[str]:
        return Counter(line for file in (self._folder / "rows").glob("*.txt") for line in file.read_text().splitlines())


def test_a_thousand_records_have_fastavros_values_in_the_columns_of_from_avro(
    read: Callable[..., DataFrame], topic: str, produce: Any, registry: MockRegistry
) -> None:
    schema_id = registry.register(f"{topic}-value", json.dumps(ORDER))
    orders = [order(number) for number in range(1_000)]
    produce(topic, [framed(schema_id, ORDER, value) for value in orders])

    value = read().select("value")
    kind = value.schema["value"].dataType
    assert isinstance(kind, StructType)
    assert kind.simpleString() == (
        "struct<id:bigint,customer:string,price:decimal(12,2),at:timestamp,day:date,state:string,tags:array<string>,"
        "counts:map<string,int>,weight:double,gift:boolean,hash:binary>"
    ), "the columns of Spark's from_avro"
    assert [field.name for field in kind if field.nullable] == ["customer"]
    rows = value.select("value.*").collect()

    found = sorted((row.asDict() for row in rows), key=lambda row: row["id"])
    naive = [{**value, "at": value["at"].replace(tzinfo=None)} for value in orders]
    assert [{**row, "hash": bytes(row["hash"])} for row in found] == naive


def test_each_value_is_read_as_the_chosen_schema_whoever_wrote_it(
    read: Callable[..., DataFrame], topic: str, produce: Any, registry: MockRegistry
) -> None:
    subject = f"{topic}-value"
    ids = [registry.register(subject, json.dumps(schema)) for schema in (V1, V2, V3)]
    produce(topic, [framed(ids[0], V1, {"id": 1}), framed(ids[1], V2, {"id": 2, "page": "a"})], partition=0)
    produce(topic, [framed(ids[2], V3, {"id": 2**40, "page": "b"}), None], partition=0)

    rows = [row.value for row in read().orderBy("offset").collect()]
    assert [None if row is None else tuple(row) for row in rows] == [(1, "/"), (2, "a"), (2**40, "b"), None]
    seen = [request for request in registry.requests if request.startswith("GET /schemas/ids")]
    assert seen == [], "tasks carry the schemas of all versions"

    first = read(valueSchemaVersion="1", onMalformedRecord="record").orderBy("offset").collect()
    assert [row.value and tuple(row.value) for row in first] == [(1,), (2,), None, None]
    assert first[2].value_error.schema_id == ids[2]


def test_protobuf_keys_and_json_values(
    read: Callable[..., DataFrame], topic: str, produce: Any, registry: MockRegistry
) -> None:
    """JSON texts of values without a single type are those of `from_json`."""
    registry.register(f"{topic}-key", base64.b64encode(ID_FILE).decode(), kind="PROTOBUF")
    properties = {"page": {"type": "string"}, "any": {}}
    schema = json.dumps({"type": "object", "properties": properties})
    frame = b"\0" + registry.register(f"{topic}-value", schema, kind="JSON").to_bytes(4, "big")
    key = b"\0\0\0\0\1" + b"\0" + b"\x08\x07"
    texts = [b'{"page": "a", "any": { "b" : [1, "\xc3\xa9", null] }, "more": 1}', b'{"any": "b"}', b'{"any": null}']
    values = [*(frame + text for text in texts), None]
    produce(topic, [{"key": key, "value": value} for value in values])

    rows = read(keyFormat="protobuf", valueFormat="json").select("key.id", "value.page", "value.any").collect()
    decoded = F.from_json(F.expr("cast(substring(value, 6) AS string)"), "page string, any string")
    by_spark = read(valueFormat="bytes").select(F.lit(7), decoded.page, decoded.any).collect()

    expected = [(7, "a", '{"b":[1,"é",null]}'), (7, None, "b"), (7, None, None), (7, None, None)]
    assert sorted(map(tuple, rows), key=str) == sorted(map(tuple, by_spark), key=str) == sorted(expected, key=str)


def test_values_of_kafka_connect_are_read_by_the_schemas_in_them(
    read: Callable[..., DataFrame], topic: str, produce: Any, tmp_path: Path
) -> None:
    """The newest schema is looked up before tombstones, and pinned in the checkpoint."""
    first, second = struct(id="int32", price=decimal(2)), struct(id="int64", note="string")
    query = Query(read, tmp_path, valueFormat="connect-json")
    with pytest.raises(PySparkException, match="the newest records has a schema: set 'valueFormat' to json"):
        query.run()

    produce(topic, [value_with(first, {"id": 1, "price": unscaled(-125)}), *[None] * 12], partition=0)
    query.run()
    produce(topic, [value_with(second, {"id": 2, "note": "b"}), b"{}"], partition=0)
    with pytest.raises(PySparkException, match=r"with other columns\. Set 'valueSchema' to the one"):
        query.run()
    query.run(valueSchema=json.dumps(second), onMalformedRecord="null")

    assert query.values().keys() - {""} == {'{"id":1,"price":-1.25}', '{"id":2,"note":"b"}'}
    value = read(valueFormat="connect-json", onMalformedRecord="null").select("value")
    assert value.schema["value"].dataType.simpleString() == "struct<id:bigint,note:string>"
    assert [row.value and tuple(row.value) for row in value.collect()][::13] == [(1, None), (2, "b")]


def test_malformed_values_are_rows_with_cause_and_bytes_and_are_counted(
    spark: SparkSession,
    read: Callable[..., DataFrame],
    topic: str,
    produce: Any,
    registry: MockRegistry,
    wait_for: Callable[..., Any],
    tmp_path: Path,
) -> None:
    schema_id = registry.register(f"{topic}-value", json.dumps(V2))
    good = framed(schema_id, V2, {"id": 1, "page": "a"})
    bad = {
        "no frame": b'{"id": 1}',
        "short": b"\0\0",
        "unknown id": framed(999, V2, {"id": 1, "page": "a"}),
        "truncated": good[:-1],
        "trailing bytes": good + b"x",
        "bad UTF-8": good[:-1] + b"\xff",
        "a huge length": good[:6] + b"\xfe\xff\xff\xff\x0f",
        "an endless varint": good[:5] + b"\xff" * 20,
    }
    produce(topic, [value for raw in bad.values() for value in (raw, good)], partition=0)

    found = read(onMalformedRecord="record", includeRaw="true", eventsPath=str(tmp_path)).collect()

    rows = sorted(found, key=lambda row: row.offset)  # orderBy reads twice
    assert [row.value and row.value.id for row in rows] == [None, 1] * len(bad)
    assert [bytes(row.value_error.raw) for row in rows[::2]] == list(bad.values())
    assert all(row.value_error.cause for row in rows[::2])
    assert [row.value_error.schema_id for row in rows[::2]] == [None, None, 999] + [schema_id] * 5
    assert not any(row.value_error for row in rows[1::2])
    assert [bytes(row.value_raw) for row in rows] == [value for raw in bad.values() for value in (raw, good)]
    assert sum(request == "GET /schemas/ids/999" for request in registry.requests) == 1

    def events(kind: str) -> list[Row]:
        table = spark.read.format("kafkameta").options(table="refresh_events", eventsPath=str(tmp_path)).load()
        return table.where(f"kind = '{kind}'").collect()

    (malformed,) = wait_for(lambda: events("malformed_records"))
    assert (malformed.cause_topic, malformed.cause_partition) == (topic, 0)
    assert (malformed.malformed_column, malformed.malformed_records) == ("value", len(bad))
    wait_for(lambda: len(events("schema_lookup")) >= 4)
    lookups = events("schema_lookup")
    assert Counter(event.reason for event in lookups) == {"query_schema": 1, "new_versions": 2, "unknown_schema": 1}
    (unknown,) = [event for event in lookups if event.schema_id == 999]
    assert (unknown.outcome, unknown.role) == ("failed", "reader")


@pytest.mark.thorough
@pytest.mark.parametrize("first", ["producers", "query"])
def test_a_schema_evolves_four_times_whoever_is_upgraded_first(
    read: Callable[..., DataFrame], topic: str, produce: Any, registry: MockRegistry, tmp_path: Path, first: str
) -> None:
    """The query runs, and is restarted for each version. Meanwhile producers of the old and the new version write."""
    query, expected, numbers = Query(read, tmp_path), Counter[str](), itertools.count()
    ids = {1: registry.register(f"{topic}-value", json.dumps(V1))}
    running = query.keep_running(valueSchemaVersion="1")

    def click(reader: int, *writers: int) -> None:
        chosen = [(writer, next(numbers)) for writer in writers for _ in range(5)]
        values = [framed(ids[writer], VERSIONS[writer - 1], written(writer, number)) for writer, number in chosen]
        produce(topic, values)
        running.processAllAvailable()
        expected.update(read_as(reader, writer, number) for writer, number in chosen)

    click(1, 1)
    for version in range(2, len(VERSIONS) + 1):
        ids[version] = registry.register(f"{topic}-value", json.dumps(VERSIONS[version - 1]))
        if first == "producers" and version in FORWARD_COMPATIBLE:
            click(version - 1, version - 1, version)
        running.stop()
        running = query.keep_running(valueSchemaVersion=str(version))
        click(version, version - 1, version, 1)
    running.stop()
    assert query.values() == expected


REFUSALS = [
    (lambda registry: registry.respond(401), "refused the login"),
    (lambda registry: registry.respond(403), "did not allow this user"),
    (lambda registry: registry.respond(500, times=100), r"failed when asked for version latest"),
    (lambda registry: registry.stop(), "cannot reach the schema registry"),
]


@pytest.mark.parametrize("is_stream", thorough_after(1, [False, True]))
@pytest.mark.parametrize(("script", "sentence"), thorough_after(1, REFUSALS))
def test_a_registry_that_refuses_is_one_sentence_before_the_query_starts(
    read: Callable[..., DataFrame], registry: MockRegistry, script: Any, sentence: str, is_stream: bool
) -> None:
    script(registry)
    options = {"schema.registry.timeout.ms": "2000", "schema.registry.basic.auth.user.info": "me:kept-secret"}

    with pytest.raises(Exception, match=sentence) as caught:
        read(is_stream, **options)

    assert "kept-secret" not in str(caught.value)
    assert "Traceback" not in str(caught.value)
