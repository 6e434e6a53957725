"""Clusters for tests, ours and yours: `MockCluster` with scripted responses, `LocalKafka` with real Apache Kafka."""

from pyspark_kafka_meta.errors import ClusterError
from pyspark_kafka_meta.extras import missing_extra

try:
    from pyspark_kafka_meta.testing.local_kafka import LocalKafka
    from pyspark_kafka_meta.testing.mock_cluster import MockCluster, TrackedRequest
except ModuleNotFoundError as error:
    if error.name != "cryptography":
        raise
    missing = "confluent_kafka"  # of the same extra
    raise ModuleNotFoundError(missing_extra("pyspark_kafka_meta.testing", missing), name=missing) from None

__all__ = ["ClusterError", "LocalKafka", "MockCluster", "TrackedRequest"]
