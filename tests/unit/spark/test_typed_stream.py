"""The offsets of a stream with typed values carry its schemas, and a restart compares them."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest

from pyspark_kafka_meta.errors import SchemaChangedError, SchemaRegistryError
from pyspark_kafka_meta.model import NO_EPOCH, OffsetRange, Position
from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.read.planning.checkpoint_offsets import BEGINNING, RecentOffsets, SourceOffset
from pyspark_kafka_meta.source import KafkaMetaDataSource
from pyspark_kafka_meta.spark.batch_reader import Task
from pyspark_kafka_meta.spark.stream_api import ReadAllAvailable
from pyspark_kafka_meta.spark.stream_reader import KafkaMetaStreamReader
from pyspark_kafka_meta.testing.mock_registry import MockRegistry
from pyspark_kafka_meta.typed.reading import QuerySchemas, query_schemas
from tests.partitions import T0


class Planner:
    """Plans up to `end`."""

    def __init__(self, end: SourceOffset) -> None:
        self.end = end
        self.recent = RecentOffsets()

    def next_offset(self, start: SourceOffset, target: object, limited: bool) -> SourceOffset:
        return start if start.positions == self.end.positions else self.end

    def ranges(self, start: SourceOffset, end: SourceOffset) -> list[OffsetRange]:
        return [OffsetRange(T0, None, 0, 5, NO_EPOCH)]

    def tasks(self, planned: list[OffsetRange]) -> list[list[OffsetRange]]:
        return [planned]

    def commit_to_group(self, finished: SourceOffset) -> None:
        """There is none."""

    def flush_events(self) -> None:
        """There are none."""


END = SourceOffset({T0: Position(5, 0)}, {"t": None})
OPTIONS = {"kafka.bootstrap.servers": "a:1", "subscribe": "t", "valueFormat": "avro"}


def schemas(text: str) -> QuerySchemas:
    return query_schemas(SourceOptions.parse({**OPTIONS, "valueSchema": text}).typed, ("t",))


def as_latest(found: QuerySchemas) -> QuerySchemas:
    """As if the schema were the latest version of a subject."""
    readers = [replace(reader, column=replace(reader.column, schema=None)) for reader in found.readers]
    return replace(found, readers=tuple(readers))


def reader(found: QuerySchemas | None, end: SourceOffset = END) -> KafkaMetaStreamReader:
    options = SourceOptions.parse({**OPTIONS, "valueSchema": '"int"'}).for_stream()
    stream = KafkaMetaStreamReader(options, {"value": "value"}, found)
    stream._opened = Planner(end)  # type: ignore[assignment]
    return stream


def latest(stream: KafkaMetaStreamReader, start: dict[str, Any]) -> dict[str, Any]:
    return stream.latestOffset(start, ReadAllAvailable())


def test_a_planned_offset_names_the_schemas_and_stays_the_same_text_without_new_records() -> None:
    found = schemas('"int"')
    end = latest(reader(found), BEGINNING.as_dict())

    assert end["schemas"] == {"value": found.pins["value"]._asdict()}
    assert latest(reader(found), end) == end
    assert latest(reader(as_latest(schemas('{"type": "int"}'))), end) == end, "no empty micro-batch for new pins alone"


def test_planner_and_tasks_have_the_same_schemas_if_the_user_gives_columns() -> None:
    """Spark makes both from the pickled data source, and does not ask it for its schema then."""
    number, default = '{"name": "x", "type": "int"}', '{"name": "x", "type": "int", "default": 7}'
    with MockRegistry() as registry:
        options = {**OPTIONS, "schema.registry.url": registry.url}
        registry.register("t-value", f'{{"type": "record", "name": "A", "fields": [{number}]}}')
        pickled = pickle.dumps(KafkaMetaDataSource(options))
        registry.register("t-value", f'{{"type": "record", "name": "A", "fields": [{default}]}}')
        columns = KafkaMetaDataSource(options).schema()
        first, second = (pickle.loads(pickled) for _ in range(2))
        first.streamReader(columns), second.streamReader(columns)

    assert first._schemas.pins == second._schemas.pins
    assert "version 1 of" in str(first._schemas.pins)


def test_registry_that_is_away_is_named_by_the_reader_of_a_user_schema() -> None:
    with MockRegistry() as registry:
        registry.respond(401)
        registry.respond(401)
        source = pickle.loads(pickle.dumps(KafkaMetaDataSource({**OPTIONS, "schema.registry.url": registry.url})))
        with pytest.raises(SchemaRegistryError, match="refused the login"):
            source.schema()


def test_bytes_have_no_schemas_in_their_offsets() -> None:
    assert "schemas" not in latest(reader(None), BEGINNING.as_dict())


def test_tasks_of_bytes_carry_no_schemas_of_writers() -> None:
    (task,) = reader(None).partitions(BEGINNING.as_dict(), END.as_dict())

    assert isinstance(task, Task)
    assert task.schemas == ()


def test_a_restart_with_other_columns_of_a_later_version_is_refused_at_its_first_call() -> None:
    end = latest(reader(schemas('"int"')), BEGINNING.as_dict())
    changed = as_latest(schemas('"long"'))

    with pytest.raises(SchemaChangedError, match="with other columns"):
        latest(reader(changed), end)
    with pytest.raises(SchemaChangedError, match="with other columns"):
        reader(changed).partitions(BEGINNING.as_dict(), end)


def test_a_schema_that_the_user_chose_is_pinned_from_the_next_offset_on() -> None:
    end = latest(reader(schemas('"int"')), BEGINNING.as_dict())
    chosen, later = schemas('"long"'), replace(END, positions={T0: Position(9, 0)})

    assert latest(reader(chosen, later), end)["schemas"] == {"value": chosen.pins["value"]._asdict()}
