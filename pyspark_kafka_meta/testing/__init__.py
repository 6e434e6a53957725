"""Clusters for tests, ours and yours: `MockCluster` with scripted responses, `LocalKafka` with real Apache Kafka; and
schema registries: `MockRegistry` in this process, `LocalRegistry` with Apicurio.

Names are loaded on first use, so that pytest starts no later with `pytest_plugin`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyspark_kafka_meta.errors import ClusterError
from pyspark_kafka_meta.extras import missing_extra

if TYPE_CHECKING:
    from pyspark_kafka_meta.testing.local_kafka import LocalKafka
    from pyspark_kafka_meta.testing.local_registry import LocalRegistry
    from pyspark_kafka_meta.testing.mock_cluster import MockCluster, TrackedRequest
    from pyspark_kafka_meta.testing.mock_registry import MockRegistry

__all__ = ["ClusterError", "LocalKafka", "LocalRegistry", "MockCluster", "MockRegistry", "TrackedRequest"]

_MODULES = {
    "LocalKafka": "local_kafka",
    "LocalRegistry": "local_registry",
    "MockCluster": "mock_cluster",
    "MockRegistry": "mock_registry",
    "TrackedRequest": "mock_cluster",
}


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
