"""Typed keys and values that Spark writes: batches, streams, exactly once; read by other libraries and by us."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming import StreamingQuery

from pyspark_kafka_meta.testing import MockRegistry
from tests.consumer import consume, consume_committed
from tests.marks import thorough_after
from tests.spark.traces import logged, run_to_the_end

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

ROWS = 1_000
ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": ["null", "string"]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "Line", "fields": [
            {"name": "sku", "type": "string"}, {"name": "count", "type": "int"}]}}},
        {"name": "tags", "type": {"type": "map", "values": "string"}},
        {"name": "channel", "type": "string", "default": "web"},
    ],
}  # fmt: skip
ORDERS = """struct(
    map('t', CAST(id AS STRING)) AS tags,
    id,
    IF(id % 3 = 0, NULL, concat('customer ', id)) AS customer,
    CAST(id * 1.25 - 100 AS DECIMAL(12, 2)) AS price,
    timestamp_millis(1704067200000 + id) AS at,
    date_add(DATE'1970-01-01', CAST(id AS INT) - 500) AS day,
    IF(id % 2 = 0, 'NEW', 'PAID') AS state,
    transform(sequence(1, CAST(id % 3 AS INT) + 1), n -> struct(concat('sku ', n) AS sku, n AS count)) AS lines
)"""


def order(number: int) -> dict[str, Any]:
    """What fastavro reads of a row of `ORDERS`."""
    return {
        "id": number,
        "customer": None if number % 3 == 0 else f"customer {number}",
        "price": Decimal(number) * Decimal("1.25") - 100,
        "at": datetime(2024, 1, 1, tzinfo=UTC) + timedelta(milliseconds=number),
        "day": date(1970, 1, 1) + timedelta(days=number - 500),
        "state": "PAID" if number % 2 else "NEW",
        "lines": [{"sku": f"sku {line}", "count": line} for line in range(1, number % 3 + 2)],
        "tags": {"t": str(number)},
        "channel": "web",
    }


def decoded(schema: Any, data: bytes) -> Any:
    buffer = io.BytesIO(data)
    value = fastavro.schemaless_reader(buffer, fastavro.parse_schema(schema), None)
    assert buffer.read() == b""
    return value


def unframed(data: bytes | None) -> tuple[int, bytes]:
    """The schema id and the value."""
    assert data is not None and data[0] == 0
    return int.from_bytes(data[1:5]), data[5:]


@pytest.fixture
def registry() -> Iterator[MockRegistry]:
    with MockRegistry() as registry:
        yield registry


@pytest.fixture
def options(kafka: Any, topic: str, registry: MockRegistry) -> dict[str, str]:
    registered = {"schema.registry.url": registry.url, "valueFormat": "avro"}
    return {"kafka.bootstrap.servers": kafka.bootstrap_servers, "topic": topic, **registered}


@pytest.fixture
def write(options: dict[str, str]) -> Callable[..., None]:
    """Appends a DataFrame to the topic, with these options."""

    def append(rows: DataFrame, **others: str) -> None:
        rows.write.format("kafkameta").options(**options, **others).mode("append").save()

    return append


def orders(spark: SparkSession, first: int = 0, until: int = ROWS) -> DataFrame:
    return as_orders(spark.range(first, until, 1, 2))


def as_orders(numbers: DataFrame) -> DataFrame:
    """An order with its key for each `id`."""
    return numbers.selectExpr("id AS key", f"{ORDERS} AS value")


@pytest.mark.thorough
def test_guids_of_schemas_are_written_into_headers_and_read_from_them(
    spark: SparkSession, kafka: Any, topic: str, write: Callable[..., None], registry: MockRegistry, options: Any
) -> None:
    guids = {
        f"__{side}_schema_id": b"\1" + UUID(registry.guid(registry.register(f"{topic}-{side}", schema))).bytes
        for side, schema in (("key", '"long"'), ("value", json.dumps(ORDER)))
    }
    own = "array(named_struct('key', 'own', 'value', CAST('x' AS BINARY))) AS headers"
    framing = {"keyFormat": "avro", "keyFraming": "confluent-header", "valueFraming": "confluent-header"}
    write(orders(spark, until=100).selectExpr("key", "IF(key = 7, NULL, value) AS value", own), **framing)

    for message in consume(kafka.bootstrap_servers, topic):
        key, value = message.key(), message.value()
        assert key is not None
        number = decoded("long", key)
        expected = guids if number != 7 else {"__key_schema_id": guids["__key_schema_id"]}
        assert message.headers() == [("own", b"x"), *expected.items()]
        assert (value and decoded(ORDER, value)) == (None if number == 7 else order(number))

    rows = spark.read.format("kafkameta").options(**options, keyFormat="avro", subscribe=topic).load()
    found = rows.selectExpr("key", "value.id").orderBy("key").collect()
    assert [tuple(row) for row in found] == [(number, None if number == 7 else number) for number in range(100)]


def test_orders_are_written_with_the_subjects_schema(
    spark: SparkSession, kafka: Any, topic: str, write: Callable[..., None], registry: MockRegistry
) -> None:
    value_id = registry.register(f"{topic}-value", json.dumps(ORDER))
    key_id = registry.register(f"{topic}-key", '"long"')
    write(orders(spark), keyFormat="avro")

    messages = consume(kafka.bootstrap_servers, topic)
    pairs = [(unframed(message.key()), unframed(message.value())) for message in messages]
    assert {(key[0], value[0]) for key, value in pairs} == {(key_id, value_id)}
    keys = [decoded("long", key) for (_, key), _ in pairs]
    assert sorted(keys) == list(range(ROWS))
    assert [decoded(ORDER, value) for _, (_, value) in pairs] == [order(key) for key in keys]
    assert not [path for path in registry.requests if path.startswith("POST")]
    assert len(registry.requests) == 2, "the driver asks once for each column, tasks never"


@pytest.mark.thorough
def test_derived_schema_is_registered_and_read_back(
    spark: SparkSession, topic: str, options: dict[str, str], write: Callable[..., None], registry: MockRegistry
) -> None:
    rows = orders(spark).unionByName(spark.sql(f"SELECT 0L AS key, IF(true, NULL, {ORDERS}) AS value FROM range(1)"))
    write(rows.selectExpr("CAST(key AS STRING) AS key", "value"), **{"auto.register.schemas": "true"})

    given = {**options, "subscribe": topic, "startingOffsets": "earliest"}
    del given["topic"]
    read = spark.read.format("kafkameta").options(**given).load()
    assert read.where("value IS NULL").count() == 1
    assert sorted(map(str, read.where("value IS NOT NULL").selectExpr("value.*").collect())) == sorted(
        map(str, rows.where("value IS NOT NULL").selectExpr("value.*").collect())
    )


@pytest.mark.thorough
def test_without_a_registry_values_have_no_frame(spark: SparkSession, kafka: Any, topic: str) -> None:
    sink = orders(spark).selectExpr("value").write.format("kafkameta").option("topic", topic)
    sink = sink.option("kafka.bootstrap.servers", kafka.bootstrap_servers).option("valueFormat", "avro")
    sink.option("valueSchema", json.dumps(ORDER)).mode("append").save()

    values = [decoded(ORDER, message.value() or b"") for message in consume(kafka.bootstrap_servers, topic)]
    assert sorted(values, key=lambda value: int(value["id"])) == list(map(order, range(ROWS)))


@pytest.mark.thorough
def test_refusals_are_errors_of_one_sentence(
    spark: SparkSession, kafka: Any, topic: str, write: Callable[..., None], registry: MockRegistry
) -> None:
    rows = orders(spark).select("value")
    with pytest.raises(PySparkException, match=f"subject {topic}-value .*auto.register.schemas"):
        write(rows)
    registry.register(f"{topic}-value", json.dumps(ORDER))
    with pytest.raises(PySparkException, match="column value cannot be written: field other is not in the Avro record"):
        write(rows.selectExpr("struct(value.*, 1 AS other) AS value"))
    registry.incompatible = "READER_FIELD_MISSING_DEFAULT_VALUE"
    with pytest.raises(PySparkException, match="READER_FIELD_MISSING_DEFAULT_VALUE"):
        write(rows, **{"auto.register.schemas": "true"})
    assert consume(kafka.bootstrap_servers, topic) == [], "no task was started"
    bad = rows.select(rows.value.withField("state", F.lit("LOST")).alias("value"))
    with pytest.raises(PySparkException, match=r"row 0 cannot be written with the schema of value: field state is not"):
        write(bad)


PAYMENT_FILE = """
name: "payment.proto" package: "shop" syntax: "proto3" dependency: "google/protobuf/timestamp.proto"
enum_type { name: "State" value { name: "NEW" number: 0 } value { name: "PAID" number: 1 } }
message_type {
  name: "Payment"
  field { name: "id" number: 1 type: TYPE_INT64 label: LABEL_OPTIONAL }
  field { name: "note" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL proto3_optional: true oneof_index: 1 }
  field { name: "total" number: 3 type: TYPE_UINT64 label: LABEL_OPTIONAL }
  field { name: "at" number: 4 type: TYPE_MESSAGE type_name: ".google.protobuf.Timestamp" label: LABEL_OPTIONAL }
  field { name: "state" number: 5 type: TYPE_ENUM type_name: ".shop.State" label: LABEL_OPTIONAL }
  field { name: "parts" number: 6 type: TYPE_SINT32 label: LABEL_REPEATED }
  field { name: "tags" number: 7 type: TYPE_MESSAGE type_name: ".shop.Payment.TagsEntry" label: LABEL_REPEATED }
  field { name: "card" number: 8 type: TYPE_STRING label: LABEL_OPTIONAL oneof_index: 0 }
  field { name: "voucher" number: 9 type: TYPE_INT32 label: LABEL_OPTIONAL oneof_index: 0 }
  nested_type {
    name: "TagsEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
    field { name: "value" number: 2 type: TYPE_DOUBLE label: LABEL_OPTIONAL }
  }
  oneof_decl { name: "means" }
  oneof_decl { name: "_note" }
}
"""
PAYMENTS = """struct(
    id,
    IF(id % 3 = 0, NULL, concat('note ', id)) AS note,
    CAST(id + 18446744073709550000 AS DECIMAL(20, 0)) AS total,
    timestamp_micros(1704067200000000 + id) AS at,
    IF(id % 2 = 0, 'NEW', 'PAID') AS state,
    transform(sequence(0, CAST(id % 3 AS INT)), n -> -n) AS parts,
    map('t', id / 2) AS tags,
    IF(id % 2 = 0, 'card', NULL) AS card,
    IF(id % 2 = 0, NULL, 0) AS voucher
)"""


@pytest.mark.parametrize("once", thorough_after(1, [True, False]), ids=["exactly once", "at least once"])
def test_protobuf_is_written_and_read_back(
    spark: SparkSession, kafka: Any, topic: str, options: dict[str, str], registry: MockRegistry, once: bool
) -> None:
    pytest.importorskip("google.protobuf")
    from google.protobuf import (  # type: ignore[import-untyped, unused-ignore]
        descriptor_pb2,
        descriptor_pool,
        message_factory,
        text_format,
        timestamp_pb2,
    )

    file = text_format.Parse(PAYMENT_FILE, descriptor_pb2.FileDescriptorProto()).SerializeToString()
    pool = descriptor_pool.DescriptorPool()
    for each in (timestamp_pb2.DESCRIPTOR.serialized_pb, file):
        pool.AddSerializedFile(each)
    registry.register(f"{topic}-value", base64.b64encode(file).decode(), "PROTOBUF")
    given = {**options, "valueFormat": "protobuf"}
    rows = spark.range(0, ROWS, 1, 2).selectExpr("CAST(id AS STRING) AS key", f"{PAYMENTS} AS value")
    rows = rows.unionByName(rows.where("key = '7'").selectExpr("'null' AS key", "IF(true, NULL, value) AS value"))
    transactional = {"kafka.transactional.id": topic} if once else {}
    rows.write.format("kafkameta").options(**given, **transactional).mode("append").save()

    values = {message.key(): message.value() for message in consume_committed(kafka.bootstrap_servers, topic)}
    read = spark.read.format("kafkameta").option("subscribe", topic).option("kafka.isolation.level", "read_committed")
    found = read.options(**{name: text for name, text in given.items() if name != "topic"}).load()
    assert sorted(map(str, found.selectExpr("CAST(key AS STRING) AS key", "value").collect())) == sorted(
        map(str, rows.collect())
    )
    assert values[b"null"] is None
    payment = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Payment"))
    data = values[b"7"] or b""
    parsed = payment.FromString(data[6:])
    assert data == b"\0\0\0\0\1\0" + parsed.SerializeToString(deterministic=True)
    assert (parsed.note, parsed.parts, parsed.WhichOneof("means")) == ("note 7", [0, -1], "voucher")


@pytest.mark.thorough
def test_json_is_written_and_read_back_also_by_spark(spark: SparkSession, topic: str, options: dict[str, str]) -> None:
    given = {**options, "valueFormat": "json"}
    rows = (
        orders(spark)
        .selectExpr("CAST(key AS STRING) AS key", "value")
        .withColumn("value", F.col("value").dropFields("price"))
    )
    rows = rows.unionByName(rows.where("key = '7'").selectExpr("'null' AS key", "IF(true, NULL, value) AS value"))
    expected = sorted(map(str, rows.collect()))
    rows.write.format("kafkameta").options(**given, **{"auto.register.schemas": "true"}).mode("append").save()

    def read(**given: str) -> DataFrame:
        read = spark.read.format("kafkameta").option("subscribe", topic).options(**given).load()
        return read.selectExpr("CAST(key AS STRING) AS key", "value")

    del given["topic"]
    assert sorted(map(str, read(**given).collect())) == expected
    raw = read(**{"kafka.bootstrap.servers": options["kafka.bootstrap.servers"]})
    by_spark = F.from_json(F.expr("CAST(substring(value, 6) AS STRING)"), rows.schema["value"].dataType.simpleString())
    assert sorted(map(str, raw.withColumn("value", by_spark).collect())) == expected


@pytest.mark.parametrize("once", thorough_after(1, [True, False]), ids=["exactly once", "at least once"])
def test_stream_writes_typed_values_while_the_schema_evolves(
    spark: SparkSession,
    kafka: Any,
    make_topic: Any,
    produce: Any,
    registry: MockRegistry,
    tmp_path: Path,
    once: bool,
) -> None:
    source, target = make_topic(2), make_topic(2)
    kafka_option = {"kafka.bootstrap.servers": kafka.bootstrap_servers}
    typed = {"schema.registry.url": registry.url, "valueFormat": "avro", "topic": target}
    transactional = {"kafka.transactional.id": target} if once else {}
    first = {"type": "record", "name": "Click", "fields": [{"name": "id", "type": "long"}]}
    second = {**first, "fields": [*first["fields"], {"name": "page", "type": "string", "default": "/"}]}

    def start() -> StreamingQuery:
        rows = spark.readStream.format("kafkameta").options(
            **kafka_option, subscribe=source, startingOffsets="earliest"
        )
        clicks = rows.load().selectExpr("struct(CAST(CAST(value AS STRING) AS BIGINT) AS id) AS value")
        sink = clicks.writeStream.format("kafkameta").options(**kafka_option, **typed, **transactional)
        return sink.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()

    expected = []
    for number, schema in enumerate((first, second)):
        registry.register(f"{target}-value", json.dumps(schema))
        numbers = range(number * 100, number * 100 + 100)
        produce(source, map(str, numbers))
        run_to_the_end(start, tmp_path)
        expected += [(number + 1, {"id": each, "page": "/"} if number else {"id": each}) for each in numbers]

    messages = consume_committed(kafka.bootstrap_servers, target)
    values = [unframed(message.value()) for message in messages]
    found = [(schema_id, decoded((first, second)[schema_id - 1], data)) for schema_id, data in values]
    assert sorted(found, key=lambda each: int(each[1]["id"])) == expected


@pytest.mark.thorough
def test_stream_asks_for_a_numbered_version_once_in_all_its_micro_batches(
    spark: SparkSession,
    kafka: Any,
    make_topic: Any,
    produce: Any,
    registry: MockRegistry,
    wait_for: Any,
    tmp_path: Path,
) -> None:
    source, target = make_topic(1), make_topic(1)
    registry.register(f"{target}-value", '"string"')
    produce(source, map(str, range(8)))
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "eventsPath": str(tmp_path / "events")}
    typed = {"schema.registry.url": registry.url, "valueFormat": "avro", "valueSchemaVersion": "1", "topic": target}

    def start() -> StreamingQuery:
        rows = spark.readStream.format("kafkameta").options(**options, subscribe=source, maxOffsetsPerTrigger="1")
        values = rows.option("startingOffsets", "earliest").load().selectExpr("CAST(value AS STRING) AS value")
        sink = values.writeStream.format("kafkameta").options(**options, **typed)
        return sink.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()

    run_to_the_end(start, tmp_path / "c")

    assert logged(tmp_path / "c", "commits") >= 8
    assert registry.requests == [f"GET /subjects/{target}-value/versions/1"]

    def lookups() -> list[Row]:
        table = spark.read.format("kafkameta").option("table", "refresh_events")
        return table.option("eventsPath", str(tmp_path / "events")).load().where("kind = 'schema_lookup'").collect()

    (lookup,) = wait_for(lookups)
    assert (lookup.role, lookup.reason, lookup.outcome) == ("committer", "query_schema", "unchanged")
    assert (lookup.schema_subject, lookup.schema_id, lookup.executor_id) == (f"{target}-value", 1, "driver")
