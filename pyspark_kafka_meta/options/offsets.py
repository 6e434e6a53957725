"""The options for the start and end of a query, and their precedence.

Names, precedence and error texts follow Spark's `KafkaSourceProvider.getKafkaOffsetRangeLimit`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from pyspark_kafka_meta.options import parsers, start_specs
from pyspark_kafka_meta.options.definitions import choice, row
from pyspark_kafka_meta.options.start_specs import OffsetsSpec, StartSpec, TimestampsSpec
from pyspark_kafka_meta.validators import INT64_MAX

_EXPECTED_OFFSETS = 'Expected e.g. {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}, got {value}'
_EXPECTED_TIMES = 'Expected e.g. {"topicA":{"0":1700000000000},"topicB":{"0":1700000000000}}, got {value}'


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetOptions:
    """The start and end of a query.

    Attributes:
        starting_offsets, ending_offsets: once completed for a batch or stream, the effective start and end.
    """

    starting_offsets: StartSpec | None = row(  # noqa: RUF009
        "startingOffsets",
        None,
        start_specs.parse_start,
        f"Option 'startingOffsets' must be earliest, latest, JSON, -10m, -1000 or group:id. {_EXPECTED_OFFSETS}",
        "Where a new query starts: earliest (batch default), latest (stream default, streams only), -10m (the last "
        "ten minutes; s, m, h or d), -1000 (the last thousand offsets of each partition), group:id (a consumer "
        "group's committed offsets, else earliest), or JSON for every partition (-2 is earliest, -1 latest) or "
        "topic (earliest or latest).",
    )
    starting_timestamp_ms: int | None = row(
        "startingTimestamp",
        None,
        partial(parsers.parse_number, low=0, high=INT64_MAX),
        "Option 'startingTimestamp' is milliseconds since 1970. Expected a single long value, got {value}",
        "Start each partition at its first record with this timestamp (ms since 1970 UTC) or later. Overrides the "
        "other starting options.",
    )
    starting_times: TimestampsSpec | None = row(  # noqa: RUF009
        "startingOffsetsByTimestamp",
        None,
        start_specs.parse_times,
        f"Option 'startingOffsetsByTimestamp' must be JSON. {_EXPECTED_TIMES}",
        "Starting timestamp of every partition, as JSON. Overrides startingOffsets.",
    )
    start_at_latest_if_unmatched: bool = choice(
        "startingOffsetsByTimestampStrategy",
        {"error": False, "latest": True},
        "Without a record at or after the starting timestamp: error, or start at latest.",
    )
    ending_offsets: OffsetsSpec | TimestampsSpec | None = row(  # noqa: RUF009
        "endingOffsets",
        None,
        start_specs.parse_offsets,
        f"Option 'endingOffsets' must be latest or JSON. {_EXPECTED_OFFSETS}",
        "Exclusive end of a batch: latest (default), or JSON for every partition (-1 is latest). Such JSON also "
        "ends a stream, which reads no other partition.",
    )
    ending_timestamp_ms: int | None = row(
        "endingTimestamp",
        None,
        partial(parsers.parse_number, low=0, high=INT64_MAX),
        "Option 'endingTimestamp' is milliseconds since 1970. Expected a single long value, got {value}",
        "End each partition of a batch before its first record with this timestamp or later, else at its end. "
        "Overrides the other ending options.",
    )
    ending_times: TimestampsSpec | None = row(  # noqa: RUF009
        "endingOffsetsByTimestamp",
        None,
        start_specs.parse_times,
        f"Option 'endingOffsetsByTimestamp' must be JSON. {_EXPECTED_TIMES}",
        "Ending timestamp of every partition, as JSON. Overrides endingOffsets.",
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
