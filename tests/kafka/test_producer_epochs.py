"""Idempotent writes to real brokers in the last epochs of a producer id."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.kafka.client.producer_state import MAX_EPOCH
from pyspark_kafka_meta.model import TopicPartition
from tests.kafka.harness import OpenWorker
from tests.kafka.writing_network import Fault

pytestmark = [pytest.mark.kafka]


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
