"""`ByteLimit`: how many offsets make about maxBytesPerTrigger bytes.

Brokers send the size of records with the records alone, and tasks of a source report nothing to the driver. So the
planner fetches single record batches from the offsets that a micro-batch may read, at the end of each of equal parts.
If every offset counts alike, their bytes per offset are on average those of the log, whatever a record batch holds.

1. The limit, by what was learned, and half as much: the offsets in which to look.
2. Their parts are added up. The first that fit, if sizes have grown, are learned from.
3. The limit, by what is learned now: the offsets to read.

What was learned is lost with the process: a restarted query begins with a small micro-batch, as a new one does.

Of 100 micro-batches of 32 MB, from 6 partitions with records of 100 B to 1 MB whose sizes changed slowly, half were
within 11 % of the limit, the largest had 1.7 times as much. In simulations single records of all sizes in one partition
made up to 3 times 32 MB, 1.7 times 100 MB. Records that fill less than an eighth of the offsets may be missed by all
samples. After sizes changed by a factor of thousands, the next ten or twenty micro-batches are small.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple, TypeAlias

from pyspark_kafka_meta.model import Position, Positions, TopicPartition
from pyspark_kafka_meta.read.planning.batch_plan import limit_offsets

FIRST_OFFSETS = 1000
"""Of all partitions together, before anything was learned."""
SAMPLED_SHARE = 0.05
"""About how much of the limit is fetched in addition, to learn. Before the first micro-batch it is `MAX_SAMPLES`."""
MAX_PARTS, MAX_SAMPLES = 8, 48
OVERSHOOT = 1.5
"""Up to how much of the limit the parts may have together: few samples are imprecise."""


class BatchSize(NamedTuple):
    """A record batch, as brokers store it."""

    size_bytes: int
    offsets: int


FetchSizes: TypeAlias = Callable[[Positions], Mapping[TopicPartition, BatchSize]]
"""Finds the record batch at a position of each partition, of some perhaps none."""


class Density(NamedTuple):
    """The mean bytes per offset of a partition. Samples of a plan count half as much as those of the next."""

    total: float = 0.0
    weight: float = 0.0

    @property
    def mean(self) -> float:
        return self.total / self.weight

    def with_samples(self, samples: Sequence[float]) -> Density:
        return Density(self.total / 2 + sum(samples), self.weight / 2 + len(samples))


def fitting_parts(parts_bytes: Sequence[float], max_bytes: float) -> int:
    """How many of the first parts have up to `max_bytes` together. Each counts as the part before it if that is larger:
    sizes may have changed anywhere between their ends."""
    before = [*parts_bytes[:1], *parts_bytes]
    return sum(total <= max_bytes for total in accumulate(map(max, pairwise(before))))


class ByteLimit:
    """The limit of one query."""

    def __init__(self, max_bytes: int, fetch: FetchSizes) -> None:
        self._max_bytes = max_bytes
        self._fetch = fetch
        self._densities: dict[TopicPartition, Density] = {}
        self._batch_bytes = 65_536.0  # on average, as last fetched
        self._samples = 0

    def max_offsets(self, starts: Positions, ends: Positions) -> int:
        """How many of the offsets from `starts` to `ends` to read, at least 1; see `limit_offsets`."""
        backlogs = {part: size for part, end in ends.items() if (size := end.offset - starts[part].offset) > 0}
        if not backlogs:
            return 1
        self._densities = {part: density for part, density in self._densities.items() if part in ends}
        size = self._affordable(backlogs) * 3 // 2 if self._densities else FIRST_OFFSETS
        size = min(size, sum(backlogs.values()))
        parts = self._sampled_parts(starts, limit_offsets(starts, {part: ends[part] for part in backlogs}, size))
        part_size = size / len(parts)
        parts_bytes = [self._bytes_per_offset(backlogs, sampled) * part_size for sampled in parts]
        fitting = fitting_parts(parts_bytes, OVERSHOOT * self._max_bytes)
        self._learn(parts[: max(1, fitting)])
        fits = fitting or self._max_bytes / parts_bytes[0]
        return max(1, min(int(fits * part_size), self._affordable(backlogs)))

    def _learn(self, parts: Sequence[Mapping[TopicPartition, float]]) -> None:
        for part in set[TopicPartition]().union(*parts):
            samples = [sampled[part] for sampled in parts if part in sampled]
            self._densities[part] = self._densities.get(part, Density()).with_samples(samples)

    def _affordable(self, backlogs: Mapping[TopicPartition, int]) -> int:
        """How many offsets have the bytes of the limit, by what was learned."""
        return int(self._max_bytes / self._bytes_per_offset(backlogs, {}))

    def _bytes_per_offset(
        self, backlogs: Mapping[TopicPartition, int], sampled: Mapping[TopicPartition, float]
    ) -> float:
        """On average, if each partition has a share in proportion to its backlog: as sampled, else as learned, else as
        in the other partitions, else a record batch for each offset: a first micro-batch may be without samples."""
        known = {part: density.mean for part, density in self._densities.items()} | dict(sampled)
        others = sum(known.values()) / len(known) if known else self._batch_bytes
        total = sum(size * known.get(part, others) for part, size in backlogs.items())
        return max(1.0, total / sum(backlogs.values()))

    def _sampled_parts(self, starts: Positions, ends: Positions) -> list[dict[TopicPartition, float]]:
        """Bytes per offset at the end of each part. Of too many partitions, some in turn."""
        share = int(SAMPLED_SHARE * self._max_bytes / self._batch_bytes)
        samples = min(MAX_SAMPLES, max(1, share)) if self._densities else MAX_SAMPLES
        line, turn = sorted(ends), self._samples % len(ends)
        chosen = (line[turn:] + line[:turn])[:samples]
        self._samples += len(chosen)
        count = min(MAX_PARTS, samples // len(chosen))
        parts = [
            self._fetch({part: _last_of_part(starts[part], ends[part], number / count) for part in chosen})
            for number in range(1, count + 1)
        ]
        sizes = [batch.size_bytes for batches in parts for batch in batches.values()]
        self._batch_bytes = sum(sizes) / len(sizes) if sizes else self._batch_bytes
        return [{part: batch.size_bytes / batch.offsets for part, batch in batches.items()} for batches in parts]


def _last_of_part(start: Position, end: Position, share: float) -> Position:
    """The last offset in this share of a nonempty range."""
    return end._replace(offset=start.offset + max(0, int((end.offset - start.offset) * share) - 1))
