"""The reader of a task whose worker has read before: brokers that hang, topics that are not what the worker knows."""

from __future__ import annotations

from collections import deque

import pytest

from pyspark_kafka_meta.errors import AuthorizationError, DataLossError, UnknownTopicError
from pyspark_kafka_meta.kafka.protocol.list_offsets import LATEST_TIMESTAMP
from pyspark_kafka_meta.model import RefreshReason
from pyspark_kafka_meta.read.fetching.task_reader import TaskReader
from tests.partitions import T0, T1
from tests.unit.reader_scene import ReaderScene
from tests.unit.scene import COLUMNS, rows

ALL = list(range(10))


def a_scene(monkeypatch: pytest.MonkeyPatch, **options: str) -> ReaderScene:
    """Ten records in t-0 and in t-1, led by brokers 1 and 2, and a worker that knows them from broker 3."""
    made = ReaderScene(monkeypatch, **{"kafka.bootstrap.servers": "broker-3:9092", "kafka.client.rack": "", **options})
    for partition in (T0, T1):
        made.append(partition, 10)
    made.worker.partitions(["t"], made.clock() + 60)
    return made


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> ReaderScene:
    return a_scene(monkeypatch)


def make_again(scene: ReaderScene) -> None:
    """Topic t, under its name, with ten records in partition 0."""
    scene.cluster.create_topic("t", partitions=2)
    scene.append(T0, 10)


def test_hung_leader_is_left_as_soon_as_another_broker_knows_better(scene: ReaderScene) -> None:
    scene.network.hung.add(1)
    scene.cluster.move_leader(T0, 2)
    began = scene.clock()

    assert scene.read(T0) == ALL
    assert 2.5 <= scene.clock() - began < 3
    assert scene.reasons() == [RefreshReason.BOOTSTRAP, RefreshReason.REQUEST_TIMEOUT]


def test_others_are_asked_again_while_a_leader_hangs_with_pauses_in_between(scene: ReaderScene) -> None:
    scene.network.hung.add(1)
    began = scene.clock()
    scene.clock.at(9, lambda: scene.cluster.move_leader(T0, 2))

    assert scene.read(T0) == ALL
    assert 9 <= scene.clock() - began < 10.5
    assert len(scene.reasons()) < 15


def test_partition_that_moved_does_not_wait_for_one_that_stays_with_a_hung_broker(scene: ReaderScene) -> None:
    scene.cluster.move_leader(T1, 1)
    scene.worker.cache.refresh(RefreshReason.ON_DEMAND, scene.clock() + 60)
    scene.network.hung.add(1)
    scene.cluster.move_leader(T0, 2)
    batches = scene.reader(scene.worker).read([scene.range(T0), scene.range(T1)])

    assert [row[:2] for row in rows(iter([next(batches)]))] == [(T0, offset) for offset in ALL]
    scene.network.hung.clear()
    assert [row[:2] for row in rows(batches)] == [(T1, offset) for offset in ALL]


def test_offsets_are_asked_of_the_new_leader_soon_after_the_old_one_hangs(scene: ReaderScene) -> None:
    scene.network.hung.add(1)
    scene.cluster.move_leader(T0, 2)
    began = scene.clock()

    assert scene.worker.list_offsets({T0: LATEST_TIMESTAMP}, began + 60)[T0].offset == 10
    assert 2 <= scene.clock() - began < 2.5


def test_range_of_a_topic_recreated_is_read_by_a_worker_that_knows_the_old_one(scene: ReaderScene) -> None:
    make_again(scene)
    began = scene.clock()

    assert scene.read(T0) == ALL
    assert scene.clock() - began < 1
    assert scene.reasons() == [RefreshReason.BOOTSTRAP], "the brokers know the id that the range was planned with"


def test_range_of_the_old_topic_is_lost_and_both_ids_are_named(scene: ReaderScene) -> None:
    """KAFKA-13488, redpanda #30671, franz-go #1426, cruise-control #1726: old positions were used for the new topic."""
    planned = scene.range(T0)
    make_again(scene)
    began = scene.clock()

    with pytest.raises(DataLossError, match=f"{planned.topic_id}, now {scene.range(T0).topic_id}"):
        scene.read_ranges([planned])
    assert scene.clock() - began < 10


