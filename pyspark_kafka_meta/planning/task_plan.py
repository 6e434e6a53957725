"""Offset ranges into tasks: the big are split, the small are bundled, those of one leader together.

A Python task costs some 50 ms however little it reads, and a worker reads over a million records a second: tasks of few
records are mostly overhead, and one of very many keeps a single core busy while the others have finished. The split for
`minPartitions` is that of Spark's `KafkaOffsetRangeCalculator`, which does not bundle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, groupby, pairwise

from pyspark_kafka_meta.model import NO_EPOCH, NO_LEADER, OffsetRange, TopicPartition

SPLIT_OFFSETS = 1_000_000
"""A range of more offsets is cut, into pieces that are far too large to be bundled again."""
BUNDLE_OFFSETS = 50_000
"""Ranges of fewer offsets share a task with others, of up to about this many together."""


def plan_tasks(
    ranges: Sequence[OffsetRange],
    leaders: Mapping[TopicPartition, int],
    min_partitions: int | None = None,
    max_records: int | None = None,
    max_tasks: int | None = None,
) -> list[tuple[OffsetRange, ...]]:
    """What each task reads: together exactly `ranges`, each offset once; no partition twice in one task.

    Args:
        ranges: at most one for each partition; empty ones are dropped.
        leaders: node id of each partition's leader; where it is missing there is none.
        min_partitions: about the least number of tasks: fewer ranges are split further, and bundling stops there.
        max_records: most offsets of a task.
        max_tasks: most tasks, which goes before the other two.

    Returns:
        Tasks of one range or more, the large ones first.
    """
    tasks = _within_sizes(ranges, leaders, min_partitions, max_records or SPLIT_OFFSETS)
    return tasks if max_tasks is None or len(tasks) <= max_tasks else _deal_out(ranges, leaders, max_tasks)


def _within_sizes(
    ranges: Sequence[OffsetRange],
    leaders: Mapping[TopicPartition, int],
    min_partitions: int | None,
    max_records: int,
) -> list[tuple[OffsetRange, ...]]:
    most = min(max_records, SPLIT_OFFSETS)
    pieces = [piece for each in ranges if each.size > 0 for piece in _cut(each, -(-each.size // most))]
    if min_partitions is not None and len(pieces) < min_partitions:
        return [(piece,) for piece in _split_for(pieces, min_partitions)]
    capacity = min(BUNDLE_OFFSETS, most)
    tasks = _bundle(pieces, leaders, capacity)
    while len(tasks) < (min_partitions or 0):
        capacity //= 2
        tasks = _bundle(pieces, leaders, capacity)
    return [tuple(task) for task in tasks]


def _split_for(pieces: Sequence[OffsetRange], min_partitions: int) -> list[OffsetRange]:
    """About `min_partitions` pieces out of fewer, each split in proportion to its size. Those too small to be split
    count as one each, and the large ones share the rest of `min_partitions` (SPARK-36576)."""
    total = sum(piece.size for piece in pieces)
    parts = [_parts(piece.size, total, min_partitions) for piece in pieces]
    large_total = sum(piece.size for piece, count in zip(pieces, parts, strict=True) if count > 1)
    large_parts = max(1, min_partitions - parts.count(1))
    return [
        part
        for piece, count in zip(pieces, parts, strict=True)
        for part in _cut(piece, _parts(piece.size, large_total, large_parts) if count > 1 else 1)
    ]


def _parts(size: int, total: int, min_partitions: int) -> int:
    """The share of `min_partitions`, halves rounded up as Java's Math.round does; at least 1, at most one an offset."""
    return min(size, max(1, (2 * size * min_partitions + total) // (2 * total)))


def _cut(whole: OffsetRange, parts: int) -> list[OffsetRange]:
    """`parts` nonempty pieces of near-even size, the smaller ones first. Only the first follows a known epoch."""
    size, larger = divmod(whole.size, parts)
    starts = [whole.from_offset + part * size + max(0, part - (parts - larger)) for part in range(parts + 1)]
    return [_piece(whole, start, end) for start, end in pairwise(starts)]


def _piece(whole: OffsetRange, start: int, end: int) -> OffsetRange:
    epoch = whole.start_epoch if start == whole.from_offset else NO_EPOCH
    return replace(whole, from_offset=start, until_offset=end, start_epoch=epoch)


def _deal_out(
    ranges: Sequence[OffsetRange], leaders: Mapping[TopicPartition, int], tasks: int
) -> list[tuple[OffsetRange, ...]]:
    """Up to `tasks` tasks of near-even size: the ranges laid end to end, those of one leader together, and cut."""
    line = sorted(ranges, key=lambda each: (leaders.get(each.partition, NO_LEADER), each.partition))
    ends = list(accumulate(each.size for each in line))
    cuts = [ends[-1] * number // tasks for number in range(tasks + 1)]
    dealt = [
        tuple(
            _piece(each, each.until_offset - min(end - low, each.size), each.until_offset - max(end - high, 0))
            for each, end in zip(line, ends, strict=True)
            if max(low, end - each.size) < min(high, end)
        )
        for low, high in pairwise(cuts)
    ]
    return [task for task in dealt if task]


def _bundle(
    pieces: Sequence[OffsetRange], leaders: Mapping[TopicPartition, int], capacity: int
) -> list[list[OffsetRange]]:
    """Pieces of `capacity` and more alone, then the others together, up to `capacity` a task. What each leader has left
    over in the end, too little for a task of its own, is put together across leaders."""
    tasks = [[piece] for piece in pieces if piece.size >= capacity]
    small = [piece for piece in pieces if piece.size < capacity]
    leader_of = {piece: leaders.get(piece.partition, NO_LEADER) for piece in small}
    small.sort(key=lambda piece: (leader_of[piece], piece.partition))
    left_over = []
    for _, of_leader in groupby(small, key=leader_of.__getitem__):
        *full, last = _fill(([piece] for piece in of_leader), capacity)
        tasks += full
        left_over.append(last)
    return tasks + _fill(left_over, capacity)


def _fill(groups: Iterable[list[OffsetRange]], capacity: int) -> list[list[OffsetRange]]:
    """The groups in their order, each joined to the one before while both fit into `capacity`."""
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
