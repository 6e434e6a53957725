"""`PushdownReader`: a batch reader whose condition grows by the filters of its query, with
spark.sql.python.filterPushdown.enabled (PySpark 4.1 and later).

Spark then makes the reader in a worker of its own. From any other worker a reader of this class would fail the query,
as one that waits for filters which Spark does not push.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from math import isfinite
from pathlib import PurePath
from typing import Any

from pyspark_kafka_meta.arrow_reader import new_filter
from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.spark.batch_reader import KafkaMetaReader
from pyspark_kafka_meta.spark.task_latency import spark_main_frame
from pyspark_kafka_meta.spark.user_errors import entry_points
from pyspark_kafka_meta.where.syntax import Condition, all_of, parse_condition

_OPERATORS = {"EqualTo": "=", "EqualNullSafe": "<=>", "LessThan": "<", "LessThanOrEqual": "<="}
_OPERATORS |= {"GreaterThan": ">", "GreaterThanOrEqual": ">="}
_PATTERNS = {"StringStartsWith": "{}%", "StringEndsWith": "%{}", "StringContains": "%{}%"}


def reader_class(options: SourceOptions) -> type[KafkaMetaReader]:
    """That of a batch reader in this process."""
    main = spark_main_frame(sys._getframe())
    is_pushed = main is not None and PurePath(main.f_code.co_filename).stem == "data_source_pushdown_filters"
    return PushdownReader if is_pushed and options.changes is None else KafkaMetaReader


@entry_points
class PushdownReader(KafkaMetaReader):
    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:  # noqa: N802
        """Takes the filters that a condition can have. Returns the others, which Spark applies."""
        conditions = [self._condition(pushed) for pushed in filters]
        if taken := [condition for condition in (self._options.where, *conditions) if condition is not None]:
            self._options = replace(self._options, where=all_of(taken))
        return [pushed for pushed, condition in zip(filters, conditions, strict=True) if condition is None]

    def _condition(self, pushed: Any) -> Condition | None:
        try:
            condition = parse_condition(sql_of(pushed))
            new_filter(replace(self._options, where=condition), self._schemas, [])
        except ValueError:
            return None
        return condition


def sql_of(pushed: Any) -> str:
    """The text of a filter of `pyspark.sql.datasource`. Raises ValueError for a filter or value that has none."""
    name = type(pushed).__name__
    if name == "Not":
        return f"NOT ({sql_of(pushed.child)})"
    column = ".".join("`{}`".format(part.replace("`", "``")) for part in pushed.attribute)
    if name in ("IsNull", "IsNotNull"):
        return f"{column} IS {'NULL' if name == 'IsNull' else 'NOT NULL'}"
    if name == "In":
        return f"{column} IN ({', '.join(map(_literal, pushed.value))})"
    if name in _PATTERNS:
        escaped = re.sub(r"([\\%_])", r"\\\1", pushed.value)
        return f"{column} LIKE {_literal(_PATTERNS[name].format(escaped))}"
    if name not in _OPERATORS:
        raise ValueError(f"a condition has no {name}")
    return f"{column} {_OPERATORS[name]} {_literal(pushed.value)}"


def _literal(value: Any) -> str:
    match value:
        case None:
            return "NULL"
        case bool():
            return str(value)
        case int():
            return f"{value}L"
        case float() if isfinite(value):
            return f"{value!r}D"
        case Decimal():
            return f"{value:f}BD"
        case str():
            return "'{}'".format(re.sub(r"(['\\])", r"\\\1", value))
        case bytes():
            return f"X'{value.hex()}'"
        case datetime():
            is_local = value.tzinfo is None
            time = value if is_local else value.astimezone(UTC)
            return f"TIMESTAMP{'_NTZ' * is_local} '{time:%Y-%m-%d %H:%M:%S.%f}{'' if is_local else 'Z'}'"
        case date():
            return f"DATE '{value}'"
    raise ValueError(f"a condition has no {type(value).__name__}")
