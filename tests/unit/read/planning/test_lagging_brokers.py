"""New topics and partitions that only some brokers know: no crash, and no loss."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyspark_kafka_meta.errors import DataLossError, UnknownTopicError
from pyspark_kafka_meta.model import Address, Position, TopicPartition
from pyspark_kafka_meta.read.planning.checkpoint_offsets import BEGINNING, SourceOffset
from pyspark_kafka_meta.read.planning.offset_planner import OffsetPlanner
from tests.partitions import T0, T1, T2, U0
from tests.unit.fake_network import about_s
from tests.unit.reader_scene import ReaderScene


def grow(scene: ReaderScene) -> None:
    """Partition t-2, led by broker 3, with five records."""
    topic = scene.cluster.topics["t"]
    added = replace(topic.partitions[0], partition=2, leader_id=3)
    scene.cluster.topics["t"] = replace(topic, partitions=(*topic.partitions, added))
    scene.cluster.logs[T2] = []
    scene.append(T2)


def a_scene(monkeypatch: pytest.MonkeyPatch, *lagging: int, **options: str) -> ReaderScene:
    """Topic t has just grown to three partitions; these brokers know of two."""
    scene = ReaderScene(monkeypatch, **options)
    for node_id in lagging:
        scene.network.cut_off(node_id)
    grow(scene)
    return scene


def planner(scene: ReaderScene) -> OffsetPlanner:
    return OffsetPlanner(scene.worker, scene.settings.for_stream())


def offset(scene: ReaderScene, *partitions: TopicPartition) -> SourceOffset:
    return SourceOffset({partition: Position(0) for partition in partitions}, {"t": scene.cluster.topics["t"].topic_id})


def test_topic_that_the_first_broker_does_not_know_yet_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = ReaderScene(monkeypatch)
    topic = scene.cluster.topics.pop("t")
    scene.network.cut_off(1)
    scene.cluster.topics["t"] = topic
    began = scene.clock()

    assert sorted(planner(scene).available_now()) == [T0, T1]
    assert scene.clock() - began < 1


def test_topic_that_nobody_knows_is_unknown_after_its_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = ReaderScene(monkeypatch)
    del scene.cluster.topics["t"]
    began = scene.clock()

    with pytest.raises(UnknownTopicError, match="topic t does not exist"):
        planner(scene).available_now()
    assert scene.clock() - began == about_s(3)
    assert len(scene.network.requests) < 10, "with pauses that grow"


def test_restart_behind_a_broker_that_lacks_a_partition_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = a_scene(monkeypatch, 1)
    end = planner(scene).next_offset(offset(scene, T0, T1, T2), None, limited=False)

    assert end.positions[T2].offset == 5


def test_partition_that_is_really_gone_is_told_after_its_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = ReaderScene(monkeypatch)
    began = scene.clock()

    with pytest.raises(DataLossError, match="t-2 are gone"):
        planner(scene).next_offset(offset(scene, T0, T1, T2), None, limited=False)
    assert scene.clock() - began == about_s(3)


def test_topic_that_is_not_read_any_more_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = ReaderScene(monkeypatch, failOnDataLoss="false")
    start = SourceOffset({T0: Position(0), U0: Position(7)}, {"t": None, "u": None})
    began = scene.clock()
    planner(scene).next_offset(start, None, limited=False)

    assert scene.clock() == about_s(began)


def test_run_that_ends_reads_a_partition_that_the_first_broker_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    for options in ({}, {"failOnDataLoss": "false"}):
        assert sorted(planner(a_scene(monkeypatch, 1, **options)).available_now()) == [T0, T1, T2]
    scene = a_scene(monkeypatch, 1)
    planned = OffsetPlanner(scene.worker, scene.settings.for_batch()).batch_ranges()

    assert [offset_range.partition for offset_range in planned] == [T0, T1, T2]


def test_run_that_ends_reads_a_topic_that_the_first_broker_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = ReaderScene(monkeypatch, subscribePattern="^[tu]$")
    scene.network.cut_off(1)
    scene.cluster.create_topic("u")

    assert sorted(planner(scene).available_now()) == [T0, T1, U0]


def test_stream_from_latest_skips_a_partition_that_the_first_broker_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = a_scene(monkeypatch, 1, startingOffsets="latest")

    assert planner(scene).next_offset(BEGINNING, None, limited=False).start[T2].offset == 5


def test_second_broker_is_another_one_behind_a_load_balancer(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(20):
        scene = ReaderScene(monkeypatch)
        scene.network.aliases[Address("balancer", 9092)] = 1
        scene.network.cut_off(1)
        grow(scene)
        scene.settings = scene.options(kafka_bootstrap_servers="balancer:9092")
        scene.worker = scene.client(kafka_bootstrap_servers="balancer:9092")
        scene.worker.rng.seed(seed)

        assert sorted(planner(scene).available_now()) == [T0, T1, T2]


def test_second_broker_is_asked_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = ReaderScene(monkeypatch)
    began = scene.clock()
    planner(scene).available_now()

    assert scene.clock() == about_s(began)
    assert [api for api, _ in scene.network.requests].count("Metadata") == 2


def test_assigned_partition_that_one_broker_lacks_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = ReaderScene(monkeypatch, assign='{"t": [2]}')
    scene.network.cut_off(1)
    grow(scene)

    assert sorted(planner(scene).available_now()) == [T2]


def test_new_partition_is_read_from_its_first_record_whenever_it_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = a_scene(monkeypatch, 1, 2, 3)
    plan = planner(scene)
    seen_late = plan.next_offset(offset(scene, T0, T1), None, limited=False)
    assert T2 not in seen_late.positions
    scene.network.catch_up()
    scene.clock.sleep(300)
    end = plan.next_offset(seen_late, None, limited=False)

    assert (end.start[T2].offset, end.positions[T2].offset) == (0, 5)


def test_reader_finds_the_partition_that_its_first_broker_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = a_scene(monkeypatch, 1)
    scene.append(T0)

    assert sorted(scene.read(T0, T2)) == sorted([*range(5), *range(5)])


def test_broker_that_lacks_the_topic_takes_no_partition_from_a_running_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = ReaderScene(monkeypatch)
    scene.append(T0)
    scene.read(T0)
    topic = scene.cluster.topics.pop("t")
    scene.network.cut_off(1)
    scene.cluster.topics["t"] = topic
    scene.cluster.move_leader(T0, 2)
    scene.append(T0)

    assert scene.read(T0) == list(range(10))
