"""Mock brokers behind a `KafkaNetwork`, and how long their tests wait."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from uuid import UUID

import pytest
from confluent_kafka import Producer

from pyspark_kafka_meta.kafka.network.connection import Connection, ConnectionSettings
from pyspark_kafka_meta.kafka.network.kafka_network import KafkaNetwork
from pyspark_kafka_meta.kafka.protocol.apis import Api
from pyspark_kafka_meta.kafka.protocol.fetch import FetchedPartition, FetchPartition, FetchRequest, FetchResponse
from pyspark_kafka_meta.kafka.protocol.list_offsets import OffsetQuery, OffsetsRequest, PartitionOffset
from pyspark_kafka_meta.kafka.protocol.network_interface import RequestFailure
from pyspark_kafka_meta.kafka.protocol.produce import ProducePartition, ProduceRequest
from pyspark_kafka_meta.kafka.records.batches import read_batch_headers
from pyspark_kafka_meta.kafka.records.decoder import FetchedRecords, decode
from pyspark_kafka_meta.model import Address, Broker, MetadataResponse, TopicPartition
from pyspark_kafka_meta.testing import MockCluster
from tests.kafka.cluster_tools import first_address
from tests.partitions import T0
from tests.unit.logs import batch

SOON_S, LATER_S = 0.3, 60.0
SLOW_MS = 60_000
"""How late a slow broker responds: a time-out at `SOON_S` comes long before, on a busy machine too."""


@dataclass(slots=True)
class Cluster:
    """Mock brokers 1 to 3, of which 1 leads t-0 and 2 leads t-1; a network to them and its requests."""

    mock: MockCluster
    network: KafkaNetwork
    sent: list[tuple[Address, int, int]] = field(default_factory=list)
    known: MetadataResponse | None = None

    def learn(self) -> MetadataResponse:
        self.known = self.network.metadata(first_address(self.mock.bootstrap_servers), ["t"], within(LATER_S))
        return self.known

    def broker(self, node_id: int) -> Broker:
        assert self.known is not None
        return next(broker for broker in self.known.brokers if broker.node_id == node_id)

    def topic_id(self) -> UUID:
        assert self.known is not None
        topic_id = self.known.topics[0].topic_id
        assert topic_id is not None
        return topic_id

    def epoch(self, partition: TopicPartition) -> int:
        assert self.known is not None
        return self.known.topics[0].partitions[partition.partition].leader_epoch

    def offsets(self, node_id: int, *queries: OffsetQuery) -> Mapping[TopicPartition, PartitionOffset]:
        """The responses of a broker."""
        self.network.offsets.send(self.broker(node_id), OffsetsRequest(queries, False), within(LATER_S))
        response = self.network.offsets.receive([node_id], within(LATER_S))
        if isinstance(response, RequestFailure):
            raise response.error
        assert response is not None
        return response.result

    def ask(self, *partitions: TopicPartition, by_id: bool = True, offset: int = 0, wait_ms: int = 0) -> FetchRequest:
        entries = tuple(
            FetchPartition(log, self.topic_id() if by_id else None, offset, self.epoch(log), -1, 1 << 20)
            for log in partitions
        )
        return FetchRequest(entries, wait_ms, 1, 1 << 22, read_committed=False)

    def fetch(self, node_id: int, request: FetchRequest, timeout_s: float = LATER_S) -> FetchResponse | RequestFailure:
        self.network.fetch.send(self.broker(node_id), request, within(timeout_s))
        response = self.network.fetch.receive([node_id], within(2 * timeout_s))
        assert response is not None
        return response

    def produce(self, partition: TopicPartition, *values: str) -> None:
        producer = Producer({"bootstrap.servers": self.mock.bootstrap_servers, "linger.ms": 20})
        for value in values:
            producer.produce(partition.topic, value, partition=partition.partition)
        assert producer.flush(LATER_S) == 0

    def send_records(
        self, node_id: int, *values: str, partition: TopicPartition = T0, timeout_s: float = LATER_S
    ) -> None:
        request = ProduceRequest((ProducePartition(partition, self.topic_id(), batch(values)),), -1, 1000)
        self.network.produce.send(self.broker(node_id), request, within(timeout_s))

    def log(self, partition: TopicPartition, node_id: int) -> list[str]:
        """The values of a partition, as a reader fetches them."""
        values: list[str] = []
        while found := rows(only(self.fetch(node_id, self.ask(partition, offset=len(values))))):
            values += [value for _, value in found]
        return values


@contextmanager
def mock_brokers(mock: MockCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    mock.create_topic("t", partitions=2)
    for partition in range(2):
        mock.move_leader("t", partition, partition + 1)
    network = KafkaNetwork(ConnectionSettings("test", connect_timeout_ms=60_000, max_frame_bytes=1 << 24))
    made = Cluster(mock, network)
    send = Connection.send

    def send_and_note(self: Connection, api: Api, message: object, deadline: float) -> None:
        made.sent.append((self.address, api.key, message.__version__))  # type: ignore[attr-defined]
        send(self, api, message, deadline)

    monkeypatch.setattr(Connection, "send", send_and_note)
    made.learn()
    made.sent.clear()
    mock.start_request_tracking()
    yield made
    network.close()


def within(seconds: float) -> float:
    return time.monotonic() + seconds


def only(response: FetchResponse | RequestFailure | None) -> FetchedPartition:
    assert isinstance(response, FetchResponse), response
    [partition] = response.partitions
    return partition


def rows(partition: FetchedPartition) -> list[tuple[int, str]]:
    part = FetchedRecords(partition.partition, partition.records, read_batch_headers(partition.records), 0, 1 << 62)
    return [
        (row["offset"], row["value"].decode())
        for table in decode([part], ["offset", "value"])
        for row in table.to_pylist()
    ]
