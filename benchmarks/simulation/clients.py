"""The simulated clients: a metadata cache with the product's policy in it, and its variants.

`CacheModel` calls `RefreshPolicy` and `BrokerChoice` where `MetadataCache` does, and leaves requests and leader
epochs to the event loop: to merge ten thousand partitions into a `MetadataSnapshot` a million times takes hours.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pyspark_kafka_meta.kafka.metadata.refresh_policy import BrokerChoice, RefreshCause, RefreshPolicy
from pyspark_kafka_meta.kafka.metadata.snapshot import LeaderChange, SnapshotChanges
from pyspark_kafka_meta.model import Address, RefreshReason, TopicPartition
from pyspark_kafka_meta.options import PLAINTEXT, ClientOptions, default_options

NOTHING = SnapshotChanges()
OTHERS_CHANGED = SnapshotChanges(brokers_added=(0,))
"""Stands for any change that is not of a partition which the cache has trouble with."""
TOPIC = "t"
"""Policies look at partitions, never at the names of topics."""


class NoJitter(random.Random):
    """Draws the upper end of every range."""

    def uniform(self, a: float, b: float) -> float:
        return b


class LockstepPolicy(RefreshPolicy):
    """Refreshes when max age is over to the millisecond, as Kafka's own clients do."""

    def succeeded(self, now: float, changes: SnapshotChanges) -> None:
        super().succeeded(now, changes)
        self._expires = now + self._options.metadata_max_age_ms / 1000


class FirstBrokerChoice(BrokerChoice):
    """Stays with whoever responded to the bootstrap request."""

    def succeeded(self, address: Address) -> None:
        super().succeeded(address)
        self._last_good = address


@dataclass(frozen=True, slots=True)
class Variant:
    """A kind of client. The defaults are the product's.

    Attributes:
        hints: takes the leader that a broker names along with an error (KIP-951).
        backoff: exponential and with jitter (KIP-580); else always `retry_backoff_ms`.
        topics: those it asks for: of the tasks so far, of the query, or all of the cluster.
        spread_max_age: max age has jitter.
        keep_first_broker: whoever responded to the bootstrap request is asked again.
    """

    name: str
    hints: bool = True
    backoff: bool = True
    topics: Literal["task", "query", "cluster"] = "query"
    spread_max_age: bool = True
    keep_first_broker: bool = False

    def policy(self, rng: random.Random) -> RefreshPolicy:
        options = default_options(ClientOptions, security=PLAINTEXT)
        if not self.backoff:
            options, rng = replace(options, retry_backoff_max_ms=options.retry_backoff_ms), NoJitter()
        return (RefreshPolicy if self.spread_max_age else LockstepPolicy)(options, rng)

    def choice(self, bootstrap: Sequence[Address], rng: random.Random) -> BrokerChoice:
        return (FirstBrokerChoice if self.keep_first_broker else BrokerChoice)(bootstrap, rng)


KAFKAMETA = Variant("kafkameta")
TASK_TOPICS = Variant("topics of its tasks so far", topics="task")
LOCKSTEP = Variant("max age without jitter", spread_max_age=False)
FIRST_BROKER = Variant("and stays with its first broker", spread_max_age=False, keep_first_broker=True)
NO_HINTS = Variant("no leader hints", hints=False)
FIXED_BACKOFF = Variant("fixed backoff, no jitter", backoff=False)
PLAIN = Variant("neither, and all topics of the cluster", hints=False, backoff=False, topics="cluster")


class CacheModel:
    """One worker's metadata cache.

    Attributes:
        topics: number of topics asked for.
        waiting: partitions that are fetched again after the next good response.
        reported: partitions with trouble that may not have ended.
        attempts: number of requests begun.
        generation: number of good responses.
        asked: address of the request under way, None if there is none.
        wakes_at: when to look whether a refresh is due.
        version, members_version: newest state of the cluster that a response told.
    """

    def __init__(self, variant: Variant, bootstrap: Sequence[Address], topics: int, seed: int) -> None:
        rng = random.Random(seed)
        self._policy = variant.policy(rng)
        self._choice = variant.choice(bootstrap, rng)
        self._asked_topics = 0
        self._hinted_meanwhile = False
        self.topics = topics
        self.waiting: set[int] = set()
        self.reported: set[int] = set()
        self.attempts = self.generation = 0
        self.asked: Address | None = None
        self.wakes_at = float("inf")
        self.version = self.members_version = -1

    def due_at(self, now: float) -> float:
        return now + self._policy.time_to_next_update_ms(now) / 1000

    def track(self, topics: int, now: float) -> None:
        """So many new ones."""
        self.topics += topics
        self._policy.request_update(RefreshCause(RefreshReason.NEW_TOPIC), now)

    def report(self, reason: RefreshReason, partition: int, suspect: Address | None, now: float) -> None:
        """Trouble with the leader of `partition`; a `suspect` cannot be reached."""
        lost = suspect is not None
        cause = RefreshCause(reason, partition=None if lost else TopicPartition(TOPIC, partition))
        self._policy.request_update(cause, now)
        self.reported.add(partition)
        self.waiting.add(partition)
        if suspect is not None:
            self._choice.avoid(suspect)

    def take_hint(self, partition: int, now: float) -> None:
        cause = RefreshCause(RefreshReason.LEADER_HINT, partition=TopicPartition(TOPIC, partition))
        self._policy.request_update(cause, now)
        self._policy.resolve_problem(now, led([partition]), by_hint=True)
        self._hinted_meanwhile = True

    def begin(self, brokers: Sequence[Address], now: float) -> Address:
        """Whom to ask now."""
        slow_before, (cause, _) = self._policy.slow_attempts, self._policy.begin(now)
        if cause.reason is RefreshReason.MAX_AGE:
            self._choice.turn()
        self.asked = self._choice.next(brokers, slow_before)
        self.attempts += 1
        self._asked_topics, self._hinted_meanwhile = self.topics, False
        return self.asked

    def refused(self, brokers: Sequence[Address], now: float) -> None:
        """The broker asked cannot be reached."""
        assert self.asked is not None
        self._policy.failed(now, self._choice.failed(self.asked, brokers))
        self.asked = None

    def on_response(self, newer: set[int], anything: bool, now: float) -> set[int]:
        """Returns the partitions that may be fetched again.

        Args:
            newer: partitions with a newer leader, among those in `reported`.
            anything: whether the response changed anything at all.
        """
        assert self.asked is not None
        self.generation += 1
        changes = led(sorted(newer)) if newer else OTHERS_CHANGED if anything else NOTHING
        self._choice.succeeded(self.asked)
        self._policy.succeeded(now, changes)
        self._policy.resolve_problem(now, changes)
        if self._policy.has_problem:
            self._choice.avoid(self.asked)
        else:
            self.reported.clear()
        if self.topics != self._asked_topics:
            self._policy.request_update(RefreshCause(RefreshReason.NEW_TOPIC), now)
        elif self._hinted_meanwhile:
            self._policy.request_update(RefreshCause(RefreshReason.LEADER_HINT), now)
        ready, self.waiting, self.asked = self.waiting, set(), None
        return ready


def led(partitions: Sequence[int]) -> SnapshotChanges:
    """The changes of a response or hint that names new leaders for these."""
    return SnapshotChanges(leaders_changed=tuple(LeaderChange(TOPIC, one, 0, 1, 0, 1) for one in partitions))
