"""Each method of MockCluster has its effect on a confluent-kafka client."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql.types import StructType

from pyspark_kafka_meta.errors import UnsupportedBrokerError
from pyspark_kafka_meta.kafka.network.connection import ConnectionSettings
from pyspark_kafka_meta.kafka.network.kafka_network import KafkaNetwork
from pyspark_kafka_meta.model import MetadataResponse
from pyspark_kafka_meta.source import KafkaMetaDataSource
from pyspark_kafka_meta.testing import ClusterError, MockCluster, mock_cluster
from tests.kafka.cluster_tools import first_address

PRODUCE, FETCH, METADATA = 0, 1, 3
LEADER_NOT_AVAILABLE, TOPIC_AUTHORIZATION_FAILED = 5, 29


@pytest.fixture
def cluster(mock_cluster: MockCluster) -> MockCluster:
    mock_cluster.create_topic("t", partitions=2)
    return mock_cluster


def client(cluster: MockCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})


def ask_once(cluster: MockCluster) -> MetadataResponse:
    """A Metadata request over a new connection. librdkafka's clients would send further requests."""
    network = KafkaNetwork(ConnectionSettings("test", connect_timeout_ms=60_000, max_frame_bytes=1 << 20))
    try:
        return network.metadata(first_address(cluster.bootstrap_servers), ["t"], time.monotonic() + 60)
    finally:
        network.close()


def produce(cluster: MockCluster, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 0})
    for value in values:
        producer.produce("t", value, partition=0)
        assert producer.flush(60) == 0


def consume_one(cluster: MockCluster, offset: int) -> tuple[int | None, bytes | None]:
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.assign([TopicPartition("t", 0, offset)])
    message = consumer.poll(60)
    consumer.close()
    assert message is not None
    assert message.error() is None
    return message.offset(), message.value()


def test_brokers_and_topics_are_those_asked_for(cluster: MockCluster) -> None:
    metadata = client(cluster).list_topics(timeout=60)
    assert sorted(metadata.brokers) == [1, 2, 3]
    assert {name: len(topic.partitions) for name, topic in metadata.topics.items()} == {"t": 2}
    assert len(cluster.bootstrap_servers.split(",")) == 3


def test_a_pushed_leader_response_lies_once(cluster: MockCluster) -> None:
    cluster.move_leader("t", 0, 1)
    true_epoch = ask_once(cluster).topics[0].partitions[0].leader_epoch
    cluster.push_leader_response("t", 0, broker_id=3, leader_epoch=true_epoch - 1)
    seen = [ask_once(cluster).topics[0].partitions[0] for _ in range(2)]
    assert [(response.leader_id, response.leader_epoch) for response in seen] == [(3, true_epoch - 1), (1, true_epoch)]


def test_deleted_records_are_gone(cluster: MockCluster) -> None:
    produce(cluster, b"first", b"second", b"third")
    cluster.delete_records("t", 0, offset=2)
    assert consume_one(cluster, 0) == (2, b"third")


def test_requests_are_tracked_from_start_to_stop(cluster: MockCluster) -> None:
    ask_once(cluster)
    cluster.start_request_tracking()
    assert cluster.requests() == []
    for _ in range(3):
        ask_once(cluster)
    tracked = cluster.requests()
    assert Counter(request.api_key for request in tracked)[METADATA] == 3
    assert {request.broker_id for request in tracked} == {1}
    assert [request.timestamp_us for request in tracked] == sorted(request.timestamp_us for request in tracked)
    cluster.stop_request_tracking()
    ask_once(cluster)
    assert cluster.requests() == []


def test_pushed_errors_are_returned_once_each(cluster: MockCluster) -> None:
    cluster.push_request_errors(PRODUCE, LEADER_NOT_AVAILABLE, LEADER_NOT_AVAILABLE)
    cluster.start_request_tracking()
    produce(cluster, b"in the end")
    assert Counter(request.api_key for request in cluster.requests())[PRODUCE] == 3


def test_partition_errors_are_returned_once_each(cluster: MockCluster) -> None:
    produce(cluster, b"in the end")
    cluster.push_partition_errors("t", 0, FETCH, LEADER_NOT_AVAILABLE)
    cluster.start_request_tracking()
    assert consume_one(cluster, 0) == (0, b"in the end")
    assert Counter(request.api_key for request in cluster.requests())[FETCH] >= 2


