"""After an error a partition waits for metadata, which is requested, or for a backoff, but not for a named leader. A
broker that asks for patience is left alone (KIP-219): by all that fetches from it, but not without end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

import pytest

from pyspark_kafka_meta.errors import ConnectError, ReadTimeoutError
from pyspark_kafka_meta.events.event import Outcome
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.client.leader_requests import THROTTLED_CHECK_S, LeaderRequests, SentRequest
from pyspark_kafka_meta.kafka.client.next_request import MAX_THROTTLE_MS, Refresh, RetryPause, Throttles
from pyspark_kafka_meta.kafka.protocol.fetch import FetchResponse
from pyspark_kafka_meta.model import Address, Broker, LeaderHint, RefreshReason
from tests.partitions import T0, T1
from tests.unit.fake_network import about_s
from tests.unit.reader_scene import FIVE, ten_records
from tests.unit.scene import Scene

NOT_LEADER = Refresh(RefreshReason.NOT_LEADER, 6)
Requests = LeaderRequests[RetryPause, FetchResponse]


@pytest.fixture
def client(scene: Scene) -> KafkaClient:
    return scene.warm_client()


def sent(client: KafkaClient, generation: int | None = None) -> SentRequest[RetryPause]:
    used = client.cache.snapshot.generation if generation is None else generation
    return SentRequest(Broker(1, Address("broker-1", 9092)), used, [], 0.0, 0.0)


@pytest.mark.parametrize(
    ("fail", "reason"),
    [
        (lambda r, p, s: r.refresh(p, NOT_LEADER, s, None), RefreshReason.NOT_LEADER),
        (lambda r, p, s: r.refresh(p, NOT_LEADER, s, LeaderHint(2, -7, None)), RefreshReason.NOT_LEADER),
        (lambda r, p, s: r.refresh_after_failure(p, s, ConnectError("lost")), RefreshReason.CONNECTION_LOST),
        (lambda r, p, s: r.wait_for_leader(p, RefreshReason.NO_LEADER, 5), RefreshReason.NO_LEADER),
    ],
    ids=["error", "error with an old leader", "no response", "no leader"],
)
def test_partition_waits_for_metadata_that_is_requested(
    scene: Scene,
    client: KafkaClient,
    fail: Callable[[Requests, RetryPause, SentRequest[RetryPause]], None],
    reason: RefreshReason,
) -> None:
    requests, partition, generation = (
        Requests(client, client.network.fetch),
        RetryPause(T0),
        client.cache.snapshot.generation,
    )
    fail(requests, partition, sent(client))

    assert not partition.is_ready(generation, scene.clock())
    assert partition.is_ready(generation + 1, scene.clock())
    assert client.cache.time_to_next_update_ms() == 0
    client.cache.refresh_if_due(scene.clock() + 1)
    assert scene.reasons() == [reason]


def test_metadata_that_is_newer_than_the_request_is_not_requested_again(scene: Scene, client: KafkaClient) -> None:
    partition, generation = RetryPause(T0), client.cache.snapshot.generation
    Requests(client, client.network.fetch).refresh(partition, NOT_LEADER, sent(client, generation - 1), None)

    assert partition.is_ready(generation, scene.clock())
    assert client.cache.time_to_next_update_ms() > 0


def test_named_leader_is_used_without_a_wait(scene: Scene, client: KafkaClient) -> None:
    partition, generation = RetryPause(T0), client.cache.snapshot.generation
    Requests(client, client.network.fetch).refresh(partition, NOT_LEADER, sent(client), LeaderHint(3, 1, None))

    assert partition.is_ready(generation, scene.clock())
    leader = client.cache.leader(T0)
    assert leader is not None and leader.broker.node_id == 3


def test_backoffs_of_errors_in_a_row_grow_and_are_counted(scene: Scene, client: KafkaClient) -> None:
    requests, partition, pauses = Requests(client, client.network.fetch), RetryPause(T0), []
    for _ in range(3):
        requests.back_off(partition)
        pauses.append(partition.not_before - scene.clock())
        scene.clock.sleep(pauses[-1])
    client.cache.refresh(RefreshReason.ON_DEMAND, scene.clock() + 1)

    assert 0 < pauses[0] < pauses[1] < pauses[2]
    assert scene.events[-1].retries == 3


@pytest.mark.parametrize(("throttle_ms", "waits_s"), [(0, None), (300, 0.3), (60_000, THROTTLED_CHECK_S)])
def test_throttled_one_is_looked_up(scene: Scene, client: KafkaClient, throttle_ms: int, waits_s: float | None) -> None:
    requests, partition, now = Requests(client, client.network.fetch), RetryPause(T0), scene.clock()
    client.take_throttle(1, throttle_ms)

    assert requests.is_throttled(partition, 1, now) == (waits_s is not None)
    assert waits_s is None or partition.not_before - now == about_s(waits_s)
    assert not requests.is_throttled(partition, 2, now)


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
