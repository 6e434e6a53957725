"""Fetches from the replica in the client's rack (KIP-392) on real brokers, each of which is a rack."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from pyspark_kafka_meta.events.event import Origin, Role
from pyspark_kafka_meta.events.publisher import new_publisher
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.protocol.fetch import FetchRequest
from pyspark_kafka_meta.model import Broker, OffsetRange, TopicPartition
from pyspark_kafka_meta.options import EventsOptions, SourceOptions
from pyspark_kafka_meta.read.fetching.task_reader import TaskReader
from tests.kafka.cluster_tools import Cluster

pytestmark = pytest.mark.kafka

RECORDS = 100
REQUEST_TIMEOUT_S = 30


class RackedWorker:
    """Reads partition 0 of a topic and records the brokers of its Fetch requests."""

    def __init__(self, kafka: Cluster, topic: str, rack: str, events_path: Path) -> None:
        options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": topic, "kafka.client.rack": rack}
        self._options = SourceOptions.parse({**options, "kafka.request.timeout.ms": f"{REQUEST_TIMEOUT_S}000"})
        publisher = new_publisher(EventsOptions(str(events_path), None, ()), Origin(role=Role.READER))
        self.client = KafkaClient(self._options.client, publisher)
        self._partition = TopicPartition(topic, 0)
        self._fetched_from: list[int] = []
        send = self.client.network.fetch.send

        def record_and_send(broker: Broker, request: FetchRequest, deadline: float) -> None:
            self._fetched_from.append(broker.node_id)
            send(broker, request, deadline)

        self.client.network.fetch.send = record_and_send  # type: ignore[method-assign]

    def read(self) -> list[int]:
        """Read all rows. Returns the distinct ids of the brokers of its Fetch requests, in order."""
        self._fetched_from.clear()
        self.client.partitions([self._partition.topic], self.client.api_deadline())
        topic_id = self.client.cache.snapshot.topic_id(self._partition.topic)
        planned = OffsetRange(self._partition, topic_id, 0, RECORDS)
        rows = sum(batch.num_rows for batch in TaskReader(self.client, self._options, ["offset"]).read([planned]))
        assert rows == RECORDS
        return list(dict.fromkeys(self._fetched_from))


MakeWorker = Callable[[str], RackedWorker]


@pytest.fixture
def leader(topic: str, produce: Any, leader_of: Any, kafka: Cluster) -> int:
    """The leader of partition 0, whose records all replicas have."""
    produce(topic, [str(number) for number in range(RECORDS)], partition=0, acks="all")
    return int(leader_of(topic, 0))


@pytest.fixture
def make_worker(kafka: Cluster, topic: str, tmp_path: Path) -> Iterator[MakeWorker]:
    made: list[RackedWorker] = []

    def make(rack: str) -> RackedWorker:
        made.append(RackedWorker(kafka, topic, rack, tmp_path))
        return made[-1]

    yield make
    for worker in made:
        worker.client.close()


def settled(make_worker: MakeWorker, broker_id: int, leader: int, wait_for: Callable[..., Any]) -> RackedWorker:
    """A worker in the rack of this broker that reads from it once the leader has named it as preferred read replica.

    No leader names a replica that lags for a moment, or the replica lacks rows: then another worker tries."""

    def redirected_worker() -> RackedWorker | None:
        worker = make_worker(f"rack-{broker_id}")
        reads = [worker.read(), worker.read()]
        return worker if reads == [list(dict.fromkeys([leader, broker_id])), [broker_id]] else None

    return cast(RackedWorker, wait_for(redirected_worker))


def test_each_rack_reads_from_its_own_replica(
    leader: int, make_worker: MakeWorker, kafka: Cluster, wait_for: Callable[..., Any]
) -> None:
    for broker_id in kafka.broker_ids:
        settled(make_worker, broker_id, leader, wait_for)


@pytest.mark.parametrize("rack", ["", "of nobody"])
def test_without_a_replica_in_the_rack_the_leader_is_read(leader: int, make_worker: MakeWorker, rack: str) -> None:
    assert make_worker(rack).read() == [leader]
