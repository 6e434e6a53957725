"""Brokers crash, hang, move and lack replicas under a task that writes: nothing acknowledged is lost, and each attempt
writes its rows once and in order within each partition."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from pyspark_kafka_meta.errors import DeliveryTimeoutError
from pyspark_kafka_meta.model import RefreshReason
from pyspark_kafka_meta.testing import LocalKafka
from pyspark_kafka_meta.testing.kafka_config import CONTROLLER_ID
from tests.kafka.cluster_tools import Cluster, elect_leader, in_sync, reassign
from tests.kafka.harness import PARTITIONS, OpenWorker

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


@pytest.mark.thorough
def test_leader_that_moves_away_and_back_is_followed(
    kafka: Cluster, open_worker: OpenWorker, wait_for: Callable[..., Any]
) -> None:
    worker = open_worker()
    first, *others = kafka.broker_ids
    with worker.attempt() as attempt:
        attempt.write_on()
        for leader in (*others, first):
            replicas = [leader, *(broker for broker in kafka.broker_ids if broker != leader)]
            reassign(kafka, worker.topic, 0, replicas)
            elect_leader(kafka, worker.topic, 0, leader)
            attempt.write_on()
    worker.assert_written()
    assert worker.reasons().keys() & {RefreshReason.LEADER_HINT, RefreshReason.NOT_LEADER}


@pytest.mark.thorough
def test_killed_controller_is_not_noticed(breakable_kafka: LocalKafka, open_worker: OpenWorker) -> None:
    worker = open_worker()
    with worker.attempt() as attempt:
        attempt.write_on()
        breakable_kafka.kill(CONTROLLER_ID)
        attempt.write_on()
        breakable_kafka.start(CONTROLLER_ID)
    worker.assert_written()


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
