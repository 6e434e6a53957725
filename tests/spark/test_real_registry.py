"""Typed values with a real registry, Apicurio."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pyspark_kafka_meta.testing import LocalRegistry
from tests.consumer import consume, consume_committed
from tests.spark.test_typed_sink import ORDER, ROWS, as_orders, decoded, order, orders, unframed
from tests.spark.traces import run_to_the_end

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.thorough]

WIDER = {**ORDER, "fields": [*ORDER["fields"], {"name": "country", "type": "string", "default": "?"}]}


@pytest.fixture(scope="module")
def registry() -> Iterator[LocalRegistry]:
    with LocalRegistry() as registry:
        yield registry


@pytest.fixture
def typed(kafka: Any, registry: LocalRegistry) -> dict[str, str]:
    registered = {"schema.registry.url": registry.url, "valueFormat": "avro"}
    return {"kafka.bootstrap.servers": kafka.bootstrap_servers, **registered}


@pytest.fixture
def read(spark: SparkSession, topic: str, typed: dict[str, str]) -> Callable[..., DataFrame]:
    def load(**options: str) -> DataFrame:
        return spark.read.format("kafkameta").options(**typed, **options, subscribe=topic).load()

    return load


def test_orders_are_written_and_read_with_registered_schemas(
    spark: SparkSession, kafka: Any, topic: str, typed: dict[str, str], read: Any, registry: LocalRegistry
) -> None:
    ids = registry.register(f"{topic}-key", '"long"'), registry.register(f"{topic}-value", json.dumps(ORDER))
    rows = orders(spark)
    rows.write.format("kafkameta").options(**typed, topic=topic, keyFormat="avro").mode("append").save()

    pairs = [
        (unframed(message.key()), unframed(message.value())) for message in consume(kafka.bootstrap_servers, topic)
    ]
    assert {(key[0], value[0]) for key, value in pairs} == {ids}
    assert {decoded("long", key): decoded(ORDER, value) for (_, key), (_, value) in pairs} == {
        number: order(number) for number in range(ROWS)
    }
    columns = [f"value.{name}" for name in rows.schema["value"].dataType.fieldNames()]  # type: ignore[attr-defined]
    found = read(keyFormat="avro").select("key", *columns).collect()
    assert sorted(map(str, found)) == sorted(map(str, rows.select("key", *columns).collect()))


def test_a_stream_writes_once_while_the_schema_evolves_and_is_read_as_either_version(
    spark: SparkSession,
    topic: str,
    make_topic: Any,
    produce: Any,
    typed: dict[str, str],
    read: Any,
    registry: LocalRegistry,
    tmp_path: Path,
) -> None:
    source = make_topic(2)
    texts = spark.readStream.format("kafkameta").options(subscribe=source, startingOffsets="earliest")
    texts = texts.option("kafka.bootstrap.servers", typed["kafka.bootstrap.servers"])
    numbers = texts.load().selectExpr("CAST(CAST(value AS STRING) AS BIGINT) AS id")
    sink = as_orders(numbers).drop("key").writeStream.format("kafkameta").options(**typed, topic=topic)
    sink = sink.options(**{"kafka.transactional.id": topic, "checkpointLocation": str(tmp_path)})
    for first, schema in ((0, ORDER), (100, WIDER)):
        registry.register(f"{topic}-value", json.dumps(schema))
        produce(source, map(str, range(first, first + 100)))
        run_to_the_end(sink.trigger(availableNow=True).start, tmp_path)

    assert len(consume_committed(typed["kafka.bootstrap.servers"], topic)) == 200
    once = {"kafka.isolation.level": "read_committed"}
    for version in ("1", "latest"):
        rows = read(**once, valueSchemaVersion=version)
        assert sorted(row.id for row in rows.select("value.id").collect()) == list(range(200))
        assert ("country" in rows.schema["value"].dataType.fieldNames()) == (version == "latest")
    assert read(**once).where("value.country = '?'").count() == 200


def test_a_refused_schema_and_unknown_ids_are_one_sentence_each(
    spark: SparkSession, topic: str, produce: Any, typed: dict[str, str], read: Any, registry: LocalRegistry
) -> None:
    registry.register(f"{topic}-value", json.dumps(ORDER))
    request = urllib.request.Request(f"{registry.url}/config/{topic}-value", b'{"compatibility": "BACKWARD"}')
    request.method, request.headers = "PUT", {"Content-Type": "application/json"}
    urllib.request.urlopen(request).close()
    rows = spark.sql("SELECT struct('a' AS id) AS value")
    sink = rows.write.format("kafkameta").options(**typed, topic=topic).option("auto.register.schemas", "true")
    with pytest.raises(PySparkException, match=rf"asked to register a schema in subject {topic}-value \(409"):
        sink.mode("append").save()

    produce(topic, [b"\0\0\x0f\0\0value"])
    (row,) = read(onMalformedRecord="record").select("value", "value_error.*").collect()
    assert (row.value, row.schema_id, bytes(row.raw)) == (None, 0xF0000, b"\0\0\x0f\0\0value")
    assert "was asked for schema id 983040 and does not have it (40403" in row.cause
