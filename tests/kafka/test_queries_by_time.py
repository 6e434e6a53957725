"""Queries that start or end by time while a leader hangs: records that are written meanwhile are read once."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from confluent_kafka import Producer

from pyspark_kafka_meta.events.publisher import client_without_events
from pyspark_kafka_meta.kafka.client.leader_offsets import LeaderOffsets
from pyspark_kafka_meta.kafka.metadata.refresh_events import Origin, Role
from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.options.offsets import TimestampsSpec
from pyspark_kafka_meta.read.planning.data_loss import LossReporter
from pyspark_kafka_meta.read.planning.offset_resolver import OffsetResolver
from pyspark_kafka_meta.testing import LocalKafka
from tests.kafka.cluster_tools import create_topic
from tests.kafka.harness import PRODUCER_TIMEOUT_MS, Stream

pytestmark = [pytest.mark.kafka, pytest.mark.thorough]

Produce = Callable[..., list[int]]
T = TypeVar("T")

AN_HOUR_MS = 3_600_000
VALUES = list(map(str, range(40)))


@pytest.fixture
def slow_topic(breakable_kafka: LocalKafka, produce: Produce) -> str:
    """A topic of two partitions, each with a record of an hour ago. The second partition has one replica, so that no
    other broker takes over while its leader hangs."""
    topic, (first, second, _) = f"by-time-{uuid.uuid4().hex}", breakable_kafka.broker_ids
    create_topic(breakable_kafka, topic, [[first], [second]], {"min.insync.replicas": "1"})
    for partition in (0, 1):
        produce(topic, [{"value": "old", "timestamp": int(time.time() * 1000) - AN_HOUR_MS}], partition=partition)
    return topic


@pytest.fixture
def planned_while(
    breakable_kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[], T], Callable[[], object]], T]:
    """Runs a plan and an action during it: after the first leader's response to the first request of the planner, and
    before the second leader's."""
    slow = breakable_kafka.broker_ids[1]
    has_response, on_response = threading.Event(), LeaderOffsets._on_response

    def signal_response(*arguments: Any) -> Any:
        try:
            return on_response(*arguments)
        finally:
            has_response.set()

    def planned(plan: Callable[[], T], happens: Callable[[], object]) -> T:
        monkeypatch.setattr(LeaderOffsets, "_on_response", signal_response)
        with ThreadPoolExecutor() as planning:
            breakable_kafka.pause(slow)
            done = planning.submit(plan)
            assert has_response.wait(30)
            happens()
            assert not done.done(), "the plan did not wait for the second leader"
            breakable_kafka.resume(slow)
            return done.result(60)

    return planned


@pytest.fixture
def last_minute(breakable_kafka: LocalKafka, slow_topic: str, tmp_path: Path) -> Callable[..., Stream]:
    """Opens a stream of the last minute: this plans its first micro-batch."""
    servers = str(breakable_kafka.address(breakable_kafka.broker_ids[0]))
    return partial(Stream, servers, [slow_topic], tmp_path, startingOffsets="-1m")


def test_records_written_while_a_leader_hangs_are_in_the_last_minute(
    slow_topic: str, produce: Produce, planned_while: Any, last_minute: Callable[..., Stream]
) -> None:
    with closing(planned_while(last_minute, lambda: produce(slow_topic, VALUES, partition=0))) as stream:
        stream.run_until(lambda: stream.positions()[TopicPartition(slow_topic, 0)] == 41)
        assert [row.value for row in stream.rows] == VALUES


def test_transaction_committed_while_a_leader_hangs_is_in_the_last_minute(
    breakable_kafka: LocalKafka, slow_topic: str, planned_while: Any, last_minute: Callable[..., Stream]
) -> None:
    servers = str(breakable_kafka.address(breakable_kafka.broker_ids[0]))
    lasting = {"transactional.id": slow_topic, "transaction.timeout.ms": 900_000}
    settings = {**lasting, "socket.timeout.ms": PRODUCER_TIMEOUT_MS, "log_level": 0}
    producer = Producer({"bootstrap.servers": servers, **settings})  # its coordinator may be the hung broker
    producer.init_transactions(60)
    producer.begin_transaction()
    for value in VALUES:
        producer.produce(slow_topic, value, partition=0)
    assert producer.flush(60) == 0

    options = {"kafka.isolation.level": "read_committed"}
    plan = partial(last_minute, **options)
    with closing(planned_while(plan, lambda: producer.commit_transaction(60))) as stream:
        stream.run_until(lambda: len(stream.rows) >= len(VALUES))
        assert [row.value for row in stream.rows] == VALUES


def test_end_by_time_leaves_records_out_that_are_written_while_a_leader_hangs(
    breakable_kafka: LocalKafka, slow_topic: str, produce: Produce, planned_while: Any
) -> None:
    servers = str(breakable_kafka.address(breakable_kafka.broker_ids[0]))
    options = SourceOptions.parse({"kafka.bootstrap.servers": servers, "subscribe": slow_topic})
    now = TimestampsSpec(int(time.time() * 1000), or_latest=True)
    with closing(client_without_events(options.client, Origin(role=Role.PLANNER))) as client:
        partitions = client.partitions([slow_topic], client.api_deadline())
        offsets = OffsetResolver(client, options, LossReporter(options, client.events.record_loss))
        resolve = partial(offsets.resolve, now, partitions, "endingOffsets", is_end=True)
        ends = planned_while(resolve, lambda: produce(slow_topic, VALUES, partition=0))

    assert {log.partition: position.offset for log, position in ends.items()} == {0: 1, 1: 1}
