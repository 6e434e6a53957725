"""Lost positions of a checkpoint, and their explanations."""

from __future__ import annotations

from uuid import UUID

import pytest

from pyspark_kafka_meta.model import Position, TopicPartition
from pyspark_kafka_meta.read.planning.checkpoint_offsets import LatestOffset
from pyspark_kafka_meta.read.planning.lost_checkpoint_offsets import explain_recreated, explain_truncated, lost_starts
from tests.partitions import T0, T1

OLD_ID, NEW_ID = UUID(int=1), UUID(int=2)


def offset(positions: dict[TopicPartition, tuple[int, int]], topic_id: UUID | None = OLD_ID) -> LatestOffset:
    """Of (offset, epoch) pairs."""
    by_partition = {partition: Position(*position) for partition, position in positions.items()}
    return LatestOffset(by_partition, {"t": topic_id})


@pytest.mark.parametrize(
    ("start_id", "end_id", "end", "lost"),
    [
        (OLD_ID, OLD_ID, 5, []),
        (OLD_ID, OLD_ID, 4, [T0]),
        (OLD_ID, NEW_ID, 50, [T0]),
        (None, NEW_ID, 50, []),
        (OLD_ID, None, 50, []),
    ],
)
def test_a_start_is_lost_behind_the_end_or_in_another_topic(
    start_id: UUID | None, end_id: UUID | None, end: int, lost: list[TopicPartition]
) -> None:
    assert lost_starts(offset({T0: (5, 1)}, start_id), offset({T0: (end, 1), T1: (1, 1)}, end_id)) == lost


def test_a_verdict_names_offsets_ids_and_epochs() -> None:
    start = offset({T0: (5, 1), T1: (6, 1)})

    assert explain_recreated([T0, T1], start, offset({T0: (50, 2), T1: (0, 0)}, NEW_ID)) == (
        f"topic t was deleted and recreated (topic id {OLD_ID}, now {NEW_ID}): t-0 was read up to offset 5, and its "
        "new log ends at 50; t-1 was read up to offset 6, and its new log ends at 0"
    )
    assert explain_truncated([T0], start, offset({T0: (3, 2)})) == (
        "the log of t-0 was truncated to offset 3 (leader epoch 1, now 2): records planned or read at offsets 3 to 4 "
        "are gone, and reading can continue only at offset 3"
    )
