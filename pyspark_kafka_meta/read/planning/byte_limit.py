"""`ByteLimit`: how many offsets make about maxBytesPerTrigger bytes.

Brokers send the size of records with the records alone, and tasks of a source report nothing to the driver. So the
planner reads the record batches of the next offsets, part by part, until they have the bytes of the limit: however
sizes change, it has seen what it plans. Of a limit above `READ_BYTES` it reads a share, at the start of each part in
each partition, and takes the rest of the part to be alike.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from operator import add
from typing import NamedTuple, TypeAlias

from pyspark_kafka_meta.model import Positions, TopicPartition
from pyspark_kafka_meta.read.planning.batch_plan import shares

READ_BYTES = 32 * 1024 * 1024
"""Read to plan a micro-batch, or `SAMPLED_SHARE` of its limit if that is more."""
SAMPLED_SHARE = 0.05
PARTS = 8
"""Of a micro-batch, if sizes stay as they were. It ends after twice as many: each is a round trip or more."""
MAX_GROWTH = 4
"""How many times the offsets of a part the next may have."""
MAX_PARTITIONS = 64
"""Read in each part; of more, some in turn, and the others are as they were last."""
STEPS = 64
"""Of a part, at which the micro-batch may end."""
FIRST_OFFSETS = 125
"""Of the first part of a query, of all partitions together."""
UNKNOWN_BYTES = 65_536.0
"""Per offset, if no record batch was ever read: as if each had a record."""


class BatchSize(NamedTuple):
    """A record batch, as brokers store it: its first offset, and the offset after its last."""

    first: int
    end: int
    size_bytes: float


FetchSizes: TypeAlias = Callable[
    [Mapping[TopicPartition, int], Positions, int], Mapping[TopicPartition, list[BatchSize]]
]
"""Finds the record batches from these offsets to these positions in order, and perhaps later ones; of some partitions
perhaps none. It ends early once it has read so many bytes before these positions."""


class _Curve:
    """The bytes of a partition from the start of the micro-batch to each later offset up to `end`."""

    def __init__(self, start: int) -> None:
        self._ends, self._bytes = [start], [0.0]  # of record batches

    @property
    def end(self) -> int:
        return self._ends[-1]

    @property
    def bytes(self) -> float:
        """Up to `end`."""
        return self._bytes[-1]

    def add(self, batch: BatchSize) -> None:
        """The rest of a record batch that began before, or a whole one with the gap that compaction left before it."""
        if batch.end > self.end:
            share = min(1.0, (batch.end - self.end) / (batch.end - batch.first))
            self.extend(batch.end, share * batch.size_bytes)

    def extend(self, end: int, size_bytes: float) -> None:
        """To a later end, before which there are so many bytes more."""
        self._ends.append(end)
        self._bytes.append(self._bytes[-1] + size_bytes)

    def __call__(self, offset: int) -> float:
        index = bisect_left(self._ends, offset)
        low, before = self._ends[index - 1], self._bytes[index - 1]
        return before + (self._bytes[index] - before) * (offset - low) / (self._ends[index] - low)


class ByteLimit:
    """The limit of one query."""

    def __init__(self, max_bytes: int, fetch: FetchSizes) -> None:
        self._max_bytes = max_bytes
        self._share = min(1.0, max(READ_BYTES / max_bytes, SAMPLED_SHARE))
        self._fetch = fetch
        self._density = UNKNOWN_BYTES  # bytes per offset, of the last micro-batch
        self._densities: dict[TopicPartition, float] = {}  # of each partition, as last read
        self._turn = 0

    def max_offsets(self, starts: Positions, ends: Positions) -> int:
        """How many of the offsets from `starts` to `ends` to read, at least 1; see `limit_offsets`."""
        curves = {part: _Curve(starts[part].offset) for part in sorted(ends) if ends[part].offset > starts[part].offset}
        if not curves:
            return 1
        backlogs = [ends[part].offset - curve.end for part, curve in curves.items()]
        firsts = [curve.end for curve in curves.values()]
        total, known, known_bytes = sum(backlogs), 0, 0.0

        def targets(offsets: int) -> list[int]:
            return list(map(add, firsts, shares(backlogs, offsets)))

        def bytes_until(offsets: Sequence[int]) -> float:
            return sum(map(_Curve.__call__, curves.values(), offsets))

        part_bytes = self._max_bytes / PARTS
        size = part_bytes / self._density if self._turn else FIRST_OFFSETS
        for _ in range(2 * PARTS):
            part, before = min(max(1, int(size)), total - known), known_bytes
            until = targets(known + part)
            self._read(curves, until, ends, self._max_bytes - before)
            known_bytes = bytes_until(until)
            self._density = max(1.0, known_bytes / (known + part))
            if known_bytes > self._max_bytes:
                steps = range(known, known + part, max(1, part // STEPS))
                step = bisect_right(steps, float(self._max_bytes), key=lambda offsets: bytes_until(targets(offsets)))
                return max(1, steps[max(0, step - 1)])
            known += part
            if known == total:
                break
            size = part * min(MAX_GROWTH, part_bytes / max(1.0, known_bytes - before))
        return known

    def _read(
        self, curves: Mapping[TopicPartition, _Curve], targets: Sequence[int], ends: Positions, left: float
    ) -> None:
        """Extend the curves to these offsets, between which there may be more than the `left` bytes."""
        line = [
            (part, curve, target)
            for (part, curve), target in zip(curves.items(), targets, strict=True)
            if curve.end < target
        ]
        turn = self._turn % max(1, len(line))
        chosen = (line[turn:] + line[:turn])[:MAX_PARTITIONS]
        self._turn += len(chosen)
        firsts = {part: curve.end for part, curve, _ in chosen}
        wanted = {
            part: ends[part]._replace(offset=curve.end + max(1, int((target - curve.end) * self._share)))
            for part, curve, target in chosen
        }
        densities: dict[TopicPartition, float] = {}
        found = self._fetch(firsts, wanted, int((left + self._max_bytes / 4) * self._share)) if firsts else {}
        for part, batches in found.items():
            curve = curves[part]
            before = curve.bytes
            for batch in batches:
                curve.add(batch)
            densities[part] = self._densities[part] = (curve.bytes - before) / (curve.end - firsts[part])
        others = sum(densities.values()) / len(densities) if densities else self._density
        for part, curve, target in line:
            if curve.end < target:
                curve.extend(target, (target - curve.end) * self._densities.get(part, others))
