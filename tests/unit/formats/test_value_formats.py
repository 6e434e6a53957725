"""What formats have in common."""

from __future__ import annotations

import pytest

from pyspark_kafka_meta.formats.value_formats import FORMATS, SchemaText


@pytest.mark.parametrize(
    ("name", "text"),
    [("avro", '["null", "string"]'), ("json", '{"type": "object", "properties": {"a": {"type": "string"}}}')],
)
def test_the_type_of_a_schema_is_made_once_for_all_batches(name: str, text: str) -> None:
    assert FORMATS[name].arrow_type(SchemaText(text)) is FORMATS[name].arrow_type(SchemaText(text))
