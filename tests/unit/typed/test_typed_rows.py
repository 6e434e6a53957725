"""The conversion of the records of one task, as the options of a query say."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest

from pyspark_kafka_meta.client_facts import MalformedRecords, SchemaLookup
from pyspark_kafka_meta.errors import MalformedRecordError
from pyspark_kafka_meta.kafka.records.schema import SCHEMA_ID_HEADERS_COLUMN, records_arrow_schema
from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.testing.mock_registry import MockRegistry
from pyspark_kafka_meta.typed.decoding import TypedRows
from pyspark_kafka_meta.typed.framing import guid_frame
from pyspark_kafka_meta.typed.reading import WriterSchemas, query_schemas, typed_rows
from pyspark_kafka_meta.typed.registry.known_schemas import MAX_UNKNOWN_IDS

RECORD = '{"type": "record", "name": "shop.%s", "fields": [{"name": "id", "type": "long"}]}'


def typed_options(registry: MockRegistry, **others: str) -> SourceOptions:
    given = {"kafka.bootstrap.servers": "a:1", "subscribe": "t", "valueFormat": "avro", **others}
    return SourceOptions.parse({**given, "schema.registry.url": registry.url})


def records(
    rows: TypedRows, values: list[bytes], headers: list[list[tuple[str, bytes]]] | None = None
) -> pa.RecordBatch:
    """Of partition 0, from offset 7 on."""
    count = len(values)
    kinds = records_arrow_schema(rows.raw_columns)
    columns: list[list[Any]] = [
        values,
        ["t"] * count,
        [0] * count,
        list(range(7, 7 + count)),
        headers or [None] * count,
    ]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=kinds)


def test_of_the_records_in_a_topic_those_of_the_named_types_are_read() -> None:
    with MockRegistry() as registry:
        for name in ("Order", "Customer"):
            registry.register(f"shop.{name}", RECORD % name)
        named = {"valueSubjectNameStrategy": "record", "valueRecordName": "shop.Order", "onMalformedRecord": "null"}
        options = typed_options(registry, **named)
        schemas, facts = query_schemas(options.typed, options.topics), list[Any]()
        known = WriterSchemas(schemas, lambda lookup: None).current()
        with typed_rows(schemas, known, ["value"], facts.append) as rows:
            batch = rows.convert(records(rows, [b"\0\0\0\0\1\x0a", b"\0\0\0\0\2\x0a"]))

    assert batch.to_pydict() == {"value": [{"id": 5}, None]}
    assert facts[-1].error == "offset 8: it is a shop.Customer, not a shop.Order"


@pytest.mark.parametrize("has_other_ids", [False, True], ids=["no frames", "each with another unknown id"])
def test_events_of_malformed_records_are_few_however_many_there_are(has_other_ids: bool) -> None:
    facts, numbers = list[Any](), np.arange(8_000)
    raw = [b"\0" + (10 + number).to_bytes(4) if has_other_ids else b"{id}" for number in numbers.tolist()]
    values = pa.array(raw, pa.binary())
    columns = pa.table({
        "key": values,
        "value": values,
        "topic": pa.array(["t"] * len(numbers)),
        "partition": pa.array(numbers % 4, pa.int32()),
        "offset": pa.array(numbers // 4),
        SCHEMA_ID_HEADERS_COLUMN: pa.nulls(len(numbers), records_arrow_schema([SCHEMA_ID_HEADERS_COLUMN]).types[0]),
    })  # fmt: skip
    with MockRegistry() as registry:
        for column in ("key", "value"):
            registry.register(f"t-{column}", RECORD % column)
        formats = {"schema.registry.url": registry.url, "keyFormat": "avro", "valueFormat": "avro"}
        options = SourceOptions.parse(
            {"kafka.bootstrap.servers": "a:1", "subscribe": "t", "onMalformedRecord": "null", **formats}
        )
        schemas = query_schemas(options.typed, options.topics)
        with typed_rows(schemas, (), ["key", "value"], facts.append) as rows:
            for batch in columns.select(rows.raw_columns).to_batches(1_000):
                assert rows.convert(batch).column("value").null_count == batch.num_rows

    malformed = [fact for fact in facts if isinstance(fact, MalformedRecords)]
    places = [(each.malformed_column, each.partition.partition, each.malformed_records) for each in malformed]
    assert sorted(places) == [(column, number, 2_000) for column in ("key", "value") for number in range(4)]
    asked = {fact.schema_id for fact in facts if isinstance(fact, SchemaLookup)}
    assert len(asked) == (MAX_UNKNOWN_IDS if has_other_ids else 0)


def test_a_guid_is_looked_up_with_an_event_unless_the_task_carries_it() -> None:
    with MockRegistry() as registry:
        registry.register("t-value", RECORD % "Order")
        other = registry.guid(registry.register("other", (RECORD % "Order").replace("long", "int")))
        own, options = registry.guid(1), typed_options(registry)
        schemas, facts = query_schemas(options.typed, options.topics), list[Any]()
        known = WriterSchemas(schemas, lambda lookup: None).current()
        asked = len(registry.requests)
        with typed_rows(schemas, known, ["value"], facts.append) as rows:
            headers = [[("__value_schema_id", guid_frame(guid))] for guid in (own, other)]
            batch = rows.convert(records(rows, [b"\x0a", b"\x0c"], headers))

    assert batch.to_pydict() == {"value": [{"id": 5}, {"id": 6}]}
    assert registry.requests[asked:] == [f"GET /schemas/guids/{other}"]
    (lookup,) = facts
    assert (lookup.schema_guid, lookup.schema_id, lookup.error) == (other, None, None)


def test_a_task_that_is_repeated_asks_again_for_an_unknown_id() -> None:
    with MockRegistry() as registry:
        registry.register("t-value", RECORD % "Order")
        options = typed_options(registry)
        schemas = query_schemas(options.typed, options.topics)
        with typed_rows(schemas, (), ["value"], Mock()) as rows, pytest.raises(MalformedRecordError, match="id 2"):
            rows.convert(records(rows, [b"\0\0\0\0\2\x0a"]))
        registry.register("t-value", RECORD % "Customer")
        with typed_rows(schemas, (), ["value"], Mock()) as rows:
            batch = rows.convert(records(rows, [b"\0\0\0\0\2\x0a"]))

    assert batch.to_pydict() == {"value": [{"id": 5}]}
