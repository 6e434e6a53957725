"""Brokers, networks and topics fail under a task that writes: nothing acknowledged is lost, and each attempt writes its
rows once and in order within each partition."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import ElectionType
from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.errors import DataLossError, DeliveryTimeoutError
from pyspark_kafka_meta.kafka.client.producer_state import MAX_EPOCH
from pyspark_kafka_meta.model import RefreshReason, TopicPartition
from pyspark_kafka_meta.testing import LocalKafka
from tests.kafka.checker import missing_rows, written_rows
from tests.kafka.cluster_tools import (
    Cluster,
    all_brokers_know,
    create_topic,
    delete_topic,
    elect_leader,
    in_sync,
    log_ends,
    poll_until,
)
from tests.kafka.harness import PARTITIONS, OpenWorker, Worker
from tests.kafka.writing_network import Fault
from tests.tcp_proxy import Network, TcpProxy

pytestmark = pytest.mark.kafka

DELIVERY_TIMEOUT_MS = 8_000
LATE_S = 20
"""By which a task may fail after its timeout, on a slow machine."""


@pytest.mark.slow
def test_killed_leader_is_left_for_the_next(breakable_kafka: LocalKafka, open_worker: OpenWorker) -> None:
    worker = open_worker()
    with worker.attempt() as attempt:
        attempt.write_on()
        breakable_kafka.kill(breakable_kafka.broker_ids[0])
        attempt.write_on()
    worker.assert_written()
    # The other leaders wait for the killed replica too, and may be overdue before a request to it fails.
    assert worker.reasons().keys() & {RefreshReason.CONNECTION_LOST, RefreshReason.REQUEST_TIMEOUT}


@pytest.mark.slow
def test_hung_leader_is_left_and_may_come_back(breakable_kafka: LocalKafka, open_worker: OpenWorker) -> None:
    """It comes back with requests in its buffers, and thinks at first that it still leads."""
    worker, victim = open_worker(), breakable_kafka.broker_ids[0]
    with worker.attempt() as attempt:
        attempt.write_on()
        breakable_kafka.pause(victim)
        attempt.write_on()
        breakable_kafka.resume(victim)
        attempt.write_on()
    worker.assert_written()
    assert RefreshReason.REQUEST_TIMEOUT in worker.reasons()


@pytest.mark.slow
def test_too_few_replicas_fail_a_task_in_time_and_its_next_attempt_waits_for_them(
    breakable_kafka: LocalKafka, open_worker: OpenWorker, wait_for: Callable[..., Any]
) -> None:
    leader, *followers = breakable_kafka.broker_ids
    # A leader whose followers have just died sends REQUEST_TIMED_OUT after this time, later NOT_ENOUGH_REPLICAS.
    worker = open_worker([[leader, *followers]] * PARTITIONS, **{"kafka.request.timeout.ms": "3000"})
    wait_for(lambda: in_sync(breakable_kafka, worker.topic, 3))
    with worker.attempt(delivery_timeout_ms=DELIVERY_TIMEOUT_MS) as failing:
        failing.write_on()
        killed_at = time.monotonic()
        for follower in followers:
            breakable_kafka.kill(follower)
        text = failing.wait_for_error(DeliveryTimeoutError)
        assert failing.seconds_since(killed_at) < DELIVERY_TIMEOUT_MS / 1000 + LATE_S
        assert f"{worker.topic}-" in text and "within kafka.delivery.timeout.ms" in text
    with worker.attempt() as attempt:
        wait_for(lambda: worker.network.codes["not_enough_replicas"] > 0)
        breakable_kafka.start(followers[0])
        attempt.write_on()
    worker.assert_written()


SHORT_TIMEOUTS = {"kafka.request.timeout.ms": "3000", "kafka.socket.connection.setup.timeout.ms": "2000"}

BROKEN = [network for network in Network if network not in (Network.GOOD, Network.SLOW)]


@pytest.fixture
def proxied(kafka: Cluster, open_worker: OpenWorker) -> Iterator[Worker]:
    """A worker with a proxy before each broker."""
    worker = open_worker(**SHORT_TIMEOUTS)
    with ExitStack() as stack:
        for broker_id in kafka.broker_ids:
            proxy = worker.network.proxies[broker_id] = stack.enter_context(TcpProxy())
            proxy.target = kafka.address(broker_id)
        yield worker


@pytest.mark.thorough
@pytest.mark.parametrize("network", BROKEN, ids=lambda network: network.name.lower())
def test_bad_network_to_one_leader_costs_time_only(proxied: Worker, network: Network) -> None:
    proxy = next(iter(proxied.network.proxies.values()))
    with proxied.attempt() as attempt:
        attempt.write_on()
        sent = proxied.network.resent
        proxy.network = network
        proxied.wait_for_failures(2)
        proxy.network = Network.GOOD
        attempt.write_on()
    proxied.assert_written()
    assert proxied.network.resent > sent


@pytest.mark.slow
def test_batches_with_lost_responses_are_recognised(proxied: Worker, wait_for: Callable[..., Any]) -> None:
    with proxied.attempt() as attempt:
        for _ in range(2):
            attempt.write_on()
            for proxy in proxied.network.proxies.values():
                proxy.network = Network.HOLDS_RESPONSES
            wait_for(lambda: replicated(proxied) > written_rows(attempt.written()))
            sent = proxied.network.resent
            for proxy in proxied.network.proxies.values():
                proxy.network = Network.RESETS
            proxied.wait_for_failures(1)
            for proxy in proxied.network.proxies.values():
                proxy.network = Network.GOOD
            attempt.write_on()
            assert proxied.network.resent > sent
    proxied.assert_written()


def replicated(worker: Worker) -> int:
    """The rows that all in-sync replicas have."""
    return sum(log_ends(worker.servers, worker.topic).values())


FAILURE_S = 40
"""Limit for the failure of a task after a deletion; its delivery timeout is 60 s."""
LARGER_THAN_BROKERS_ALLOW = {
    "kafka.batch.size": "2000000",
    "kafka.max.request.size": "3000000",
    "kafka.buffer.memory": "10000000",
}
"""message.max.bytes of brokers is 1048588 by default."""


@pytest.mark.slow
def test_recreated_topic_ends_the_attempt_and_the_next_one_writes_all(kafka: Cluster, open_worker: OpenWorker) -> None:
    worker = open_worker()
    with worker.attempt() as attempt:
        attempt.write_on()
        attempt.hold()
        deleted = worker.client.cache.snapshot.topic_id(worker.topic)
        delete_topic(kafka, worker.topic)
        recreate(kafka, worker, deleted)
        attempt.release()
        text = attempt.wait_for_error(DataLossError, FAILURE_S)
    assert "was deleted and created again" in text
    worker.retry()
    assert_new_topic_has_all_rows(worker)


def recreate(kafka: Cluster, worker: Worker, deleted: UUID | None) -> None:
    """Create the topic again whose id is `deleted`, and wait until each broker has forgotten this id. A worker that has
    seen the deletion no longer knows it."""
    create_topic(kafka, worker.topic, [kafka.broker_ids] * PARTITIONS)
    poll_until(lambda: all_brokers_know(kafka.admin_servers, worker.topic, PARTITIONS, old_id=deleted))


def assert_new_topic_has_all_rows(worker: Worker) -> None:
    attempt = worker.attempts[-1]
    assert attempt.error is None, attempt
    logs = worker.logs()
    assert missing_rows(logs, attempt.number, attempt.rows) == []
    assert sum(map(len, logs.values())) == attempt.rows


def test_batch_too_large_for_its_broker_is_split(open_worker: OpenWorker) -> None:
    worker = open_worker(**LARGER_THAN_BROKERS_ALLOW)
    worker.attempt(partitions=1, max_rows=30_000).write_all()
    worker.assert_written()
    assert worker.network.codes["message_too_large"] > 0


@pytest.mark.thorough
def test_acknowledgement_of_the_leader_alone_does_not_hide_an_unclean_election(
    breakable_kafka: LocalKafka, open_worker: OpenWorker, leader_of: Any, wait_for: Callable[..., Any]
) -> None:
    first, second, _ = breakable_kafka.broker_ids
    worker = open_worker([[first, second]], {"min.insync.replicas": "1"}, **{"kafka.acks": "1"})
    wait_for(lambda: in_sync(breakable_kafka, worker.topic, 2))
    with worker.attempt(partitions=1) as attempt:
        attempt.write_on()
        breakable_kafka.kill(second)
        attempt.write_on()
        attempt.hold()
        breakable_kafka.kill(first)
        wait_for(lambda: leader_of(worker.topic, 0) == -1)
        breakable_kafka.start(second)
        breakable_kafka.wait_until_up()
        elect_leader(breakable_kafka, worker.topic, 0, second, ElectionType.UNCLEAN)
        attempt.release()
        text = attempt.wait_for_error(DataLossError)
    assert f"{worker.topic}-0 has lost" in text
    retry = worker.retry()
    assert retry.error is None
    assert missing_rows(worker.logs(), retry.number, retry.rows) == []


def test_task_whose_epochs_run_out_fails_and_its_next_attempt_writes_with_another_producer_id(
    open_worker: OpenWorker, wait_for: Callable[..., Any]
) -> None:
    """A partition whose leader forgets the producer continues in the last epoch, and has none the next time."""
    worker = open_worker()
    given = worker.client.coordinators.producer_id(worker.client.api_deadline())
    worker.client.producer.start(given._replace(epoch=MAX_EPOCH - 1))
    forgotten = Fault(ErrorCode.unknown_producer_id, is_appended=False, is_lasting=True)
    with worker.attempt(partitions=1) as attempt:
        attempt.write_on()
        worker.network.faults.append(forgotten)
        attempt.write_on()
        assert worker.client.producer.sequence(TopicPartition(worker.topic, 0)).producer.epoch == MAX_EPOCH
        worker.network.faults.append(forgotten)
        wait_for(lambda: attempt.ended_at is not None)
    assert "UNKNOWN_PRODUCER_ID" in str(attempt.error)

    worker.retry()
    worker.assert_written()
    assert len({producer_id for _, producer_id, _, _ in worker.network.sent}) == 2
