"""The sizes of single record batches, for a planner."""

from __future__ import annotations

import logging

import pytest

from pyspark_kafka_meta.kafka.protocol.error_codes import CORRUPT_MESSAGE, TOPIC_AUTHORIZATION_FAILED
from pyspark_kafka_meta.model import Position, TopicPartition
from pyspark_kafka_meta.read.fetching.batch_sizes import batch_sizes
from pyspark_kafka_meta.read.planning.byte_limit import BatchSize
from tests.partitions import T0, T1, T2
from tests.unit.scene import Scene


def sizes(scene: Scene, **options: str) -> dict[TopicPartition, BatchSize]:
    scene.clock.sleep(10)
    client = scene.client(**options)
    client.partitions(["t"], client.clock() + 1)
    return batch_sizes(client, scene.options(**options), {T0: Position(1), T1: Position(0), T2: Position(3)})


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    made = Scene(monkeypatch)
    made.write(T0, "a", "b", "c")
    made.write(T0, "d")
    made.write(T1, "x" * 100_000)
    made.write(T1, "y")
    for value in "klmno":
        made.write(T2, value)
    return made


@pytest.mark.parametrize("options", [{}, {"kafka.isolation.level": "read_committed", "kafka.fetch.min.bytes": "9999"}])
def test_the_record_batch_at_a_position_is_measured_whole(scene: Scene, options: dict[str, str]) -> None:
    found = sizes(scene, **options)

    assert {part: batch.offsets for part, batch in found.items()} == {T0: 3, T1: 1, T2: 1}
    assert 3 * 7 < found[T0].size_bytes < 200 and found[T1].size_bytes > 100_000


def test_offsets_that_compaction_removed_count_with_the_batch_after_them(scene: Scene) -> None:
    del scene.cluster.logs[T2][3]

    found = sizes(scene)
    assert {part: batch.offsets for part, batch in found.items()} == {T0: 3, T1: 1, T2: 2}


@pytest.mark.parametrize("code", [CORRUPT_MESSAGE, TOPIC_AUTHORIZATION_FAILED])
def test_a_failure_is_logged_and_left_to_the_tasks(scene: Scene, caplog: pytest.LogCaptureFixture, code: int) -> None:
    scene.script(T1, *[code] * 9)
    with caplog.at_level(logging.WARNING):
        assert T1 not in sizes(scene, failOnDataLoss="false")
    assert all("fewer samples" in message for message in caplog.messages)
    assert not [event for event in scene.events if event.kind.name == "RECORDS_LOST"]
