"""The conversion of the records of one task, as the options of a query say."""

from __future__ import annotations

from unittest.mock import Mock

import pyarrow as pa

from pyspark_kafka_meta.kafka.records.schema import records_arrow_schema
from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.read.typed_values.query_schemas import WriterSchemas, query_schemas
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
