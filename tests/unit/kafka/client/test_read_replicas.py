"""Where a reader fetches: from the replica that the leader prefers (KIP-392)."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import pytest

from pyspark_kafka_meta.errors import DataLossError
from pyspark_kafka_meta.kafka.protocol.fetch import FetchResponse
from pyspark_kafka_meta.model import RefreshReason
from tests.partitions import T0, T1
from tests.unit.fake_network import about_s
from tests.unit.reader_scene import FIVE, MAX_AGE_S, ReaderScene, ten_records


def a_scene(monkeypatch: pytest.MonkeyPatch, replica: int = 3, **options: str) -> ReaderScene:
    """Ten records in t-0, and its leader, broker 1, prefers this replica. No test takes 100 Fetches."""

    def counted(response: FetchResponse) -> FetchResponse:
        assert len(made.network.fetches) < 100, "Fetches follow each other without a pause"
        return response

    made = ten_records(monkeypatch, **options)
    made.network.preferred_replicas[T0] = replica
    made.network.change = counted
    return made


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> ReaderScene:
    return a_scene(monkeypatch)


def test_preferred_replica_is_followed_and_remembered_by_the_worker(scene: ReaderScene) -> None:

    assert scene.read(T0) == list(range(10))
    assert {request.rack for _, request in scene.network.fetches} == {"here"}
    assert scene.fetched_from() == [1, 3]
    assert scene.read(T0) == list(range(10))
    assert scene.fetched_from() == [3], "the next task asks it at once"
    assert {event.reason for event in scene.events} == {RefreshReason.BOOTSTRAP}


def test_without_a_rack_everything_comes_from_the_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = a_scene(monkeypatch, 3, **{"kafka.client.rack": ""})

    assert scene.read(T0) == list(range(10))
    assert scene.fetched_from() == [1]


def test_leader_is_asked_for_its_preference_again_after_the_max_age(scene: ReaderScene) -> None:
    scene.read(T0)
    scene.fetched_from()
    scene.network.preferred_replicas[T0] = 2
    scene.clock.sleep(MAX_AGE_S)
    scene.read(T0)

    assert scene.fetched_from() == [1, 2]


def test_unknown_replica_is_ignored_and_strands_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = a_scene(monkeypatch, replica=99)
    began = scene.clock()

    assert scene.read(T0) == list(range(10))
    assert scene.fetched_from() == [1, 1]
    assert scene.clock() == about_s(began)


def test_replica_that_leaves_the_cluster_is_left(scene: ReaderScene) -> None:
    scene.read(T0)
    del scene.cluster.brokers[3]
    scene.worker.cache.refresh(RefreshReason.ON_DEMAND, scene.clock() + 10)
    scene.fetched_from()

    assert scene.read(T0) == list(range(10))
    assert scene.fetched_from() == [1]


@pytest.mark.parametrize("code", [-1, 1, 3, 6, 9, 29, 56, 74, 75, 78, 100])
def test_any_error_of_a_replica_leads_back_to_the_leader(scene: ReaderScene, code: int) -> None:
    """KAFKA-14379, KAFKA-14372, franz-go #885: the preferred replica was asked for ever, whatever it responded."""
    scene.network.replica_errors[3, T0] = code

    assert scene.read(T0) == list(range(10))
    assert scene.fetched_from() == [1, 3, 1]
    assert scene.read(T0) == list(range(10))
    assert scene.fetched_from() == [1], "which is not told the rack, lest it names the same replica"
    assert [api for api, _ in scene.network.requests].count("ListOffsets") == 0
    assert len(scene.events) == 1, "the cache was right"


def test_what_leader_and_replica_call_out_of_range_is_lost(scene: ReaderScene) -> None:
    scene.read(T0)
    scene.fetched_from()
    scene.network.replica_errors[3, T0] = 1
    del scene.cluster.logs[T0][0]

    with pytest.raises(DataLossError, match="offsets 0 to 4 of t-0"):
        scene.read(T0)
    assert scene.fetched_from() == [3, 1]


