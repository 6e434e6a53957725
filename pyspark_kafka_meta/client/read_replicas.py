"""Which replica a partition is read from: the leader, or the one it prefers for the client's rack (KIP-392).

Follows Kafka's `SubscriptionState.preferredReadReplica`. Unlike there, a leader gets no rack after trouble with
a replica: it would name the same one again, without a record, until it notices itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_kafka_meta.model import Broker, LeaderAndEpoch, TopicPartition

LEADER = -1
"""In place of a replica's id: read from the leader, whoever that is."""


@dataclass(frozen=True, slots=True)
class ReadSource:
    """Where to send the next Fetch of a partition.

    Attributes:
        leader_epoch: to send along; a follower checks it too.
        is_follower: whether it is another than the leader, whose errors are not the last word.
        sends_rack: whether the rack may be sent. The answer may then be a replica to ask, in place of records.
    """

    broker: Broker
    leader_epoch: int
    is_follower: bool
    sends_rack: bool


class ReadReplicas:
    """What leaders and replicas said of late. `now` is in seconds, of any clock that never goes back."""

    def __init__(self, max_age_ms: int) -> None:
        self._max_age_s = max_age_ms / 1000
        self._chosen: dict[TopicPartition, tuple[int, float]] = {}  # node id, and until when

    def choose(self, partition: TopicPartition, node_id: int, now: float) -> bool:
        """Read from this replica, or from the `LEADER`, until the max age of metadata has passed.

        Returns:
            Whether a leader insists on a replica that it was not asked for: to try that again needs a pause.
        """
        insists = node_id != LEADER and now < self._choice(partition)[1]
        self._chosen[partition] = (node_id, now + self._max_age_s)
        return insists

    def source(
        self, partition: TopicPartition, leader: LeaderAndEpoch, brokers: Mapping[int, Broker], now: float
    ) -> ReadSource:
        """The broker to ask. It is the leader where none was named lately, or where the replica is no known broker."""
        node_id, until = self._choice(partition)
        has_expired = now >= until
        follower = None if has_expired or node_id == leader.broker.node_id else brokers.get(node_id)
        if follower is not None:
            return ReadSource(follower, leader.leader_epoch, is_follower=True, sends_rack=True)
        return ReadSource(leader.broker, leader.leader_epoch, is_follower=False, sends_rack=has_expired)

    def _choice(self, partition: TopicPartition) -> tuple[int, float]:
        return self._chosen.get(partition, (LEADER, float("-inf")))
