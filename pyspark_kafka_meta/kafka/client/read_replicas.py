"""`ReadReplicas`: which replica a partition is read from, the leader or its preferred read replica (KIP-392).

Follows Kafka's `SubscriptionState.preferredReadReplica`, but the leader gets no rack after an error at a follower: it
would name the same follower again, without records, until it notices the error itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_kafka_meta.model import Broker, LeaderAndEpoch, TopicPartition

LEADER = -1
"""Instead of a replica's id: read from the current leader."""
MIN_CHOICE_S = 1.0
"""A choice is kept this long whatever metadata.max.age.ms is: a choice that expires before its first Fetch would send
the rack to the leader again and again, which responds at once, without records."""


@dataclass(frozen=True, slots=True)
class ReadSource:
    """Where to send the next Fetch of a partition.

    Attributes:
        leader_epoch: in the request; a follower checks it too.
        is_follower: whether the broker is not the leader, so that its errors are not final.
        sends_rack: whether the rack may be sent. The response may then name a replica instead of records.
    """

    broker: Broker
    leader_epoch: int
    is_follower: bool
    sends_rack: bool


class ReadReplicas:
    """The preferred read replicas for one rack. `now` is in seconds, of any clock that never goes back."""

    def __init__(self, max_age_ms: int) -> None:
        self._max_age_s = max(max_age_ms / 1000, MIN_CHOICE_S)
        self._chosen: dict[TopicPartition, tuple[int, float]] = {}  # node id, and its expiry

    def choose(self, partition: TopicPartition, node_id: int, now: float) -> bool:
        """Read from this replica, or from the `LEADER`, for metadata.max.age.ms, at least for `MIN_CHOICE_S`.

        Returns:
            Whether the leader named a replica though the request had no rack: the caller backs off.
        """
        is_repeated = node_id != LEADER and now < self._choice(partition)[1]
        self._chosen[partition] = (node_id, now + self._max_age_s)
        return is_repeated

    def source(
        self, partition: TopicPartition, leader: LeaderAndEpoch, brokers: Mapping[int, Broker], now: float
    ) -> ReadSource:
        """The broker of the next Fetch: the leader unless a known replica was named recently."""
        node_id, until = self._choice(partition)
        has_expired = now >= until
        follower = None if has_expired or node_id == leader.broker.node_id else brokers.get(node_id)
        if follower is not None:
            return ReadSource(follower, leader.leader_epoch, is_follower=True, sends_rack=True)
        return ReadSource(leader.broker, leader.leader_epoch, is_follower=False, sends_rack=has_expired)

    def _choice(self, partition: TopicPartition) -> tuple[int, float]:
        return self._chosen.get(partition, (LEADER, float("-inf")))
