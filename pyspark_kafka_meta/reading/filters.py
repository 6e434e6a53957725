"""What filters that Spark pushes down leave to be read of a batch, and which of them Spark has to apply all the same.

Follows `DataSourceReader.pushFilters` of PySpark 4.1 and later; earlier ones have no filters to import.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from pyspark_kafka_meta.options.values import INT64_MAX
from pyspark_kafka_meta.reading.offsets import OffsetRange

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowing:
    """What is left to be read: all that each attribute allows.

    Attributes:
        topics, partitions: names and numbers; None for all.
        from_offset, until_offset: in each partition, the latter exclusive.
        since_ms: in each partition, from the first record on that is as late, in milliseconds since 1970 UTC. Records
            behind it may be earlier, none before it is as late; 0 for all, those without a timestamp included.
    """

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    from_offset: int = 0
    until_offset: int = INT64_MAX
    since_ms: int = 0

    def narrowed(self, other: Narrowing) -> Narrowing:
        """What both of them leave."""
        return Narrowing(
            topics=_both(self.topics, other.topics),
            partitions=_both(self.partitions, other.partitions),
            from_offset=max(self.from_offset, other.from_offset),
            until_offset=min(self.until_offset, other.until_offset),
            since_ms=max(self.since_ms, other.since_ms),
        )

    def apply(self, planned: Sequence[OffsetRange]) -> list[OffsetRange]:
        """What it leaves of `planned` without a look at timestamps, empty ranges left out."""
        parts = [
            one.part(self.from_offset, self.until_offset)
            for one in planned
            if (self.topics is None or one.partition.topic in self.topics)
            and (self.partitions is None or one.partition.partition in self.partitions)
        ]
        return [part for part in parts if part.size > 0]


def push(filters: Sequence[Filter]) -> tuple[Narrowing, list[Filter]]:
    """What `filters`, all of which hold, leave to be read; and those of them that Spark has to apply to its rows."""
    left, narrowing = [], Narrowing()
    for one in filters:
        rule = _RULES.get((_column(one), type(one)))
        value = getattr(one, "value", None)
        if rule is None or value is None:
            left.append(one)
            continue
        narrowing = narrowing.narrowed(rule(value))
        if _column(one) == "timestamp":
            left.append(one)
    return narrowing, left


def _column(one: Filter) -> str:
    """In lower case, as a schema may spell it otherwise; fields of structs have a longer path."""
    return ".".join(getattr(one, "attribute", ())).lower()


def _since(value: datetime) -> Narrowing:
    """A record's timestamp has milliseconds: rounded down, the bound is never too late."""
    return Narrowing(since_ms=(value - _EPOCH) // timedelta(milliseconds=1))


_RULES: Mapping[tuple[str, type[Filter]], Callable[[Any], Narrowing]] = {
    ("topic", EqualTo): lambda topic: Narrowing(topics=frozenset([topic])),
    ("topic", In): lambda topics: Narrowing(topics=frozenset(topics)),
    ("partition", EqualTo): lambda number: Narrowing(partitions=frozenset([number])),
    ("partition", In): lambda numbers: Narrowing(partitions=frozenset(numbers)),
    ("offset", EqualTo): lambda offset: Narrowing(from_offset=offset, until_offset=offset + 1),
    ("offset", GreaterThan): lambda offset: Narrowing(from_offset=offset + 1),
    ("offset", GreaterThanOrEqual): lambda offset: Narrowing(from_offset=offset),
    ("offset", LessThan): lambda offset: Narrowing(until_offset=offset),
    ("offset", LessThanOrEqual): lambda offset: Narrowing(until_offset=offset + 1),
    ("timestamp", GreaterThan): _since,
    ("timestamp", GreaterThanOrEqual): _since,
}


def _both(one: frozenset[Any] | None, other: frozenset[Any] | None) -> frozenset[Any] | None:
    return one if other is None else other if one is None else one & other
