"""The columns of changes, and what a restarted query compares of them."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

import pytest

from pyspark_kafka_meta.changes.schema import pinned_rows
from pyspark_kafka_meta.errors import SchemaChangedError
from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.testing import MockRegistry
from pyspark_kafka_meta.typed.formats import SchemaText
from pyspark_kafka_meta.typed.reading import NewestSchema, QuerySchemas, check_pins, query_schemas
from tests.unit.typed.connect_json.written import of, struct

KEY = {"id": "int32"}
ROW = {"id": "int32", "name": "string"}
SOURCE = {"lsn": "int64"}
AVRO = {"int32": "int", "int64": "long", "string": "string"}
Fields = Mapping[str, str]


def connect(key: Fields, row: Fields, source: Fields) -> QuerySchemas:
    """The schemas of a query whose newest values have these fields."""
    image = struct(**row)
    texts = {"key": struct(**key), "value": struct(after=image, source=struct(**source), op="string")}
    newest = {side: [NewestSchema(SchemaText(json.dumps(of(schema))), "t-0")] for side, schema in texts.items()}
    given = {"valueFormat": "connect-json", "changes": "debezium"}
    options = SourceOptions.parse({"kafka.bootstrap.servers": "a:1", "subscribe": "t", **given})
    assert options.changes is not None
    return pinned_rows(query_schemas(options.typed, ("t",), lambda side, _: newest[side]), options.changes)


def avro(key: Fields, row: Fields, source: Fields) -> QuerySchemas:
    """The same, as a registry has them."""

    def record(name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        typed = [{"name": field, "type": AVRO.get(str(kind), kind)} for field, kind in fields.items()]
        return {"type": "record", "name": name, "fields": typed}

    value = {"after": ["null", record("Value", row)], "source": record("Source", source), "op": "string"}
    with MockRegistry() as registry:
        registry.register("t-key", json.dumps(record("Key", key)))
        registry.register("t-value", json.dumps(record("Envelope", value)))
        given = {"valueFormat": "avro", "schema.registry.url": registry.url, "changes": "debezium"}
        options = SourceOptions.parse({"kafka.bootstrap.servers": "a:1", "subscribe": "t", **given})
        assert options.changes is not None
        return pinned_rows(query_schemas(options.typed, ("t",)), options.changes)


@pytest.mark.parametrize("schemas", [connect, avro])
@pytest.mark.parametrize(
    ("key", "row", "source", "refused"),
    [
        (KEY, ROW, {**SOURCE, "txId": "int64"}, None),
        (KEY, {**ROW, "price": "int64"}, SOURCE, None),
        (KEY, {"price": "int64", **ROW}, SOURCE, None),
        (KEY, {"id": "int32"}, SOURCE, "value"),
        (KEY, {"id": "int32", "title": "string"}, SOURCE, "value"),
        (KEY, {"id": "int32", "name": "int64"}, SOURCE, "value"),
        ({"id": "int64"}, ROW, SOURCE, "key"),
        ({**KEY, "name": "string"}, ROW, SOURCE, "key"),
    ],
    ids=["connector", "added", "added first", "dropped", "renamed", "type", "type of key", "longer key"],
)
def test_a_restart_goes_on_with_added_columns_alone(
    schemas: Any, key: Fields, row: Fields, source: Fields, refused: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    pins, now = schemas(KEY, ROW, SOURCE).pins, schemas(key, row, source)
    if refused is None:
        with caplog.at_level(logging.WARNING):
            check_pins(pins, now)
        assert "records are read with the new one from here on" in caplog.text
    else:
        with pytest.raises(SchemaChangedError, match=f"the schema of {refused} was .*, with other columns. Set '"):
            check_pins(pins, now)
