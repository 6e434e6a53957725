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

import fastavro
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming import DataStreamWriter

from pyspark_kafka_meta.testing import LocalRegistry, MockRegistry
from tests.consumer import consume, consume_committed
from tests.marks import thorough_after
from tests.spark.traces import run_to_the_end

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


@pytest.fixture(params=["mock", pytest.param("real", marks=pytest.mark.thorough)])
def any_registry(request: pytest.FixtureRequest) -> Iterator[MockRegistry | LocalRegistry]:
    with MockRegistry() if request.param == "mock" else LocalRegistry() as registry:
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


def orders(spark: SparkSession) -> DataFrame:
    """`ROWS` orders with their keys."""
    return spark.range(0, ROWS, 1, 2).selectExpr("id AS key", f"{ORDERS} AS value")


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
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format, timestamp_pb2  # type: ignore[import-untyped, unused-ignore]

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


V1: dict[str, Any] = {"type": "record", "name": "Click", "fields": [{"name": "id", "type": "long"}]}
V2 = {**V1, "fields": [*V1["fields"], {"name": "page", "type": "string", "default": "/"}]}


@pytest.fixture
def copy_clicks(spark: SparkSession, kafka: Any, tmp_path: Path) -> Callable[..., DataStreamWriter]:
    """A stream that writes the numbers of a topic as clicks to another one."""

    def make(source: str, target: str, registry_url: str, **options: str) -> DataStreamWriter:
        servers = {"kafka.bootstrap.servers": kafka.bootstrap_servers}
        rows = spark.readStream.format("kafkameta").options(**servers, subscribe=source, startingOffsets="earliest")
        clicks = rows.load().selectExpr("struct(CAST(CAST(value AS STRING) AS BIGINT) AS id) AS value")
        typed = {"schema.registry.url": registry_url, "valueFormat": "avro", "topic": target}
        sink = clicks.writeStream.format("kafkameta").options(**servers, **typed, **options)
        return sink.option("checkpointLocation", str(tmp_path))

    return make


@pytest.mark.parametrize("once", thorough_after(1, [True, False]), ids=["exactly once", "at least once"])
def test_stream_writes_typed_values_while_the_schema_evolves(
    spark: SparkSession,
    kafka: Any,
    make_topic: Any,
    produce: Any,
    any_registry: MockRegistry | LocalRegistry,
    copy_clicks: Callable[..., DataStreamWriter],
    tmp_path: Path,
    once: bool,
) -> None:
    source, target = make_topic(2), make_topic(2)
    transactional = {"kafka.transactional.id": target} if once else {}
    expected, schemas = [], dict[int, Any]()
    for number, schema in enumerate((V1, V2)):
        schema_id = any_registry.register(f"{target}-value", json.dumps(schema))
        schemas[schema_id] = schema
        numbers = range(number * 100, number * 100 + 100)
        produce(source, map(str, numbers))
        copies = copy_clicks(source, target, any_registry.url, **transactional)
        run_to_the_end(copies.trigger(availableNow=True).start, tmp_path)
        expected += [(schema_id, {"id": each, "page": "/"} if number else {"id": each}) for each in numbers]

    values = [unframed(message.value()) for message in consume_committed(kafka.bootstrap_servers, target)]
    found = [(schema_id, decoded(schemas[schema_id], data)) for schema_id, data in values]
    assert sorted(found, key=lambda each: int(each[1]["id"])) == expected
    typed = {"schema.registry.url": any_registry.url, "valueFormat": "avro", "kafka.isolation.level": "read_committed"}
    read = spark.read.format("kafkameta").option("kafka.bootstrap.servers", kafka.bootstrap_servers).options(**typed)
    for version, columns in (("1", ["id"]), ("latest", ["id", "page"])):
        rows = read.options(subscribe=target, valueSchemaVersion=version).load()
        assert rows.select("value.*").columns == columns
        assert sorted(row.id for row in rows.select("value.id").collect()) == list(range(200))


def test_a_stream_that_gave_the_registry_up_goes_on_after_a_restart(
    kafka: Any, make_topic: Any, produce: Any, registry: MockRegistry, copy_clicks: Callable[..., DataStreamWriter]
) -> None:
    """Each row arrives once."""
    source, target = make_topic(2), make_topic(2)
    once = {"kafka.transactional.id": target}
    registry.register(f"{target}-value", json.dumps(V1))
    impatient = copy_clicks(source, target, registry.url, **once, **{"schema.registry.timeout.ms": "500"}).start()
    registry.stop()
    produce(source, map(str, range(30)))
    with pytest.raises(StreamingQueryException, match="cannot reach the schema registry at http://"):
        impatient.processAllAvailable()

    registry.start()
    registry.register(f"{target}-value", json.dumps(V1))
    query = copy_clicks(source, target, registry.url, **once).start()
    produce(source, map(str, range(30, 60)))
    query.processAllAvailable()
    query.stop()
    values = [unframed(message.value())[1] for message in consume_committed(kafka.bootstrap_servers, target)]
    assert sorted(decoded(V1, value)["id"] for value in values) == list(range(60))
