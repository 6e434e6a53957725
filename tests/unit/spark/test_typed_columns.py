"""Typed columns of a DataFrame that is written: Spark's types, when the registry is asked, and the events of that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    StructType,
    TimestampNTZType,
    TimestampType,
    YearMonthIntervalType,
)

from pyspark_kafka_meta.errors import SchemaError, SchemaRegistryError, UnknownSchemaError, ValueSchemaError
from pyspark_kafka_meta.events.event import Event, EventKind, Origin, Role
from pyspark_kafka_meta.events.origin import driver_name
from pyspark_kafka_meta.events.publisher import EventPublisher
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.options import ClientOptions, EventsOptions, SinkOptions
from pyspark_kafka_meta.source import KafkaMetaDataSource
from pyspark_kafka_meta.spark import batch_writer, stream_writer
from pyspark_kafka_meta.spark.batch_writer import with_driver
from pyspark_kafka_meta.spark.client_pool import worker_clients
from pyspark_kafka_meta.spark.typed_columns import columns_without_encoders, with_encoders
from pyspark_kafka_meta.testing.mock_registry import MockRegistry
from pyspark_kafka_meta.write.input_columns import SinkColumns

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"}


class Published:
    """Takes the events of a driver.

    Attributes:
        options: of the clients whose events these are.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.options: list[EventsOptions | None] = []

    def write(self, events: Sequence[Event]) -> None:
        self.events += events

    def close(self) -> None:
        """Nothing is open."""

    def lookups(self) -> list[dict[str, object]]:
        rows = [event.to_dict() for event in self.events if event.kind is EventKind.SCHEMA_LOOKUP]
        self.events.clear()
        return rows


@pytest.fixture(autouse=True)
def published(monkeypatch: pytest.MonkeyPatch, topics_exist: None) -> Published:
    """In place of the clients of this process."""
    published = Published()

    @contextmanager
    def client(options: ClientOptions, events: EventsOptions | None, origin: Origin) -> Iterator[KafkaClient]:
        published.options.append(events)
        publisher = EventPublisher([published], origin)
        yield KafkaClient(options, publisher)
        publisher.flush()

    monkeypatch.setattr(worker_clients, "client", client)
    return published


def typed(registry: MockRegistry) -> dict[str, str]:
    return {**SERVERS, "schema.registry.url": registry.url, "valueFormat": "avro", "auto.register.schemas": "true"}


def schema(**columns: DataType) -> StructType:
    struct = StructType()
    for name, data_type in columns.items():
        struct.add(name, data_type)
    return struct


def columns(registry: MockRegistry, given: StructType, **options: str) -> SinkColumns:
    parsed = with_driver(SinkOptions.parse({**typed(registry), **options}))
    return with_encoders(columns_without_encoders(given, parsed), given, parsed, {})


def plan(registry: MockRegistry, checkpoint: str, given: StructType | None = None, /, **options: str) -> None:
    """What Spark calls for each micro-batch of the stream with this checkpoint."""
    stream = {**typed(registry), "auto.register.schemas": "false", "checkpointLocation": checkpoint, **options}
    KafkaMetaDataSource(stream).streamWriter(given or schema(value=IntegerType()), False)


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
    assert found.typed["value"].encode(batch["value"], 0).to_pylist() == [b"\0\0\0\0\2\x02\x02\x02\x04"]


def test_type_without_an_arrow_type_is_refused(registry: MockRegistry) -> None:
    with pytest.raises(ValueSchemaError, match="column value has type interval year to month, which has no Arrow type"):
        columns(registry, schema(value=YearMonthIntervalType()))
    assert registry.requests == []


def test_missing_column_is_refused_before_the_registry_is_asked(registry: MockRegistry) -> None:
    with pytest.raises(SchemaError, match="Required attribute 'key' not found"):
        columns(registry, schema(value=IntegerType()), keyFormat="avro")
    assert registry.requests == []


@pytest.mark.parametrize("write", ["writer", "streamWriter"])
def test_batches_are_settled_without_it(registry: MockRegistry, monkeypatch: pytest.MonkeyPatch, write: str) -> None:
    settled: list[str] = []
    for module in (batch_writer, stream_writer):
        monkeypatch.setattr(module, "plan_transactions", lambda _, series: settled.append(series))
    registry.respond(401)
    with pytest.raises(SchemaRegistryError, match="refused the login"):
        getattr(KafkaMetaDataSource(typed(registry)), write)(schema(value=IntegerType()), False)
    assert len(settled) == 1


def test_process_that_commits_a_stream_asks_no_registry(registry: MockRegistry) -> None:
    source = KafkaMetaDataSource(typed(registry))
    source.__setstate__({})
    source.streamWriter(schema(value=IntegerType()), False)
    assert registry.requests == []
    KafkaMetaDataSource(typed(registry)).streamWriter(schema(value=IntegerType()), False)
    assert registry.requests == ["POST /subjects/t-value/versions"]


