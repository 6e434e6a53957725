"""A stream that ends where the logs ended when it began."""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_kafka_meta.errors import DataLossError
from pyspark_kafka_meta.model import TopicPartition
from tests.partitions import T0, T1, T2, T3
from tests.unit.read.planning.changes import HOW_TO, lose_partitions, lose_the_end
from tests.unit.read.planning.queries import GO_ON, Query, add_partition, ends_now, positions
from tests.unit.scene import Scene


def test_available_now_ends_where_it_began_in_batches_of_the_limit(scene: Scene) -> None:
    target = ends_now(scene)
    query = Query(scene, target, startingOffsets="earliest", maxOffsetsPerTrigger="15", minOffsetsPerTrigger="15")
    steps = []
    while step := query.step():
        steps.append(step)
        scene.write(T0, "too late")

    assert steps == [dict.fromkeys((T0, T1, T2), (start, start + 5)) for start in (0, 5)] + [
        dict.fromkeys((T0, T1, T2), (10, 12))
    ]
    assert positions(query.offset) == {T0: 12, T1: 12, T2: 12}


def test_available_now_leaves_partitions_that_came_since_to_the_next_run(scene: Scene) -> None:
    target = ends_now(scene)
    query = Query(scene, target, startingOffsets="earliest")
    add_partition(scene, T3, "new")
    scene.clock.sleep(300)

    assert T3 not in query.step()
    query.target = None
    assert query.step() == {T3: (0, 1)}


def test_available_now_whose_target_is_older_than_its_start_never_goes_back(scene: Scene) -> None:
    target = ends_now(scene)
    scene.write(T0, "between target and start")
    query = Query(scene, target)

    assert query.step() == {}
    assert positions(query.offset) == {T0: 13, T1: 12, T2: 12}


@pytest.mark.parametrize(
    ("happens", "error_text", "read", "recorded_losses"),
    [
        (lose_the_end, "the log of t-0 ends at offset 6, before offset 12 at which the query", (1, 6), [(T0, 6, 12)]),
        (
            lose_partitions,
            "t-0 was read up to offset 1, and its new log ends at 12",
            (0, 12),
            [(T0, 1, None), (T1, 1, None), (T2, 1, None)],
        ),
    ],
    ids=["shorter", "fewer partitions"],
)
def test_available_now_whose_target_is_lost_says_so_once(
    scene: Scene,
    happens: Any,
    error_text: str,
    read: tuple[int, int],
    recorded_losses: list[tuple[TopicPartition, int, int | None]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    target = ends_now(scene)
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "3"}
    strict, lenient = Query(scene, target, **options), Query(scene, target, **options, **GO_ON)
    for query in (strict, lenient):
        query.step()
    happens(scene)
    scene.clock.sleep(300)

    with pytest.raises(DataLossError, match=f"{error_text}.*{HOW_TO}"):
        strict.step()
    steps = []
    while step := lenient.step():
        steps += [step[T0]] if T0 in step else []
    assert len(steps) > 2
    assert (steps[0][0], steps[-1][1]) == read
    assert caplog.text.count(error_text) == 1
    assert scene.losses() == recorded_losses


def test_available_now_asks_again_only_once_about_a_target_that_is_lost(scene: Scene) -> None:
    query = Query(scene, ends_now(scene), startingOffsets="earliest", maxOffsetsPerTrigger="3", **GO_ON)
    lose_the_end(scene)
    query.step()
    asked = len(scene.network.requests)

    assert query.step()
    assert len(scene.network.requests) == asked + 3  # the end of each log, from its leader


def test_available_now_passes_over_a_deleted_topic_where_that_is_allowed(scene: Scene) -> None:
    scene.cluster.create_topic("u", partitions=1)
    planner = scene.planner(subscribe="t,u", failOnDataLoss="false", kafka_metadata_max_age_ms="5000")
    assert len(planner.available_now()) == 4
    del scene.cluster.topics["u"]
    scene.clock.sleep(10)
    assert len(planner.available_now()) == 3
