"""`spans`: what a condition says about the offsets, or timestamps, of rows in each partition, before any is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np
import pyarrow as pa

from pyspark_kafka_meta.arrow_arrays import Longs
from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.value_checks import INT64_MAX
from pyspark_kafka_meta.where.masks import bind
from pyspark_kafka_meta.where.syntax import And, Column, Comparison, Condition, In, Literal, Node, Or, columns_of

FIRST, LAST = -INT64_MAX, INT64_MAX
"""Of a span without bounds."""
_TYPES = {"offset": ("int", "bigint"), "timestamp": ("timestamp",)}
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "<=>": "<=>"}


def spans(condition: Condition, column: str, partitions: Sequence[TopicPartition]) -> tuple[Longs, Longs]:
    """The first and the last offset, or timestamp in microseconds, that a row of each partition can have if the
    condition is true of it. The first is after the last where there is no such row.

    Args:
        column: `offset` or `timestamp`.
    """
    return _Spans(condition, column, partitions).of(condition.node)


class _Spans:
    def __init__(self, condition: Condition, column: str, partitions: Sequence[TopicPartition]) -> None:
        self._condition = condition
        self._column = column
        rows = [each._asdict() for each in partitions]
        self._partitions = pa.RecordBatch.from_pylist(
            rows, pa.schema([("topic", pa.string()), ("partition", pa.int32())])
        )

    def of(self, node: Node) -> tuple[Longs, Longs]:
        if columns_of(node) <= {"topic", "partition"}:
            mask = bind(self._condition, node, self._partitions.schema)(self._partitions)
            is_true = mask.fill_null(False).to_numpy(zero_copy_only=False)
            return np.where(is_true, FIRST, LAST), np.where(is_true, LAST, FIRST)
        match node:
            case And(parts):
                return self._joined(parts, np.maximum, np.minimum)
            case Or(parts):
                return self._joined(parts, np.minimum, np.maximum)
            case In(value, items, at):
                return self.of(Or(tuple(Comparison("=", value, item, at) for item in items), at))
            case Comparison(operator, Column() as column, Literal() as literal):
                return self._compared(column, operator, literal)
            case Comparison(operator, Literal() as literal, Column() as column):
                return self._compared(column, _MIRRORED.get(operator, ""), literal)
        return self._everywhere(FIRST, LAST)

    def _joined(
        self, parts: Sequence[Node], of_firsts: Callable[..., Longs], of_lasts: Callable[..., Longs]
    ) -> tuple[Longs, Longs]:
        # One part after the other: there may be thousands, for thousands of partitions.
        first, last = reduce(
            lambda known, part: (of_firsts(known[0], part[0]), of_lasts(known[1], part[1])), map(self.of, parts)
        )
        # So that an empty span adds nothing to another.
        return np.where(first <= last, first, LAST), np.where(first <= last, last, FIRST)

    def _compared(self, column: Column, operator: str, literal: Literal) -> tuple[Longs, Longs]:
        first, last, value = FIRST, LAST, literal.value
        if column.path[0].lower() == self._column and literal.type in _TYPES[self._column]:
            if operator in (">", ">=", "=", "<=>"):
                first = min(value + (operator == ">"), LAST)
            if operator in ("<", "<=", "=", "<=>"):
                last = max(value - (operator == "<"), FIRST)
        return self._everywhere(first, last)

    def _everywhere(self, first: int, last: int) -> tuple[Longs, Longs]:
        count = self._partitions.num_rows
        return np.full(count, first, np.int64), np.full(count, last, np.int64)
