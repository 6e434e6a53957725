"""Queries that start by time while a leader does not answer: what is written meanwhile is read."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from pyspark_kafka_meta.metadata.model import TopicPartition
from pyspark_kafka_meta.reading.leader_offsets import LeaderOffsets
from pyspark_kafka_meta.testing import LocalKafka
from tests.kafka.cluster_tools import create_topic
from tests.kafka.harness import PRODUCER_PATIENCE_MS, Stream

pytestmark = pytest.mark.kafka

AN_HOUR_MS = 3_600_000


@pytest.fixture
def slow_topic(breakable_kafka: LocalKafka, produce: Callable[..., list[int]]) -> str:
    """An hour ago a record was written to each of two partitions. The leader of the second hangs now; only it has that
    partition, so that no other takes over before it goes on."""
    topic, (first, second, _) = f"by-time-{uuid.uuid4().hex}", breakable_kafka.broker_ids
    create_topic(breakable_kafka, topic, [[first], [second]], {"min.insync.replicas": "1"})
    for partition in (0, 1):
        produce(topic, [{"value": "old", "timestamp": int(time.time() * 1000) - AN_HOUR_MS}], partition=partition)
    return topic


@pytest.fixture
def planned_while(
    breakable_kafka: LocalKafka, slow_topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Stream]:
    """A stream of the last minute. Something happens after the first leader has answered the first question of its
    planner, and before the second has."""
    first, slow, _ = breakable_kafka.broker_ids
    answered, absorb = threading.Event(), LeaderOffsets._absorb

    def noted(*arguments: Any) -> Any:
        try:
            return absorb(*arguments)
        finally:
            answered.set()

    def plan(happens: Callable[[], object], **options: str) -> Stream:
        monkeypatch.setattr(LeaderOffsets, "_absorb", noted)
        with ThreadPoolExecutor() as planning:
            breakable_kafka.pause(slow)
            servers = str(breakable_kafka.address(first))
            stream = planning.submit(Stream, servers, [slow_topic], tmp_path, startingOffsets="-1m", **options)
            assert answered.wait(30)
            happens()
            assert not stream.done(), "the second leader did not hold it up"
            breakable_kafka.resume(slow)
            return stream.result(60)

    return plan


def test_records_written_while_a_leader_hangs_are_in_the_last_minute(
    slow_topic: str, produce: Callable[..., list[int]], planned_while: Callable[..., Stream]
) -> None:
    def write() -> None:
        produce(slow_topic, map(str, range(40)), partition=0)

    with closing(planned_while(write)) as stream:
        stream.run_until(lambda: stream.positions()[TopicPartition(slow_topic, 0)] == 41)
        assert [row.value for row in stream.rows] == list(map(str, range(40)))


def test_transaction_committed_while_a_leader_hangs_is_in_the_last_minute(
    breakable_kafka: LocalKafka, slow_topic: str, planned_while: Callable[..., Stream]
) -> None:
    servers = str(breakable_kafka.address(breakable_kafka.broker_ids[0]))
    settings = {"transactional.id": slow_topic, "socket.timeout.ms": PRODUCER_PATIENCE_MS, "log_level": 0}
    producer = Producer({"bootstrap.servers": servers, **settings})  # its coordinator may be the broker that hangs
    producer.init_transactions(60)
    producer.begin_transaction()
    for number in range(40):
        producer.produce(slow_topic, str(number), partition=0)
    assert producer.flush(60) == 0

    options = {"kafka.isolation.level": "read_committed"}
    with closing(planned_while(lambda: producer.commit_transaction(60), **options)) as stream:
        stream.run_until(lambda: len(stream.rows) >= 40)
        assert [row.value for row in stream.rows] == list(map(str, range(40)))
