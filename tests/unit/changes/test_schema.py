"""The columns of changes, and what a restarted query compares of them."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from benchmarks.envelopes import raw_batch
from pyspark_kafka_meta.arrow_reader import schemas_of
from pyspark_kafka_meta.changes.rows import change_rows
from pyspark_kafka_meta.changes.schema import TableColumn, changes_schema, pinned_rows
from pyspark_kafka_meta.errors import OptionError, SchemaChangedError, ValueSchemaError
from pyspark_kafka_meta.model import OffsetRange, TopicPartition
from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.testing import MockRegistry
from pyspark_kafka_meta.typed.formats import DECIMAL, SchemaText
from pyspark_kafka_meta.typed.framing import frame
from pyspark_kafka_meta.typed.reading import NewestSchema, QuerySchemas, check_pins, query_schemas
from tests.unit.typed.connect_json.written import of, struct, value

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


def avro_record(name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    typed = [{"name": field, "type": AVRO.get(str(kind), kind)} for field, kind in fields.items()]
    return {"type": "record", "name": name, "fields": typed}


def avro_envelope(row: Fields, source: Fields, **beside: str) -> Any:
    value = {"after": ["null", avro_record("Value", row)], "source": avro_record("Source", source), "op": "string"}
    return avro_record("Envelope", {**value, **beside})


def avro(key: Fields, row: Fields, source: Fields) -> QuerySchemas:
    """The same, as a registry has them."""
    with MockRegistry() as registry:
        registry.register("t-key", json.dumps(avro_record("Key", key)))
        registry.register("t-value", json.dumps(avro_envelope(row, source)))
        given = {"valueFormat": "avro", "schema.registry.url": registry.url, "changes": "debezium"}
        options = SourceOptions.parse({"kafka.bootstrap.servers": "a:1", "subscribe": "t", **given})
        assert options.changes is not None
        return pinned_rows(query_schemas(options.typed, ("t",)), options.changes)


REWRITTEN, SENT = {"id": 1, "__deleted": "true"}, {"id": 2}
AVRO_FIELDS = [{"name": "id", "type": "int"}, {"name": "__deleted", "type": ["null", "string"], "default": None}]
JSON_FIELDS = {"id": {"type": "integer"}, "__deleted": {"oneOf": [{"type": "null"}, {"type": "string"}]}}


def avro_row(fields: Any) -> Any:
    return {"type": "record", "name": "Value", "fields": fields}


def json_row(names: Sequence[str]) -> Any:
    return {"type": "object", "title": "Value", "properties": {name: JSON_FIELDS[name] for name in names}}


@pytest.mark.parametrize(
    ("kind", "schemas", "values"),
    [
        ("avro", [avro_row(AVRO_FIELDS), avro_row(AVRO_FIELDS[:1])], [b"\2\2\x08true", b"\4"]),
        ("avro", [["null", avro_row(AVRO_FIELDS)], ["null", avro_row(AVRO_FIELDS[:1])]], [b"\2\2\2\x08true", b"\2\4"]),
        ("json", [json_row(["id", "__deleted"]), json_row(["id"])], [json.dumps(REWRITTEN), json.dumps(SENT)]),
        (
            "json",
            [{"oneOf": [{"type": "null"}, json_row(names)]} for names in (["id", "__deleted"], ["id"])],
            [json.dumps(REWRITTEN), json.dumps(SENT)],
        ),
    ],
)
def test_a_rewritten_delete_is_one_also_if_the_newest_schema_has_no_field_for_it(
    kind: str, schemas: Sequence[Any], values: Sequence[str | bytes]
) -> None:
    """As after delete.tombstone.handling.mode was rewrite."""
    with MockRegistry() as registry:
        ids = [registry.register("t-value", json.dumps(schema), kind.upper()) for schema in schemas]
        framed = [
            frame(schema_id, 4) + (value if isinstance(value, bytes) else value.encode())
            for schema_id, value in zip(ids, values, strict=True)
        ]
        given = {"valueFormat": kind, "schema.registry.url": registry.url}
        assert ops(given, framed) == [("d", 1), ("u", 2)]


def test_a_rewritten_delete_is_one_also_if_the_newest_value_has_no_field_for_it() -> None:
    schemas = [struct(id="int32", __deleted="string"), struct(id="int32")]
    values = [value(schema, row) for schema, row in zip(schemas, (REWRITTEN, SENT), strict=True)]

    assert ops({"valueFormat": "connect-json"}, values, json.dumps(schemas[1])) == [("d", 1), ("u", 2)]


def test_decimals_of_avro_with_more_digits_than_spark_has_are_texts() -> None:
    """As `AvroData` writes MySQL's DECIMAL(65, 30), and, as 64, any of which it knows no digits."""
    known = {"scale": "30", "connect.decimal.precision": "65"}
    decimal = {"type": "bytes", "connect.name": "org.apache.kafka.connect.data.Decimal", "logicalType": "decimal"}
    long = {**decimal, "scale": 30, "precision": 65, "connect.parameters": known}
    other = {**decimal, "scale": 2, "precision": 64, "connect.parameters": {"scale": "2"}}
    types = {"id": "int", "long": ["null", long], "other": other}
    schema = avro_row([{"name": name, "type": type_} for name, type_ in types.items()])
    number = (10**64 + 5).to_bytes(27, "big")
    with MockRegistry() as registry:
        schema_id = registry.register("t-value", json.dumps(schema))
        value = frame(schema_id, 4) + b"\2\2" + bytes([2 * len(number)]) + number + b"\2\x7b"
        (row,) = converted({"valueFormat": "avro", "schema.registry.url": registry.url}, [value])

    assert (row["long"], row["other"]) == (f"1{'0' * 34}.{'0' * 29}5", Decimal("1.23"))


