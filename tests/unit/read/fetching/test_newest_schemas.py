"""Schemas in the newest values of topics are found at the ends of their logs."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.read.fetching import newest_schemas
from pyspark_kafka_meta.typed.formats import SchemaText
from tests.partitions import T0, T1, T2
from tests.unit.logs import WRITTEN
from tests.unit.scene import HELD_BACK, Scene

EARLIER, LATER = WRITTEN - timedelta(minutes=1), WRITTEN + timedelta(minutes=1)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


def found(scene: Scene, **options: str) -> list[tuple[str, str]]:
    """Values with an x are schemas; with their places."""
    query, client = scene.options(**options), scene.client(**options)
    newest = newest_schemas.newest_schemas(client, query, "value", schema_in)
    client.close()
    return [(each.text.text, each.place) for each in newest]


def schema_in(value: bytes) -> SchemaText | None:
    return SchemaText(value.decode()) if b"x" in value else None


def test_the_newest_value_of_all_partitions_is_found(scene: Scene) -> None:
    scene.write(T0, "x1", "x2", written=LATER)
    scene.write(T0, "x3", written=EARLIER)
    scene.write(T1, "x4", "y", written=WRITTEN)
    assert found(scene) == [("x2", "t-0 at offset 1")]


def test_nothing_is_found_in_empty_topics_and_other_values(scene: Scene) -> None:
    assert found(scene) == []
    scene.fill()
    assert found(scene) == []


def test_older_offsets_are_read_until_something_is_found(scene: Scene) -> None:
    scene.write(T0, "x1", *["y"] * 150)
    scene.write(T1, *["y"] * 20)
    assert found(scene) == [("x1", "t-0 at offset 0")]


def test_a_partition_is_read_until_what_is_left_is_older_than_the_schema_of_another(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.write(T0, "x1", written=EARLIER)
    scene.write(T1, "x2", *["y"] * 10, written=LATER)
    scene.write(T2, "x3", *["y"] * 200, written=EARLIER - timedelta(minutes=1))
    assert found(scene) == [("x2", "t-1 at offset 0")]
    monkeypatch.setattr(newest_schemas, "MAX_OFFSETS", 10)
    assert found(scene) == [("x1", "t-0 at offset 0")]


def test_a_long_log_is_not_read_as_a_whole(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest_schemas, "MAX_OFFSETS", 100)
    scene.write(T0, "x1", *["y"] * 100)
    scene.write(T1, *["y"] * 3, "x2", *["y"] * 99)
    assert found(scene) == [("x2", "t-1 at offset 3")]
    assert found(scene, assign='{"t":[0]}') == []


def test_heartbeats_of_changes_have_no_schema_of_rows(scene: Scene) -> None:
    scene.cluster.create_topic("__debezium-heartbeat.s")
    scene.write(T0, "x1")
    scene.write(TopicPartition("__debezium-heartbeat.s", 0), "x2")
    changes = {"valueFormat": "connect-json", "changes": "debezium"}
    topics = "t,__debezium-heartbeat.s"

    assert found(scene, subscribe=topics, **changes) == [("x1", "t-0 at offset 0")]
    assert len(found(scene, subscribe=topics)) == 2


def test_each_topic_has_its_newest_value(scene: Scene) -> None:
    scene.cluster.create_topic("u")
    scene.write(T2, "x1", written=LATER)
    scene.write(TopicPartition("u", 0), "x2", *["y"] * 15, written=EARLIER)
    assert found(scene, subscribe="u,t") == [("x1", "t-2 at offset 0"), ("x2", "u-0 at offset 0")]


def test_options_of_the_query_decide_which_records_there_are(scene: Scene) -> None:
    scene.write(T0, "x1")
    scene.hold_back(T0, "x2", written=LATER)
    assert found(scene, startingOffsets="latest", **HELD_BACK) == [("x1", "t-0 at offset 0")]
    assert found(scene, assign='{"t":[1]}') == []
