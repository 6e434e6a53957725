"""Whatever comes into the logs and whatever the limits are, the micro-batches of a query tile what is read: no offset
left out, none twice, no task empty, through a restart between any two of them."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafka_meta.model import OffsetRange, Position, Positions, TopicPartition
from pyspark_kafka_meta.read.planning.batch_plan import limit_offsets, plan_tasks
from pyspark_kafka_meta.read.planning.checkpoint_offsets import SourceOffset, advance, ranges
from tests.checkpoints import restored

PARTITIONS = [TopicPartition("t", number) for number in range(4)]
IDS = {"t": UUID(int=1)}

begins = st.lists(st.integers(0, 2**40), min_size=4, max_size=4)
growth = st.lists(st.sampled_from([0, 0, 1, 7, 60_000, 3_000_000]), min_size=4, max_size=4)
limits = st.none() | st.integers(1, 100_000)


def next_offset(start: SourceOffset, latest: Positions, limit: int | None) -> SourceOffset:
    """As the planner makes it; partitions that are new begin at 0."""
    begun = {partition: Position(0) for partition in latest if partition not in start.positions}
    ends = latest if limit is None else limit_offsets({**start.positions, **begun}, latest, limit)
    return restored(advance(start, SourceOffset(ends, IDS), begun))


def read_on(read_up_to: dict[TopicPartition, int], pieces: list[OffsetRange]) -> None:
    """Each piece begins where the one before it ended."""
    for piece in sorted(pieces, key=lambda piece: piece.from_offset):
        assert piece.from_offset == read_up_to[piece.partition]
        read_up_to[piece.partition] = piece.until_offset


@given(
    begins,
    st.lists(st.tuples(growth, limits), min_size=1, max_size=6),
    st.integers(2, 4),
    st.none() | st.integers(1, 20),
    st.none() | st.integers(1, 20),
)
def test_micro_batches_tile_the_logs(
    starts: list[int],
    batches: list[tuple[list[int], int | None]],
    known: int,
    min_partitions: int | None,
    max_tasks: int | None,
) -> None:
    logs = dict(zip(PARTITIONS, starts, strict=True))
    first = {partition: Position(logs[partition]) for partition in PARTITIONS[:known]}
    logs |= dict.fromkeys(PARTITIONS[known:], 0)
    read_up_to = dict(logs)
    offset = SourceOffset(first, IDS, initial=True)
    for added, limit in batches:
        logs = {partition: end + more for (partition, end), more in zip(logs.items(), added, strict=True)}
        end = next_offset(offset, {partition: Position(at) for partition, at in logs.items()}, limit)
        tasks = plan_tasks(ranges(restored(offset), end), {}, min_partitions, None, max_tasks)
        assert all(task and all(planned.size > 0 for planned in task) for task in tasks)
        read_on(read_up_to, [planned for task in tasks for planned in task])
        assert read_up_to == {partition: end.positions[partition].offset for partition in PARTITIONS}
        offset = end
    read_on(
        read_up_to,
        ranges(offset, next_offset(offset, {partition: Position(at) for partition, at in logs.items()}, None)),
    )
    assert read_up_to == logs
