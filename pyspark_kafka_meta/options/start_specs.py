"""The start or end of a query as the user specified it: a type for each notation, and the parsers.

JSON is in the format of Spark's `JsonUtils`. Parsers raise ValueError for an invalid text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.options.parsers import parse_choice, parse_duration_ms, parse_id, parse_number
from pyspark_kafka_meta.validators import INT64_MAX, json_by_topic, non_empty, partition_key, whole_number

EARLIEST_OFFSET = -2
"""In an offsets option: the first offset of the log."""
LATEST_OFFSET = -1
"""In an offsets option: the end of the log when the query is planned."""
_WORDS = {"earliest": EARLIEST_OFFSET, "latest": LATEST_OFFSET}


@dataclass(frozen=True, slots=True)
class OffsetsSpec:
    """Positions given as offsets.

    Attributes:
        everywhere: `EARLIEST_OFFSET` or `LATEST_OFFSET` for all partitions; None if given by topic or partition.
        by_partition: sorted (partition, offset) pairs; an offset may be `EARLIEST_OFFSET` or `LATEST_OFFSET`.
        by_topic: sorted (topic, offset) pairs with `EARLIEST_OFFSET` or `LATEST_OFFSET` for all partitions of a topic.
    """

    everywhere: int | None = None
    by_partition: tuple[tuple[TopicPartition, int], ...] = ()
    by_topic: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class TimestampsSpec:
    """The first record with this timestamp or later, in milliseconds since 1970 UTC.

    Attributes:
        everywhere_ms: for all partitions; None if given by partition.
        by_partition: sorted (partition, milliseconds) pairs.
        or_latest: whether a partition without such a record uses its end; otherwise it is an error.
    """

    everywhere_ms: int | None = None
    by_partition: tuple[tuple[TopicPartition, int], ...] = ()
    or_latest: bool = False


@dataclass(frozen=True, slots=True)
class LastDurationSpec:
    """The first record of the last `ms` milliseconds before planning, or the end if there is none."""

    ms: int


@dataclass(frozen=True, slots=True)
class LastOffsetsSpec:
    """This many offsets before the end of each partition, or the start of its log if that is later."""

    offsets: int


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """The committed offsets of a consumer group; the start of partitions without a committed offset."""

    group: str


StartSpec = OffsetsSpec | TimestampsSpec | LastDurationSpec | LastOffsetsSpec | GroupSpec


def parse_offsets(text: str) -> OffsetsSpec:
    """`earliest`, `latest`, or JSON `{"a": {"0": 23, "1": -1}, "b": "earliest"}`."""
    if not text.lstrip().startswith("{"):
        return OffsetsSpec(parse_choice(text, _WORDS))
    topics: Mapping[str, Any] = json_by_topic(text, dict, str)
    words = {topic: parse_choice(content, _WORDS) for topic, content in topics.items() if isinstance(content, str)}
    offsets = _by_partition({topic: topics[topic] for topic in topics.keys() - words.keys()}, EARLIEST_OFFSET)
    return OffsetsSpec(by_partition=offsets, by_topic=tuple(sorted(words.items())))


def parse_start(text: str) -> StartSpec:
    """As `parse_offsets`; or relative, `-10m` being the last ten minutes, `-1000` the last thousand offsets; or
    `group:id`."""
    stripped = text.strip()
    if stripped.startswith("group:"):
        return GroupSpec(parse_id(stripped.removeprefix("group:")))
    if not stripped.startswith("-"):
        return parse_offsets(text)
    if stripped in ("-1", "-2"):
        raise ValueError("write latest or earliest: -1 and -2 are for JSON only")
    if stripped[1:].isdecimal():
        return LastOffsetsSpec(parse_number(stripped[1:], low=1, high=INT64_MAX))
    return LastDurationSpec(parse_duration_ms(stripped[1:]))


def parse_times(text: str) -> TimestampsSpec:
    """JSON `{"a": {"0": 1700000000000}}`."""
    return TimestampsSpec(by_partition=_by_partition(json_by_topic(text, dict), low=0))


def _by_partition(topics: Mapping[str, Any], low: int) -> tuple[tuple[TopicPartition, int], ...]:
    """Sorted pairs; every topic has a partition."""
    pairs = {
        TopicPartition(topic, partition_key(key)): whole_number(number, low, INT64_MAX)
        for topic, partitions in topics.items()
        for key, number in non_empty(tuple(partitions.items()))
    }
    return tuple(sorted(pairs.items()))
