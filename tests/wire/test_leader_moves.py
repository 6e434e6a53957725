"""Leaders move under a reader: its cache reports the requests of the mock brokers, and no request is superfluous."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from confluent_kafka import Producer

from pyspark_kafka_meta.errors import ConnectError
from pyspark_kafka_meta.events.event import Origin, Role
from pyspark_kafka_meta.events.publisher import new_publisher
from pyspark_kafka_meta.kafka.client import leader_requests
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.metadata.cache import MetadataCache
from pyspark_kafka_meta.kafka.metadata.cache_state import LeaderHinted, Refreshed
from pyspark_kafka_meta.kafka.metadata.snapshot import LeaderChange
from pyspark_kafka_meta.kafka.network import connection, sockets
from pyspark_kafka_meta.kafka.network.sockets import Candidate
from pyspark_kafka_meta.kafka.protocol.list_offsets import LATEST_TIMESTAMP
from pyspark_kafka_meta.model import Address, OffsetRange, RefreshReason
from pyspark_kafka_meta.options import EventsOptions, SourceOptions
from pyspark_kafka_meta.read.fetching import fetch_sender
from pyspark_kafka_meta.read.fetching.task_reader import TaskReader
from pyspark_kafka_meta.testing import MockCluster
from tests.partitions import T0

FETCH, METADATA = 1, 3
NOT_LEADER_OR_FOLLOWER = 6
RECORDS = 3
REQUEST_TIMEOUT_MS, SLOW_MS = 8_000, 10_000
"""A read that waits for a slow broker's metadata waits for as long as the time-out."""


class Worker:
    """A worker's client over mock brokers, and the facts of its cache."""

    def __init__(self, cluster: MockCluster, events_path: Path, **options: str) -> None:
        self.cluster = cluster
        quick = {"kafka.fetch.max.wait.ms": "50", "kafka.retry.backoff.ms": "20", "kafka.retry.backoff.max.ms": "40"}
        where = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": "t"}
        self.options = SourceOptions.parse({**where, **quick, **options})
        of_client = self.options.client
        publisher = new_publisher(EventsOptions(str(events_path), None, ()), Origin(role=Role.READER))
        self.client = KafkaClient(of_client, publisher)
        self.facts: list[Any] = []  # of the cache
        of_cache = replace(of_client, retry_backoff_max_ms=40, request_timeout_ms=REQUEST_TIMEOUT_MS)
        self.client.cache = MetadataCache(self.client.network, of_cache, self.facts.append)

    def read(self) -> list[int]:
        """One task: all offsets of t-0."""
        topic_id = self.client.cache.snapshot.topic_id("t")
        reader = TaskReader(self.client, self.options, ["offset"])
        batches = reader.read([OffsetRange(T0, topic_id, 0, RECORDS)])
        return [offset for batch in batches for offset in batch.column("offset").to_pylist()]

    def brokers_of(self, api_key: int) -> list[int]:
        """Ids of the brokers that got such requests since tracking began, in order."""
        return [request.broker_id for request in self.cluster.requests() if request.api_key == api_key]

    def refreshes(self) -> list[Any]:
        return [fact for fact in self.facts if isinstance(fact, Refreshed)]

    def leader(self) -> tuple[int, int]:
        leader = self.client.cache.leader(T0)
        assert leader is not None
        return leader.broker.node_id, leader.leader_epoch


@pytest.fixture
def worker(mock_cluster: MockCluster, tmp_path: Path) -> Iterator[Worker]:
    mock_cluster.create_topic("t")
    mock_cluster.move_leader("t", 0, 1)
    producer = Producer({"bootstrap.servers": mock_cluster.bootstrap_servers, "linger.ms": 0})
    for number in range(RECORDS):
        producer.produce("t", str(number), partition=0)
    assert producer.flush(60) == 0
    del producer
    mock_cluster.start_request_tracking()
    reader = Worker(mock_cluster, tmp_path)
    yield reader
    reader.client.close()


@pytest.mark.parametrize("moves", [0, 1, 20])
def test_metadata_requests_at_the_brokers_are_the_refreshes_published(worker: Worker, moves: int) -> None:
    assert worker.read() == [0, 1, 2]
    for number in range(moves):
        worker.cluster.move_leader("t", 0, 2 + number % 2)
        assert worker.read() == [0, 1, 2]

    brokers = [fact.broker_id for fact in worker.refreshes()]
    assert worker.brokers_of(METADATA) == brokers
    assert (len(brokers) == 1) if moves == 0 else (len(brokers) <= 1 + 2 * moves)
    assert worker.leader()[0] == (2 + (moves - 1) % 2 if moves else 1)
    if moves:
        moved = [change for fact in worker.facts for change in fact.changes.leaders_changed]
        assert [change.new_leader_id for change in moved] == [2 + number % 2 for number in range(moves)], (
            "each move is reported once"
        )


