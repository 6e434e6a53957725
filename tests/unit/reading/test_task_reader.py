"""The reader of a task over a scripted cluster: brokers that hang, on a clock that passes by being waited on."""

from __future__ import annotations

import io
import json
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from kio.records.schema import NewRecordBatch, Record
from kio.records.writers import write_batch
from kio.static.primitive import TZAwareMicros, i8, i16, i32, i64

from pyspark_kafka_meta.errors import DataLossError, UnknownTopicError
from pyspark_kafka_meta.metadata.cache import MetadataCache
from pyspark_kafka_meta.metadata.events import Origin, RefreshReason
from pyspark_kafka_meta.metadata.model import TopicPartition
from pyspark_kafka_meta.options import MetricsOptions, SourceOptions
from pyspark_kafka_meta.reading import client as client_module
from pyspark_kafka_meta.reading import executor, fetches
from pyspark_kafka_meta.reading.client import KafkaClient
from pyspark_kafka_meta.reading.executor import TaskReader
from pyspark_kafka_meta.reading.offsets import OffsetRange
from pyspark_kafka_meta.telemetry.outlets import new_publisher
from pyspark_kafka_meta.testing.fake_wire import FakeClock, FakeWire
from pyspark_kafka_meta.wire.messages import LATEST_TIMESTAMP

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
ALL = list(range(10))


def a_batch(records: int) -> bytes:
    when = TZAwareMicros.parse(datetime(2026, 1, 1, tzinfo=UTC))
    batch = NewRecordBatch(
        producer_id=i64(-1),
        producer_epoch=i16(-1),
        base_sequence=i32(-1),
        attributes=i16(0),
        records=tuple(
            Record(attributes=i8(0), timestamp=when, offset=i64(offset), key=None, value=b"%d" % offset, headers=())
            for offset in range(records)
        ),
    )
    buffer = io.BytesIO()
    write_batch(buffer, batch)
    return buffer.getvalue()


class EventfulClock(FakeClock):
    """At the time set, `action` is done once."""

    def __init__(self) -> None:
        super().__init__()
        self.action_at = float("inf")
        self.action: Callable[[], object] = lambda: None

    def __call__(self) -> float:
        if self.now >= self.action_at:
            self.action_at = float("inf")
            self.action()
        return self.now


class Scene:
    """Topic t of two partitions with ten records each, led by brokers 1 and 2; and a client that knows them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, events: Path) -> None:
        self.clock = EventfulClock()
        self.wire = FakeWire(clock=self.clock)
        self.events = events
        fake_time = SimpleNamespace(monotonic=self.clock, sleep=self.clock.sleep)
        for module in (executor, fetches, client_module):
            monkeypatch.setattr(module, "time", fake_time)
        monkeypatch.setattr(client_module, "KafkaWire", lambda _: self.wire)
        cache = partial(MetadataCache, clock=self.clock, sleep=self.clock.sleep)
        monkeypatch.setattr(client_module, "MetadataCache", cache)
        given = {"kafka.bootstrap.servers": "broker-3:9092", "subscribe": "t"}
        self.options = SourceOptions.parse(given).for_stream()
        self.client = KafkaClient(
            self.options.client, new_publisher(MetricsOptions(str(events), None, ()), Origin(role="reader")), 300_000
        )
        self.topic_id = self.wire.cluster.create_topic("t", partitions=2)
        for partition in (T0, T1):
            self.wire.cluster.append(partition, a_batch(10))
        self.client.cache.track(["t"])
        self.client.cache.refresh(RefreshReason.BOOTSTRAP, self.clock() + 60)

    def make_again(self) -> None:
        """Topic t, under its name, with ten records in partition 0."""
        self.topic_id = self.wire.cluster.create_topic("t", partitions=2)
        self.wire.cluster.append(T0, a_batch(10))

    def read(self, *partitions: TopicPartition) -> Iterator[tuple[int, list[int]]]:
        """Partition and offsets of each batch of rows, from ranges of the topic as it is when this is called."""
        ranges = [OffsetRange(one, self.topic_id, 0, 10) for one in partitions]
        for batch in TaskReader(self.client, self.options, ("partition", "offset")).read(ranges):
            yield batch["partition"][0].as_py(), batch["offset"].to_pylist()

    def reasons(self) -> list[str]:
        """Of all refreshes so far; the event of the cache's birth is none."""
        self.client.publisher.flush()
        lines = [line for file in self.events.glob("*.jsonl") for line in file.read_text().splitlines()]
        return [event["reason"] for event in map(json.loads, lines) if event["kind"] == "refresh"]


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Scene:
    return Scene(monkeypatch, tmp_path)


