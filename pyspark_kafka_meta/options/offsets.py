"""The options for the start and end of a query: a type for each notation, parsers, precedence, and what a batch or a
stream refuses.

Names, precedence and error texts follow Spark's `KafkaSourceProvider.getKafkaOffsetRangeLimit`, JSON follows its
`JsonUtils`.
"""
# ruff: noqa: RUF009 (the default of a field is an option, made by a function)

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyspark_kafka_meta.model import TopicPartition, name_partitions
from pyspark_kafka_meta.options.option_table import Query, Rows, Section
from pyspark_kafka_meta.options.parsers import parse_choice, parse_duration_ms, parse_id, parse_number
from pyspark_kafka_meta.value_checks import INT64_MAX, json_by_topic, non_empty, partition_key, whole_number

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


@dataclass(frozen=True, slots=True)
class LatestByKeySpec:
    """The latest record of each key, and then every record: the log up to the end as if it were compacted."""


StartSpec = OffsetsSpec | TimestampsSpec | LastDurationSpec | LastOffsetsSpec | GroupSpec | LatestByKeySpec


# --- parsers ----------------------------------------------------------------------------------------------------------
# They raise ValueError for an invalid text.


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
    `group:id`; or `latestByKey`."""
    stripped = text.strip()
    if stripped.lower() == "latestbykey":
        return LatestByKeySpec()
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


# --- options ----------------------------------------------------------------------------------------------------------

_EXPECTED_OFFSETS = 'Expected e.g. {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}, got {value}'
_EXPECTED_TIMES = 'Expected e.g. {"topicA":{"0":1700000000000},"topicB":{"0":1700000000000}}, got {value}'


_starts = Rows(Section.START_AND_END, Query.EACH_RECORD)
_ends = Rows(Section.START_AND_END, Query.RECORDS)


def _timestamp(rows: Rows, name: str, doc: str) -> Any:
    error = f"Option '{name}' is milliseconds since 1970. Expected a single long value, got {{value}}"
    return rows.option(name, None, partial(parse_number, low=0, high=INT64_MAX), error, doc)


def _times(rows: Rows, name: str, doc: str) -> Any:
    return rows.option(name, None, parse_times, f"Option '{name}' must be JSON. {_EXPECTED_TIMES}", doc)


@dataclass(frozen=True, kw_only=True)
class OffsetOptions:
    """The start and end of a query.

    Attributes:
        starting_offsets, ending_offsets: once completed for a batch or stream, the effective start and end.
    """

    starting_offsets: StartSpec | None = _starts.option(
        "startingOffsets",
        None,
        parse_start,
        "Option 'startingOffsets' must be earliest, latest, latestByKey, JSON, -10m, -1000 or group:id. "
        f"{_EXPECTED_OFFSETS}",
        "Where a new query starts: earliest (default of batches), latest (default of streams), latestByKey (streams: "
        "the last record of each key, then every record), -10m (ten minutes ago), -1000 (offsets before the end of "
        "each partition), group:id (its committed offsets, else earliest), or JSON for every partition or topic (-2 is "
        "earliest, -1 latest).",
        queries=Query.EACH_RECORD | Query.EVENT_FILES | Query.EVENT_TOPIC,
    )
    starting_timestamp_ms: int | None = _timestamp(
        _starts,
        "startingTimestamp",
        "First record of each partition since this time (ms since 1970 UTC). Overrides other starting options.",
    )
    starting_times: TimestampsSpec | None = _times(
        _starts, "startingOffsetsByTimestamp", "The same for every partition. Overrides startingOffsets."
    )
    start_at_latest_if_unmatched: bool = _starts.choice(
        "startingOffsetsByTimestampStrategy",
        {"error": False, "latest": True},
        "What to do if a partition has no record since then.",
    )
    ending_offsets: OffsetsSpec | TimestampsSpec | None = _ends.option(
        "endingOffsets",
        None,
        parse_offsets,
        f"Option 'endingOffsets' must be latest or JSON. {_EXPECTED_OFFSETS}",
        "Exclusive end of a batch: latest (default), or JSON for every partition (-1 is latest). A stream with JSON "
        "reads these partitions alone, and ends there.",
    )
    ending_timestamp_ms: int | None = _timestamp(
        _ends,
        "endingTimestamp",
        "Exclusive end of a batch: the first record of each partition since this time, else latest. Overrides other "
        "ending options.",
    )
    ending_times: TimestampsSpec | None = _times(
        _ends, "endingOffsetsByTimestamp", "The same for every partition. Overrides endingOffsets."
    )

    def start(self) -> StartSpec | None:
        or_latest = self.start_at_latest_if_unmatched
        if self.starting_timestamp_ms is not None:
            return TimestampsSpec(self.starting_timestamp_ms, or_latest=or_latest)
        if self.starting_times is not None:
            return replace(self.starting_times, or_latest=or_latest)
        return self.starting_offsets

    def end(self) -> OffsetsSpec | TimestampsSpec | None:
        if self.ending_timestamp_ms is not None:
            return TimestampsSpec(self.ending_timestamp_ms, or_latest=True)
        if self.ending_times is not None:
            return replace(self.ending_times, or_latest=True)
        return self.ending_offsets


# --- batches and streams ----------------------------------------------------------------------------------------------


def batch_problems(starting: StartSpec, ending: OffsetsSpec | TimestampsSpec) -> list[str]:
    """Invalid offsets of a batch. Timestamps can only be checked with brokers."""
    problems = _start_problems(starting)
    if not isinstance(ending, OffsetsSpec):
        return problems
    if ending.everywhere == EARLIEST_OFFSET:
        problems.append("ending offset can't be earliest for batch queries on Kafka")
    for place, offset in ending.by_topic + ending.by_partition:
        if offset == EARLIEST_OFFSET:
            problems.append(f"ending offset for {place} can't be earliest for batch queries on Kafka")
    if isinstance(starting, OffsetsSpec) and starting.by_partition and ending.by_partition:
        problems += _range_problems(starting, ending)
    return problems


def stream_problems(ending: OffsetsSpec | TimestampsSpec | None) -> list[str]:
    """Invalid ends of a stream: those that would move with each restart."""
    if isinstance(ending, TimestampsSpec):
        return ["ending timestamp not valid in streaming queries"]
    if ending is None:
        return []
    offsets = [ending.everywhere, *(offset for _, offset in ending.by_topic + ending.by_partition)]
    if all(offset is None or offset >= 0 for offset in offsets):
        return []
    return ["ending offset not valid in streaming queries, except as JSON with an offset for each partition"]


def _start_problems(starting: StartSpec) -> list[str]:
    if isinstance(starting, LatestByKeySpec):
        return ["startingOffsets can't be latestByKey for batch queries: set table to latest instead"]
    if not isinstance(starting, OffsetsSpec):
        return []
    problems = []
    if starting.everywhere == LATEST_OFFSET:
        problems.append(
            "starting offset can't be latest for batch queries on Kafka: set earliest, -10m or JSON, or use readStream"
        )
    for place, offset in starting.by_topic + starting.by_partition:
        if offset == LATEST_OFFSET:
            problems.append(f"startingOffsets for {place} can't be latest for batch queries on Kafka")
    return problems


def _range_problems(starting: OffsetsSpec, ending: OffsetsSpec) -> list[str]:
    starts, ends = dict(starting.by_partition), dict(ending.by_partition)
    problems = [
        f"The specified start offset {start} is greater than the end offset {ends[partition]} "
        f"for topic {partition.topic} partition {partition.partition}."
        for partition, start in starts.items()
        if partition in ends and start > ends[partition] >= 0
    ]
    only_starts = _without_offset(starts, ending)
    only_ends = _without_offset(ends, starting)
    if only_starts or only_ends:
        problems.append(
            "The specified start offset and end offset should have the same topic-partitions. "
            f"Only in startingOffsets: {name_partitions(only_starts)}. "
            f"Only in endingOffsets: {name_partitions(only_ends)}."
        )
    return problems


def _without_offset(partitions: Mapping[TopicPartition, int], spec: OffsetsSpec) -> set[TopicPartition]:
    """The partitions without an offset in `spec`, by partition or topic."""
    topics = dict(spec.by_topic)
    return {
        partition for partition in partitions.keys() - dict(spec.by_partition).keys() if partition.topic not in topics
    }
