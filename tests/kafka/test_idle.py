"""Idle partitions cost little: a refresh at max age, little CPU, no further connections."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from pyspark_kafka_meta.errors import ReadTimeoutError
from pyspark_kafka_meta.events.publisher import new_publisher
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.metadata.refresh_events import Origin, RefreshEvent, Role
from pyspark_kafka_meta.kafka.protocol.list_offsets import LATEST_TIMESTAMP
from pyspark_kafka_meta.model import OffsetRange, RefreshReason
from pyspark_kafka_meta.options import EventsOptions, SourceOptions
from pyspark_kafka_meta.read.fetching.task_reader import TaskReader
from pyspark_kafka_meta.read.planning.checkpoint_offsets import BEGINNING, SourceOffset
from pyspark_kafka_meta.read.planning.offset_planner import OffsetPlanner

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.thorough,
    pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts sockets in /proc"),
]

IDLE_S = float(os.environ.get("KAFKAMETA_IDLE_S", "4"))
"""Duration of each test. Hours show leaks that seconds do not show."""
MAX_AGE_S = IDLE_S / 4
PARTITIONS = 50
TRIGGER_S = 0.5
MAX_CPU_SHARE = 0.05

MakeClient = Callable[..., tuple[KafkaClient, SourceOptions]]


@pytest.fixture
def idle_topic(make_topic: Any) -> str:
    return str(make_topic(partitions=PARTITIONS))


@pytest.fixture
def make_client(kafka: Any, idle_topic: str, tmp_path: Path) -> Iterator[MakeClient]:
    made: list[KafkaClient] = []

    def make(**options: str) -> tuple[KafkaClient, SourceOptions]:
        where = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": idle_topic}
        max_age_ms = int(MAX_AGE_S * 1000)
        parsed = SourceOptions.parse({**where, "kafka.metadata.max.age.ms": str(max_age_ms), **options}).for_stream()
        publisher = new_publisher(EventsOptions(str(tmp_path), None, ()), Origin(role=Role.READER))
        made.append(KafkaClient(parsed.client, publisher))
        return made[-1], parsed

    yield make
    for client in made:
        client.close()


@contextmanager
def idle_cost(client: KafkaClient, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails if the code inside `with` sends more requests, uses more CPU or opens more sockets than it may."""
    requests: list[float] = []
    reasons: list[RefreshReason] = []
    send, publish = client.network.send_metadata, client.events._publish

    def count(*arguments: Any) -> Any:
        requests.append(time.monotonic())
        return send(*arguments)

    def note(event: RefreshEvent) -> None:
        reasons.append(event.reason)
        publish(event)

    monkeypatch.setattr(client.network, "send_metadata", count)
    monkeypatch.setattr(client.events, "_publish", note)
    generation = client.cache.snapshot.generation
    # The CPU time of this thread, which does all the work: other threads belong to earlier tests.
    sockets, cpu_s, began = open_sockets(), time.thread_time(), time.monotonic()
    yield
    lasted_s, cpu_s = time.monotonic() - began, time.thread_time() - cpu_s
    assert lasted_s >= IDLE_S * 0.9
    # A broker that is slow for a moment causes a refresh, too.
    assert 1 <= reasons.count(RefreshReason.MAX_AGE) <= lasted_s / MAX_AGE_S + 1
    assert set(reasons) <= {RefreshReason.MAX_AGE, RefreshReason.REQUEST_TIMEOUT}
    assert client.cache.snapshot.generation - generation == len(reasons), "each refresh got a response"
    assert len(requests) - len(reasons) in (-1, 0, 1), "a request may be in flight at the begin or the end"
    assert cpu_s / lasted_s < MAX_CPU_SHARE
    assert open_sockets() <= sockets + 3, "at most one more per broker"


def open_sockets() -> int:
    """Of this process."""
    count = 0
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # another thread has closed it
            count += str(fd.readlink()).startswith("socket:")
    return count


def test_planner_that_polls_idle_partitions(make_client: MakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    client, options = make_client()
    planner = OffsetPlanner(client, options)
    offset = planner.next_offset(BEGINNING, None, False)
    assert len(offset.positions) == PARTITIONS
    trigger, ends = threading.Event(), time.monotonic() + IDLE_S
    offsets: list[SourceOffset] = []
    with idle_cost(client, monkeypatch):
        while time.monotonic() < ends:
            offsets.append(planner.next_offset(offset, None, False))
            trigger.wait(TRIGGER_S)

    assert all(planned.as_dict() == offset.as_dict() for planned in offsets), "no records, no new micro-batch"


@pytest.fixture
def open_transaction(kafka: Any, idle_topic: str) -> Iterator[None]:
    """Holds back one record in each partition, so that a task waits for it until its poll timeout."""
    settings = {"transactional.id": idle_topic, "transaction.timeout.ms": 900_000, "log_level": 0}
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, **settings})
    producer.init_transactions(60)
    producer.begin_transaction()
    for partition in range(PARTITIONS):
        producer.produce(idle_topic, b"held back", partition=partition)
    assert producer.flush(60) == 0
    yield
    producer.abort_transaction(60)


@pytest.mark.usefixtures("open_transaction")
def test_reader_that_waits_for_records(make_client: MakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    client, options = make_client(
        **{"kafkaConsumer.pollTimeoutMs": str(int(IDLE_S * 1000)), "kafka.isolation.level": "read_committed"}
    )
    partitions = client.partitions(options.topics, client.api_deadline())
    # Brokers take a moment to lead new partitions.
    client.list_offsets(dict.fromkeys(partitions, LATEST_TIMESTAMP), client.api_deadline())
    topic_id = client.cache.snapshot.topic_id(options.topics[0])
    ranges = [OffsetRange(partition, topic_id, 0, 1) for partition in partitions]
    with idle_cost(client, monkeypatch), pytest.raises(ReadTimeoutError, match="the brokers send no records"):
        list(TaskReader(client, options, ["value"]).read(ranges))
