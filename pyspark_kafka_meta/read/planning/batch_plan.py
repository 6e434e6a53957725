"""Plan a batch from the ends of logs: how many offsets it reads, whether it waits for more, and its tasks.

The rate limits follow Spark's `KafkaMicroBatchStream.rateLimit` and `delayBatch`.

A Python task costs some 50 ms however little it reads, and a worker reads over a million records a second: small tasks
are mostly overhead, and a very large task keeps a single core busy while the others have finished. So large ranges are
split, and small ranges of the same leader share a task. The split for `minPartitions` follows Spark's
`KafkaOffsetRangeCalculator`, which does not bundle.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, groupby, pairwise
from operator import attrgetter

from pyspark_kafka_meta.model import NO_EPOCH, NO_LEADER, OffsetRange, Position, Positions, TopicPartition

SPLIT_OFFSETS = 1_000_000
"""Larger ranges are split, into pieces far too large to be bundled again."""
SPLIT_TASKS = 10_000
"""Of larger ranges the pieces are larger: compaction may have left few records at any number of offsets."""
BUNDLE_OFFSETS = 50_000
"""Smaller ranges share a task, up to about this many offsets together."""

_by_offset = attrgetter("offset")


# --- rate limits ------------------------------------------------------------------------------------------------------


def backlog(starts: Positions, latest: Positions) -> int:
    """Number of offsets from `starts` to `latest`."""
    return sum(_backlogs(starts, latest).values())


def limit_offsets(starts: Positions, latest: Positions, max_offsets: int) -> dict[TopicPartition, Position]:
    """`latest`, reduced to about `max_offsets` offsets after `starts`.

    Shares are in proportion to the backlogs, rounded down; but a partition with a backlog gets at least one offset, so
    that none starves. `starts` has each partition of `latest`; a latest offset before its start stays as it is.
    """
    backlogs = _backlogs(starts, latest)
    return {
        part: position._replace(offset=starts[part].offset + share) if share else position
        for (part, position), share in zip(latest.items(), shares(backlogs.values(), max_offsets), strict=True)
    }


def shares(backlogs: Collection[int], max_offsets: int) -> list[int]:
    """How many offsets of each backlog `limit_offsets` keeps."""
    total = max(1, sum(backlogs))
    return [min(size, max(1, max_offsets * size // total)) for size in backlogs]


def cap_offsets(starts: Positions, latest: Positions, bound: Positions) -> dict[TopicPartition, Position]:
    """`latest`, but not after `bound`, where the query ends; partitions that `bound` lacks stay at their start. A
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


# --- conditions -------------------------------------------------------------------------------------------------------


def narrowed(ranges: Sequence[OffsetRange], firsts: Sequence[int], lasts: Sequence[int]) -> list[OffsetRange]:
    """The part of each range from its first to its last offset, both included, without ranges that have none. A range
    that is read by key stays as it is: the latest record of a key may be anywhere."""
    bounds = [
        (planned, planned.from_offset, planned.until_offset)
        if planned.latest_by_key
        else (planned, max(planned.from_offset, first), min(planned.until_offset, last + 1))
        for planned, first, last in zip(ranges, firsts, lasts, strict=True)
    ]
    return [_piece(planned, start, end) for planned, start, end in bounds if start < end]


# --- tasks ------------------------------------------------------------------------------------------------------------