def ops(given: Mapping[str, str], values: Sequence[bytes], newest: str = "") -> list[tuple[str, int]]:
    """What happened to the rows of these values, and their ids."""
    rows = converted(given, values, newest)
    assert [*rows[0]] == ["key", "id", "_change"]
    return [(row["_change"]["op"], row["id"]) for row in rows]


def converted(given: Mapping[str, str], values: Sequence[bytes], newest: str = "") -> list[dict[str, Any]]:
    more = {"kafka.bootstrap.servers": "a:1", "subscribe": "t", "changes": "upsert", "keyFormat": "bytes"}
    options = SourceOptions.parse({**more, **given})
    assert options.changes is not None
    found = [NewestSchema(SchemaText(newest), "t-0")]
    schemas = pinned_rows(query_schemas(options.typed, ("t",), lambda *_: found), options.changes)
    names = changes_schema(schemas, options.changes).type.names
    ranges = [OffsetRange(TopicPartition("t", 0), None, 0, len(values))]
    with change_rows(schemas, options.changes, ranges, (), names, lambda _: None, lambda *_: None) as rows:
        return list(rows.convert(raw_batch(rows.raw_columns, [b"k"] * len(values), values)).to_pylist())


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


def shards(name: str, *values: Any) -> QuerySchemas:
    """The schemas of a query whose topics have these schemas of values."""
    topics = tuple(f"t{number}" for number in range(len(values)))
    given = {"valueFormat": name, "changes": "debezium", "keyFormat": "bytes", "subscribe": ",".join(topics)}
    newest = [NewestSchema(SchemaText(json.dumps(each)), topic) for topic, each in zip(topics, values, strict=True)]
    with MockRegistry() as registry:
        if name != "connect-json":
            given["schema.registry.url"] = registry.url
            for topic, each in zip(topics, values, strict=True):
                registry.register(f"{topic}-value", json.dumps(each), "AVRO" if name == "avro" else "JSON")
        options = SourceOptions.parse({"kafka.bootstrap.servers": "a:1", **given})
        return schemas_of(options, lambda *_: newest)


def connect_envelope(row: Fields, source: Fields, **beside: str) -> Any:
    return of(struct(after=struct(**row), source=struct(**source), op="string", **beside))


def json_envelope(row: Fields, source: Fields, **beside: str) -> Any:
    def record(fields: Fields) -> dict[str, Any]:
        kinds = {name: {"type": "string" if kind == "string" else "integer"} for name, kind in fields.items()}
        return {"type": "object", "properties": kinds}

    parts = {"after": record(row), "source": record(source), **record({"op": "string", **beside})["properties"]}
    return {"type": "object", "properties": parts}


