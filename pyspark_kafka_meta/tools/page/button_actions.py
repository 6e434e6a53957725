"""What the buttons do, on clusters of the demo's own: functions of the state that return a sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyspark_kafka_meta.model import RefreshReason, TopicPartition
from pyspark_kafka_meta.tools.demo.clusters import ChangeableCluster, EmbeddedCluster
from pyspark_kafka_meta.tools.demo.scenes import run_client
from pyspark_kafka_meta.tools.shared.cluster_state import State

Action = Callable[[State], str]


class ButtonActions:
    """What the buttons do to one cluster.

    Attributes:
        dead: killed brokers, shared with the view.
        growth: the label of the button for `grow`.
    """

    def __init__(self, cluster: ChangeableCluster, events: Path, dead: set[int]) -> None:
        self.dead = dead
        self.growth = "Add a topic" if isinstance(cluster, EmbeddedCluster) else "Add a partition"
        self._cluster = cluster
        self._events = events

    def move(self, partition: TopicPartition) -> Action:
        def act(state: State) -> str:
            self._cluster.move_leader(partition, state.leader_of(partition))
            return f"The leader of {partition} moved away from broker {state.leader_of(partition)}."

        return act

    def kill_or_restore(self, broker_id: int) -> Action:
        def act(_: State) -> str:
            if broker_id in self.dead:
                self._cluster.restore(broker_id)
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
        run_client(self._cluster, self._events, servers, [RefreshReason.ON_DEMAND])
        return "A client of this page refreshed its cache on demand."
