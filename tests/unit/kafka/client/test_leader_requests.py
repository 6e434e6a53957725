"""After an error a partition waits for metadata, which is requested, or for a backoff, but not for a named leader."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pyspark_kafka_meta.errors import ConnectError
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.client.leader_requests import THROTTLED_CHECK_S, LeaderRequests, SentRequest
from pyspark_kafka_meta.kafka.client.next_request import Refresh, RetryPause
from pyspark_kafka_meta.kafka.protocol.fetch import FetchResponse
from pyspark_kafka_meta.model import Address, Broker, LeaderHint, RefreshReason
from tests.partitions import T0
from tests.unit.fake_network import about_s
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
def test_throttled_partition_looks_its_leader_up_every_second(
    scene: Scene, client: KafkaClient, throttle_ms: int, waits_s: float | None
) -> None:
    requests, partition, now = Requests(client, client.network.fetch), RetryPause(T0), scene.clock()
    client.take_throttle(1, throttle_ms)

    assert requests.is_throttled(partition, 1, now) == (waits_s is not None)
    assert waits_s is None or partition.not_before - now == about_s(waits_s)
    assert not requests.is_throttled(partition, 2, now)
