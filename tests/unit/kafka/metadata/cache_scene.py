"""A cache over a fake cluster, a clock that sleeping advances, and the facts that the cache reports."""

from __future__ import annotations

import random
from typing import Any

from pyspark_kafka_meta.kafka.metadata.cache import MetadataCache
from pyspark_kafka_meta.model import Address, RefreshReason, TopicPartition
from pyspark_kafka_meta.options import PLAINTEXT, ClientOptions, default_options
from tests.partitions import T0
from tests.unit.fake_network import FakeClock, FakeNetwork

REQUEST_TIMEOUT_S = 5
BROKER_1 = Address("broker-1", 9092)


def client_options(*bootstrap: Address, **changes: int) -> ClientOptions:
    return default_options(ClientOptions, security=PLAINTEXT, bootstrap_servers=bootstrap or (BROKER_1,), **changes)


class NoRandom(random.Random):
    """Keeps the order of addresses, without jitter."""

    def random(self) -> float:
        return 0.5

    def uniform(self, a: float, b: float) -> float:
        return min(b, 1.0)


class LimitedClock(FakeClock):
    """Fails a test that sleeps endlessly."""

    def __init__(self) -> None:
        super().__init__()
        self._steps_left = 1_000

    def sleep(self, seconds: float) -> None:
        self._steps_left -= 1
        assert self._steps_left > 0, "endless sleep"
        super().sleep(seconds)


class Scene:
    """A cluster with topic t (two partitions, led by brokers 1 and 2), its cache, and its facts."""

    def __init__(self, *bootstrap: Address, request_timeout_s: int = REQUEST_TIMEOUT_S, **options: int) -> None:
        self.clock = LimitedClock()
        self.network = FakeNetwork(clock=self.clock)
        self.cluster = self.network.cluster
        self.cluster.create_topic("t", partitions=2)
        self.facts: list[Any] = []
        self.cache = MetadataCache(
            self.network,
            client_options(*bootstrap, request_timeout_ms=request_timeout_s * 1000, **options),
            self.facts.append,
            clock=self.clock,
            sleep=self.clock.sleep,
            rng=NoRandom(),
        )
        self.cache.track(["t"])

    def deadline(self, seconds: float = 60) -> float:
        return self.clock() + seconds

    def bootstrapped(self) -> Scene:
        self.cache.refresh(RefreshReason.BOOTSTRAP, self.deadline())
        self.clock.sleep(10)
        self.facts.clear()
        self.network.requests.clear()
        return self

    def report(self, reason: RefreshReason = RefreshReason.NOT_LEADER, node_id: int = 1) -> None:
        partition = T0 if reason is RefreshReason.NOT_LEADER else None
        self.cache.request_update(reason, self.cache.snapshot.generation, partition, 6, node_id)

    def refresh_when_due(self) -> Any:
        self.clock.sleep(self.cache.time_to_next_update_ms() / 1000)
        self.cache.refresh_if_due(self.deadline())
        return self.facts[-1]

    def leader_id(self, partition: TopicPartition = T0) -> int | None:
        leader = self.cache.leader(partition)
        return None if leader is None else leader.broker.node_id
