"""About so many bytes per micro-batch, by single record batches of its offsets."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from itertools import accumulate
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafka_meta.model import Position, Positions, TopicPartition
from pyspark_kafka_meta.read.planning.batch_plan import limit_offsets
from pyspark_kafka_meta.read.planning.byte_limit import READ_BYTES, BatchSize, ByteLimit
from pyspark_kafka_meta.read.planning.offset_planner import OffsetPlanner
from tests.cpu_time import least_cpu_s
from tests.partitions import T0, T1, T2
from tests.unit.read.planning.queries import Query, ends_now
from tests.unit.scene import Scene

LIMIT = READ_BYTES
SMALLEST, LARGEST = 100, 1_000_000
PARTITIONS = [TopicPartition("t-with-hyphens", number) for number in range(6)]


class Logs:
    """Records of these sizes, in record batches as a producer makes them: up to 64 KB, unless one record is larger."""

    def __init__(self, sizes: dict[TopicPartition, list[int]]) -> None:
        self.bytes_before = {part: [0, *accumulate(of_records)] for part, of_records in sizes.items()}
        self.batches = {part: _batches(of_records) for part, of_records in sizes.items()}
        self.ends = {part: Position(len(of_records)) for part, of_records in sizes.items()}
        self.fetched_bytes = 0

    def fetch(
        self, firsts: Mapping[TopicPartition, int], ends: Positions, max_bytes: int
    ) -> dict[TopicPartition, list[BatchSize]]:
        """A record batch of each partition in turn."""
        found: dict[TopicPartition, list[BatchSize]] = {part: [] for part in firsts}
        at, read = dict(firsts), 0.0
        while at and read <= max_bytes:
            for part, offset in list(at.items()):
                found[part].append(batch := self.batches[part][offset])
                read, at[part] = read + batch.size_bytes, batch.end
                if batch.end >= ends[part].offset:
                    del at[part]
        self.fetched_bytes += int(read)
        return found

    def read(self, limit: ByteLimit, batches: int) -> list[int]:
        """The bytes of each micro-batch of a query from the start. Each advances."""
        starts: Positions = dict.fromkeys(self.ends, Position(0))
        read: list[int] = []
        while starts != self.ends and len(read) < batches:
            ends = limit_offsets(starts, self.ends, limit.max_offsets(starts, self.ends))
            assert sum(end.offset for end in ends.values()) > sum(start.offset for start in starts.values())
            of = self.bytes_before
            read.append(sum(of[part][ends[part].offset] - of[part][starts[part].offset] for part in ends))
            starts = ends
        return read


def _batches(sizes: list[int]) -> list[BatchSize]:
    """The record batch at each offset."""
    batches: list[BatchSize] = []
    start = 0
    while start < len(sizes):
        end, size = start + 1, sizes[start]
        while end < len(sizes) and size + sizes[end] <= 65_536:
            size, end = size + sizes[end], end + 1
        batches += [BatchSize(start, end, size)] * (end - start)
        start = end
    return batches


def hundred_bytes_each(
    firsts: Mapping[TopicPartition, int], ends: Positions, _: int
) -> dict[TopicPartition, list[BatchSize]]:
    return {
        part: [BatchSize(first, ends[part].offset, 100 * (ends[part].offset - first))] for part, first in firsts.items()
    }


def varied(typical: float, rng: random.Random) -> float:
    return min(LARGEST, max(SMALLEST, typical * rng.lognormvariate(0, 0.4)))


def steady(number: int, offset: int, rng: random.Random) -> float:
    return varied(10 ** (2 + 4 * number / 5), rng)


def changing(number: int, offset: int, rng: random.Random) -> float:
    """By a factor of 30 and back, in each partition in another phase."""
    wave = abs((offset / 3_000 + number / 3) % 2 - 1) * 2 - 1  # from -1 to 1
    return varied(10 ** (2.75 + 0.5 * number + 0.75 * wave), rng)


def any_size(number: int, offset: int, rng: random.Random) -> float:
    return float(10 ** rng.uniform(2, 6))


def with_bursts(number: int, offset: int, rng: random.Random) -> float:
    """Small records, but for some hundred large ones in a row."""
    return LARGEST if offset % 20_000 < 300 else SMALLEST


@pytest.mark.parametrize(
    ("size_of", "limit", "most"),
    [
        (steady, LIMIT, 1),
        (changing, LIMIT, 1),
        (any_size, LIMIT, 1),
        (with_bursts, LIMIT, 1),
        (any_size, 10 * LIMIT, 2),
    ],
)
def test_micro_batches_have_about_the_bytes_of_the_limit(
    size_of: Callable[[int, int, random.Random], float], limit: int, most: float
) -> None:
    """A larger limit than is read to plan is less precise."""
    rng = random.Random(1)
    logs = Logs({part: [int(size_of(part.partition, at, rng)) for at in range(20_000)] for part in PARTITIONS})
    *read, _ = logs.read(ByteLimit(limit, logs.fetch), 102)
    assert median(abs(size / limit - 1) for size in read) < 0.2
    assert max(read) < 2 * limit


def test_a_few_large_partitions_among_more_than_are_read_at_a_time_count_as_they_were_last_read() -> None:
    sizes = {TopicPartition("t", number): [100] * 1_000 for number in range(100)}
    sizes |= {TopicPartition("t", number): [20_000] * 1_000 for number in range(100, 103)}
    logs = Logs(sizes)
    read = logs.read(ByteLimit(LIMIT // 8, logs.fetch), 10)
    assert [size / LIMIT * 8 for size in read] == pytest.approx([1] * 10, rel=0.03)


@given(
    st.lists(st.lists(st.integers(1, 2**40), max_size=30), min_size=1, max_size=4), st.integers(1, 2**40), st.booleans()
)
def test_each_micro_batch_advances_whatever_the_sizes(sizes: list[list[int]], max_bytes: int, fails: bool) -> None:
    logs = Logs({TopicPartition("t", number): of_records for number, of_records in enumerate(sizes)})
    read = logs.read(ByteLimit(max_bytes, (lambda *_: {}) if fails else logs.fetch), 1000)
    assert sum(read) == sum(map(sum, sizes))


def test_thousands_of_partitions_are_planned_in_the_time_of_a_few_limits_of_offsets() -> None:
    starts = {TopicPartition("t", number): Position(0) for number in range(5_000)}
    ends = dict.fromkeys(starts, Position(10_000))
    limit = ByteLimit(LIMIT, hundred_bytes_each)

    of_limit = least_cpu_s(lambda: limit_offsets(starts, ends, 300_000))
    assert least_cpu_s(lambda: limit.max_offsets(starts, ends)) < 20 * of_limit


def test_a_first_micro_batch_without_samples_is_small() -> None:
    part = TopicPartition("t", 0)
    limit = ByteLimit(10 * 65_536, lambda *_: {})

    assert limit.max_offsets({part: Position(0)}, {part: Position(100_000)}) == 10


def limited_query(scene: Scene, available_now: bool = False, **options: str) -> Query:
    """Of a log whose records have 100 bytes each."""
    query = Query(scene, *([ends_now(scene)] if available_now else []), startingOffsets="earliest", **options)
    settings = scene.options(startingOffsets="earliest", **options).for_stream()
    limit = ByteLimit(int(options["maxBytesPerTrigger"]), hundred_bytes_each)
    query.planner = OffsetPlanner(scene.client(), settings, limit)
    return query


@pytest.mark.parametrize(
    ("limits", "offsets"),
    [
        ({"maxBytesPerTrigger": "1500"}, [5, 5, 2]),
        ({"maxBytesPerTrigger": "1500", "maxOffsetsPerTrigger": "9"}, [3, 3, 3, 3]),
        ({"maxBytesPerTrigger": "1500", "maxOffsetsPerTrigger": "1000"}, [5, 5, 2]),
        ({"maxBytesPerTrigger": "2400", "minOffsetsPerTrigger": "36", "maxTriggerDelay": "1h"}, [8, 4]),
        ({"maxBytesPerTrigger": "1"}, [1] * 12),
        ({"maxBytesPerTrigger": str(2**63 - 1)}, [12]),
    ],
)
def test_available_now_keeps_to_the_smaller_limit(scene: Scene, limits: dict[str, str], offsets: list[int]) -> None:
    query, read = limited_query(scene, available_now=True, **limits), []
    while step := query.step():
        assert len({until - start for start, until in step.values()}) == 1 and step.keys() == {T0, T1, T2}
        read.append(step[T0][1] - step[T0][0])

    assert read == offsets


def test_trigger_once_has_no_byte_limit_and_a_stream_waits_for_its_minimum(scene: Scene) -> None:
    query = limited_query(scene, maxBytesPerTrigger="1500", minOffsetsPerTrigger="20", maxTriggerDelay="1h")

    assert query.step(limited=False) == dict.fromkeys((T0, T1, T2), (0, 12))
    assert query.step() == {}
