"""Columns of the side tables, and events of other versions in them."""

from __future__ import annotations

import json
import logging

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from pyspark_kafka_meta.events.event import Event
from pyspark_kafka_meta.tables.parsed_events import parse_events
from pyspark_kafka_meta.tables.rows import ROWS, LagRow, arrow_schema, struct_type, to_batches
from tests.unit.written_events import made


@pytest.mark.parametrize("row", [*ROWS.values(), LagRow])
def test_arrow_schema_equals_pysparks_for_the_spark_schema(row: type) -> None:
    assert arrow_schema(row).equals(to_arrow_schema(struct_type(row), timezone="UTC"), check_metadata=True)


def test_refresh_events_have_the_fields_of_their_json_and_a_timestamp() -> None:
    assert struct_type(Event).names == ["time", *json.loads(made("c", 1).to_json())]


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ("time", "timestamp"),
        ("sequence", "bigint"),
        ("reason", "string"),
        ("latency_ms", "double"),
        ("topics_added", "array<string>"),
        ("partitions_added", "array<struct<topic:string,partition:bigint>>"),
        ("produces", "array<struct<broker_id:bigint,requests:bigint,request_bytes:bigint>>"),
        ("executor_id", "string"),
    ],
)
def test_columns_follow_the_types_of_the_fields(column: str, kind: str) -> None:
    assert struct_type(Event)[column].dataType.simpleString() == kind


def test_columns_are_chosen_and_ordered_by_name() -> None:
    assert arrow_schema(Event, ["reason", "cache_id"]).names == ["reason", "cache_id"]


SCHEMA = arrow_schema(Event, ["time", "cache_id", "sequence", "latency_ms", "partitions_added", "produces", "pid"])
GOOD = {"cache_id": "c", "sequence": 1, "time_ms": 1_500, "latency_ms": 2, "pid": 7}


def rows(*lines: object) -> list[dict[str, object]]:
    texts = [line if isinstance(line, bytes | None) else json.dumps(line).encode() for line in lines]
    return [row for batch in to_batches(parse_events(texts, SCHEMA.names), SCHEMA) for row in batch.to_pylist()]


def test_unknown_fields_are_ignored_and_missing_ones_null(caplog: pytest.LogCaptureFixture) -> None:
    newer = {**GOOD, "colour": {"red": 1}, "partitions_added": [{"topic": "t", "partition": 1, "rank": 2}]}
    older = {name: value for name, value in GOOD.items() if name != "pid"}
    first, second = rows(newer, older)

    assert first["partitions_added"] == [{"topic": "t", "partition": 1}]
    assert (second["partitions_added"], second["produces"], second["pid"]) == (None, None, None)
    assert not caplog.records


def test_nulls_in_lists_are_dropped() -> None:
    (row,) = rows({**GOOD, "partitions_added": [None, {"topic": "t", "partition": 1}, None]})

    assert row["partitions_added"] == [{"topic": "t", "partition": 1}]


def test_time_is_the_time_of_the_event() -> None:
    (row,) = rows(GOOD)

    assert str(row["time"]) == "1970-01-01 00:00:01.500000+00:00"


@pytest.mark.parametrize(
    "invalid",
    [
        b'{"cache_id": "c", "sequ',
        b"",
        None,
        b"\xff\xfe",
        b"[" * 100_000,
        [GOOD],
        {"cache_id": "c"},
        {**GOOD, "sequence": "1"},
        {**GOOD, "time_ms": 10**15},
        {**GOOD, "time_ms": 253_402_300_799_999},
        {**GOOD, "time_ms": -1},
        {**GOOD, "pid": "seven"},
        {**GOOD, "pid": 2**70},
        {**GOOD, "time_ms": 2**62},
        {**GOOD, "partitions_added": [3]},
    ],
    ids=[
        "torn",
        "empty",
        "null",
        "not text",
        "deep",
        "a list",
        "no sequence",
        "a text",
        "after the year 10000",
        "after the year 10000 in Tokyo",
        "before 1970",
        "other type",
        "large",
        "far",
        "odd",
    ],
)
def test_invalid_line_is_skipped_and_counted(invalid: object, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        valid = rows(GOOD, invalid, {**GOOD, "sequence": 2})

    assert [row["sequence"] for row in valid] == [1, 2]
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == ["1"]


def test_rows_without_columns_are_counted() -> None:
    (batch,) = to_batches([{"sequence": 1}, {"sequence": 2}], pa.schema([]))

    assert batch.num_rows == 2
