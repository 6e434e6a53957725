"""Spark, Arrow and the JSON of events have the same columns."""

from __future__ import annotations

import json

import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from pyspark_kafka_meta.kafka.metadata.refresh_events import RefreshEvent
from pyspark_kafka_meta.tables.rows import LagRow
from pyspark_kafka_meta.tables.schemas import ROWS, arrow_schema, struct_type
from tests.unit.written_events import made


@pytest.mark.parametrize("row", [*ROWS.values(), LagRow])
def test_arrow_schema_equals_pysparks_for_the_spark_schema(row: type) -> None:
    assert arrow_schema(row).equals(to_arrow_schema(struct_type(row), timezone="UTC"), check_metadata=True)


def test_refresh_events_have_the_fields_of_their_json_and_a_timestamp() -> None:
    assert struct_type(RefreshEvent).names == ["time", *json.loads(made("c", 1).to_json())]


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
    assert struct_type(RefreshEvent)[column].dataType.simpleString() == kind


def test_columns_are_chosen_and_ordered_by_name() -> None:
    assert arrow_schema(RefreshEvent, ["reason", "cache_id"]).names == ["reason", "cache_id"]
