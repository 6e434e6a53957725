"""Topics are recreated, grow, shrink their limits or lose records under a task that writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import ElectionType
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from pyspark_kafka_meta.errors import DataLossError, RecordTooLargeError, UnknownTopicError
from pyspark_kafka_meta.testing import LocalKafka
from tests.kafka.checker import VALUE_BYTES, missing_rows
from tests.kafka.cluster_tools import (
    Cluster,
    admin,
    all_brokers_know,
    create_topic,
    delete_topic,
    elect_leader,
    in_sync,
    poll_until,
)
from tests.kafka.harness import PARTITIONS, OpenWorker, Worker

pytestmark = pytest.mark.kafka

FAILURE_S = 40
"""Limit for the failure of a task after a deletion; its delivery timeout is 60 s."""
LARGER_THAN_BROKERS_ALLOW = {
    "kafka.batch.size": "2000000",
    "kafka.max.request.size": "3000000",
    "kafka.buffer.memory": "10000000",
}
"""message.max.bytes of brokers is 1048588 by default."""


@pytest.mark.thorough
def test_deleted_topic_ends_the_attempt_and_the_next_attempt_writes_all_to_the_new_topic(
    kafka: Cluster, open_worker: OpenWorker
) -> None:
    worker = open_worker()
    with worker.attempt() as attempt:
        attempt.write_on()
        deleted = worker.client.cache.snapshot.topic_id(worker.topic)
        delete_topic(kafka, worker.topic)
        text = attempt.wait_for_error(UnknownTopicError, FAILURE_S)
    assert worker.topic in text
    recreate(kafka, worker, deleted)
    worker.retry()
    assert_new_topic_has_all_rows(worker)


@pytest.mark.slow
def test_recreated_topic_ends_the_attempt_and_the_next_attempt_writes_all_to_the_new_topic(
    kafka: Cluster, open_worker: OpenWorker
) -> None:
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


@pytest.mark.thorough
def test_rows_without_a_key_get_to_new_partitions_once_the_metadata_is_old(
    open_worker: OpenWorker, add_partitions: Callable[[str, int], None], wait_for: Callable[..., Any]
) -> None:
    worker = open_worker(**{"kafka.metadata.max.age.ms": "1000"})
    with worker.attempt(partitions=None) as attempt:
        wait_for(lambda: attempt.rows > 1_000)
        add_partitions(worker.topic, PARTITIONS + 4)
        wait_for(lambda: len(attempt.written()) == PARTITIONS + 4)
    worker.assert_written()


@pytest.mark.thorough
def test_limit_that_is_lowered_splits_batches_in_flight(kafka: Cluster, open_worker: OpenWorker) -> None:
    worker = open_worker(**{"kafka.batch.size": "5000", "kafka.buffer.memory": "200000"})
    with worker.attempt() as attempt:
        attempt.write_on()
        limit_messages(kafka, worker.topic, 1_000)
        attempt.write_on()
    worker.assert_written()
    assert worker.network.codes["message_too_large"] > 0


def test_batch_too_large_for_its_broker_is_split(open_worker: OpenWorker) -> None:
    worker = open_worker(**LARGER_THAN_BROKERS_ALLOW)
    worker.attempt(partitions=1, max_rows=30_000).write_all()
    worker.assert_written()
    assert worker.network.codes["message_too_large"] > 0


@pytest.mark.thorough
def test_record_too_large_for_its_topic_is_named_by_its_row(kafka: Cluster, open_worker: OpenWorker) -> None:
    worker = open_worker()
    with worker.attempt() as attempt:
        attempt.write_on()
        limit_messages(kafka, worker.topic, VALUE_BYTES)
        text = attempt.wait_for_error(RecordTooLargeError)
    assert "refuses row " in text
    assert f"raise max.message.bytes of topic {worker.topic}" in text
    limit_messages(kafka, worker.topic, 1_000_000)
    worker.retry()
    worker.assert_written()


def limit_messages(kafka: Cluster, topic: str, max_bytes: int) -> None:
    entry = ConfigEntry("max.message.bytes", str(max_bytes), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    client = admin(kafka)
    client.incremental_alter_configs([resource])[resource].result(60)


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
