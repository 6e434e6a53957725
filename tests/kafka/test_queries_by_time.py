"""Queries that start or end by time while a leader does not answer: what is written meanwhile is read once."""

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

from pyspark_kafka_meta.client.kafka_client import KafkaClient
from pyspark_kafka_meta.client.leader_offsets import LeaderOffsets
from pyspark_kafka_meta.metadata.refresh_events import Origin, Role
from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.options.start_specs import TimesSpec
from pyspark_kafka_meta.planning.start_end_offsets import OffsetResolver
from pyspark_kafka_meta.telemetry.event_publisher import EventPublisher
from pyspark_kafka_meta.testing import LocalKafka
from tests.kafka.cluster_tools import create_topic
from tests.kafka.harness import PRODUCER_PATIENCE_MS, Stream

pytestmark = pytest.mark.kafka

Produce = Callable[..., list[int]]
T = TypeVar("T")

AN_HOUR_MS = 3_600_000
VALUES = list(map(str, range(40)))


@pytest.fixture
def slow_topic(breakable_kafka: LocalKafka, produce: Produce) -> str:
    """An hour ago a record was written to each of two partitions. The leader of the second hangs now; only it has that
    partition, so that no other takes over before it goes on."""
    topic, (first, second, _) = f"by-time-{uuid.uuid4().hex}", breakable_kafka.broker_ids
    create_topic(breakable_kafka, topic, [[first], [second]], {"min.insync.replicas": "1"})
    for partition in (0, 1):
        produce(topic, [{"value": "old", "timestamp": int(time.time() * 1000) - AN_HOUR_MS}], partition=partition)
    return topic


@pytest.fixture
def planned_while(
    breakable_kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[], T], Callable[[], object]], T]:
    """What a plan gives during which something happens: after the first leader has answered the first question of its
    planner, and before the second has."""
    slow = breakable_kafka.broker_ids[1]
    answered, absorb = threading.Event(), LeaderOffsets._absorb

    def noted(*arguments: Any) -> Any:
        try:
            return absorb(*arguments)
        finally:
            answered.set()

    def planned(plan: Callable[[], T], happens: Callable[[], object]) -> T:
        monkeypatch.setattr(LeaderOffsets, "_absorb", noted)
        with ThreadPoolExecutor() as planning:
            breakable_kafka.pause(slow)
            done = planning.submit(plan)
            assert answered.wait(30)
            happens()
            assert not done.done(), "the second leader did not hold it up"
            breakable_kafka.resume(slow)
            return done.result(60)

    return planned


@pytest.fixture
def last_minute(breakable_kafka: LocalKafka, slow_topic: str, tmp_path: Path) -> Callable[..., Stream]:
    """Opens a stream of the last minute, which plans its first micro-batch."""
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
    settings = {"transactional.id": slow_topic, "socket.timeout.ms": PRODUCER_PATIENCE_MS, "log_level": 0}
    producer = Producer({"bootstrap.servers": servers, **settings})  # its coordinator may be the broker that hangs
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
    now = TimesSpec(int(time.time() * 1000), or_latest=True)
    with closing(KafkaClient(options.client, EventPublisher((), Origin(role=Role.PLANNER)))) as client:
        partitions = client.partitions([slow_topic], client.api_deadline())
        resolve = partial(OffsetResolver(client, options).resolve, now, partitions, "endingOffsets", is_end=True)
        ends = planned_while(resolve, lambda: produce(slow_topic, VALUES, partition=0))

    assert {one.partition: position.offset for one, position in ends.items()} == {0: 1, 1: 1}
