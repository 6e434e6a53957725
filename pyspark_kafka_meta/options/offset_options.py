"""The options that say where a query begins and ends, and which of them holds.

Names, precedence and error texts follow Spark's `KafkaSourceProvider.getKafkaOffsetRangeLimit`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from pyspark_kafka_meta.options import option_parsers, start_specs
from pyspark_kafka_meta.options.option_table import choice, row
from pyspark_kafka_meta.options.start_specs import OffsetsSpec, StartSpec, TimesSpec
from pyspark_kafka_meta.validators import INT64_MAX

_EXPECTED_OFFSETS = 'Expected e.g. {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}, got {value}'
_EXPECTED_TIMES = 'Expected e.g. {"topicA":{"0":1700000000000},"topicB":{"0":1700000000000}}, got {value}'


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanOptions:
    """Where a query begins and ends.

    Attributes:
        starting_offsets, ending_offsets: None until completed where not given, then what holds.
    """

    starting_offsets: StartSpec | None = row(  # noqa: RUF009
        "startingOffsets",
        None,
        start_specs.parse_start,
        f"Option 'startingOffsets' must be earliest, latest, JSON, -10m, -1000 or group:id. {_EXPECTED_OFFSETS}",
        "Where a new query begins. earliest: the default of a batch. latest: the default of a stream, and not for a "
        "batch. -10m: the last ten minutes (s, m, h or d). -1000: the last thousand offsets of each partition. "
        "group:id: what that consumer group has committed, or the start where it has not. JSON that names every "
        "partition, -2 being earliest and -1 latest, or has earliest or latest for a whole topic.",
    )
    starting_timestamp_ms: int | None = row(
        "startingTimestamp",
        None,
        partial(option_parsers.parse_number, low=0, high=INT64_MAX),
        "Option 'startingTimestamp' is milliseconds since 1970. Expected a single long value, got {value}",
        "Begin each partition at its first record with this timestamp (milliseconds since 1970 UTC) or a later one. "
        "Takes precedence over startingOffsetsByTimestamp, which takes precedence over startingOffsets.",
    )
    starting_times: TimesSpec | None = row(  # noqa: RUF009
        "startingOffsetsByTimestamp",
        None,
        start_specs.parse_times,
        f"Option 'startingOffsetsByTimestamp' must be JSON. {_EXPECTED_TIMES}",
        "A starting timestamp for each partition, as JSON that names every one of them.",
    )
    start_at_latest_if_unmatched: bool = choice(
        "startingOffsetsByTimestampStrategy",
        {"error": False, "latest": True},
        "What to do where a partition has no record at or after the starting timestamp: error, or begin at its end.",
    )
    ending_offsets: OffsetsSpec | TimesSpec | None = row(  # noqa: RUF009
        "endingOffsets",
        None,
        start_specs.parse_offsets,
        f"Option 'endingOffsets' must be latest or JSON. {_EXPECTED_OFFSETS}",
        "Where a batch ends, exclusive: latest (default), or JSON that names every partition, -1 being latest. A "
        "stream reads only up to the offsets of such JSON, and nothing of partitions that it does not name.",
    )
    ending_timestamp_ms: int | None = row(
        "endingTimestamp",
        None,
        partial(option_parsers.parse_number, low=0, high=INT64_MAX),
        "Option 'endingTimestamp' is milliseconds since 1970. Expected a single long value, got {value}",
        "End a batch in each partition before its first record with this timestamp or a later one, or at its end where "
        "there is none. Takes precedence over endingOffsetsByTimestamp, which takes precedence over endingOffsets.",
    )
    ending_times: TimesSpec | None = row(  # noqa: RUF009
        "endingOffsetsByTimestamp",
        None,
        start_specs.parse_times,
        f"Option 'endingOffsetsByTimestamp' must be JSON. {_EXPECTED_TIMES}",
        "An ending timestamp for each partition, as JSON that names every one of them.",
    )

    def start(self) -> StartSpec | None:
        or_latest = self.start_at_latest_if_unmatched
        if self.starting_timestamp_ms is not None:
            return TimesSpec(self.starting_timestamp_ms, or_latest=or_latest)
        if self.starting_times is not None:
            return replace(self.starting_times, or_latest=or_latest)
        return self.starting_offsets

    def end(self) -> OffsetsSpec | TimesSpec | None:
        if self.ending_timestamp_ms is not None:
            return TimesSpec(self.ending_timestamp_ms, or_latest=True)
        if self.ending_times is not None:
            return replace(self.ending_times, or_latest=True)
        return self.ending_offsets
