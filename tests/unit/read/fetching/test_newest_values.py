"""What is in the newest values of topics is found at the ends of their logs."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.read.fetching import newest_values
from pyspark_kafka_meta.read.fetching.newest_values import newest_in_values
from tests.partitions import T0, T1, T2
from tests.unit.logs import WRITTEN
from tests.unit.scene import HELD_BACK, Scene

EARLIER, LATER = WRITTEN - timedelta(minutes=1), WRITTEN + timedelta(minutes=1)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


def found(scene: Scene, **options: str) -> list[tuple[TopicPartition, int, str]]:
    """Values with an x."""
    query, client = scene.options(**options), scene.client(**options)
    newest = newest_in_values(client, query, "value", lambda value: value.decode() if b"x" in value else None)
    client.close()
    return [(each.partition, each.offset, each.what) for each in newest]


def test_the_newest_value_of_all_partitions_is_found(scene: Scene) -> None:
    scene.write(T0, "x1", "x2", written=LATER)
    scene.write(T0, "x3", written=EARLIER)
    scene.write(T1, "x4", "y", written=WRITTEN)
    assert found(scene) == [(T0, 1, "x2")]


def test_nothing_is_found_in_empty_topics_and_other_values(scene: Scene) -> None:
    assert found(scene) == []
    scene.fill()
    assert found(scene) == []


def test_older_offsets_are_read_until_something_is_found(scene: Scene) -> None:
    scene.write(T0, "x1", *["y"] * 150)
    scene.write(T1, *["y"] * 20)
    assert found(scene) == [(T0, 0, "x1")]


def test_a_long_log_is_not_read_as_a_whole(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest_values, "MAX_OFFSETS", 100)
    scene.write(T0, "x1", *["y"] * 100)
    scene.write(T1, *["y"] * 3, "x2", *["y"] * 99)
    assert found(scene) == [(T1, 3, "x2")]
    assert found(scene, assign='{"t":[0]}') == []


def test_each_topic_has_its_newest_value(scene: Scene) -> None:
    scene.cluster.create_topic("u")
    scene.write(T2, "x1", written=LATER)
    scene.write(TopicPartition("u", 0), "x2", *["y"] * 15, written=EARLIER)
    assert found(scene, subscribe="u,t") == [(T2, 0, "x1"), (TopicPartition("u", 0), 0, "x2")]


def test_options_of_the_query_decide_which_records_there_are(scene: Scene) -> None:
    scene.write(T0, "x1")
    scene.hold_back(T0, "x2", written=LATER)
    assert found(scene, startingOffsets="latest", **HELD_BACK) == [(T0, 0, "x1")]
    assert found(scene, assign='{"t":[1]}') == []
