"""Typed columns of a DataFrame that is written: Spark's types, and when the registry is asked."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql.types import DataType, IntegerType, StructType, TimestampNTZType, TimestampType, YearMonthIntervalType

from pyspark_kafka_meta.errors import SchemaError, ValueSchemaError
from pyspark_kafka_meta.options import SinkOptions
from pyspark_kafka_meta.source import KafkaMetaDataSource
from pyspark_kafka_meta.spark.typed_sink import typed_sink_columns
from pyspark_kafka_meta.testing.mock_registry import MockRegistry
from pyspark_kafka_meta.write.input_columns import SinkColumns

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"}


@pytest.fixture
def registry() -> Iterator[MockRegistry]:
    with MockRegistry() as registry:
        yield registry


def typed(registry: MockRegistry) -> dict[str, str]:
    return {**SERVERS, "schema.registry.url": registry.url, "valueFormat": "avro", "auto.register.schemas": "true"}


def schema(**columns: DataType) -> StructType:
    struct = StructType()
    for name, data_type in columns.items():
        struct.add(name, data_type)
    return struct


def columns(registry: MockRegistry, given: StructType, **options: str) -> SinkColumns:
    return typed_sink_columns(given, SinkOptions.parse({**typed(registry), **options}))


def test_columns_of_sparks_types_are_encoded(registry: MockRegistry) -> None:
    times = schema(at=TimestampType(), local=TimestampNTZType())
    found = columns(registry, schema(key=IntegerType(), value=times), keyFormat="avro")
    batch = pa.record_batch({
        "key": pa.array([1], pa.int32()),
        "value": pa.array([{"at": 1, "local": 2}], pa.struct([
            ("at", pa.timestamp("us", "Europe/Berlin")), ("local", pa.timestamp("us"))])),
    })  # fmt: skip
    assert (found.key, found.value) == (0, 1)
    assert found.typed["key"].encode(batch["key"], 0).to_pylist() == [b"\0\0\0\0\1\x02"]
    assert found.typed["value"].encode(batch["value"], 0).to_pylist() == [b"\0\0\0\0\2\0\x02\0\x04"]


def test_type_without_an_arrow_type_is_refused(registry: MockRegistry) -> None:
    with pytest.raises(ValueSchemaError, match="column value has type interval year to month, which has no Arrow type"):
        columns(registry, schema(value=YearMonthIntervalType()))
    assert registry.requests == []


def test_missing_column_is_refused_before_the_registry_is_asked(registry: MockRegistry) -> None:
    with pytest.raises(SchemaError, match="Required attribute 'key' not found"):
        columns(registry, schema(value=IntegerType()), keyFormat="avro")
    assert registry.requests == []


def test_process_that_commits_a_stream_asks_no_registry(registry: MockRegistry) -> None:
    source = KafkaMetaDataSource(typed(registry))
    source.__setstate__({})
    source.streamWriter(schema(value=IntegerType()), False)
    assert registry.requests == []
    KafkaMetaDataSource(typed(registry)).streamWriter(schema(value=IntegerType()), False)
    assert registry.requests == ["POST /subjects/t-value/versions"]
