"""Differences between the releases of Kafka that `LocalKafka` starts.

KRaft is ready for production since 3.3 (KIP-833). 4.0 has neither ZooKeeper (KIP-500) nor log4j 1 (KIP-653).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyspark_kafka_meta.errors import ClusterError

_LOG4J = "org.apache.logging.log4j"
_LOG4J_VERSION = "2.24.3"


@dataclass(frozen=True, slots=True)
class KafkaRelease:
    """A release on Maven Central.

    Raises:
        ClusterError: `version` is not three numbers.
    """

    version: str = "4.1.1"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\d+\.\d+\.\d+", self.version):
            raise ClusterError(f"{self.version!r} is not a version of Kafka: use three numbers, such as 3.9.1.")

    @property
    def jars(self) -> tuple[str, ...]:
        """Maven coordinates of the broker (with its Scala library) and of log4j 2, which also implements log4j 1 for
        releases before 4.0."""
        bindings = ("log4j-slf4j-impl",) if self._is_at_least(4, 0) else ("log4j-slf4j-impl", "log4j-1.2-api")
        logging = (f"{_LOG4J}:{binding}:{_LOG4J_VERSION}" for binding in bindings)
        return (f"org.apache.kafka:kafka_2.13:{self.version}", *logging)

    @property
    def has_kraft(self) -> bool:
        """Whether the cluster has a KRaft controller instead of ZooKeeper."""
        return self._is_at_least(3, 3)

    @property
    def adds_scram_users(self) -> bool:
        """Whether StorageTool adds SCRAM users (KIP-900)."""
        return self._is_at_least(3, 5)

    @property
    def authorizer(self) -> str:
        kraft, zookeeper = (
            "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "kafka.security.authorizer.AclAuthorizer",
        )
        return kraft if self.has_kraft else zookeeper

    def _is_at_least(self, major: int, minor: int) -> bool:
        return tuple(map(int, self.version.split(".")[:2])) >= (major, minor)
