"""What the buttons do, as functions of the state that return a sentence; on clusters of the demo's own alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyspark_kafka_meta.demo.demo_clusters import Embedded, Real
from pyspark_kafka_meta.demo.scenes import ask
from pyspark_kafka_meta.model import RefreshReason, TopicPartition
from pyspark_kafka_meta.monitor.cluster_state import State

Act = Callable[[State], str]


class Actions:
    """What the buttons do to one cluster.

    Attributes:
        dead: brokers that were killed, shared with the view.
        growth: what `grow` does here, for people.
    """

    def __init__(self, cluster: Embedded | Real, events: Path, dead: set[int]) -> None:
        self.dead = dead
        self.growth = "Add a topic" if isinstance(cluster, Embedded) else "Add a partition"
        self._cluster = cluster
        self._events = events

    def move(self, partition: TopicPartition) -> Act:
        def act(state: State) -> str:
            self._cluster.move_leader(partition, state.leader_of(partition))
            return f"The leader of {partition} moved away from broker {state.leader_of(partition)}."

        return act

    def kill_or_restore(self, broker_id: int) -> Act:
        def act(_: State) -> str:
            if broker_id in self.dead:
                self._cluster.revive(broker_id)
                self.dead.discard(broker_id)
                return f"Broker {broker_id} runs again."
            self._cluster.kill(broker_id)
            self.dead.add(broker_id)
            return f"Broker {broker_id} was killed."

        return act

    def grow(self, _: State) -> str:
        return f"{self._cluster.grow()} was added."

    def refresh(self, _: State) -> str:
        servers = [self._cluster.options["kafka.bootstrap.servers"]]
        ask(self._cluster, self._events, servers, [RefreshReason.ON_DEMAND])
        return "A client of this page's own refreshed its cache on demand."