ENVELOPES = {"connect-json": connect_envelope, "avro": avro_envelope, "json": json_envelope}


@pytest.mark.parametrize("name", ENVELOPES)
def test_shards_may_have_connectors_of_different_versions(name: str) -> None:
    envelope = ENVELOPES[name]
    newer = envelope(ROW, {"lsn": "string", "ts_us": "int64"}, ts_us="int64")

    (reader,) = shards(name, envelope(ROW, SOURCE), newer).readers
    assert reader.schema.type.field("source").type.names == ["lsn"]
    with pytest.raises(OptionError, match="have different schemas"):
        shards(name, envelope(ROW, SOURCE), envelope({**ROW, "name": "int64"}, SOURCE))


def rows_of(schemas: QuerySchemas) -> Sequence[TableColumn]:
    options = SourceOptions.parse(
        {"kafka.bootstrap.servers": "a:1", "subscribe": "t", "valueFormat": "connect-json", "changes": "debezium"}
    )
    assert options.changes is not None
    return changes_schema(schemas, options.changes).row


TITLED = {"type": "integer", "connect.type": "int64", "title": "io.debezium.time.MicroTimestamp"}
JSON_ROW = json.dumps({"type": "object", "properties": {"id": {"type": "integer"}, "at": TITLED}})


def json_schemas(**given: str) -> QuerySchemas:
    formats = {"valueFormat": "json", "changes": "debezium", "keySchema": "id int", **given}
    return schemas_of(
        SourceOptions.parse({"kafka.bootstrap.servers": "a:1", "subscribe": "t", **formats}), lambda *_: []
    )


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"valueSchema": JSON_ROW}, "set it to that of the envelope"),
        ({"valueSchema": JSON_ROW, "changes": "upsert"}, "add the property '__deleted'"),
        ({"valueSchema": "id int", "changeOrder": "source"}, "set the schema of the whole envelope"),
    ],
)
def test_the_schema_of_a_row_that_does_not_say_enough_is_refused(given: dict[str, str], problem: str) -> None:
    with pytest.raises(ValueSchemaError, match=problem):
        json_schemas(**given)


@pytest.mark.parametrize(
    "source",
    [
        {"connector": "postgresql", "txId": 7, "lsn": 8, "snapshot": "false"},
        {"connector": "oracle", "txId": "6.28.807", "scn": "2868546", "snapshot": True},
        {"connector": "yugabytedb", "txId": "", "lsn": "1:4::0:0"},
        {"connector": "mysql", "pos": 154, "file": "mysql-bin.000003"},
    ],
    ids=lambda source: str(source["connector"]),
)
def test_the_type_of_a_row_is_enough_for_json_of_any_connector(source: dict[str, Any]) -> None:
    value = {"op": "c", "before": None, "after": {"id": 1}, "source": source}
    (reader,) = (each for each in json_schemas(valueSchema="id int").readers if each.column.column == "value")

    decoded = reader.schema.decoder(reader.schema, False).decode(pa.array([json.dumps(value).encode()]))

    assert decoded.faults == []
    known = {name: str(each).lower() if name == "snapshot" else str(each) for name, each in source.items()}
    found = decoded.values[0].as_py()["source"]
    assert found == {name: known.get(name) for name in found}


@pytest.mark.parametrize("twice", ["op", "after", "source", "transaction"])
def test_an_envelope_with_a_field_twice_is_refused(twice: str) -> None:
    parts = {"op": "string", "after": struct(**ROW), "source": struct(**SOURCE), "transaction": struct(id="string")}
    value = struct(**parts)
    value["fields"] += [field for field in value["fields"] if field["field"] == twice]

    with pytest.raises(ValueSchemaError, match="a field twice"):
        shards("connect-json", value)


@pytest.mark.parametrize("scale", [None, {"a": 1}, [], "two"])
def test_a_decimal_whose_scale_is_no_number_stays_bytes(scale: Any) -> None:
    decimal = {"type": "bytes", "name": DECIMAL, "parameters": {"scale": scale}}
    schemas = shards("connect-json", struct(op="string", after=struct(id="int32", price=decimal)))

    assert [(column.name, column.type) for column in rows_of(schemas)] == [("id", pa.int32()), ("price", pa.binary())]
