"""Records that Debezium 3.6 made of a PostgreSQL 15, in captured/, become the rows of the database.

Each file has schemas, and records with a number of them and a payload, as Connect's JsonConverter wrote them; those of
whole.json have all that Debezium sends beside rows, the others what the tests need of it.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.envelopes import changes as generated_changes
from benchmarks.envelopes import connect_json
from pyspark_kafka_meta.changes.rows import change_rows
from pyspark_kafka_meta.changes.schema import changes_schema
from pyspark_kafka_meta.kafka.records.schema import records_arrow_schema
from pyspark_kafka_meta.model import OffsetRange, TopicPartition
from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.typed.reading import query_schemas

CAPTURED = Path(__file__).parent / "captured"
TOPIC = "shop.public.things"


def converted(name: str) -> pa.RecordBatch:
    """The rows of a file's records, read as the newest schemas."""
    content = json.loads((CAPTURED / f"{name}.json").read_text())
    schemas, records = content["schemas"], content["records"]
    key, value = ([each[side]["schema"] for each in records if side in each][-1] for side in ("key", "value"))
    given = {"changes": "debezium", "valueFormat": "connect-json", "onTruncate": "row"}
    given |= {"keySchema": json.dumps(schemas[key]), "valueSchema": json.dumps(schemas[value])}
    options = SourceOptions.parse({"kafka.bootstrap.servers": "a:1", "subscribe": TOPIC, **given})
    assert options.changes is not None
    readers = query_schemas(options.typed, options.topics)
    names = changes_schema(readers, options.changes).type.names
    ranges = [OffsetRange(TopicPartition(TOPIC, 0), None, 0, 1)]
    with change_rows(readers, options.changes, ranges, (), names, print, print) as rows:
        batch = [
            {"offset": each["offset"], "topic": TOPIC, "partition": 0}
            | {side: message(schemas, each[side]) for side in ("key", "value") if side in each}
            for each in records
        ]
        return rows.convert(pa.RecordBatch.from_pylist(batch, records_arrow_schema(rows.raw_columns)))


def message(schemas: list[Any], part: Mapping[str, Any]) -> bytes:
    return json.dumps({"schema": schemas[part["schema"]], "payload": part["payload"]}, separators=(",", ":")).encode()


def changes(rows: pa.RecordBatch, *names: str) -> list[tuple[Any, ...]]:
    """The op of each row, and these columns."""
    ops = pc.struct_field(rows.column("_change"), "op").to_pylist()
    return list(zip(ops, *(rows.column(name).to_pylist() for name in names), strict=True))


def test_columns_that_were_not_sent_are_named() -> None:
    """Not those that Debezium makes null, such as arrays of decimals: nobody can tell."""
    rows = converted("unsent")
    names = ["e", "by", "js", "jb", "x", "ta", "ia", "la", "da", "ua", "ba", "ja", "h", "vc"]

    assert changes(rows, "id", "t") == [("u", 1, "b"), ("d", 1, None), ("c", 2, "b")]
    assert pc.struct_field(rows.column("_change"), "unavailable").to_pylist() == [names, [], names]
    assert {name: rows.column(name).null_count for name in names} == dict.fromkeys(names, 3)


