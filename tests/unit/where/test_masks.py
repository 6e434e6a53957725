"""Masks of rows: conditions with the results that Spark has, as `tests/spark/test_where.py` confirms."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pyspark_kafka_meta.where.masks import bind
from pyspark_kafka_meta.where.syntax import parse_condition
from tests.where_cases import CASES, FIXED, MARKS, masked


@pytest.mark.parametrize(("text", "expected"), CASES.items(), ids=CASES)
def test_a_condition_is_true_of_the_rows_that_spark_keeps(text: str, expected: str) -> None:
    assert "".join(MARKS[each] for each in masked(text, FIXED)) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("i32 = '1'", "int32 and string are not compared, at character 5: = '1'"),
        ("flag = 1", "bool and int32 are not compared"),
        ("d = '2020-01-01'", "write DATE '...'"),
        ("ts > '2020-01-01'", "write TIMESTAMP '...' with a zone"),
        ("ts = ntz", "are not compared"),
        ("i64 = 99999999999999999999", "out of range of a bigint"),
        ("small = 1.5D", "write a decimal number, as 1.5"),
        ("f32 = 16777217", "depends on spark.sql.ansi.enabled"),
        ("f32 = i32", "depends on spark.sql.ansi.enabled"),
        ("large = 1.00000000001", "no common type of 38 digits"),
        ("v = v", "can be tested for NULL alone"),
        ("v.q = 1", "there is no column q: there are x, Y, a b, at character 1: v.q = 1"),
        ("s.q = 1", "q is no field of a column of type string"),
        ("NOT other = 1", "there is no column other"),
        ("i32", "this is of type int32, and no condition"),
        ("i32 LIKE '1'", "LIKE needs a text, and this is of type int32"),
        ("TRUE AND 'a'", "this is of type string, and no condition, at character 10: 'a'"),
    ],
)
def test_what_spark_would_cast_in_another_way_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match="at character") as refused:
        masked(text, FIXED)
    assert reason in str(refused.value)


def test_columns_that_differ_in_case_alone_are_ambiguous() -> None:
    condition = parse_condition("A = 1")
    with pytest.raises(ValueError, match="several columns have the name A"):
        bind(condition, condition.node, pa.schema([("a", pa.int32()), ("A", pa.int32())]))


def test_a_field_of_a_null_struct_is_null_whatever_memory_it_has() -> None:
    struct = pa.StructArray.from_arrays([pa.array([1, 1])], ["x"], mask=pa.array([False, True]))
    assert masked("v.x = 1", pa.record_batch({"v": struct})) == [True, None]


def test_text_that_is_not_utf8_has_replacements_for_like_alone() -> None:
    batch = pa.record_batch({"key": pa.array([b"a\xffb", None, b"ab"], pa.binary())})
    assert masked("key LIKE 'a_b'", batch) == [True, None, False]
    for value in (b"\xed\xa0\x80", b"\xe4\xb8", b"\xf0\x9f"):  # a surrogate, and characters that are cut
        assert masked("key LIKE '_'", pa.record_batch({"key": pa.array([value])})) == [True]
    assert masked("key = 'a\ufffdb'", batch) == [False, None, False]


@pytest.mark.parametrize(
    ("pattern", "found"), [("%a" * 500, [True, False]), ("_" * 1_000, [False, True]), ("%_é%é" * 200, [False, False])]
)
def test_patterns_may_be_as_long_as_the_syntax_says(pattern: str, found: list[bool]) -> None:
    batch = pa.record_batch({"s": ["a" * 20_000, "b" * 1_000]})
    assert masked(f"s LIKE '{pattern}'", batch) == found
