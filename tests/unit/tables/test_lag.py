"""The lag of a query."""

from __future__ import annotations

from uuid import UUID

import pytest

from pyspark_kafka_meta.model import Position, TopicPartition
from pyspark_kafka_meta.tables.lag import lag_rows, partitions_behind, without_recreated_topics
from pyspark_kafka_meta.tables.rows import PartitionRow
from tests.partitions import T0

NOW = 1_000.0


@pytest.mark.parametrize(
    ("live", "timestamps", "behind"),
    [
        pytest.param([PartitionRow(topic="t", partition=0, end_offset=7)], {}, (0, 0.0), id="no unread record"),
        pytest.param([PartitionRow(topic="t", partition=0, end_offset=9)], {T0: 940.0}, (2, 60.0), id="behind"),
        pytest.param([PartitionRow(topic="t", partition=0, end_offset=9)], {}, (2, None), id="no record at the offset"),
        pytest.param(
            [PartitionRow(topic="t", partition=0, end_offset=9)], {T0: 1_001.0}, (2, 0.0), id="future timestamp"
        ),
        pytest.param([PartitionRow(topic="t", partition=0, end_offset=5)], {}, (0, 0.0), id="truncated log"),
        pytest.param(
            [PartitionRow(topic="t", partition=0, leader_epoch=2, end_offset=9)],
            {T0: 940.0},
            (2, 60.0),
            id="same epoch",
        ),
        pytest.param(
            [PartitionRow(topic="t", partition=0, leader_epoch=1, end_offset=7)], {}, (None, None), id="replaced leader"
        ),
        pytest.param([PartitionRow(topic="t", partition=0, error="down")], {}, (None, None), id="leader failure"),
        pytest.param([PartitionRow(topic="t", error="gone")], {}, (None, None), id="no topic"),
    ],
)
def test_lag_of_a_partition_read_up_to_offset_7(
    live: list[PartitionRow], timestamps: dict[TopicPartition, float], behind: tuple[int | None, float | None]
) -> None:
    positions = {T0: Position(7, 1, 0, reported_epoch=2)}
    (row,) = lag_rows(positions, live, timestamps, NOW)

    assert (row.records_behind, row.seconds_behind) == behind
    assert partitions_behind(positions, live) == ([T0] if behind[0] else [])


def test_recreated_topics_are_not_compared() -> None:
    old, new = UUID(int=1), UUID(int=2)
    live = [
        PartitionRow(topic=topic, partition=0, topic_id=str(new), end_offset=5) for topic in ("again", "same", "new")
    ]
    unknown = PartitionRow(topic="unknown", partition=0, end_offset=5)

    comparable = without_recreated_topics([*live, unknown], {"again": old, "same": new, "new": None, "unknown": old})

    assert [row.topic for row in comparable] == ["same", "new", "unknown"]
