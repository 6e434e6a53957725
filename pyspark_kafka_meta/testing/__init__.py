"""Clusters for tests, ours and the users': `MockCluster` for answers at will, `LocalKafka` for real Apache Kafka."""

from pyspark_kafka_meta.errors import ClusterError
from pyspark_kafka_meta.testing.local_kafka import LocalKafka
from pyspark_kafka_meta.testing.mock_cluster import MockCluster, TrackedRequest

__all__ = ["ClusterError", "LocalKafka", "MockCluster", "TrackedRequest"]
