"""Lineage events of queries, as OpenLineage's client writes them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from openlineage.client.event_v2 import Job, RunState
from openlineage.client.serde import Serde
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, LongType, MapType, StringType, StructField, StructType

from pyspark_kafka_meta.model import Position
from pyspark_kafka_meta.tools.lineage import KafkaEnd, QueryRun, run_event
from tests.partitions import T0, T1, T2, U0

RUN_ID = str(UUID(int=7))
LINE = StructType([StructField("sku", StringType())])
ORDER = StructType(
    [
        StructField("id", LongType()),
        StructField("lines", ArrayType(LINE)),
        StructField("tags", MapType(StringType(), IntegerType())),
    ]
)
SCHEMA = StructType([StructField("key", BinaryType()), StructField("value", ORDER)])
SINK = KafkaEnd("kafka://b:9093", ("copies",), StructType([StructField("value", StringType())]))
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def event(state: RunState, *sources: KafkaEnd, error: str | None = None, **others: Any) -> dict[str, Any]:
    run = QueryRun(Job("shop", "app.copies"), RUN_ID, None, sources, [SINK], **others)
    written: dict[str, Any] = json.loads(Serde.to_json(run_event(run, state, "4.1.0", AT, error)))
    return written


def test_an_event_has_run_job_and_engine() -> None:
    written = event(RunState.START)

    assert (written["eventType"], written["eventTime"]) == ("START", "2026-01-02T03:04:05+00:00")
    assert written["run"]["runId"] == RUN_ID
    assert written["run"]["facets"]["processing_engine"]["version"] == "4.1.0"
    assert (written["job"]["namespace"], written["job"]["name"]) == ("shop", "app.copies")
    assert "pyspark-kafka-meta" in written["producer"]


def test_datasets_are_topics_with_the_types_of_their_columns() -> None:
    written = event(RunState.RUNNING, KafkaEnd("kafka://a:9092", ("t",), SCHEMA))
    (read,), (sunk,) = written["inputs"], written["outputs"]

    assert (read["namespace"], read["name"]) == ("kafka://a:9092", "t")
    assert (sunk["namespace"], sunk["name"]) == ("kafka://b:9093", "copies")
    assert sunk["facets"]["schema"]["fields"] == [{"name": "value", "type": "string", "fields": []}]
    key, value = read["facets"]["schema"]["fields"]
    assert (key["type"], value["type"]) == ("binary", "struct")
    lines = value["fields"][1]
    assert (lines["type"], lines["fields"][0]["name"], lines["fields"][0]["type"]) == ("array", "_element", "struct")
    assert [(field["name"], field["type"]) for field in value["fields"][2]["fields"]] == [
        ("key", "string"),
        ("value", "int"),
    ]


def test_inputs_have_the_offsets_read_up_to_also_of_topics_that_no_option_names() -> None:
    source = KafkaEnd("kafka://a:9092", (), SCHEMA, "stream@1")
    positions = {"stream@1": {T1: Position(9), T0: Position(5), U0: Position(2)}, "stream@2": {T2: Position(1)}}
    written = event(RunState.RUNNING, source, positions=positions)

    offsets = {read["name"]: read["inputFacets"]["kafkameta_offsets"]["endOffsets"] for read in written["inputs"]}
    assert offsets == {"t": {"0": 5, "1": 9}, "u": {"0": 2}}


@pytest.mark.parametrize(
    "error", ["[STREAM_FAILED] it broke\n\tat a line of Java", "[STREAM_FAILED] it broke"], ids=["Java", "one line"]
)
def test_a_failed_run_has_the_first_line_of_its_error(error: str) -> None:
    written = event(RunState.FAIL, error=error)

    assert written["eventType"] == "FAIL"
    assert written["run"]["facets"]["errorMessage"]["message"] == "[STREAM_FAILED] it broke"
