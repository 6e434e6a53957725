"""The cluster of tests that need no other."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from pyspark_kafka_meta.testing import MockCluster


@pytest.fixture
def cluster(mock_cluster: MockCluster) -> MockCluster:
    """Topic t: two partitions led by brokers 1 and 2, three records in the first."""
    mock_cluster.create_topic("t", partitions=2)
    for partition in (0, 1):
        mock_cluster.move_leader("t", partition, partition + 1)
    producer = Producer({"bootstrap.servers": mock_cluster.bootstrap_servers})
    for _ in range(3):
        producer.produce("t", b"v", partition=0)
    assert producer.flush(30) == 0
    return mock_cluster