def plan_tasks(
    ranges: Sequence[OffsetRange],
    leaders: Mapping[TopicPartition, int],
    min_partitions: int | None = None,
    max_records: int | None = None,
    max_tasks: int | None = None,
) -> list[tuple[OffsetRange, ...]]:
    """The ranges of each task: together exactly `ranges`, each offset once; no partition twice in one task. The
    large tasks come first. A range that is read by key is a task.

    Args:
        ranges: at most one for each partition; empty ones are dropped.
        leaders: node ids of the known leaders.
        min_partitions: about the minimum number of tasks: fewer ranges are split further, and bundling stops there.
        max_records: offsets of a task.
        max_tasks: overrides the other two.
    """
    if any(planned.latest_by_key for planned in ranges):  # whatever the options say: a key may be anywhere in its range
        return [(planned,) for planned in sorted(ranges, key=lambda each: -each.size) if planned.size > 0]
    split_offsets = max(SPLIT_OFFSETS, sum(planned.size for planned in ranges) // SPLIT_TASKS)
    tasks = _within_sizes(ranges, leaders, min_partitions, min(max_records or split_offsets, split_offsets))
    return tasks if max_tasks is None or len(tasks) <= max_tasks else _deal_out(ranges, leaders, max_tasks)


def _within_sizes(
    ranges: Sequence[OffsetRange], leaders: Mapping[TopicPartition, int], min_partitions: int | None, max_size: int
) -> list[tuple[OffsetRange, ...]]:
    pieces = [
        piece for offsets in ranges if offsets.size > 0 for piece in _split(offsets, -(-offsets.size // max_size))
    ]
    if min_partitions is not None and len(pieces) < min_partitions:
        return [(piece,) for piece in _split_for(pieces, min_partitions)]
    capacity = min(BUNDLE_OFFSETS, max_size)
    tasks = _bundle(pieces, leaders, capacity)
    while len(tasks) < (min_partitions or 0):
        capacity //= 2
        tasks = _bundle(pieces, leaders, capacity)
    return [tuple(task) for task in tasks]


def _split_for(pieces: Sequence[OffsetRange], min_partitions: int) -> list[OffsetRange]:
    """About `min_partitions` pieces out of fewer, split in proportion to their sizes. Pieces too small to split count
    as one each, and large pieces share the rest of `min_partitions` (SPARK-36576)."""
    total = sum(piece.size for piece in pieces)
    parts = [_parts(piece.size, total, min_partitions) for piece in pieces]
    large_total = sum(piece.size for piece, count in zip(pieces, parts, strict=True) if count > 1)
    large_parts = max(1, min_partitions - parts.count(1))
    return [
        part
        for piece, count in zip(pieces, parts, strict=True)
        for part in _split(piece, _parts(piece.size, large_total, large_parts) if count > 1 else 1)
    ]


def _parts(size: int, total: int, min_partitions: int) -> int:
    """The share of `min_partitions`, halves rounded up as Java's Math.round does; from 1 to `size`."""
    return min(size, max(1, (2 * size * min_partitions + total) // (2 * total)))


def _split(offsets: OffsetRange, parts: int) -> list[OffsetRange]:
    """`parts` nonempty pieces of near-even size, smaller pieces first. Only the first follows a known epoch."""
    if parts == 1:
        return [offsets]
    size, larger = divmod(offsets.size, parts)
    starts = [offsets.from_offset + part * size + max(0, part - (parts - larger)) for part in range(parts + 1)]
    return [_piece(offsets, start, end) for start, end in pairwise(starts)]


def _piece(offsets: OffsetRange, start: int, end: int) -> OffsetRange:
    epoch = offsets.start_epoch if start == offsets.from_offset else NO_EPOCH
    return replace(offsets, from_offset=start, until_offset=end, start_epoch=epoch)


def _deal_out(
    ranges: Sequence[OffsetRange], leaders: Mapping[TopicPartition, int], tasks: int
) -> list[tuple[OffsetRange, ...]]:
    """Up to `tasks` tasks of near-even size: the ranges end to end, those of one leader together, and split."""
    line = sorted(ranges, key=lambda offsets: (leaders.get(offsets.partition, NO_LEADER), offsets.partition))
    ends = list(accumulate(offsets.size for offsets in line))
    bounds = [ends[-1] * number // tasks for number in range(tasks + 1)]
    dealt: list[list[OffsetRange]] = [[] for _ in range(tasks)]
    for offsets, end in zip(line, ends, strict=True):
        first = offsets.until_offset - end  # as if the line began at this offset
        for task in range(bisect_right(bounds, end - offsets.size) - 1, bisect_left(bounds, end)):
            start = max(first + bounds[task], offsets.from_offset)
            until = min(first + bounds[task + 1], offsets.until_offset)
            if start < until:
                dealt[task].append(_piece(offsets, start, until))
    return [tuple(task) for task in dealt if task]


def _bundle(
    pieces: Sequence[OffsetRange], leaders: Mapping[TopicPartition, int], capacity: int
) -> list[list[OffsetRange]]:
    """Pieces of at least `capacity` alone, then smaller pieces together, up to `capacity` a task. The last, incomplete
    task of each leader is combined across leaders."""
    tasks = [[piece] for piece in pieces if piece.size >= capacity]
    small = [piece for piece in pieces if piece.size < capacity]
    small.sort(key=lambda piece: (leaders.get(piece.partition, NO_LEADER), piece.partition))
    left_over = []
    for _, of_leader in groupby(small, key=lambda piece: leaders.get(piece.partition, NO_LEADER)):
        *full, last = _fill(([piece] for piece in of_leader), capacity)
        tasks += full
        left_over.append(last)
    return tasks + _fill(left_over, capacity)


def _fill(groups: Iterable[list[OffsetRange]], capacity: int) -> list[list[OffsetRange]]:
    """The groups in order, each joined to the previous group while both fit into `capacity`."""
    filled: list[list[OffsetRange]] = []
    room = 0
    for group in groups:
        size = sum(piece.size for piece in group)
        if filled and size <= room:
            filled[-1] += group
        else:
            filled.append(group)
            room = capacity
        room -= size
    return filled
