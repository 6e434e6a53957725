"""Filters that Spark pushes, as parts of a condition."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import datasource

from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.spark.filter_pushdown import PushdownReader, reader_class, sql_of
from pyspark_kafka_meta.where.syntax import MAX_DEPTH, parse_condition
from tests.where_cases import FIXED, masked

A, S = ("v", "a b"), ("s",)
TIME = datetime(2020, 1, 1, microsecond=1)


@pytest.mark.parametrize(
    ("pushed", "text"),
    [
        (datasource.EqualTo(A, 1.5), "v.`a b` = 1.5"),
        (datasource.EqualNullSafe(S, None), "s <=> NULL"),
        (datasource.GreaterThan(("i64",), -(2**63)), "i64 > -9223372036854775808"),
        (datasource.GreaterThanOrEqual(("small",), Decimal("1E+2")), "small >= 100"),
        (datasource.LessThan(("ts",), TIME.replace(tzinfo=UTC)), "ts < TIMESTAMP '2020-01-01 00:00:00.000001Z'"),
        (datasource.LessThanOrEqual(("ntz",), TIME), "ntz <= TIMESTAMP_NTZ '2020-01-01 00:00:00.000001'"),
        (datasource.EqualTo(("d",), date(2020, 1, 1)), "d = DATE '2020-01-01'"),
        (datasource.In(("key",), (b"a", b"\xff", None)), "key IN (X'61', X'FF', NULL)"),
        (datasource.Not(datasource.EqualTo(("flag",), True)), "NOT flag = TRUE"),
        (datasource.IsNull(S), "s IS NULL"),
        (datasource.IsNotNull(S), "s IS NOT NULL"),
        (datasource.EqualTo(S, "It's"), r"s = 'It\'s'"),
        (datasource.EqualTo(S, "a\\b"), r"s = 'a\\b'"),
        (datasource.EqualTo(S, "ab\n"), "s = 'ab\n'"),
        (datasource.StringStartsWith(S, "a_"), r"s LIKE 'a\_%'"),
        (datasource.StringEndsWith(S, "%b"), r"s LIKE '%\%b'"),
        (datasource.StringContains(S, "\\"), r"s LIKE '%\\\\%'"),
    ],
)
def test_a_filter_is_true_of_the_same_rows_as_its_text(pushed: Any, text: str) -> None:
    assert masked(sql_of(pushed), FIXED) == masked(text, FIXED)


def test_filters_that_no_condition_has_are_returned_to_spark() -> None:
    given = {"kafka.bootstrap.servers": "b:9", "subscribe": "t", "where": "partition = 0 OR topic = 't'"}
    options = SourceOptions.parse(given).for_batch()
    filters = [
        datasource.EqualTo(("offset",), 5),
        datasource.EqualTo(("offset",), float("nan")),
        datasource.EqualTo(("headers",), [1]),
        datasource.EqualTo(("topic",), "${a}"),
        datasource.IsNotNull(("KEY",)),
        datasource.EqualTo(("offset",), "5"),
        datasource.StringContains(("topic",), "a" * 1_000),
    ]
    reader = PushdownReader(options, {"offset": "offset"})
    assert list(reader.pushFilters(filters)) == [filters[index] for index in (1, 2, 3, 5, 6)]
    expected = "(partition = 0 OR topic = 't') AND offset = 5 AND KEY IS NOT NULL"
    assert reader._options.where is not None
    assert len(reader._options.where.conjuncts()) == len(parse_condition(expected).conjuncts()) == 3


def test_hundreds_of_filters_are_taken_beside_the_deepest_condition() -> None:
    deepest = f"{'(' * (MAX_DEPTH - 1)}partition = 0 OR topic = 't'{')' * (MAX_DEPTH - 1)}"
    given = {"kafka.bootstrap.servers": "b:9", "subscribe": "t", "where": deepest}
    reader = PushdownReader(SourceOptions.parse(given).for_batch(), {"offset": "offset"})
    filters = [datasource.Not(datasource.EqualTo(("offset",), number)) for number in range(300)]
    assert list(reader.pushFilters(filters)) == []
    assert reader._options.where is not None
    assert len(reader._options.where.conjuncts()) == 301


def test_outside_of_sparks_worker_for_filters_no_reader_asks_for_them() -> None:
    """Spark refuses such a reader while the setting is off."""
    options = SourceOptions.parse({"kafka.bootstrap.servers": "b:9", "subscribe": "t"})
    assert not issubclass(reader_class(options), PushdownReader)
