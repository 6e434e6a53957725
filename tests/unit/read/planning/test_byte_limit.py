"""About so many bytes per micro-batch, by single record batches of its offsets."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import accumulate
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafka_meta.model import Position, Positions, TopicPartition
from pyspark_kafka_meta.read.planning.batch_plan import limit_offsets
from pyspark_kafka_meta.read.planning.byte_limit import BatchSize, ByteLimit, Density, fitting_parts
from pyspark_kafka_meta.read.planning.offset_planner import OffsetPlanner
from tests.partitions import T0, T1, T2
from tests.unit.read.planning.queries import Query, ends_now
from tests.unit.scene import Scene

LIMIT = 32_000_000
SMALLEST, LARGEST = 100, 1_000_000
PARTITIONS = [TopicPartition("t-with-hyphens", number) for number in range(6)]


class Logs:
    """Records of these sizes, in record batches as a producer makes them: up to 64 KB, unless one record is larger."""

    def __init__(self, sizes: dict[TopicPartition, list[int]]) -> None:
        self.bytes_before = {part: [0, *accumulate(of_records)] for part, of_records in sizes.items()}
        self.batches = {part: _batches(of_records) for part, of_records in sizes.items()}
        self.ends = {part: Position(len(of_records)) for part, of_records in sizes.items()}
        self.fetched_bytes = 0

    def fetch(self, positions: Positions) -> dict[TopicPartition, BatchSize]:
        found = {part: self.batches[part][position.offset] for part, position in positions.items()}
        self.fetched_bytes += sum(batch.size_bytes for batch in found.values())
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
        batches += [BatchSize(size, end - start)] * (end - start)
        start = end
    return batches


def steady(number: int, offset: int) -> float:
    return float(10 ** (2 + 4 * number / 5))


def changing(number: int, offset: int) -> float:
    """By a factor of 30 and back, in each partition in another phase."""
    wave = abs((offset / 3_000 + number / 3) % 2 - 1) * 2 - 1  # from -1 to 1
    return float(10 ** (2.75 + 0.5 * number + 0.75 * wave))


@pytest.mark.parametrize("typical", [steady, changing])
def test_micro_batches_have_about_the_bytes_of_the_limit(typical: Callable[[int, int], float]) -> None:
    rng = random.Random(1)

    def size(number: int, offset: int) -> int:
        return int(min(LARGEST, max(SMALLEST, typical(number, offset) * rng.lognormvariate(0, 0.4))))

    logs = Logs({part: [size(part.partition, offset) for offset in range(20_000)] for part in PARTITIONS})
    _, *read, _ = logs.read(ByteLimit(LIMIT, logs.fetch), 102)

    assert len(read) == 100
    assert median(abs(size / LIMIT - 1) for size in read) < 0.2
    assert max(read) < 2 * LIMIT
    assert logs.fetched_bytes < 0.12 * sum(read)


def test_sizes_that_jump_and_stay_make_smaller_micro_batches_not_larger_ones() -> None:
    """By a factor of ten thousand in all partitions at once, up and down."""
    logs = Logs({part: [LARGEST] * 400 + [SMALLEST] * 40_000 + [LARGEST] * 4_000 for part in PARTITIONS})
    read = logs.read(ByteLimit(3 * LIMIT, logs.fetch), 400)

    assert sum(read) == sum(before[-1] for before in logs.bytes_before.values()), "it ends"
    assert max(read) < 2 * 3 * LIMIT


@given(
    st.lists(st.lists(st.integers(1, 2**40), max_size=30), min_size=1, max_size=4), st.integers(1, 2**40), st.booleans()
)
def test_each_micro_batch_advances_whatever_the_sizes(sizes: list[list[int]], max_bytes: int, fails: bool) -> None:
    logs = Logs({TopicPartition("t", number): of_records for number, of_records in enumerate(sizes)})
    read = logs.read(ByteLimit(max_bytes, (lambda _: {}) if fails else logs.fetch), 1000)
    assert sum(read) == sum(map(sum, sizes))


def test_a_first_micro_batch_without_samples_is_small() -> None:
    part = TopicPartition("t", 0)
    limit = ByteLimit(10 * 65_536, lambda _: {})

    assert limit.max_offsets({part: Position(0)}, {part: Position(100_000)}) == 10


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=8), st.floats(0, 1e10))
def test_parts_that_fit_have_no_more_bytes_than_allowed(parts: list[float], max_bytes: float) -> None:
    fitting = fitting_parts(parts, max_bytes)

    assert sum(parts[:fitting]) <= max_bytes * 1.000001
    assert fitting == len(parts) or sum(parts[:fitting]) + sum(parts[: fitting + 1]) + parts[0] > max_bytes


def test_the_part_before_larger_records_counts_as_large() -> None:
    assert [fitting_parts([10, 10, 1000, 10], limit) for limit in (9, 10, 20, 1019, 1020, 2019, 2020)] == [
        *(0, 1, 2, 2, 3, 3, 4)
    ]


def test_older_samples_count_less() -> None:
    assert Density().with_samples([8, 16]).mean == 12
    assert Density().with_samples([8, 16]).with_samples([4]).mean == (12 + 4) / 2


def limited_query(scene: Scene, available_now: bool = False, **options: str) -> Query:
    """Of a log whose records have 100 bytes each."""
    query = Query(scene, *([ends_now(scene)] if available_now else []), startingOffsets="earliest", **options)
    settings = scene.options(startingOffsets="earliest", **options).for_stream()
    limit = ByteLimit(int(options["maxBytesPerTrigger"]), lambda at: dict.fromkeys(at, BatchSize(400, 4)))
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
def test_available_now_ends_in_micro_batches_of_the_smaller_limit(
    scene: Scene, limits: dict[str, str], offsets: list[int]
) -> None:
    query, read = limited_query(scene, available_now=True, **limits), []
    while step := query.step():
        assert len({until - start for start, until in step.values()}) == 1 and step.keys() == {T0, T1, T2}
        read.append(step[T0][1] - step[T0][0])

    assert read == offsets


def test_trigger_once_has_no_byte_limit_and_a_stream_waits_for_its_minimum(scene: Scene) -> None:
    query = limited_query(scene, maxBytesPerTrigger="1500", minOffsetsPerTrigger="20", maxTriggerDelay="1h")

    assert query.step(limited=False) == dict.fromkeys((T0, T1, T2), (0, 12))
    assert query.step() == {}
