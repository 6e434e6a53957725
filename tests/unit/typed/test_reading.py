"""The schemas of a query: where they come from, what is pinned, and what tasks carry."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pyspark_kafka_meta.client_facts import SchemaLookup
from pyspark_kafka_meta.errors import OptionError, SchemaChangedError, UnknownSchemaError, ValueSchemaError
from pyspark_kafka_meta.options import SourceOptions, typed_values
from pyspark_kafka_meta.testing.mock_registry import MockRegistry
from pyspark_kafka_meta.typed.formats import SchemaText, formats
from pyspark_kafka_meta.typed.json.schema import parse_json_schema
from pyspark_kafka_meta.typed.reading import (
    MAX_WRITERS,
    WATCH_BACKOFF_S,
    WATCH_INTERVAL_S,
    NewestSchema,
    QuerySchemas,
    WriterSchemas,
    check_pins,
    fingerprint,
    given_schema,
    query_schemas,
)
from pyspark_kafka_meta.typed.registry import client as client_module
from pyspark_kafka_meta.typed.registry.known_schemas import PAUSE_FACTOR
from tests.unit.typed.connect_json.written import struct
from tests.unit.typed.digits import Digits

NARROW, WIDE = '"1"', '"wide"'


@pytest.fixture(autouse=True)
def _digits_for_avro(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typed_values, "formats", lambda: {**formats(), "avro": Digits})


def of_query(registry: MockRegistry | None, topics: str = "t", **options: str) -> QuerySchemas:
    url = {} if registry is None else {"schema.registry.url": registry.url}
    given = {"kafka.bootstrap.servers": "a:1", "subscribe": topics, "valueFormat": "avro", **url, **options}
    parsed = SourceOptions.parse(given)
    return query_schemas(parsed.typed, parsed.topics)


def register(registry: MockRegistry, subject: str, *schemas: str) -> None:
    for schema in schemas:
        registry.register(subject, schema, kind="DIGITS")


def test_the_latest_version_of_the_topics_subject_is_read(registry: MockRegistry) -> None:
    register(registry, "t-value", NARROW, WIDE)
    (reader,) = of_query(registry).readers

    assert reader.text == SchemaText(WIDE)
    assert reader.pin.source == "version 2 of t-value (id 2)"


def test_a_version_is_read_if_it_is_named(registry: MockRegistry) -> None:
    register(registry, "t-value", NARROW, WIDE)

    assert of_query(registry, valueSchemaVersion="1").readers[0].text == SchemaText(NARROW)


def test_keys_have_a_subject_of_their_own(registry: MockRegistry) -> None:
    register(registry, "t-value", WIDE)
    register(registry, "t-key", NARROW)

    assert [reader.text.text for reader in of_query(registry, keyFormat="avro").readers] == [NARROW, WIDE]


def test_topics_with_the_same_schema_are_read_together(registry: MockRegistry) -> None:
    register(registry, "t-value", NARROW)
    register(registry, "u-value", NARROW)

    (reader,) = of_query(registry, "t,u").readers
    assert reader.subjects == ("t-value", "u-value")


def test_topics_whose_schemas_are_read_in_the_same_way_are_read_together(registry: MockRegistry) -> None:
    register(registry, "t-value", WIDE)
    register(registry, "u-value", WIDE + " ")
    assert of_query(registry, "t,u").readers[0].text == SchemaText(WIDE)


def test_topics_may_share_a_subject_in_a_context(registry: MockRegistry) -> None:
    register(registry, ":.staging:s", WIDE)
    schemas = of_query(registry, "t,u", valueSubject=":.staging:s")

    assert schemas.readers[0].pin.source == "version 1 of :.staging:s (id 1)"
    (writer,) = WriterSchemas(schemas, lambda _: None).current()
    assert (writer.schema_id, writer.context) == (1, ".staging")


def test_topics_with_different_schemas_are_refused(registry: MockRegistry) -> None:
    register(registry, "t-value", NARROW)
    register(registry, "u-value", WIDE)

    with pytest.raises(OptionError, match=r"version 1 of t-value \(id 1\), version 1 of u-value \(id 2\)"):
        of_query(registry, "t,u")


@pytest.mark.parametrize(("strategy", "subjects"), [("record", ("a.A", "b.B")), ("topic-record", ("t-a.A", "t-b.B"))])
def test_records_of_several_types_are_a_union(registry: MockRegistry, strategy: str, subjects: tuple[str, str]) -> None:
    register(registry, subjects[0], NARROW)
    register(registry, subjects[1], WIDE)

    (reader,) = of_query(registry, valueSubjectNameStrategy=strategy, valueRecordName="a.A, b.B").readers

    assert reader.text.text == f"{NARROW}|{WIDE}"
    assert reader.subjects == subjects


def test_another_format_in_the_registry_is_refused(registry: MockRegistry) -> None:
    registry.register("t-value", NARROW, kind="JSON")

    with pytest.raises(OptionError, match=r"version 1 of t-value \(id 1\) is JSON, not Digits: correct 'valueFormat'"):
        of_query(registry)


def test_a_missing_subject_is_named(registry: MockRegistry) -> None:
    with pytest.raises(UnknownSchemaError, match="version latest of subject t-value"):
        of_query(registry)


def test_a_schema_is_a_text_or_a_file(tmp_path: Path) -> None:
    file, with_bom = tmp_path / "schema.avsc", tmp_path / "bom.avsc"
    file.write_text(WIDE)
    with_bom.write_text(WIDE, "utf-8-sig")

    for given in (WIDE, str(file), str(with_bom)):
        assert of_query(None, valueSchema=given).readers[0].text == SchemaText(WIDE)
    with pytest.raises(OptionError, match=r"'valueSchema' must be the text of a schema, or the path .* \(No such file"):
        of_query(None, valueSchema=str(tmp_path / "other"))


def test_a_schema_is_a_type_of_spark_or_a_file_with_it(tmp_path: Path) -> None:
    file = tmp_path / "a type.ddl"
    file.write_text("id BIGINT")

    given = {"kafka.bootstrap.servers": "a:1", "subscribe": "t", "valueFormat": "json", "valueSchema": "id INT"}
    column = SourceOptions.parse(given).typed.columns[0]
    for text in ("id BIGINT", "struct<id:bigint>", "id:long", str(file)):
        assert parse_json_schema(given_schema(column, text).text).type == pa.struct([("id", pa.int64())])
    with pytest.raises(OptionError, match="No such file"):
        given_schema(column, "id")


def test_a_fingerprint_ignores_the_blanks_of_json_and_sees_the_order_of_columns() -> None:
    assert fingerprint(SchemaText('{"a": 1, "b": 2}')) == fingerprint(SchemaText('{"a":1,"b":2}'))
    assert fingerprint(SchemaText('{"a": 1, "b": 2}')) != fingerprint(SchemaText('{"b": 2, "a": 1}'))
    assert fingerprint(SchemaText('{"a": 1}')) != fingerprint(SchemaText('{"a": 2}'))


def test_fingerprints_are_those_in_checkpoints() -> None:
    assert fingerprint(SchemaText('"int"')) == "3bd2e6bf3d659f8f"
    assert fingerprint(SchemaText('"int"', max_depth=2)) == "79a9ecdef01c7e68"
    assert fingerprint(SchemaText('"a"', ('"b"',))) != fingerprint(SchemaText('"a"'))


# --- restarts ---------------------------------------------------------------------------------------------------------


def test_a_restart_with_the_same_schema_says_nothing(registry: MockRegistry, caplog: pytest.LogCaptureFixture) -> None:
    register(registry, "t-value", NARROW)
    check_pins(of_query(registry).pins, of_query(registry))

    assert caplog.records == []


def test_later_version_with_same_columns_is_a_warning(registry: MockRegistry, caplog: pytest.LogCaptureFixture) -> None:
    register(registry, "t-value", NARROW)
    pins = of_query(registry).pins
    register(registry, "t-value", '"2"')
    with caplog.at_level(logging.WARNING):
        check_pins(pins, of_query(registry))

    assert "was version 1 of t-value (id 1) in the last micro-batch, and is version 2 of t-value (id 2)" in caplog.text


def test_later_columns_are_refused_unless_named_so(registry: MockRegistry, caplog: pytest.LogCaptureFixture) -> None:
    register(registry, "t-value", NARROW)
    pins = of_query(registry).pins
    register(registry, "t-value", WIDE)

    with pytest.raises(SchemaChangedError, match=r"Set 'valueSchemaVersion' to a number: .*; or set 'valueSchema'"):
        check_pins(pins, of_query(registry))
    check_pins(pins, of_query(registry, valueSchemaVersion="1"))
    assert caplog.records == []
    check_pins(pins, of_query(registry, valueSchemaVersion="2"))
    assert "was version 1" in caplog.text


def test_bytes_may_become_typed_at_a_restart(registry: MockRegistry) -> None:
    register(registry, "t-value", NARROW)

    check_pins({}, of_query(registry))


# --- schemas of tasks -------------------------------------------------------------------------------------------------


def test_tasks_carry_the_schemas_of_all_versions_and_new_ones_soon(registry: MockRegistry) -> None:
    now = 0.0
    register(registry, "t-value", NARROW)
    writers = WriterSchemas(of_query(registry), lambda lookup: None, lambda: now)
    assert [schema.schema_id for schema in writers.current()] == [1]

    register(registry, "t-value", WIDE)
    asked = len(registry.requests)
    assert len(writers.current()) == 1
    assert len(registry.requests) == asked
    now += WATCH_INTERVAL_S
    assert [schema.schema_id for schema in writers.current()] == [1, 2]
    assert registry.requests[asked:] == ["GET /subjects/t-value/versions", "GET /subjects/t-value/versions/2"]


def test_a_registry_that_is_away_does_not_stop_a_plan(registry: MockRegistry, caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    register(registry, "t-value", NARROW)
    writers = WriterSchemas(of_query(registry), lambda lookup: None, lambda: now)
    writers.current()
    registry.stop()

    now += WATCH_INTERVAL_S
    assert [schema.schema_id for schema in writers.current()] == [1]
    assert "workers ask for schemas themselves" in caplog.text

    registry.start()
    register(registry, "t-value", WIDE)
    now += WATCH_BACKOFF_S
    assert len(writers.current()) == 2


def test_tasks_carry_the_newest_versions_alone_however_long_a_stream_runs(registry: MockRegistry) -> None:
    now = 0.0
    register(registry, "t-value", NARROW)
    writers = WriterSchemas(of_query(registry), lambda lookup: None, lambda: now)
    for number in range(2 * MAX_WRITERS):
        register(registry, "t-value", f'"{number + 2}"')
        now += WATCH_INTERVAL_S
        writers.current()

    assert [schema.schema_id for schema in writers.current()] == [*range(MAX_WRITERS + 2, 2 * MAX_WRITERS + 2)]


def test_a_slow_registry_with_many_subjects_delays_few_plans_and_is_asked_for_the_others_later(
    registry: MockRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "LOOKUPS_AT_ONCE", 1)
    now = 0.0
    topics = [f"t{number}" for number in range(7)]
    for topic in topics:
        register(registry, f"{topic}-value", NARROW)

    def report(_: SchemaLookup) -> None:
        nonlocal now
        now += 0.5  # of each request

    writers = WriterSchemas(of_query(registry, ",".join(topics)), report, lambda: now)
    asked, plans = len(registry.requests), list[float]()
    while now < 100:
        began = now
        writers.current()
        plans.append(now - began)
        now += 0.5  # until the next plan

    assert max(plans) <= 2.5
    assert sum(plans) <= 100 / PAUSE_FACTOR + 2.5
    assert {request.split("/")[2] for request in registry.requests[asked:]} == {f"{topic}-value" for topic in topics}


def test_subjects_are_asked_for_at_the_same_time(registry: MockRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    topics = [f"t{number}" for number in range(client_module.LOOKUPS_AT_ONCE)]
    for topic in topics:
        register(registry, f"{topic}-value", NARROW)
    writers = WriterSchemas(of_query(registry, ",".join(topics)), lambda _: None)
    everyone, respond = threading.Barrier(len(topics)), registry._respond
    monkeypatch.setattr(registry, "_respond", lambda *given: (everyone.wait(20), respond(*given)))

    assert [schema.schema_id for schema in writers.current()] == [1]


def test_a_subject_without_schemas_is_no_failure(registry: MockRegistry, caplog: pytest.LogCaptureFixture) -> None:
    schemas = of_query(registry, valueSchema=NARROW)

    assert WriterSchemas(schemas, lambda lookup: None).current() == ()
    assert caplog.records == []


def test_values_without_frames_need_no_writers(registry: MockRegistry) -> None:
    register(registry, "t-value", NARROW)
    schemas = of_query(registry, valueFraming="none")
    asked = len(registry.requests)

    assert WriterSchemas(schemas, lambda lookup: None).current() == ()
    assert len(registry.requests) == asked


# Schemas in values


def of_values(*found: tuple[dict[str, Any], str], topics: str = "t", **options: str) -> QuerySchemas:
    """The schemas of a query whose topics have values with these schemas, at these places."""
    newest = [NewestSchema(SchemaText(json.dumps(schema)), place) for schema, place in found]
    given = {"kafka.bootstrap.servers": "a:1", "subscribe": topics, "valueFormat": "connect-json", **options}
    parsed = SourceOptions.parse(given)
    return query_schemas(parsed.typed, parsed.topics, lambda column, find: newest if column == "value" else [])


def test_the_schema_in_the_newest_value_is_read() -> None:
    schemas = of_values((struct(a="int8"), "t-0 at offset 7"))
    (reader,) = schemas.readers

    assert (str(reader.schema.type), reader.pin.source) == ("struct<a: int8>", "the schema in t-0 at offset 7")
    assert WriterSchemas(schemas, lambda lookup: None).current() == ()


def test_without_a_schema_in_a_value_the_query_does_not_begin() -> None:
    with pytest.raises(
        OptionError, match="no value of the newest records has a schema: set 'valueFormat' to json for JSON without"
    ):
        of_values()
    assert of_values(valueSchema=json.dumps(struct(a="int8"))).readers[0].pin.source == "option valueSchema"


def test_topics_have_schemas_in_values_that_are_read_in_the_same_way() -> None:
    first, second = (struct("a.Value", x="int8"), "t-0 at offset 1"), (struct("b.Value", x="int8"), "u-0 at offset 2")
    assert of_values(first, second, topics="t,u").readers[0].pin.source == "the schema in t-0 at offset 1"

    other = "different schemas .t-0 at offset 1, u-0 at offset 3.: read them in a query each, or set 'valueSchema'"
    with pytest.raises(OptionError, match=other):
        of_values(first, (struct(x="int16"), "u-0 at offset 3"), topics="t,u")
    with pytest.raises(
        ValueSchemaError, match="the schema in t-0 at offset 4 cannot be read as columns: x has no known"
    ):
        of_values((struct(x={"type": "int128"}), "t-0 at offset 4"))


def test_newest_schema_with_other_columns_stops_a_restarted_query(caplog: pytest.LogCaptureFixture) -> None:
    pins = of_values((struct(a="int8"), "t-0 at offset 7")).pins
    with caplog.at_level(logging.WARNING):
        check_pins(pins, of_values((struct(a="int8"), "t-0 at offset 8")))
    assert caplog.messages == []

    now = struct(a="int8", b="string")
    with pytest.raises(SchemaChangedError, match="is the schema in t-0 at offset 9 now, with other columns"):
        check_pins(pins, of_values((now, "t-0 at offset 9")))
    check_pins(pins, of_values(valueSchema=json.dumps(now)))
    assert "records are read with the new one from here on" in caplog.text
