"""Texts of conditions: what they mean, and which are refused."""

from __future__ import annotations

import pickle
from decimal import Decimal
from typing import Any

import pytest

from pyspark_kafka_meta.where.syntax import (
    And,
    Column,
    Comparison,
    Header,
    IsNull,
    Literal,
    Not,
    Or,
    columns_of,
    parse_condition,
)


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("2147483647", "int", 2**31 - 1),
        ("-2147483648", "int", -(2**31)),
        ("2147483648", "bigint", 2**31),
        ("9223372036854775808", "decimal", Decimal(2**63)),
        ("-128y", "tinyint", -128),
        ("1S", "smallint", 1),
        ("- 1L", "bigint", -1),
        ("1.50", "decimal", Decimal("1.50")),
        (".5", "decimal", Decimal("0.5")),
        ("1.", "decimal", Decimal(1)),
        ("1bd", "decimal", Decimal(1)),
        ("1e-3", "double", 0.001),
        ("1.5D", "double", 1.5),
        (r"'It''s \'\n\t\r\\\%\_'", "string", "It's '\n\t\r\\\\%\\_"),
        ("X'00fF'", "binary", b"\x00\xff"),
        ("DATE '1970-1-2'", "date", 1),
        ("timestamp'1970-01-01T00:00:01.5+01:30'", "timestamp", -5_398_500_000),
        ("TIMESTAMP_NTZ '1970-01-01 0:0:0.000001'", "timestamp_ntz", 1),
        ("NULL", "void", None),
        ("true", "boolean", True),
    ],
)
def test_literals_have_sparks_types(text: str, kind: str, value: Any) -> None:
    assert parse_condition(text).node == Literal(kind, value, 0)


def test_not_binds_closest_then_and_then_or() -> None:
    a, b, c = (Column((name,), at) for name, at in (("a", 4), ("b", 10), ("c", 15)))
    assert parse_condition("NOT a AND b OR c").node == Or((And((Not(a, 0), b), 0), c), 0)


def test_a_predicate_follows_a_comparison() -> None:
    """Spark reads `a = b IS NULL` as `(a = b) IS NULL`."""
    comparison = Comparison("=", Column(("a",), 0), Column(("b",), 4), 2)
    assert parse_condition("a = b IS NULL").node == IsNull(comparison, 6)


def test_names_are_fields_in_backticks_too_and_headers_have_names() -> None:
    condition = parse_condition("`a``b`.`c d`.e = HEADERS['x'] AND Partition = 1")
    comparison, _ = condition.conjuncts()
    assert isinstance(comparison, Comparison)
    assert (comparison.left, comparison.right) == (Column(("a`b", "c d", "e"), 0), Header("x", 17))
    assert columns_of(condition.node) == {"a`b", "headers", "partition"}
    assert pickle.loads(pickle.dumps(condition)) == condition


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "a value is expected, at the end"),
        ("a = ", "a value is expected, at the end"),
        ("a = 1 b", "'b' is not supported here"),
        ("lower(a) = 'x'", "functions are not supported, at character 1: lower(a)"),
        ("a + 1 = 2", "is not supported here: a condition has columns, literals, =, !=,"),
        ("a IN (b)", "IN needs literals, at character 7: b)"),
        ("a IN (SELECT 1)", "IN needs literals"),
        ("a LIKE b", "a text in single quotes is expected, at character 8: b"),
        (r"a LIKE '\\a'", "an escape character must be before %, _ or itself"),
        ("a LIKE 'a' ESCAPE 'ab'", "ESCAPE needs one character"),
        ("a LIKE '\ufffd%'", "LIKE does not support U+FFFD"),
        ("a LIKE '" + "%a" * 20_000 + "'", "LIKE supports patterns of at most 1000 characters, at character 8: '%a%a"),
        ("a RLIKE 'a'", "'RLIKE' is not supported here"),
        ("a IS TRUE", "NULL is expected, at character 6: TRUE"),
        ("a IS NULL = TRUE", "'=' is not supported here"),
        ("m['k'] = 1", "[] is supported for headers alone"),
        ('a = "x"', "is not supported here"),
        ("a = 'x' 'y'", "is not supported here"),
        ("a = 'x", "is not supported here"),
        ("a = '${env:HOME}'", "Spark would replace a variable"),
        (r"a = '\101'", r"write a character itself instead of \1, at character 5"),
        (r"a = '\\\u0061'", r"write a character itself instead of \u"),
        ("a = 128Y", "the number is out of range of its type, at character 5: 128Y"),
        ("a = 1e400", "the number is out of range of its type"),
        (f"a = {'9' * 39}", "the number is out of range of its type"),
        ("a = 1.5L", "the number is out of range of its type"),
        ("a = 1.5F", "is not supported here"),
        ("a = 1abc", "is not supported here"),
        ("a = X'F'", "X needs pairs of hexadecimal digits"),
        ("a = DATE '2030-02-30'", "for month"),
        ("a = TIMESTAMP '2030-01-01 00:00:00'", "with a zone, as Z or +02:00"),
        ("a = TIMESTAMP '2030-01-01 00:00:00+20:00'", "a zone is at most 18:00 from UTC"),
        ("a = TIMESTAMP_NTZ '2030-01-01 00:00:00Z'", "without a zone"),
        ("a = INTERVAL '1' DAY", "literals of type INTERVAL are not supported"),
        ("a = -b", "'-' is not supported here"),
        ("(a = 1", ") is expected, at the end"),
        ("a.1 = 1", "is not supported here"),
        ("(" * 9_999 + "a", "parts are nested more than 50 deep, at character 51: (((("),
        ("NOT " * 51 + "a", "parts are nested more than 50 deep"),
        ("a" + " = a" * 51, "parts are nested more than 50 deep"),
        ("ä = 1", "is not supported here"),
    ],
)
def test_other_sql_is_refused_with_the_part_that_is_meant(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match="at ") as refused:
        parse_condition(text)
    assert reason in str(refused.value)
