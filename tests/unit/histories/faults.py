"""`Faults`: what befalls the brokers of a history, at random times, until all are healthy.

| fault | meaning |
|---|---|
| elect | a partition gets another leader |
| no_leader | a partition has no leader for a while |
| hang | a broker accepts requests and responds to none for a while |
| hang_metadata | a broker responds to all requests but Metadata for a while |
| crash | a broker loses all connections and refuses new ones for a while |
| disconnect | a broker loses all connections, maybe after it handled some requests |
| stale | a broker learns no changes of the cluster for a while |
| codes | the next responses for a partition have retriable error codes |
| throttle | a broker throttles the next response (KIP-219) |
| slow | all brokers respond sooner, or later |
| move_address | a broker gets another host name |
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.kafka.metadata.cache import MetadataCache
from pyspark_kafka_meta.model import NO_LEADER, Address, Broker, RefreshReason, TopicPartition
from tests.unit.fake_network import FakeNetwork

UNWELL_S = 10.0
"""For so long after a broker failed, clients may suspect it of a timeout early."""
BOOTSTRAP_IDS = (1, 2)
"""Their addresses are for bootstrapping, and stay."""
SHORT_S = (0.05, 0.5, 3.0)
LONG_S = (0.3, 3.0, 12.0)


class Faults:
    """Strikes at the brokers of a network.

    Attributes:
        kinds: actions by name. Histories add their own.
        notes: what happened, for the reader of a failure: seconds and text.
        violations: of invariants, found so far.
        healed_at: when all brokers are healthy, in seconds.
    """

    def __init__(self, network: FakeNetwork, rng: random.Random, codes: Sequence[ErrorCode]) -> None:
        self.notes: list[tuple[float, str]] = []
        self.violations: list[str] = []
        self.healed_at = float("inf")
        self.kinds: dict[str, Callable[[], str]] = {
            "elect": self._elect,
            "no_leader": self._no_leader,
            "hang": self._hang,
            "hang_metadata": self._hang_metadata,
            "crash": self._crash,
            "disconnect": self._disconnect,
            "stale": self._stale,
            "codes": self._codes,
            "throttle": self._throttle,
            "slow": self._slow,
            "move_address": self._move_address,
        }
        self._network = network
        self._rng = rng
        self._error_codes = codes
        self._unwell_until: dict[int, float] = {}

    def start(self, kinds: Sequence[str], mean_gap_s: float, seconds: float) -> None:
        """Strike with these kinds, at random times, for so many seconds."""
        clock = self._network.clock
        self.healed_at = clock.now + seconds

        def strike() -> None:
            if clock.now < self.healed_at:
                name = self._rng.choice(kinds)
                self.note(f"{name} {self.kinds[name]()}")
                clock.at(self._rng.expovariate(1 / mean_gap_s), strike)

        clock.at(self._rng.expovariate(1 / mean_gap_s), strike)
        clock.at(seconds, self._heal)

    def _heal(self) -> None:
        """End the faults that have no end of their own."""
        self.note("all brokers are healthy from now on")
        self._network.set_latencies((0.002, 0.01))
        self._network.error_codes.clear()
        self._network.throttles.clear()

    def note(self, text: str) -> None:
        self.notes.append((self._network.clock.now, text))

    def judge(self, cache: MetadataCache) -> None:
        """A cache must not hear of timeouts at a healthy broker."""
        request_update = cache.request_update

        def judged(reason: RefreshReason, generation: int, *args: Any, **kwargs: Any) -> None:
            node_id = kwargs.get("node_id")
            self.note(f"refresh requested: {reason}, broker {node_id}")
            if reason is RefreshReason.REQUEST_TIMEOUT and node_id is not None and not self.was_unwell(node_id):
                self.violations.append(f"{self._network.clock.now:.3f}: {reason} of the healthy broker {node_id}")
            request_update(reason, generation, *args, **kwargs)

        cache.request_update = judged  # type: ignore[method-assign]

    def was_unwell(self, node_id: int) -> bool:
        """Whether the broker failed in the last `UNWELL_S`."""
        is_unwell = node_id in self._network.down | self._network.hung | self._network.hung_metadata
        return is_unwell or self._network.clock.now - UNWELL_S <= self._unwell_until.get(node_id, 0.0)

    def node(self) -> int:
        return self._rng.choice(list(self._network.cluster.brokers))

    def partitions(self) -> list[TopicPartition]:
        topics = self._network.cluster.topics.values()
        return [TopicPartition(topic.name, member.partition) for topic in topics for member in topic.partitions]

    def partition(self) -> TopicPartition:
        return self._rng.choice(self.partitions())

    def for_a_while(self, choices: Sequence[float], end: Callable[[], object]) -> str:
        """Call `end` after one of these times, in seconds, or once all brokers are healthy."""
        seconds = round(min(self._rng.choice(choices), self.healed_at - self._network.clock.now), 3)
        self._network.clock.at(seconds, end)
        return f"for {seconds} s"

    def _elect(self) -> str:
        partition, node_id = self.partition(), self.node()
        self._network.cluster.move_leader(partition, node_id)
        return f"{node_id} for {partition}"

    def _no_leader(self) -> str:
        partition, cluster = self.partition(), self._network.cluster
        topic_id = cluster.topics[partition.topic].topic_id
        cluster.move_leader(partition, NO_LEADER)

        def end() -> None:
            topic = cluster.topics.get(partition.topic)
            if topic and topic.topic_id == topic_id and cluster.partition(partition).leader_id == NO_LEADER:
                cluster.move_leader(partition, self.node())

        return f"{partition} {self.for_a_while(LONG_S, end)}"

    def _leave_out(self, nodes: set[int], choices: Sequence[float]) -> str:
        """Add a broker to `nodes` for a while."""
        node_id = self.node()
        nodes.add(node_id)

        def end() -> None:
            nodes.discard(node_id)
            self._unwell_until[node_id] = self._network.clock.now

        return f"{node_id} {self.for_a_while(choices, end)}"

    def _hang(self) -> str:
        return self._leave_out(self._network.hung, LONG_S)

    def _hang_metadata(self) -> str:
        return self._leave_out(self._network.hung_metadata, LONG_S)

    def _crash(self) -> str:
        text = self._leave_out(self._network.down, LONG_S)
        for node_id in self._network.down:
            self._network.break_connections(node_id)
        return text

    def _disconnect(self) -> str:
        node_id, handled = self.node(), self._rng.randrange(4)
        self._network.break_connections(node_id, handled)
        self._unwell_until[node_id] = self._network.clock.now
        return f"{node_id}, up to {handled} Produces handled"

    def _stale(self) -> str:
        node_id = self.node()
        self._network.cut_off(node_id)
        return f"{node_id} {self.for_a_while(SHORT_S, lambda: self._network.learn(node_id))}"

    def _codes(self) -> str:
        partition = self.partition()
        codes = self._rng.choices(self._error_codes, k=self._rng.randint(1, 3))
        self._network.error_codes[partition] = deque(map(int, codes))
        return f"{partition} {[code.name for code in codes]}"

    def _throttle(self) -> str:
        node_id, throttle_ms = self.node(), self._rng.choice([10, 50, 1000])
        self._network.throttles[node_id] = deque([throttle_ms])
        return f"{node_id} {throttle_ms} ms"

    def _slow(self) -> str:
        seconds = self._rng.choice([(0.002,), (0.01, 0.05), (0.05, 0.3)])
        self._network.set_latencies(seconds)
        return f"{seconds} s"

    def _move_address(self) -> str:
        node_id = self.node()
        if node_id not in BOOTSTRAP_IDS:
            host = f"broker-{node_id}-{self._rng.randrange(100)}"
            self._network.cluster.brokers[node_id] = Broker(node_id, Address(host, 9092))
            self._unwell_until[node_id] = self._network.clock.now
        return str(self._network.cluster.brokers[node_id])
