"""What a partition wants after a response, when its next request may be sent, and to which broker.

Since KIP-219 a client sends no request to a broker that throttles it until the time is up. The choice of replicas
(KIP-392) follows Kafka's `SubscriptionState.preferredReadReplica`, but the leader gets no rack after an error at a
follower: it would name the same follower again, without records, until it notices the error itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark_kafka_meta.errors import KafkaMetaError
from pyspark_kafka_meta.model import Broker, LeaderAndEpoch, RefreshReason, TopicPartition

MAX_THROTTLE_MS = 60_000
"""Upper bound. Quotas are measured over some ten seconds; a longer throttle is no quota."""


class Throttles:
    """Until when each broker throttles the client. `now` is in seconds, of any clock that never goes back."""

    def __init__(self) -> None:
        self._until: dict[int, float] = {}

    def throttle(self, node_id: int, throttle_ms: int, now: float) -> None:
        self._until[node_id] = max(self.until(node_id), now + min(throttle_ms, MAX_THROTTLE_MS) / 1000)

    def until(self, node_id: int) -> float:
        """When a request to the broker may be sent; in the past if it may be now."""
        return self._until.get(node_id, float("-inf"))

    def latest(self) -> float:
        """When the last broker stops throttling: until then, missing progress is no stall."""
        return max(self._until.values(), default=float("-inf"))


UNKNOWN_GRACE_MS = 3_000
"""How long an unknown topic or partition is requested again: not every broker knows a new topic yet."""


@dataclass(frozen=True, slots=True)
class Refresh:
    """The cached leader is wrong: refresh metadata for this reason, then send the request again."""

    reason: RefreshReason
    error_code: int


@dataclass(frozen=True, slots=True)
class BackOff:
    """Send the request again after a backoff."""


@dataclass(frozen=True, slots=True)
class Fail:
    """The error is not retriable: the task fails."""

    error: KafkaMetaError


class RetryPause:
    """After an error a partition waits for newer metadata, or for a backoff. `now` is in seconds of the caller's clock.

    Attributes:
        not_before: earliest time of the next request.
    """

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.not_before = 0.0
        self._stale_generation = -1
        self._failures = 0  # backoffs since the last success

    def is_ready(self, generation: int, now: float) -> bool:
        """Whether a request may be sent, to the leader in the metadata of this `generation`."""
        return generation > self._stale_generation and now >= self.not_before

    def wait_for_metadata_after(self, generation: int) -> None:
        """Send no request before metadata is newer than `generation`. The caller requests it: if nobody did, the wait
        would end at the maximum age."""
        self._stale_generation = generation

    def wait_until(self, time_s: float) -> None:
        self.not_before = time_s

    def back_off(self, now: float, backoff_s: Callable[[int], float]) -> None:
        """Wait after an error, longer after each in a row. `backoff_s` is of a number of failures."""
        self._failures += 1
        self.not_before = now + backoff_s(self._failures)

    def succeeded(self) -> None:
        """The next backoff is the first again."""
        self._failures = 0


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
        Returns whether the leader named a replica though the request had no rack: the caller backs off."""
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
