"""Defaults of fields become the Avro encoding of the value."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pyspark_kafka_meta.typed.avro.defaults import encode_default
from pyspark_kafka_meta.typed.avro.schema import parse_avro

FIXED = {"type": "fixed", "name": "F", "size": 2}
ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
RECORD = {
    "type": "record",
    "name": "R",
    "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": ["null", "string"], "default": None}],
}


@pytest.mark.parametrize(
    ("schema", "default", "expected"),
    [
        ("null", None, b""),
        ("boolean", True, b"\1"),
        ("int", -65, b"\x81\1"),
        ("int", 2**31 - 1, b"\xfe\xff\xff\xff\x0f"),
        ("long", -(2**63), b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\1"),
        ("float", 1, b"\0\0\x80\x3f"),
        ("double", 0.5, b"\0\0\0\0\0\0\xe0\x3f"),
        ("string", "\u00ff", b"\4\xc3\xbf"),
        ("bytes", "\u00ff\0", b"\4\xff\0"),
        (FIXED, "\u00ff\1", b"\xff\1"),
        (ENUM, "B", b"\2"),
        ({"type": "array", "items": "int"}, [], b"\0"),
        ({"type": "array", "items": "int"}, [1, 2], b"\4\2\4\0"),
        ({"type": "map", "values": "int"}, {"k": 1}, b"\2\2k\2\0"),
        (RECORD, {"a": 1}, b"\2\0"),
        (RECORD, {"a": 1, "b": "x", "unknown": 1}, b"\2\2\2x"),
        (["null", "string"], None, b"\0"),
        (["null", "string"], "x", b"\2\2x"),
        (["string", FIXED, "bytes"], "\u00ff", b"\0\4\xc3\xbf"),
    ],
)
def test_a_default_is_encoded(schema: Any, default: Any, expected: bytes) -> None:
    assert encode_default(parse_avro(json.dumps(schema)), default) == expected


@pytest.mark.parametrize(
    ("schema", "default"),
    [
        ("null", 0),
        ("boolean", 1),
        ("int", True),
        ("int", 1.0),
        ("int", 2**31),
        ("long", 2**63),
        ("float", "1"),
        ("float", 1e300),
        ("double", 10**400),
        ("string", 1),
        ("string", "\ud800"),
        ("bytes", "\u0100"),
        (FIXED, "a"),
        (ENUM, "C"),
        ({"type": "array", "items": "int"}, {}),
        ({"type": "array", "items": "int"}, ["a"]),
        ({"type": "map", "values": "int"}, [1]),
        (RECORD, {"b": None}),
        (["null", "string"], 1),
    ],
)
def test_a_default_of_another_type_is_refused(schema: Any, default: Any) -> None:
    with pytest.raises(ValueError, match="default"):
        encode_default(parse_avro(json.dumps(schema)), default)