def test_values_of_each_type() -> None:
    row, empty = (
        {name: value for name, value in each.items() if name != "_change"} for each in converted("types").to_pylist()
    )

    assert row == {
        "id": 1,
        "b": True,
        "i8": -(2**63),
        "n123": Decimal("123456789.125"),
        "n": "3.14159",
        "money_": Decimal("12.34"),
        "t": "plain",
        "d": date(2024, 2, 29),
        "ti": "23:59:59.999999",
        "ti3": "01:02:03.004",
        "titz": "10:34:56.789Z",
        "ts": datetime(2024, 2, 29, 12, 34, 56, 789012),
        "ts3": datetime(2024, 2, 29, 12, 34, 56, 789000),
        "tstz": datetime(2024, 2, 29, 10, 34, 56, 789012, UTC),
        "iv": 37_091_106_789_000,
        "by": b"\0\xff\x10",
        "jb": '{"a": 1000, "b": {"c": "\u00fc"}}',
        "u": "123e4567-e89b-12d3-a456-426614174000",
        "ta": ["a", None, "b c", ""],
        "na": [Decimal("1.25"), None],
        "da": [date(2024, 1, 1), None],
        "ba": [b"\0\xff"],
        "e": "happy",
        "ea": ["sad", "ok"],
        "p": {"x": 1.5, "y": -2.0, "wkb": b"\1\1\0\0\0\0\0\0\0\0\0\xf8?\0\0\0\0\0\0\0\xc0", "srid": None},
        "h": '{"a":"1","b":null}',
        "bi": True,
        "bi8": b"\xaa",
        "r": "[1,10)",
        "dom": Decimal("9.99"),
        "def": 7,
    }
    assert empty == dict.fromkeys(row) | {"id": 2, "def": 7}


def test_values_at_the_ends_of_their_types() -> None:
    rows = converted("special_values")
    micros, infinite = (-9223372036832400000, 9223372036825200000), (-106_751_992, 106_751_991)
    first, last = (-62_135_596_800_000_000, 253_402_300_799_999_999)

    assert rows.column("id").to_pylist() == [3, 4, 5, 6, 102]
    assert rows.column("r8").to_pylist() == [math.inf, -math.inf, sys.float_info.max, 5e-324, -math.inf]
    assert rows.column("n").to_pylist() == [None, f"-0.{'0' * 19}1", f"1{'0' * 40}", None, None]
    assert rows.column("ti").to_pylist() == [None, "24:00:00.000000", None, None, None]
    assert numbers(rows, "tstz") == [micros[1], micros[0], first, last, micros[1]]
    assert numbers(rows, "ts") == [micros[0], micros[1], first, last, micros[0]]
    assert numbers(rows, "d") == [infinite[1], infinite[0], -719_162, 2_932_896, infinite[1]]


def numbers(rows: pa.RecordBatch, name: str) -> list[int]:
    """Of dates and timestamps, which Python has no values for."""
    array = rows.column(name)
    return list(array.view(pa.int32() if pa.types.is_date(array.type) else pa.int64()).to_pylist())


def test_rows_of_older_schemas_have_the_columns_of_the_newest() -> None:
    assert changes(converted("altered"), "id", "renamed", "c") == [
        ("r", 1, None, None),
        ("u", 1, None, None),
        ("c", 2, None, Decimal("2.2500")),
        ("c", 3, None, Decimal("3.7500")),
        ("c", 4, None, Decimal("4.0625")),
        ("c", 5, "a5", Decimal("5.0000")),
        ("d", 1, None, Decimal("1.5000")),
    ]


def test_changes_of_a_table_with_full_identity() -> None:
    assert changes(converted("full_identity"), "k1", "k2", "v") == [
        ("r", 1, "a", "one"),
        ("r", 2, "b", None),
        ("u", 1, "a", "uno"),
        ("d", 1, "a", "uno"),
        ("c", 11, "a", "uno"),
        ("d", 2, "b", None),
        ("c", 3, "c", "three"),
        ("r", 11, "a", "uno"),
        ("r", 3, "c", "three"),
        ("t", None, None, None),
        ("c", 9, "after truncate", None),
    ]


def test_generated_envelopes_are_like_captured_ones() -> None:
    """Other tests, and benchmarks, read generated ones."""
    captured, generated = json.loads((CAPTURED / "whole.json").read_text()), connect_json()
    schemas = [json.dumps(each, separators=(",", ":")) for each in captured["schemas"]]
    _, values = generated.encode(list(generated_changes(0, 100)))
    envelopes = [json.loads(value)["payload"] for value in values if value is not None]

    assert [generated.key_schema, generated.value_schema] == schemas
    for record in captured["records"]:
        members = form(record["value"]["payload"])
        assert members in [form(each) for each in envelopes]


def form(value: Any) -> Any:
    """Members in their order, and the types of values."""
    return [(name, form(each)) for name, each in value.items()] if isinstance(value, dict) else type(value)
