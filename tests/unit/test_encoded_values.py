"""The values of `benchmarks.typed_values` are those that it says they are."""

from __future__ import annotations

import base64
from collections.abc import Callable

import pyarrow as pa
import pytest

from benchmarks.encoded_values import ENCODED, Row, labelled_orders, nested_orders, orders
from pyspark_kafka_meta.options import Framing
from pyspark_kafka_meta.typed.decoding import ColumnDecoding
from pyspark_kafka_meta.typed.formats import SchemaText, formats
from pyspark_kafka_meta.typed.framing import frame
from pyspark_kafka_meta.typed.protobuf.schema import descriptor_set


@pytest.mark.parametrize(
    ("case", "rows"),
    [
        *[("avro", orders), ("nested", nested_orders), ("protobuf", orders)],
        *[("json", orders), ("json_indented", orders), ("json_maps", labelled_orders)],
    ],
)
def test_framed_values_are_the_orders(case: str, rows: Callable[[int], list[Row]]) -> None:
    encoded = ENCODED[case](100)
    text = encoded.schema
    if encoded.format == "protobuf":  # as the registry's client makes of a file
        text = base64.b64encode(descriptor_set([base64.b64decode(text)])).decode()
    column = ColumnDecoding(formats()[encoded.format](SchemaText(text)), Framing.CONFLUENT, lambda _: SchemaText(text))

    before = frame(7, 4) + encoded.message_indexes
    values = [value for value in encoded.values if value is not None]
    found, malformed = column.decode(pa.array([before + value for value in values]))

    assert malformed == []
    assert found.to_pylist(maps_as_pydicts="strict") == rows(100)
    assert len(set(values)) == 100


def test_two_percent_of_the_values_are_null() -> None:
    assert [row for row, value in enumerate(ENCODED["json_nulls"](100).values) if value is None] == [0, 49, 98]
