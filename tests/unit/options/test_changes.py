"""The options of changes of databases, and what they change about others."""

from __future__ import annotations

import pytest

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.options import ChangeOrder, Changes, ChangesOptions, OnTruncate, SinkOptions, SourceOptions

MINIMAL = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "t"}
AVRO = {**MINIMAL, "schema.registry.url": "http://localhost:8081", "valueFormat": "avro"}


def test_without_the_option_records_are_no_changes() -> None:
    assert SourceOptions.parse(AVRO).changes is None


def test_the_defaults_of_changes() -> None:
    assert SourceOptions.parse({**AVRO, "changes": "Debezium"}).changes == ChangesOptions(
        Changes.DEBEZIUM, ChangeOrder.KAFKA, OnTruncate.FAIL, False, b"__debezium_unavailable_value"
    )


@pytest.mark.parametrize(
    ("given", "columns"),
    [
        ({}, ["key", "value"]),
        ({"keyFormat": "bytes"}, ["value"]),
        ({"keyFormat": "json", "keySchema": "id int", "keyFraming": "none"}, ["key", "value"]),
        ({"keySubject": "keys", "keySchemaVersion": "2"}, ["key", "value"]),
    ],
)
def test_keys_have_the_format_of_values_unless_another_is_given(given: dict[str, str], columns: list[str]) -> None:
    typed = SourceOptions.parse({**AVRO, "changes": "upsert", **given}).typed

    assert [column.column for column in typed.columns] == columns
    assert typed.columns[0].format.registry_type.lower() == given.get("keyFormat", "avro").replace("bytes", "avro")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"changes": "cdc"}, "Option 'changes' must be debezium or upsert, got 'cdc'"),
        ({"onTruncate": "skip"}, "Option 'onTruncate' has no effect without 'changes' debezium: set it or"),
        ({"changes": "upsert", "includeBefore": "true"}, "Option 'includeBefore' has no effect without 'changes' "),
        ({"changes": "upsert", "changeOrder": "source"}, "Option 'changeOrder' has no effect without 'changes' debez"),
        ({"unavailableValue": "x"}, "Option 'unavailableValue' has no effect without 'changes'"),
        ({"changes": "upsert", "unavailableValue": ""}, "Option 'unavailableValue' must be a text, or hex: and the "),
        ({"changes": "upsert", "unavailableValue": "hex:abc"}, "Option 'unavailableValue' must be a text, or hex: and"),
        ({"changes": "upsert", "unavailableValue": "hex:"}, "Option 'unavailableValue' must be a text, or hex: and"),
        ({"changes": "upsert", "includeRaw": "true"}, "Set either 'changes' or 'includeRaw', not both"),
        ({"changes": "upsert", "includeHeaders": "true"}, "Set either 'changes' or 'includeHeaders', not both"),
        ({"changes": "upsert", "valueFormat": "bytes"}, "Option 'changes' has no effect without 'valueFormat'"),
    ],
)
def test_contradictions_are_refused(given: dict[str, str], problem: str) -> None:
    with pytest.raises(OptionError) as caught:
        SourceOptions.parse({**AVRO, **given})

    assert str(caught.value).startswith(problem)


def test_a_key_schema_is_needed_without_a_registry() -> None:
    with pytest.raises(OptionError, match=r"keyFormat.* json needs .*keySchema"):
        SourceOptions.parse({**MINIMAL, "changes": "upsert", "valueFormat": "json", "valueSchema": "id int"})


def test_a_write_knows_nothing_of_changes() -> None:
    with pytest.raises(OptionError, match="Option 'keySubject' has no effect without 'keyFormat': set it"):
        SinkOptions.parse({**AVRO, "topic": "t", "keySubject": "k"})