@pytest.mark.parametrize("fault", ["down", "hung"])
def test_replica_that_is_gone_costs_no_wait_for_metadata(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    scene = a_scene(monkeypatch, 3, **{"kafka.request.timeout.ms": "3000"})
    scene.read(T0)
    scene.fetched_from()
    getattr(scene.network, fault).add(3)

    assert scene.read(T0) == list(range(10))
    assert scene.fetched_from()[-1] == 1
    assert [event.reason for event in scene.events] == [RefreshReason.BOOTSTRAP]


def test_replica_that_lags_behind_is_left_after_three_empty_responses(scene: ReaderScene) -> None:
    scene.network.replica_ends[3, T0] = 5
    began = scene.clock()

    assert scene.read(T0, start=5) == list(range(5, 10))
    assert scene.fetched_from() == [1, 3, 3, 3, 1]
    assert scene.clock() == about_s(began + 3 * 0.5)


def serve_nothing(scene: ReaderScene, *node_ids: int) -> None:
    """These brokers have all records, by their high watermark, and send none: their remote storage is slow."""

    def emptied(response: FetchResponse) -> FetchResponse:
        if response.node_id not in node_ids:
            return response
        return replace(response, partitions=tuple(replace(fetched, records=b"") for fetched in response.partitions))

    scene.network.change = emptied


def test_replica_that_has_all_and_sends_nothing_loses_nothing(scene: ReaderScene) -> None:
    serve_nothing(scene, 3)

    assert scene.read(T0) == list(range(10))
    assert scene.fetched_from() == [1, 3, 3, 3, 1]


def test_empty_responses_of_a_replica_are_not_counted_against_the_leader(scene: ReaderScene) -> None:
    serve_nothing(scene, 1, 3)
    scene.clock.at(0.15, lambda: scene.network.replica_errors.update({(3, T0): 6}))
    scene.clock.at(0.35, lambda: serve_nothing(scene))

    assert scene.read(T0) == list(range(10))
    assert scene.fetched_from() == [1, 3, 3, 3, 1, 1, 1], "two of them empty, one refused; then two empty ones again"


def test_replica_whose_share_went_to_another_partition_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker fills its response in the order of the request: the partition at the end of the line waits its turn."""
    scene = a_scene(monkeypatch, 3, **{"kafka.max.partition.fetch.bytes": "1"})
    scene.cluster.move_leader(T1, 1)
    scene.network.preferred_replicas[T1] = 3
    for _ in range(10):
        scene.append(T1)
    left = iter(range(5))

    def starved(response: FetchResponse) -> FetchResponse:
        if response.node_id != 3 or next(left, None) is None:
            return response
        parts = tuple(
            replace(fetched, records=b"") if fetched.partition == T0 else fetched for fetched in response.partitions
        )
        return replace(response, partitions=parts)

    scene.network.change = starved

    assert sorted(scene.read(T0, T1)) == sorted([*range(10), *range(50)])
    assert set(scene.fetched_from()[2:]) == {3}


def test_replica_that_catches_up_in_time_is_kept(scene: ReaderScene) -> None:
    scene.network.replica_ends[3, T0] = 5
    scene.clock.at(0.9, scene.network.replica_ends.clear)

    assert scene.read(T0, start=5) == list(range(5, 10))
    assert set(scene.fetched_from()[1:]) == {3}


@pytest.mark.parametrize("replica", [3, 99])
def test_leader_that_insists_on_a_gone_replica_has_its_pauses(monkeypatch: pytest.MonkeyPatch, replica: int) -> None:
    scene = ten_records(monkeypatch)
    insists = {1: replica}
    monkeypatch.setattr(scene.network.fetch, "_redirects_to", lambda node_id, partition, rack: insists.get(node_id))
    scene.network.down.add(3)
    scene.clock.at(5, insists.clear)

    assert scene.read(T0) == list(range(10))
    assert len(scene.fetched_from()) < 60


def test_partitions_of_one_leader_are_each_read_from_their_own_replica(scene: ReaderScene) -> None:
    scene.cluster.move_leader(T1, 1)
    scene.append(T1)

    assert sorted(scene.read(T0, T1)) == sorted([*range(10), *FIVE])
    by_broker = [
        (node_id, [requested.partition for requested in request.partitions])
        for node_id, request in scene.network.fetches
    ]
    assert by_broker[0] == (1, [T0, T1])
    assert (3, [T0]) in by_broker


@pytest.mark.parametrize("max_age_ms", ["0", "1"])
def test_preferred_replica_is_used_at_any_max_age(monkeypatch: pytest.MonkeyPatch, max_age_ms: str) -> None:
    scene = a_scene(monkeypatch, 3, **{"kafka.metadata.max.age.ms": max_age_ms})

    assert scene.read(T0) == list(range(10))
    assert scene.fetched_from() == [1, 3]


def test_max_age_of_zero_sends_few_fetches_while_a_replica_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = a_scene(monkeypatch, 3, **{"kafka.metadata.max.age.ms": "0"})
    scene.network.throttles[3] = deque([5_000])
    began = scene.clock()

    assert scene.read(T0) == list(range(10))
    assert 5 <= scene.clock() - began < 8
    assert len(scene.fetched_from()) <= 2 * (scene.clock() - began)


def test_rack_of_one_query_steers_no_other_query_of_the_worker(scene: ReaderScene) -> None:
    scene.read(T0)
    scene.fetched_from()
    elsewhere, anywhere = (scene.options(**{"kafka.client.rack": rack}) for rack in ("elsewhere", ""))

    assert scene.read_ranges([scene.range(T0)], anywhere) == list(range(10))
    assert scene.fetched_from() == [1]
    assert scene.read_ranges([scene.range(T0)], elsewhere) == list(range(10))
    assert scene.fetched_from() == [1, 3], "the leader is asked for the replica of this rack"


def test_replica_that_failed_one_query_is_left_by_the_queries_of_its_rack_only(scene: ReaderScene) -> None:
    scene.network.replica_errors[3, T0] = 6
    scene.read(T0)
    scene.network.replica_errors.clear()
    scene.fetched_from()
    elsewhere = scene.options(**{"kafka.client.rack": "elsewhere"})

    scene.read(T0)
    assert scene.fetched_from() == [1]
    scene.read_ranges([scene.range(T0)], elsewhere)
    assert scene.fetched_from() == [1, 3]