def test_stale_responses_send_no_fetch_to_the_old_node(worker: Worker) -> None:
    assert worker.read() == [0, 1, 2]
    old_epoch = worker.leader()[1]
    worker.cluster.move_leader("t", 0, 2)
    assert worker.read() == [0, 1, 2]
    worker.client.cache.refresh(RefreshReason.ON_DEMAND, worker.client.api_deadline())
    worker.cluster.start_request_tracking()
    for _ in range(5):
        worker.cluster.push_leader_response("t", 0, broker_id=1, leader_epoch=old_epoch)
        worker.client.cache.refresh(RefreshReason.ON_DEMAND, worker.client.api_deadline())
        assert worker.facts[-1].changes.stale_ignored == 1
        assert worker.read() == [0, 1, 2]

    assert set(worker.brokers_of(FETCH)) == {2}


def test_leader_that_no_packet_reaches_is_left_for_the_next_one_while_it_is_connected_to(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    unreachable, is_reading, found = worker.options.client.bootstrap_servers[0], Event(), Event()

    def connect(address: Address, deadline: float, *others: Any) -> tuple[socket.socket, Candidate]:
        if address == unreachable:
            has_time = not is_reading.is_set() or found.wait(deadline - time.monotonic())
            assert has_time, "the read waits for the connection"
            raise ConnectError("no answer in time")
        return sockets.connect(address, deadline, *others)

    monkeypatch.setattr(connection, "connect", connect)
    worker.client.cache.track(["t"])
    worker.client.cache.refresh(RefreshReason.BOOTSTRAP, worker.client.api_deadline())
    assert worker.client.cache.snapshot.brokers[1].address == unreachable
    worker.facts.clear()
    monkeypatch.setattr(fetch_sender, "OVERDUE_MS", 1_000)  # also for the next request
    worker.cluster.move_leader("t", 0, 2)
    is_reading.set()
    assert worker.read() == [0, 1, 2]
    found.set()

    assert set(worker.brokers_of(FETCH)) == {2}
    assert worker.refreshes()[0].cause.node_id == 1


def ask_next(worker: Worker, broker_id: int) -> None:
    """Have the cache ask this broker for Metadata next, over a connection that is open."""
    # A refresh chooses one of the two other brokers at random: a hundred refreshes choose both.
    refreshes = (worker.client.cache.refresh(RefreshReason.ON_DEMAND, worker.client.api_deadline()) for _ in range(100))
    assert any(worker.refreshes()[-1].broker_id == broker_id for _ in refreshes)


def test_broker_that_is_late_with_metadata_delays_no_partition_whose_leader_a_hint_named(worker: Worker) -> None:
    assert worker.read() == [0, 1, 2]
    ask_next(worker, 3)
    worker.cluster.set_rtt_ms(3, SLOW_MS)
    worker.cluster.start_request_tracking()
    worker.cluster.move_leader("t", 0, 2)
    began = time.monotonic()
    assert worker.read() == [0, 1, 2]

    assert time.monotonic() - began < REQUEST_TIMEOUT_MS / 1000
    assert (worker.brokers_of(METADATA), worker.brokers_of(FETCH)[-1]) == ([3], 2)
    assert isinstance(worker.facts[-1], LeaderHinted), "its confirmation is under way"
    worker.client.cache.refresh_if_due(worker.client.api_deadline())
    refreshed = worker.refreshes()[-1]
    assert (refreshed.broker_id, refreshed.cause.reason) == (3, RefreshReason.LEADER_HINT)


def test_broker_late_with_metadata_delays_no_offsets(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_requests, "OVERDUE_MS", 50)
    assert worker.read() == [0, 1, 2]
    ask_next(worker, 3)
    worker.cluster.set_rtt_ms(1, 1_500)  # the leader, which gets a Metadata request after that time
    worker.cluster.set_rtt_ms(2, SLOW_MS)
    worker.cluster.set_rtt_ms(3, SLOW_MS)
    began = time.monotonic()
    responses = worker.client.list_offsets({T0: LATEST_TIMESTAMP}, worker.client.api_deadline())

    assert responses[T0].offset == RECORDS
    assert time.monotonic() - began < REQUEST_TIMEOUT_MS / 1000
    assert worker.client.cache.has_request_in_flight


def test_wrong_hint_heals(worker: Worker) -> None:
    assert worker.read() == [0, 1, 2]
    leader_id, epoch = worker.leader()
    worker.cluster.push_partition_errors("t", 0, FETCH, NOT_LEADER_OR_FOLLOWER)
    worker.cluster.push_leader_response("t", 0, broker_id=3, leader_epoch=epoch + 1)
    assert worker.read() == [0, 1, 2]

    [hint] = [fact for fact in worker.facts if isinstance(fact, LeaderHinted)]
    assert hint.changes.leaders_changed == (LeaderChange("t", 0, leader_id, 3, epoch, epoch + 1),)
    assert worker.leader() == (leader_id, epoch)
    assert worker.refreshes()[-1].recovery_ms is not None
    assert worker.brokers_of(METADATA) == [fact.broker_id for fact in worker.refreshes()]
