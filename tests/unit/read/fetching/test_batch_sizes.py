"""The sizes of record batches, for a planner."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pytest

from pyspark_kafka_meta.kafka.protocol.error_codes import CORRUPT_MESSAGE, TOPIC_AUTHORIZATION_FAILED
from pyspark_kafka_meta.model import Position, TopicPartition
from pyspark_kafka_meta.read.fetching.batch_sizes import batch_sizes
from pyspark_kafka_meta.read.planning.byte_limit import BatchSize
from tests.partitions import T0, T1, T2
from tests.unit.scene import Scene


def sizes(
    scene: Scene, options: Mapping[str, str] = {}, end: int = 2, max_bytes: int = 10_000_000
) -> dict[TopicPartition, list[BatchSize]]:
    scene.clock.sleep(10)
    client = scene.client(**options)
    client.partitions(["t"], client.clock() + 1)
    firsts = {T0: 1, T1: 0, T2: 3}
    ends = {T0: Position(4), T1: Position(end), T2: Position(5)}
    return batch_sizes(client, scene.options(**options), firsts, ends, max_bytes)


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
def test_the_record_batches_of_ranges_are_measured_whole(scene: Scene, options: dict[str, str]) -> None:
    found = sizes(scene, options)

    spans = {part: [(batch.first, batch.end) for batch in batches] for part, batches in found.items()}
    assert spans == {T0: [(0, 3), (3, 4)], T1: [(0, 1), (1, 2)], T2: [(3, 4), (4, 5)]}
    assert 3 * 7 < found[T0][0].size_bytes < 200 and found[T1][0].size_bytes > 100_000


def test_no_more_is_fetched_once_so_many_bytes_were_read(scene: Scene) -> None:
    scene.write(T1, "z" * 1_000_000)

    assert sizes(scene, end=3)[T1][-1].end == 3
    assert sizes(scene, end=3, max_bytes=1000)[T1][-1].end < 3


def test_what_comes_after_the_ends_is_no_reason_to_leave_out_other_partitions(scene: Scene) -> None:
    scene.write(T0, "z" * 60_000)

    assert sizes(scene, max_bytes=150_000).keys() == {T0, T1, T2}


def test_a_limit_of_any_size_is_no_larger_fetch(scene: Scene) -> None:
    sizes(scene, end=100_000_000, max_bytes=2**62)

    assert {entry.max_bytes for _, fetch in scene.network.fetches for entry in fetch.partitions} <= {65_536, 52_428_800}


@pytest.mark.parametrize("code", [CORRUPT_MESSAGE, TOPIC_AUTHORIZATION_FAILED])
def test_a_failure_is_logged_and_left_to_the_tasks(scene: Scene, caplog: pytest.LogCaptureFixture, code: int) -> None:
    scene.script(T1, *[code] * 9)
    with caplog.at_level(logging.WARNING):
        assert T1 not in sizes(scene, {"failOnDataLoss": "false"})
    assert all("fewer samples" in message for message in caplog.messages)
    assert not [event for event in scene.events if event.kind.name == "RECORDS_LOST"]
