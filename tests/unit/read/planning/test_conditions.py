"""The option `where`: which offsets tasks read, and that queries advance over the others."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.read.planning.checkpoint_offsets import BEGINNING, ranges
from tests.partitions import T0, T1, T2
from tests.unit.logs import WRITTEN
from tests.unit.read.planning.queries import batch_planner, positions, spans
from tests.unit.scene import Scene

AFTER = (WRITTEN + timedelta(milliseconds=1)).strftime("TIMESTAMP '%Y-%m-%d %H:%M:%S.%f Z'")


def planned(scene: Scene, where: str, **options: str) -> dict[TopicPartition, tuple[int, int]]:
    planner = batch_planner(scene, where=where, **options)
    found = planner.batch_ranges()  # which tools read without tasks
    assert spans([each for task in planner.tasks(found) for each in task]) == spans(found)
    return spans(found)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("offset >= 3 AND offset < 7", {T0: (3, 7), T1: (3, 7), T2: (3, 7)}),
        ("partition = 1", {T1: (0, 12)}),
        ("(partition = 1 AND offset > 5) OR (partition = 2 AND offset = 3)", {T1: (6, 12), T2: (3, 4)}),
        ("topic = 'other' OR offset >= 100", {}),
        ("headers['a'] = 'b' OR offset >= 100", {T0: (0, 12), T1: (0, 12), T2: (0, 12)}),
    ],
)
def test_excluded_offsets_are_unread(scene: Scene, where: str, expected: dict[TopicPartition, tuple[int, int]]) -> None:
    assert planned(scene, where) == expected
    assert scene.sent("ListOffsets") == scene.sent("ListOffsets")[:6]  # starts and ends alone


def test_a_batch_begins_at_the_first_record_that_is_late_enough(scene: Scene) -> None:
    """A later record may be older: an upper bound excludes no offset."""
    scene.write(T0, "late", written=WRITTEN + timedelta(milliseconds=1))
    scene.write(T0, "old again")
    assert planned(scene, f"timestamp >= {AFTER} AND timestamp <= {AFTER}") == {T0: (12, 14)}
    assert planned(scene, f"timestamp > {AFTER}") == {}
    assert planned(scene, f"timestamp < {AFTER} OR timestamp > {AFTER}") == {T0: (0, 14), T1: (0, 12), T2: (0, 12)}
    assert planned(scene, f"timestamp >= {AFTER} OR partition = 1") == {T0: (12, 14), T1: (0, 12)}
    assert planned(scene, f"partition = 1 AND timestamp >= {AFTER}") == {}


def test_a_stream_advances_over_offsets_that_its_condition_excludes(scene: Scene) -> None:
    planner = scene.planner(startingOffsets="earliest", where=f"partition = 1 AND offset >= 5 AND timestamp >= {AFTER}")
    end = planner.next_offset(BEGINNING, None, limited=True)
    found = planner.ranges(BEGINNING, end)

    assert positions(end) == {T0: 12, T1: 12, T2: 12}
    assert spans(found) == spans(ranges(BEGINNING, end)) == {T0: (0, 12), T1: (0, 12), T2: (0, 12)}
    assert spans([each for task in planner.tasks(found) for each in task]) == {T1: (5, 12)}


def test_the_latest_records_of_keys_are_found_among_all_offsets(scene: Scene) -> None:
    planner = scene.planner(startingOffsets="latestByKey", where="offset >= 5")
    found = planner.ranges(BEGINNING, planner.next_offset(BEGINNING, None, limited=True))
    assert spans([each for task in planner.tasks(found) for each in task])[T0] == (0, 12)