def test_a_topic_error_stays_until_it_is_taken_back(cluster: MockCluster) -> None:
    cluster.set_topic_error("t", TOPIC_AUTHORIZATION_FAILED)
    error = client(cluster).list_topics("t", timeout=60).topics["t"].error
    assert error is not None
    assert error.code() == TOPIC_AUTHORIZATION_FAILED
    cluster.set_topic_error("t", 0)
    assert client(cluster).list_topics("t", timeout=60).topics["t"].error is None


def test_a_follower_is_named_to_consumers_that_state_a_rack(cluster: MockCluster) -> None:
    produce(cluster, b"value")
    cluster.move_leader("t", 0, 1)
    cluster.set_follower("t", 0, 2)
    cluster.start_request_tracking()
    assert consume_one(cluster, 0) == (0, b"value")
    assert {request.broker_id for request in cluster.requests() if request.api_key == FETCH} == {1, 2}


def test_a_refused_call_says_what_was_refused_and_why(cluster: MockCluster) -> None:
    with pytest.raises(ClusterError, match=r"partition_set_leader.*not available"):
        cluster.move_leader("t", 0, 99)
    with pytest.raises(ClusterError, match=r"topic_create.*already exists"):
        cluster.create_topic("t")
    with pytest.raises(ClusterError, match="0 brokers"):
        MockCluster(0)


def test_a_librdkafka_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    refuses = SimpleNamespace(
        rd_kafka_conf_new=lambda: 1,
        rd_kafka_conf_set=lambda *_: 0,
        rd_kafka_new=lambda _type, _settings, reason, _size: setattr(reason, "value", b"no more threads"),
    )
    monkeypatch.setattr(mock_cluster, "_library", lambda: refuses)
    with pytest.raises(ClusterError, match="librdkafka cannot start: no more threads"):
        MockCluster(1)


@pytest.mark.parametrize(
    "call",
    [
        lambda cluster: cluster.move_leader("misspelt", 0, 2),
        lambda cluster: cluster.set_follower("misspelt", 0, 2),
        lambda cluster: cluster.push_leader_response("misspelt", 0, 2, 5),
        lambda cluster: cluster.delete_records("misspelt", 0, 0),
        lambda cluster: cluster.set_topic_error("misspelt", TOPIC_AUTHORIZATION_FAILED),
        lambda cluster: cluster.push_partition_errors("misspelt", 0, FETCH, LEADER_NOT_AVAILABLE),
    ],
)
def test_topic_that_nobody_made_is_refused(cluster: MockCluster, call: Callable[[MockCluster], None]) -> None:
    with pytest.raises(ClusterError, match="no topic 'misspelt': correct the name, or call create_topic"):
        call(cluster)
    assert list(client(cluster).list_topics(timeout=60).topics) == ["t"]


def test_a_closed_cluster_refuses_calls_and_closes_once() -> None:
    cluster = MockCluster(1)
    cluster.close()
    cluster.close()
    with pytest.raises(ClusterError, match="closed"):
        cluster.requests()


def test_exactly_once_write_names_the_clusters_that_have_transactions(cluster: MockCluster) -> None:
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "topic": "t", "kafka.transactional.id": "x"}
    with pytest.raises(
        UnsupportedBrokerError, match=r"offers no CreateTopics: use .* nor transactions: .* local_kafka"
    ):
        KafkaMetaDataSource(options).writer(StructType().add("value", "string"), False)


def test_two_clusters_are_strangers() -> None:
    with MockCluster(1) as first, MockCluster(2) as second:
        first.create_topic("t", replication=1)
        assert list(client(first).list_topics(timeout=60).topics) == ["t"]
        assert not client(second).list_topics(timeout=60).topics


def test_the_mock_needs_neither_confluent_kafka_nor_java_to_start() -> None:
    code = (
        "import sys; from pyspark_kafka_meta.testing.mock_cluster import MockCluster\n"
        "with MockCluster(1): assert 'confluent_kafka' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], env={"PATH": ""}, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
