"""The rate limits of a stream: how many offsets a micro-batch reads, and whether it waits for more.

Follows Spark's `KafkaMicroBatchStream.rateLimit` and `delayBatch`.
"""

from __future__ import annotations

from operator import attrgetter

from pyspark_kafka_meta.model import Position, Positions, TopicPartition

_by_offset = attrgetter("offset")


def backlog(starts: Positions, latest: Positions) -> int:
    """Number of offsets from `starts` to `latest`."""
    return sum(_backlogs(starts, latest).values())


def limit_offsets(starts: Positions, latest: Positions, max_offsets: int) -> dict[TopicPartition, Position]:
    """`latest`, reduced to about `max_offsets` offsets behind `starts`.

    Shares are in proportion to the backlogs, rounded down; but a partition with a backlog gets at least one offset, so
    that none starves. `starts` has each partition of `latest`; a latest offset before its start stays as it is.
    """
    backlogs = _backlogs(starts, latest)
    total = max(1, sum(backlogs.values()))
    shares = {part: min(size, max(1, max_offsets * size // total)) for part, size in backlogs.items() if size}
    return {
        part: position._replace(offset=starts[part].offset + shares[part]) if part in shares else position
        for part, position in latest.items()
    }


def cap_offsets(starts: Positions, latest: Positions, bound: Positions) -> dict[TopicPartition, Position]:
    """`latest`, but not behind `bound`, where the query ends; partitions that `bound` lacks stay at their start. A
    bound may lie before a start: Spark asks for the target of Trigger.AvailableNow before the starts. Epochs are those
    of `latest`: the epoch of the bound may be older than a truncation."""
    bounds = {part: max(start, bound.get(part, start), key=_by_offset).offset for part, start in starts.items()}
    return {part: position._replace(offset=min(position.offset, bounds[part])) for part, position in latest.items()}


def is_delayed(backlog: int, min_offsets: int, waited_ms: float | None, max_delay_ms: int) -> bool:
    """Whether a micro-batch waits for more records.

    Args:
        backlog: offsets that it would read.
        waited_ms: since the last micro-batch that was not delayed; None before the first, which never is.
    """
    return backlog < min_offsets and waited_ms is not None and waited_ms < max_delay_ms


def _backlogs(starts: Positions, latest: Positions) -> dict[TopicPartition, int]:
    return {partition: max(0, position.offset - starts[partition].offset) for partition, position in latest.items()}
