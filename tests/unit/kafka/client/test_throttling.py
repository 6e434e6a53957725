"""A broker that asks for patience is left alone (KIP-219): by all that fetches from it, but not without end."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import pytest

from pyspark_kafka_meta.errors import ReadTimeoutError
from pyspark_kafka_meta.events.event import Outcome
from pyspark_kafka_meta.kafka.client.next_request import MAX_THROTTLE_MS, Throttles
from pyspark_kafka_meta.model import RefreshReason
from tests.partitions import T0, T1
from tests.unit.fake_network import about_s
from tests.unit.reader_scene import FIVE, ten_records


def test_longest_throttle_of_a_broker_holds_and_none_is_believed_without_end() -> None:
    throttles = Throttles()
    throttles.throttle(1, 30_000, now=0.0)
    throttles.throttle(1, 50, now=1.0)
    throttles.throttle(2, 10 * MAX_THROTTLE_MS, now=1.0)

    assert [throttles.until(node_id) for node_id in (1, 2, 3)] == [30.0, 1.0 + MAX_THROTTLE_MS / 1000, float("-inf")]


def test_throttling_broker_is_left_alone_for_as_long_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = ten_records(monkeypatch)
    scene.network.throttles[1] = deque([4_000, 1_500])
    began = scene.clock()

    assert scene.read(T0) == list(range(10))
    assert scene.fetched_from() == [1, 1, 1]
    assert scene.clock() == about_s(began + 5.5)


def test_other_brokers_are_read_while_one_throttles(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = ten_records(monkeypatch)
    scene.append(T1)
    scene.network.throttles[1] = deque([4_000])

    assert scene.read(T0, T1) == [*FIVE, *range(10)]


def test_next_task_leaves_a_throttling_broker_alone_too(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = ten_records(monkeypatch)
    scene.worker.throttles.throttle(1, 4_000, scene.clock())
    began = scene.clock()

    assert scene.read(T0) == list(range(10))
    assert scene.clock() == about_s(began + 4)


def test_throttling_is_no_stall_and_is_told_by_the_next_event(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = ten_records(monkeypatch, **{"kafkaConsumer.pollTimeoutMs": "1000"})
    scene.network.throttles[1] = deque([900, 5_000, 5_000])

    assert scene.read(T0) == list(range(10))
    scene.worker.cache.refresh(RefreshReason.ON_DEMAND, scene.clock() + 10)
    assert scene.events[-1].fetch_throttle_ms == 10_900
    assert scene.events[-1].outcome is Outcome.UNCHANGED


def test_throttle_of_a_month_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = ten_records(monkeypatch)
    scene.network.throttles[1] = deque([2**31 - 1])
    began = scene.clock()

    assert scene.read(T0) == list(range(10))
    assert scene.clock() == about_s(began + 60)


def test_throttles_without_end_and_without_records_are_a_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = ten_records(monkeypatch, **{"kafkaConsumer.pollTimeoutMs": "1000"})
    scene.network.throttles[1] = deque([5_000] * 100)
    began = scene.clock()

    with pytest.raises(ReadTimeoutError):
        scene.read(T0)
    assert scene.clock() <= began + 66


def test_silence_after_a_throttle_is_a_stall_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = ten_records(monkeypatch, **{"kafkaConsumer.pollTimeoutMs": "1000"})
    scene.network.throttles[1] = deque([5_000])
    end = scene.cluster.bounds(T0)[1]
    began = scene.clock()
    planned = [replace(partition, until_offset=end + 1) for partition in [scene.range(T0)]]

    with pytest.raises(ReadTimeoutError):
        scene.read_ranges([replace(offset_range, from_offset=end) for offset_range in planned])
    assert scene.clock() == about_s(began + 6)
