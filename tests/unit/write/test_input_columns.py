"""The columns that a sink writes: cases of Spark's `KafkaSinkSuite`, and a column `timestamp`."""

from __future__ import annotations

import logging

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pyspark_kafka_meta.errors import SchemaError
from pyspark_kafka_meta.write.input_columns import TYPES, SinkColumns, sink_columns

STRING, BINARY, INT, LONG = StringType(), BinaryType(), IntegerType(), LongType()


def headers(key: DataType = STRING, name: str = "key", nullable: bool = True) -> ArrayType:
    fields = [StructField(name, key, nullable), StructField("value", BINARY, nullable)]
    return ArrayType(StructType(fields), nullable)


def schema(nullable: bool = True, **columns: DataType) -> StructType:
    return StructType([StructField(name, data_type, nullable) for name, data_type in columns.items()])


def found(value: int, **others: int) -> SinkColumns:
    return SinkColumns(**{**dict.fromkeys(TYPES), "value": value, **others})  # type: ignore[arg-type]


ALL = schema(timestamp=TimestampType(), partition=INT, topic=STRING, headers=headers(), value=BINARY, key=STRING)
GOOD = {
    "value alone": (schema(value=STRING), "t", found(value=0)),
    "never null": (
        schema(value=BINARY, headers=headers(nullable=False), nullable=False),
        "t",
        found(value=0, headers=1),
    ),
    "every column in any order": (ALL, None, found(timestamp=0, partition=1, topic=2, headers=3, value=4, key=5)),
    "the option goes before the column": (schema(topic=STRING, value=STRING), "t", found(value=1)),
    "the option replaces a column of another type": (schema(topic=INT, value=STRING), "t", found(value=1)),
}


def test_typed_columns_may_have_any_type_but_must_be_there() -> None:
    given = schema(key=INT, value=ArrayType(LONG))
    assert sink_columns(given, "t", ["key", "value"]) == found(key=0, value=1)
    with pytest.raises(SchemaError, match=r"^key attribute unsupported type int"):
        sink_columns(given, "t", ["value"])
    with pytest.raises(SchemaError, match=r"^Required attribute 'key' not found\. Rename column 'KEY' to 'key'.$"):
        sink_columns(schema(KEY=INT, value=STRING), "t", ["key"])


@pytest.mark.parametrize(("given", "topic", "columns"), GOOD.values(), ids=GOOD.keys())
def test_columns_are_found_by_name(given: StructType, topic: str | None, columns: SinkColumns) -> None:
    assert sink_columns(given, topic) == columns


NO_TOPIC = "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic."
NO_VALUE = "Required attribute 'value' not found."
SELECT = (
    " The columns are {}: select CAST({} AS STRING) AS value or to_json(struct(*)) AS value; or set option "
    "valueFormat, and select struct(*) AS value."
)
UNSUPPORTED_HEADERS = (
    "headers attribute unsupported type array<struct<{},value:binary>>. headers must be a(n) "
    "array<struct<key:string,value:binary>> or map<string,binary>: select array(struct('name' AS key, CAST('text' "
    "AS BINARY) AS value)) AS headers"
)
BAD = {
    "no topic": (schema(value=STRING), None, [NO_TOPIC]),
    "no value": (schema(topic=STRING), None, [NO_VALUE + SELECT.format("topic", "topic")]),
    "nothing": (schema(id=LONG, at=LONG), None, [NO_TOPIC, NO_VALUE + SELECT.format("id, at", "id")]),
    "no columns": (schema(), "t", [NO_VALUE + SELECT.format("none", "").replace("CAST( AS STRING) AS value or ", "")]),
    "value": (
        schema(value=INT),
        "t",
        [
            "value attribute unsupported type int. value must be a(n) string or binary: select CAST(value AS STRING) "
            "AS value, or set option valueFormat"
        ],
    ),
    "nested value": (
        schema(value=StructType([StructField("id", INT)])),
        "t",
        [
            "value attribute unsupported type struct<id:int>. value must be a(n) string or binary: select "
            "to_json(value) AS value, or set option valueFormat"
        ],
    ),
    "key": (
        schema(value=STRING, key=DecimalType(10, 2)),
        "t",
        [
            "key attribute unsupported type decimal(10,2). key must be a(n) string or binary: select "
            "CAST(key AS STRING) AS key, or set option keyFormat"
        ],
    ),
    "topic": (
        schema(value=STRING, topic=BINARY),
        None,
        ["topic attribute unsupported type binary. topic must be a(n) string: select CAST(topic AS STRING) AS topic"],
    ),
    "partition": (
        schema(value=STRING, partition=LONG),
        "t",
        [
            "partition attribute unsupported type bigint. partition must be a(n) int: select CAST(partition AS INT) "
            "AS partition"
        ],
    ),
    "headers": (schema(value=STRING, headers=headers(key=BINARY)), "t", [UNSUPPORTED_HEADERS.format("key:binary")]),
    "headers with other fields": (
        schema(value=STRING, headers=headers(name="name")),
        "t",
        [UNSUPPORTED_HEADERS.format("name:string")],
    ),
    "timestamp": (
        schema(value=STRING, timestamp=TimestampNTZType()),
        "t",
        [
            "timestamp attribute unsupported type timestamp_ntz. timestamp must be a(n) timestamp: select "
            "CAST(timestamp AS TIMESTAMP) AS timestamp"
        ],
    ),
    "another case": (
        schema(Value=STRING, TOPIC=STRING),
        None,
        [f"{NO_TOPIC} Rename column 'TOPIC' to 'topic'.", f"{NO_VALUE} Rename column 'Value' to 'value'."],
    ),
    "every problem": (
        schema(key=INT, topic=INT),
        None,
        [
            NO_VALUE + SELECT.format("key, topic", "key"),
            "key attribute unsupported type int. key must be a(n) string or binary: select CAST(key AS STRING) AS key, "
            "or set option keyFormat",
            "topic attribute unsupported type int. topic must be a(n) string: select CAST(topic AS STRING) AS topic",
        ],
    ),
}


@pytest.mark.parametrize(("given", "topic", "problems"), BAD.values(), ids=BAD.keys())
def test_error_has_a_line_for_each_problem(given: StructType, topic: str | None, problems: list[str]) -> None:
    with pytest.raises(SchemaError) as caught:
        sink_columns(given, topic)
    assert str(caught.value).split("\n") == problems


def test_other_columns_are_logged_and_ignored(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    assert sink_columns(schema(value=STRING, Key=STRING, offset=LONG), "t") == found(value=0)
    assert caplog.messages == ["these columns are not written: Key, offset"]
