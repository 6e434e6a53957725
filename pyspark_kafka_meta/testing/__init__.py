"""Clusters for tests, ours and yours: `MockCluster` with scripted responses, `LocalKafka` with real Apache Kafka."""

from pyspark_kafka_meta.errors import ClusterError
from pyspark_kafka_meta.testing.local_kafka import LocalKafka
from pyspark_kafka_meta.testing.mock_cluster import MockCluster, TrackedRequest

__all__ = ["ClusterError", "LocalKafka", "MockCluster", "TrackedRequest"]
