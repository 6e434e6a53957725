"""`FakeAdmin`: a `ClusterAdmin` of a `FakeCluster`."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tests.unit.fake_cluster import FakeCluster


class FakeAdmin:
    """
    Attributes:
        configs: by topic. Topics without one are described as if this user had no right.
    """

    def __init__(self, cluster: FakeCluster) -> None:
        self.configs: dict[str, Mapping[str, str]] = {}
        self._cluster = cluster

    def create_topic(self, name: str, replicas: int, config: Mapping[str, str]) -> None:
        if name not in self._cluster.topics:
            self._cluster.create_topic(name)

    def transaction_max_timeout_ms(self, broker_ids: Collection[int]) -> int:
        return self._cluster.coordinators.max_timeout_ms

    def topic_config(self, topic: str) -> Mapping[str, str]:
        return self.configs.get(topic, {})
