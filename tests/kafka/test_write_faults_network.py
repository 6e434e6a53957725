"""Connections break between request and response, brokers throttle and refuse batches: a task that writes resends, and
brokers recognise what they have."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.errors import BrokerError, DataLossError, KafkaMetaError
from pyspark_kafka_meta.model import RefreshReason
from pyspark_kafka_meta.testing import LocalKafka
from tests.kafka.checker import written_rows
from tests.kafka.cluster_tools import Cluster, log_ends, set_quota
from tests.kafka.harness import OpenWorker, Worker
from tests.kafka.writing_network import Fault
from tests.tcp_proxy import Network, TcpProxy

pytestmark = pytest.mark.kafka

SHORT_TIMEOUTS = {"kafka.request.timeout.ms": "3000", "kafka.socket.connection.setup.timeout.ms": "2000"}
ANONYMOUS = "ANONYMOUS"
"""The user of a connection without a login."""
THROTTLED_MS = 500
DELIVERY_TIMEOUT_MS = 6_000
SLOW_STAGE_S = 7.0
KEY_BYTES = 90_000
"""A chunk of 16 MiB is more than the sockets to three brokers take at once."""

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
def test_batches_whose_responses_are_lost_are_recognised_by_the_broker(
    proxied: Worker, wait_for: Callable[..., Any]
) -> None:
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


@pytest.mark.thorough
def test_throttled_task_is_slowed_and_loses_nothing(
    breakable_kafka: LocalKafka, open_worker: OpenWorker, wait_for: Callable[..., Any]
) -> None:
    worker = open_worker()
    with worker.attempt() as attempt:
        attempt.write_on()
        set_quota(breakable_kafka, ANONYMOUS, "producer_byte_rate", 20_000)
        try:
            wait_for(lambda: worker.network.throttle_ms > THROTTLED_MS)
        finally:
            set_quota(breakable_kafka, ANONYMOUS, "producer_byte_rate", None)
        attempt.write_on()
    worker.assert_written()


@pytest.mark.thorough
def test_slow_stage_before_the_sink_is_no_timeout(open_worker: OpenWorker, wait_for: Callable[..., Any]) -> None:
    """Responses that arrived meanwhile are read, although their deadline is over, and requests that the sockets did not
    take whole are sent on."""
    whole_chunks = {"kafka.batch.size": "500000", "kafka.buffer.memory": "33554432"}
    worker = open_worker(**SHORT_TIMEOUTS, **whole_chunks)
    worker.attempt(max_rows=600).write_all()  # the first requests to a new topic take long
    with worker.attempt(delivery_timeout_ms=DELIVERY_TIMEOUT_MS, key_bytes=KEY_BYTES) as attempt:
        attempt.write_on()
        attempt.hold()
        before = worker.reasons()[RefreshReason.REQUEST_TIMEOUT], worker.network.resent  # of a slow broker
        resumes_at = time.monotonic() + SLOW_STAGE_S
        wait_for(lambda: time.monotonic() >= resumes_at)
    worker.assert_written()
    assert (worker.reasons()[RefreshReason.REQUEST_TIMEOUT], worker.network.resent) == before


RETRIED = {
    "damaged batch": Fault(ErrorCode.corrupt_message, is_appended=False),
    "refused, and those after it with it": Fault(ErrorCode.not_enough_replicas, is_appended=False),
    "appended, but not replicated in time": Fault(ErrorCode.not_enough_replicas_after_append, is_appended=True),
    "appended, but not acknowledged in time": Fault(ErrorCode.request_timed_out, is_appended=True),
    "appended before": Fault(ErrorCode.duplicate_sequence_number, is_appended=True),
    "forgotten producer": Fault(ErrorCode.unknown_producer_id, is_appended=False),
}


@pytest.mark.thorough
def test_retriable_error_of_one_batch_neither_loses_nor_repeats_nor_reorders(
    open_worker: OpenWorker, wait_for: Callable[..., Any]
) -> None:
    worker = open_worker()
    with worker.attempt() as attempt:
        for fault in RETRIED.values():
            attempt.write_on()
            worker.network.applied.clear()
            worker.network.faults.extend([fault] * 5)
            wait_for(lambda: not worker.network.faults and worker.network.applied)
    worker.assert_written()


@pytest.mark.thorough
def test_epoch_goes_up_for_the_partition_that_has_forgotten_the_producer(
    open_worker: OpenWorker, wait_for: Callable[..., Any]
) -> None:
    worker = open_worker()
    with worker.attempt() as attempt:
        attempt.write_on()
        worker.network.faults.append(replace(RETRIED["forgotten producer"], is_lasting=True))
        wait_for(lambda: worker.network.applied)
        attempt.write_on()
    worker.assert_written()
    epochs = {(partition.partition, epoch) for partition, _, epoch, _ in worker.network.sent}
    assert sorted(epoch for _, epoch in epochs) == [0] * 6 + [1]


FATAL: dict[ErrorCode, type[KafkaMetaError]] = {
    ErrorCode.out_of_order_sequence_number: DataLossError,
    ErrorCode.invalid_producer_epoch: BrokerError,
}


@pytest.mark.thorough
@pytest.mark.parametrize("code", FATAL, ids=lambda code: code.name)
def test_lost_sequence_and_fenced_producer_end_the_attempt_and_the_next_writes_all(
    open_worker: OpenWorker, code: ErrorCode
) -> None:
    worker = open_worker()
    with worker.attempt() as attempt:
        attempt.write_on()
        worker.network.faults.append(Fault(code, is_appended=False))
        assert code.name.upper() in attempt.wait_for_error(FATAL[code])
    worker.retry()
    worker.assert_written()


@pytest.mark.thorough
def test_first_batch_out_of_order_starts_a_new_epoch(open_worker: OpenWorker) -> None:
    worker = open_worker()
    worker.network.faults.extend([Fault(ErrorCode.out_of_order_sequence_number, is_appended=False)] * 3)
    with worker.attempt() as attempt:
        attempt.write_on()
    worker.assert_written()
    assert len(worker.network.applied) == 3
    assert {epoch for _, _, epoch, _ in worker.network.sent} >= {0, 1}
