"""Clusters for tests, ours and yours: `MockCluster` with scripted responses, `LocalKafka` with real Apache Kafka.

Names are loaded on first use, so that pytest starts no later with `pytest_plugin`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyspark_kafka_meta.errors import ClusterError
from pyspark_kafka_meta.extras import missing_extra

if TYPE_CHECKING:
    from pyspark_kafka_meta.testing.local_kafka import LocalKafka
    from pyspark_kafka_meta.testing.mock_cluster import MockCluster, TrackedRequest

__all__ = ["ClusterError", "LocalKafka", "MockCluster", "TrackedRequest"]

_MODULES = {"LocalKafka": "local_kafka", "MockCluster": "mock_cluster", "TrackedRequest": "mock_cluster"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "cryptography":
            raise
        missing = "confluent_kafka"  # of the same extra
        raise ModuleNotFoundError(missing_extra(f"{__name__}.{name}", missing), name=missing) from None
