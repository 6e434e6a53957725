"""The conversion of the records of one task, as the options of a query say."""

from __future__ import annotations

import time
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest

from pyspark_kafka_meta.kafka.metadata.event_recorder import EventRecorder
from pyspark_kafka_meta.kafka.metadata.refresh_events import EventKind, RefreshEvent
from pyspark_kafka_meta.kafka.records.schema import records_arrow_schema
from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.read.typed_values.query_schemas import WriterSchemas, query_schemas
from pyspark_kafka_meta.schema_registry.known_schemas import MAX_UNKNOWN_IDS
from pyspark_kafka_meta.spark.typed_records import typed_rows
from pyspark_kafka_meta.testing.mock_registry import MockRegistry

RECORD = '{"type": "record", "name": "shop.%s", "fields": [{"name": "id", "type": "long"}]}'


def test_of_the_records_in_a_topic_those_of_the_named_types_are_read() -> None:
    with MockRegistry() as registry:
        for name in ("Order", "Customer"):
            registry.register(f"shop.{name}", RECORD % name)
        options = SourceOptions.parse(
            {
                "kafka.bootstrap.servers": "a:1",
                "subscribe": "t",
                "schema.registry.url": registry.url,
                "valueFormat": "avro",
                "valueSubjectNameStrategy": "record",
                "valueRecordName": "shop.Order",
                "onMalformedRecord": "null",
            }
        )
        schemas, events = query_schemas(options.typed, options.topics), Mock()
        known = WriterSchemas(schemas, lambda lookup: None).current()
        with typed_rows(schemas, known, ["value"], events) as rows:
            values = [[b"\0\0\0\0\1\x0a", b"\0\0\0\0\2\x0a"], ["t"] * 2, [0] * 2, [7, 8]]
            kinds = records_arrow_schema(rows.raw_columns)
            arrays = [pa.array(column, kind) for column, kind in zip(values, kinds.types, strict=True)]
            batch = rows.convert(pa.RecordBatch.from_arrays(arrays, schema=kinds))

    assert batch.to_pydict() == {"value": [{"id": 5}, None]}
    (_, details), _ = events.record_malformed.call_args
    assert details.error == "offset 8: it is a shop.Customer, not a shop.Order"


@pytest.mark.parametrize("has_other_ids", [False, True], ids=["no frames", "each with another unknown id"])
def test_events_of_malformed_records_are_few_however_many_there_are(has_other_ids: bool) -> None:
    events, numbers = list[RefreshEvent](), np.arange(100_000)
    recorder = EventRecorder("c" * 32, events.append, time.monotonic, time.time)
    raw = [b"\0" + (10 + number).to_bytes(4) if has_other_ids else b"{id}" for number in numbers.tolist()]
    values = pa.array(raw, pa.binary())
    records = pa.table({
        "key": values,
        "value": values,
        "topic": pa.array(["t"] * len(numbers)),
        "partition": pa.array(numbers % 4, pa.int32()),
        "offset": pa.array(numbers // 4),
    })  # fmt: skip
    with MockRegistry() as registry:
        for column in ("key", "value"):
            registry.register(f"t-{column}", RECORD % column)
        formats = {"schema.registry.url": registry.url, "keyFormat": "avro", "valueFormat": "avro"}
        options = SourceOptions.parse(
            {"kafka.bootstrap.servers": "a:1", "subscribe": "t", "onMalformedRecord": "null", **formats}
        )
        schemas = query_schemas(options.typed, options.topics)
        with typed_rows(schemas, (), ["key", "value"], recorder) as rows:
            for batch in records.select(rows.raw_columns).to_batches(10_000):
                assert rows.convert(batch).column("value").null_count == batch.num_rows

    malformed = [event.to_dict() for event in events if event.kind is EventKind.MALFORMED_RECORDS]
    places = [(each["malformed_column"], each["cause_partition"], each["malformed_records"]) for each in malformed]
    assert sorted(places) == [(column, number, 25_000) for column in ("key", "value") for number in range(4)]
    lookups = len(events) - len(malformed)
    assert lookups == (MAX_UNKNOWN_IDS if has_other_ids else 0)
