"""Clusters for tests, ours and yours: `MockCluster` with scripted responses, `LocalKafka` with real Apache Kafka; and
schema registries: `MockRegistry` in this process, `LocalRegistry` with Apicurio."""

from pyspark_kafka_meta.errors import ClusterError
from pyspark_kafka_meta.extras import missing_extra

try:
    from pyspark_kafka_meta.testing.local_kafka import LocalKafka
    from pyspark_kafka_meta.testing.local_registry import LocalRegistry
    from pyspark_kafka_meta.testing.mock_cluster import MockCluster, TrackedRequest
    from pyspark_kafka_meta.testing.mock_registry import MockRegistry
except ModuleNotFoundError as error:
    if error.name != "cryptography":
        raise
    missing = "confluent_kafka"  # of the same extra
    raise ModuleNotFoundError(missing_extra("pyspark_kafka_meta.testing", missing), name=missing) from None

__all__ = ["ClusterError", "LocalKafka", "LocalRegistry", "MockCluster", "MockRegistry", "TrackedRequest"]