@pytest.mark.parametrize("worker_is_new", [True, False])
def test_deleted_topic_is_lost_within_seconds(scene: ReaderScene, worker_is_new: bool) -> None:
    planned = scene.range(T0)
    del scene.cluster.topics["t"]
    if worker_is_new:
        scene.worker.cache.refresh(RefreshReason.ON_DEMAND, scene.clock() + 60)
    began = scene.clock()

    with pytest.raises(DataLossError, match="deleted"):
        scene.read_ranges([planned])
    assert scene.clock() - began < 10


def test_topic_that_is_deleted_while_an_offset_is_out_of_range_is_lost_too(scene: ReaderScene) -> None:
    planned = scene.range(T0)
    scene.network.error_codes[T0] = deque([1])
    del scene.cluster.topics["t"]

    with pytest.raises(DataLossError, match="deleted"):
        scene.read_ranges([planned])


def test_task_ends_once_all_of_it_is_lost_and_that_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = a_scene(monkeypatch, failOnDataLoss="false")
    planned = [scene.range(T0), scene.range(T1)]
    del scene.cluster.topics["t"]
    began = scene.clock()

    assert scene.read_ranges(planned) == []
    assert scene.clock() - began < 10


def test_offsets_of_a_deleted_topic_are_given_up_within_seconds(scene: ReaderScene) -> None:
    del scene.cluster.topics["t"]
    began = scene.clock()

    with pytest.raises(UnknownTopicError, match="t-0"):
        scene.worker.list_offsets({T0: LATEST_TIMESTAMP}, began + 60)
    with pytest.raises(UnknownTopicError, match="topic t "):
        scene.worker.partitions(["t"], began + 60)
    assert scene.clock() - began < 5, "what is known to be gone is not waited for twice"


def test_task_that_is_tried_again_asks_anew_whether_its_topic_may_be_read(scene: ReaderScene) -> None:
    scene.network.metadata_errors["t"] = 29
    scene.worker.cache.refresh(RefreshReason.ON_DEMAND, scene.clock() + 60)
    with pytest.raises(AuthorizationError):
        scene.read(T0)
    scene.network.metadata_errors.clear()

    assert scene.read(T0) == ALL
    assert len(scene.sent("Metadata")) == 4, "the worker's first, the one that was refused, and one of each task"


def test_right_taken_away_while_a_replica_is_read_ends_the_task_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = a_scene(monkeypatch, **{"kafka.client.rack": "here"})
    scene.network.preferred_replicas[T0] = 3
    scene.network.replica_ends[3, T0] = 10
    scene.append(T0)

    def take_away() -> None:
        scene.network.metadata_errors["t"] = 29
        scene.worker.cache.request_update(RefreshReason.ON_DEMAND, scene.worker.cache.snapshot.generation)

    scene.clock.at(0.2, take_away)
    began = scene.clock()

    with pytest.raises(AuthorizationError, match="t-0"):
        scene.read(T0)
    assert scene.clock() - began < 2


ONE_BATCH = {"kafka.max.partition.fetch.bytes": "1"}


def test_hung_leader_is_left_while_other_brokers_always_have_responses_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = a_scene(monkeypatch, **ONE_BATCH)
    for _ in range(20):
        scene.append(T1)
    scene.network.hung.add(1)
    scene.cluster.move_leader(T0, 3)
    batches = TaskReader(scene.worker, scene.settings, COLUMNS).read([scene.range(T0), scene.range(T1)])
    began = scene.clock()
    while next(batches)["partition"][0].as_py() != T0.partition:
        scene.clock.sleep(1)

    assert round(scene.clock() - began, 3) <= 5, "overdue after 2.5 s, and seen between batches that take a second each"


def test_brokers_whose_responses_wait_for_a_consumer_are_not_taken_for_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = a_scene(monkeypatch, **ONE_BATCH)
    for _ in range(5):
        scene.append(T0)
        scene.append(T1)
    seen = 0
    for batch in TaskReader(scene.worker, scene.settings, COLUMNS).read([scene.range(T0), scene.range(T1)]):
        seen += batch.num_rows
        scene.clock.sleep(10)

    assert seen == 70
    assert set(scene.reasons()) == {RefreshReason.BOOTSTRAP}
