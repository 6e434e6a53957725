"""The Arrow schema of the records table."""

from __future__ import annotations

from pyspark_kafka_meta.kafka.records.schema import HEADERS_COLUMN, records_arrow_schema


def test_columns_are_chosen_and_ordered_by_name() -> None:
    assert records_arrow_schema([HEADERS_COLUMN, "offset", "value"]).names == [HEADERS_COLUMN, "offset", "value"]