def test_hung_leader_is_left_as_soon_as_another_broker_knows_better(scene: Scene) -> None:
    scene.wire.hung.add(1)
    scene.wire.cluster.move_leader(T0, 2)
    began = scene.clock()

    assert list(scene.read(T0)) == [(0, ALL)]
    assert 2.5 <= scene.clock() - began < 3
    assert scene.reasons() == ["bootstrap", "request_timeout"]


def test_others_are_asked_again_while_a_leader_hangs_with_pauses_in_between(scene: Scene) -> None:
    scene.wire.hung.add(1)
    began = scene.clock()
    scene.clock.action_at, scene.clock.action = began + 9, lambda: scene.wire.cluster.move_leader(T0, 2)

    assert list(scene.read(T0)) == [(0, ALL)]
    assert 9 <= scene.clock() - began < 10.5
    assert len(scene.reasons()) < 15


def test_partition_that_moved_does_not_wait_for_one_that_stays_with_a_hung_broker(scene: Scene) -> None:
    scene.wire.cluster.move_leader(T1, 1)
    scene.client.cache.refresh(RefreshReason.ON_DEMAND, scene.clock() + 60)
    scene.wire.hung.add(1)
    scene.wire.cluster.move_leader(T0, 2)
    batches = scene.read(T0, T1)

    assert next(batches) == (0, ALL)
    scene.wire.hung.clear()
    assert list(batches) == [(1, ALL)]


def test_offsets_are_asked_of_the_new_leader_soon_after_the_old_one_hangs(scene: Scene) -> None:
    scene.wire.hung.add(1)
    scene.wire.cluster.move_leader(T0, 2)
    began = scene.clock()

    assert scene.client.list_offsets({T0: LATEST_TIMESTAMP}, began + 60)[T0].offset == 10
    assert 3 <= scene.clock() - began < 4


def test_range_of_a_topic_made_again_is_read_by_a_worker_that_knows_the_old_one(scene: Scene) -> None:
    scene.make_again()
    began = scene.clock()

    assert list(scene.read(T0)) == [(0, ALL)]
    assert scene.clock() - began < 1
    assert scene.reasons() == ["bootstrap"], "the brokers know the id that the range was planned with"


def test_range_of_the_old_topic_is_lost_and_both_ids_are_named(scene: Scene) -> None:
    old_id, batches = scene.topic_id, scene.read(T0)
    scene.make_again()
    scene.topic_id, new_id = old_id, scene.topic_id
    began = scene.clock()

    with pytest.raises(DataLossError, match=f"{old_id}, now {new_id}"):
        next(batches)
    assert scene.clock() - began < 10


@pytest.mark.parametrize("worker_is_new", [True, False])
def test_deleted_topic_is_lost_within_seconds(scene: Scene, worker_is_new: bool) -> None:
    del scene.wire.cluster.topics["t"]
    if worker_is_new:
        scene.client.cache.refresh(RefreshReason.ON_DEMAND, scene.clock() + 60)
    began = scene.clock()

    with pytest.raises(DataLossError, match="deleted"):
        next(scene.read(T0))
    assert scene.clock() - began < 10


def test_topic_that_is_deleted_while_an_offset_is_out_of_range_is_lost_too(scene: Scene) -> None:
    scene.wire.error_codes[T0] = deque([1])
    del scene.wire.cluster.topics["t"]

    with pytest.raises(DataLossError, match="deleted"):
        next(scene.read(T0))


def test_task_ends_once_all_of_it_is_lost_and_that_is_allowed(scene: Scene) -> None:
    scene.options = replace(scene.options, fail_on_data_loss=False)
    del scene.wire.cluster.topics["t"]
    began = scene.clock()

    assert list(scene.read(T0, T1)) == []
    assert scene.clock() - began < 10


def test_offsets_of_a_deleted_topic_are_given_up_within_seconds(scene: Scene) -> None:
    del scene.wire.cluster.topics["t"]
    began = scene.clock()

    with pytest.raises(UnknownTopicError, match="t-0"):
        scene.client.list_offsets({T0: LATEST_TIMESTAMP}, began + 60)
    with pytest.raises(UnknownTopicError, match="topic t "):
        scene.client.partitions(["t"], began + 60)
    assert scene.clock() - began < 5, "what is known to be gone is not waited for twice"
