"""How much a micro-batch reads, and whether it is worth one: the rate limits of a stream.

Follows Spark's `KafkaMicroBatchStream.rateLimit` and `delayBatch`.
"""

from __future__ import annotations

from operator import attrgetter

from pyspark_kafka_meta.model import Position, Positions, TopicPartition

_by_offset = attrgetter("offset")


def backlog(starts: Positions, latest: Positions) -> int:
    """Offsets between `starts` and `latest`."""
    return sum(_backlogs(starts, latest).values())


def limit_offsets(starts: Positions, latest: Positions, max_offsets: int) -> dict[TopicPartition, Position]:
    """`latest`, drawn in so that about `max_offsets` offsets lie between `starts` and it.

    Shares are in proportion to the backlogs, rounded down; but a partition with a backlog gets one offset at least, so
    that none starves. `starts` has each partition of `latest`; one that lies before its start is left as it is.
    """
    backlogs = _backlogs(starts, latest)
    total = max(1, sum(backlogs.values()))
    shares = {each: min(size, max(1, max_offsets * size // total)) for each, size in backlogs.items() if size}
    return {
        each: position._replace(offset=starts[each].offset + shares[each]) if each in shares else position
        for each, position in latest.items()
    }


def draw_in(starts: Positions, latest: Positions, bound: Positions) -> dict[TopicPartition, Position]:
    """`latest`, but not behind `bound`, where the query ends; what that does not name stays at its start. A bound may
    lie before a start: Spark asks for the target of Trigger.AvailableNow before it asks for the starts. Epochs are
    those of `latest`: that of the bound may be older than a truncation."""
    bounds = {each: max(begin, bound.get(each, begin), key=_by_offset).offset for each, begin in starts.items()}
    return {each: position._replace(offset=min(position.offset, bounds[each])) for each, position in latest.items()}


def is_put_off(backlog: int, min_offsets: int, waited_ms: float | None, max_delay_ms: int) -> bool:
    """Whether a micro-batch waits for more records.

    Args:
        backlog: offsets that it would read.
        waited_ms: since the last one that was not put off; None before the first, which never is.
    """
    return backlog < min_offsets and waited_ms is not None and waited_ms < max_delay_ms


def _backlogs(starts: Positions, latest: Positions) -> dict[TopicPartition, int]:
    return {each: max(0, position.offset - starts[each].offset) for each, position in latest.items()}
