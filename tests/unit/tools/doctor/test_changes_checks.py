"""Which columns' nulls Kafka Connect's converters may have replaced, as the doctor reads it from schemas."""

from __future__ import annotations

import json

import pytest

from pyspark_kafka_meta.tools.doctor.changes_checks import defaulted_fields

ROW = {
    "type": "record",
    "name": "Value",
    "fields": [
        {"name": "id", "type": {"type": "int", "connect.default": 0}, "default": 0},
        {"name": "qty", "type": [{"type": "int", "connect.default": 7}, "null"], "default": 7},
        {"name": "flag", "type": ["boolean", "null"], "default": False},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}
AVRO = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {"name": "before", "type": ["null", ROW], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "op", "type": "string"},
    ],
}
CONNECT = {
    "type": "struct",
    "fields": [
        {"field": "id", "type": "int32", "optional": False, "default": 0},
        {"field": "qty", "type": "int32", "optional": True, "default": 7},
        {"field": "note", "type": "string", "optional": True},
    ],
}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (json.dumps(AVRO), ["qty", "flag"]),
        (json.dumps(CONNECT), ["qty"]),
        ("CgZhLnByb3Rv", []),
        ("id int, name string", []),
    ],
    ids=["avro", "connect-json", "protobuf", "a type of Spark"],
)
def test_nullable_fields_with_a_default_are_found(schema: str, expected: list[str]) -> None:
    assert list(defaulted_fields(schema)) == expected
