"""A task reads its ranges: which requests that takes, and when rows are given out."""

from __future__ import annotations

import pytest

from pyspark_kafka_meta.errors import ReadTimeoutError
from pyspark_kafka_meta.kafka.protocol.fetch import DivergingEpoch, FetchResponse
from pyspark_kafka_meta.model import RefreshReason, TopicPartition
from tests.partitions import T0, T1, T2
from tests.unit.logs import batch
from tests.unit.read.fetching.responses import ONE_BATCH, POLL_TIMEOUT_S, with_partitions
from tests.unit.scene import HELD_BACK, Scene, by_partition, rows, written


@pytest.mark.parametrize("options", [{}, ONE_BATCH], ids=["all at once", "batch by batch"])
def test_every_record_comes_once_and_in_order(scene: Scene, options: dict[str, str]) -> None:

    assert by_partition(rows(scene.reader(**options).read(scene.ranges()))) == written()


def test_only_the_offsets_of_the_range_are_read(scene: Scene) -> None:

    assert by_partition(rows(scene.reader(**ONE_BATCH).read([scene.range(T0, 4, 8)]))) == {T0: written()[T0][4:8]}


def test_a_fetch_asks_for_what_the_options_say(scene: Scene) -> None:
    sizes = {"kafka_fetch_max_bytes": "200000", "kafka_max_partition_fetch_bytes": "100000"}
    waits = {"kafka_fetch_min_bytes": "7", "kafka_fetch_max_wait_ms": "70"}
    next(scene.reader(**sizes, **waits, **HELD_BACK, kafka_client_rack="here").read([scene.range(T0, 0, 1_000)]))
    _, request = scene.network.fetches[0]

    assert (request.min_bytes, request.max_wait_ms, request.max_bytes) == (7, 70, 200_000)
    assert request.partitions[0].max_bytes == 100_000
    assert (request.read_committed, request.rack) == (True, "here")


def test_partitions_of_one_leader_share_its_fetches(scene: Scene) -> None:
    for partition in (T0, T1, T2):
        scene.cluster.move_leader(partition, 2)
    rows(scene.reader().read(scene.ranges()))

    assert scene.sent("Fetch") == [2]
    assert [requested.partition for requested in scene.network.fetches[0][1].partitions] == [T0, T1, T2]


def test_each_leader_is_asked_for_its_own_partitions_by_id_and_epoch(scene: Scene) -> None:
    rows(scene.reader().read(scene.ranges()))
    topic_id = scene.cluster.topics["t"].topic_id

    assert {
        (node_id, requested.partition, requested.topic_id, requested.leader_epoch)
        for node_id, request in scene.network.fetches
        for requested in request.partitions
    } == {(1, T0, topic_id, 0), (2, T1, topic_id, 0), (3, T2, topic_id, 0)}
    assert scene.sent("Metadata") == []


def test_next_fetch_is_on_its_way_before_rows_are_given_out(scene: Scene) -> None:
    reading = scene.reader(**ONE_BATCH).read([scene.range(T0)])
    next(reading)

    assert [request.partitions[0].fetch_offset for _, request in scene.network.fetches] == [0, 3]


def test_partitions_that_got_records_go_to_the_end_of_the_line(scene: Scene) -> None:
    scene.empty()
    for partition in (T0, T1, T2):
        scene.cluster.move_leader(partition, 1)
    scene.write(T0, "a")
    reading = scene.reader().read([scene.range(T0, 0, 5), scene.range(T1, 0, 5), scene.range(T2, 0, 5)])
    next(reading)

    assert [requested.partition for requested in scene.network.fetches[1][1].partitions] == [T1, T2, T0]


def test_record_batches_that_are_larger_than_expected_come_in_a_few_responses(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, partitions=12)
    partitions = [TopicPartition("t", number) for number in range(12)]
    for partition in partitions:
        scene.cluster.move_leader(partition, 1)
        scene.write(partition, "x" * 900_000)

    assert len(rows(scene.reader().read(list(map(scene.range, partitions))))) == 12
    assert len(scene.sent("Fetch")) <= 4


def test_idle_partitions_cost_one_parked_request_and_no_loop(scene: Scene) -> None:
    scene.empty()
    scene.write(T0, "a")
    scene.hold_back(T0, "b")
    reading = scene.reader(**HELD_BACK).read([scene.range(T0)])
    next(reading)
    began = scene.clock()
    with pytest.raises(ReadTimeoutError):
        next(reading)

    assert len(scene.network.fetches) <= (scene.clock() - began) / 0.5 + 2


@pytest.mark.parametrize(
    "responded",
    [
        {"records": batch(["old"])},
        {"records": b"", "diverging_epoch": DivergingEpoch(0, 3)},
        {"records": b"", "high_watermark": 5},
    ],
    ids=["old records", "a truncation behind the reader", "nothing"],
)
def test_broker_that_repeats_itself_is_asked_at_a_bounded_rate(scene: Scene, responded: dict[str, object]) -> None:
    def same(response: FetchResponse) -> FetchResponse:
        assert len(scene.network.fetches) <= 11 * POLL_TIMEOUT_S
        return with_partitions(**responded)(response)

    scene.network.change = same
    with pytest.raises(ReadTimeoutError):
        rows(scene.reader().read([scene.range(T0, 3)]))


def test_records_that_come_while_the_fetch_is_parked_are_read(scene: Scene) -> None:
    scene.empty()
    scene.write(T0, "a")
    scene.hold_back(T0, "b")
    reading = scene.reader(**HELD_BACK).read([scene.range(T0)])
    first = next(reading)
    scene.network.open_transactions.clear()

    assert rows(iter([first, *reading])) == [(T0, 0, "a"), (T0, 1, "b")]


def test_first_task_of_a_worker_learns_the_cluster_by_one_request(scene: Scene) -> None:

    assert by_partition(rows(scene.reader(scene.client()).read(scene.ranges()))) == written()
    assert scene.reasons() == [RefreshReason.BOOTSTRAP]


def test_topic_that_is_new_to_the_cache_is_asked_for_as_that(scene: Scene) -> None:
    client = scene.client()
    client.cache.track(["other"])
    client.cache.refresh(RefreshReason.BOOTSTRAP, scene.clock() + 1)

    assert by_partition(rows(scene.reader(client).read(scene.ranges()))) == written()
    assert scene.reasons() == [RefreshReason.BOOTSTRAP, RefreshReason.NEW_TOPIC]


def test_first_task_of_a_worker_learns_all_topics_of_the_query(scene: Scene) -> None:
    scene.cluster.create_topic("other", 2)
    client = scene.client()
    for _ in range(2):
        assert by_partition(rows(scene.reader(client).read([scene.range(T0)], ["t", "other"]))) == {T0: written()[T0]}

    assert len(client.cache.snapshot.partitions("other")) == 2
    assert scene.sent("Metadata") == [1]


@pytest.mark.parametrize("code", [3, 17, 29])
def test_topic_of_the_query_that_is_gone_does_not_disturb_tasks_of_others(scene: Scene, code: int) -> None:
    scene.network.metadata_errors["gone"] = code
    client = scene.client()
    began = scene.clock()
    for _ in range(2):
        assert by_partition(rows(scene.reader(client).read(scene.ranges(), ["t", "gone"]))) == written()

    assert scene.clock() - began < 1
    assert scene.sent("Metadata") == [1]