@pytest.mark.parametrize(
    ("options", "request_made"),
    [
        ({"valueSchemaVersion": "1"}, "GET /subjects/t-value/versions/1"),
        ({"valueSchema": '"int"'}, "POST /subjects/t-value"),
        ({"valueSchema": '"int"', "auto.register.schemas": "true"}, "POST /subjects/t-value/versions"),
        ({"auto.register.schemas": "true"}, "POST /subjects/t-value/versions"),
    ],
    ids=["numbered version", "id of a schema", "registration", "registration of a derived schema"],
)
def test_stream_asks_once_for_what_never_changes(
    registry: MockRegistry, published: Published, tmp_path: Path, options: dict[str, str], request_made: str
) -> None:
    registry.register("t-value", '"int"')
    for _ in range(100):
        plan(registry, f"{tmp_path}/a", **options)
    assert registry.requests == [request_made]
    assert len(published.lookups()) == 1
    plan(registry, f"{tmp_path}/b", **options)
    assert registry.requests == [request_made] * 2, "another stream asks for itself"


def test_stream_asks_for_the_latest_version_in_each_micro_batch_alone(registry: MockRegistry, tmp_path: Path) -> None:
    registry.register("money", '{"type": "fixed", "name": "Money", "size": 4}')
    referred = [{"name": "Money", "subject": "money", "version": 1}]
    for batch in range(3):
        if batch == 2:
            registry.register("t-value", '["null", "Money"]', references=referred)
        elif batch == 0:
            registry.register("t-value", '"Money"', references=referred)
        plan(registry, str(tmp_path), schema(value=BinaryType()))
    latest = "GET /subjects/t-value/versions/latest"
    assert registry.requests == [latest, "GET /subjects/money/versions/1?deleted=true", latest, latest]


def test_registry_that_refused_or_responded_nonsense_is_asked_again(registry: MockRegistry, tmp_path: Path) -> None:
    for status, body in ((409, '{"error_code": 409, "message": "no"}'), (200, '{"schema": "int"}')):
        registry.respond(status, body)
        with pytest.raises(SchemaRegistryError):
            plan(registry, str(tmp_path), valueSchemaVersion="1")
    registry.register("t-value", '"int"')
    plan(registry, str(tmp_path), valueSchemaVersion="1")
    assert len(registry.requests) == 3


def test_requests_of_a_write_are_events_of_its_driver(registry: MockRegistry, published: Published) -> None:
    registry.register("t-key", '"int"')
    given = schema(key=IntegerType(), value=IntegerType())
    columns(registry, given, keyFormat="avro", valueSchema='"int"')
    registry.incompatible = "TYPE_MISMATCH"
    registry.register("t-value", '"string"')
    with pytest.raises(SchemaRegistryError, match="TYPE_MISMATCH"):
        columns(registry, schema(value=IntegerType()), valueSchema='"int"')

    first, second, refused = published.lookups()
    assert [each["reason"] for each in (first, second, refused)] == ["registration"] * 3
    assert [(each["schema_subject"], each["schema_id"]) for each in (first, second)] == [("t-key", 1), ("t-value", 1)]
    assert (refused["outcome"], refused["schema_subject"], refused["schema_id"]) == ("failed", "t-value", None)
    assert "TYPE_MISMATCH" in str(refused["error"])
    for each in (first, second, refused):
        assert isinstance(each["latency_ms"], float)
        assert (each["role"], each["executor_id"]) == (Role.COMMITTER, "driver")
    assert {each.driver for each in published.options if each is not None} == {driver_name()}


def test_look_up_of_a_written_schema_has_own_reason_and_failure(registry: MockRegistry, published: Published) -> None:
    registry.register("t-value", '"int"')
    given, registered = schema(value=IntegerType()), {"auto.register.schemas": "false"}
    columns(registry, given, **registered)
    columns(registry, given, **registered, valueSchema='"int"')
    with pytest.raises(UnknownSchemaError):
        columns(registry, given, **registered, valueSchema='"long"')

    rows = published.lookups()
    assert [(each["reason"], each["outcome"], each["schema_id"]) for each in rows] == [
        ("query_schema", "unchanged", 1),
        ("query_schema", "unchanged", 1),
        ("query_schema", "failed", None),
    ]


def test_write_without_requests_has_no_client(registry: MockRegistry, published: Published) -> None:
    bare = {"valueSchema": '"int"', "valueFraming": "none", "auto.register.schemas": "false"}
    columns(registry, schema(value=IntegerType()), **bare)
    assert published.options == []


def test_failure_to_publish_hides_no_error_of_the_write(
    registry: MockRegistry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def client(*_: object) -> None:
        raise OSError("the events' folder is full")

    monkeypatch.setattr(worker_clients, "client", client)
    given = schema(value=IntegerType())
    with pytest.raises(UnknownSchemaError, match="subject t-value"):
        columns(registry, given, **{"auto.register.schemas": "false"})
    assert "the events' folder is full" in caplog.text
    assert columns(registry, given).typed["value"].frame == b"\0\0\0\0\1"
