"""The requests of transactions over sockets, to mock brokers, which know the first version of transactions alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from pyspark_kafka_meta.errors import UnsupportedBrokerError
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.protocol.produce import ProducePartition, ProduceRequest
from pyspark_kafka_meta.kafka.protocol.requests import RequestFailure
from pyspark_kafka_meta.model import TopicPartition, TransactionVersion
from pyspark_kafka_meta.options import SinkOptions
from pyspark_kafka_meta.testing import MockCluster
from tests.unit.scene import RecordingPublisher

V1, V2 = TransactionVersion.V1, TransactionVersion.V2
IDS = [f"orders/{number}/0" for number in range(8)]
PARTITION = TopicPartition("t", 0)
TIMEOUT_MS = 60_000
PATIENCE_S = 30.0


@pytest.fixture
def client(mock_cluster: MockCluster) -> Iterator[KafkaClient]:
    mock_cluster.create_topic("t", 1)
    options = SinkOptions.parse({"kafka.bootstrap.servers": mock_cluster.bootstrap_servers, "topic": "t"})
    with contextlib.closing(KafkaClient(options.client, RecordingPublisher([]))) as made:
        yield made


def soon(client: KafkaClient) -> float:
    return client.clock() + PATIENCE_S


def test_brokers_without_features_have_the_first_version(client: KafkaClient) -> None:
    assert client.coordinators.transaction_version(soon(client)) is V1


def test_brokers_that_lack_an_api_are_told_which_kafka_has_it(client: KafkaClient) -> None:
    producer = client.coordinators.fence(IDS[:1], TIMEOUT_MS, soon(client))[IDS[0]]

    with pytest.raises(UnsupportedBrokerError, match=r"no ListTransactions: .* Kafka 3\.0 or later"):
        client.coordinators.list_transactions(soon(client))
    with pytest.raises(UnsupportedBrokerError, match=r"no DescribeTransactions: .* Kafka 3\.0 or later"):
        client.coordinators.describe_transactions([IDS[0]], soon(client))
    with pytest.raises(UnsupportedBrokerError, match=r"EndTxn .* Apache Kafka 4\.0 or later"):
        client.coordinators.end_transactions({IDS[0]: producer}, True, V2, soon(client))


def test_records_of_the_second_version_are_not_sent_to_brokers_that_lack_it(client: KafkaClient) -> None:
    client.coordinators.fence(IDS[:1], TIMEOUT_MS, soon(client))
    broker = next(iter(client.cache.snapshot.brokers.values()))
    request = ProduceRequest((ProducePartition(PARTITION, None, b""),), -1, 1000, IDS[0], V2)
    client.network.produce.send(broker, request, soon(client))
    failure = client.network.produce.receive([broker.node_id], soon(client))

    assert isinstance(failure, RequestFailure)
    assert isinstance(failure.error, UnsupportedBrokerError)
    assert "needed is v12 to v12: use brokers of Apache Kafka 4.0 or later" in str(failure.error)
