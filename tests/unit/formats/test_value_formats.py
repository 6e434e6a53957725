"""What formats have in common."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pyspark_kafka_meta.formats.value_formats import FORMATS, SchemaText


@pytest.mark.parametrize(
    ("name", "text"),
    [("avro", '["null", "string"]'), ("json", '{"type": "object", "properties": {"a": {"type": "string"}}}')],
)
def test_the_type_of_a_schema_is_made_once_for_all_batches(name: str, text: str) -> None:
    assert FORMATS[name].arrow_type(SchemaText(text)) is FORMATS[name].arrow_type(SchemaText(text))


def record(name: str, kind: Any = "int", **others: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": "a", "type": kind, **others}]}


STATES = {"type": "enum", "name": "x.State", "symbols": ["A", "B"]}


@pytest.mark.parametrize(
    ("name", "first", "second", "are_equal"),
    [
        ("avro", record("x.R", doc="a"), {**record("y.S"), "doc": "b"}, True),
        ("avro", record("R", ["null", record("x.R")]), record("R", ["null", record("y.S")]), True),
        ("avro", record("R", ["int", record("x.R")]), record("R", ["int", record("y.S")]), False),
        ("avro", record("R", STATES), record("R", {**STATES, "namespace": "", "name": "y.State"}), True),
        ("avro", record("R", STATES), record("R", {**STATES, "name": "x.Status"}), False),
        ("avro", record("R", aliases=["b"]), record("S", aliases=["b"]), False),
        ("avro", record("R", default=1), record("R", default=2), False),
        ("avro", record("R"), record("R", "long"), False),
        ("json", {"title": "A", "type": "integer", "minimum": 1}, {"title": "B", "type": "integer"}, True),
        ("json", {"type": "string"}, {}, False),
    ],
)
def test_schemas_that_are_read_in_the_same_way_are_equal(name: str, first: Any, second: Any, are_equal: bool) -> None:
    texts = [SchemaText(json.dumps(each)) for each in (first, second)]
    assert (FORMATS[name].read_as(texts[0]) == FORMATS[name].read_as(texts[1])) is are_equal
