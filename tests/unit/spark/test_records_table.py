"""The schema of the records table: equal in Spark and Arrow, and equal to that of Spark's source."""

from __future__ import annotations

import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from pyspark_kafka_meta.kafka.records.schema import RECORD_COLUMNS, records_arrow_schema
from pyspark_kafka_meta.spark.records_table import records_struct_type


@pytest.mark.parametrize("include_headers", [False, True])
def test_arrow_schema_equals_the_schema_that_pyspark_derives(include_headers: bool) -> None:
    struct_type = records_struct_type(include_headers)

    derived = to_arrow_schema(struct_type, timezone="UTC")

    assert records_arrow_schema(struct_type.names).equals(derived, check_metadata=True)


def test_spark_schema_is_that_of_sparks_kafka_source() -> None:
    assert records_struct_type(include_headers=True).simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int,"
        "headers:array<struct<key:string,value:binary>>>"
    )
    assert records_struct_type(include_headers=False).names == list(RECORD_COLUMNS)
