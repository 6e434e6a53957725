"""`CacheState`: all that a metadata cache knows and has to ask, without a lock, a clock or a socket.

What an answer changes is in `snapshot`, when to ask and which broker in `policy`, what is reported in `recorder`; this
puts them together. Follows Kafka's `Metadata`.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from pyspark_kafka_meta.errors import KafkaMetaError, ProtocolError, UnknownHostError
from pyspark_kafka_meta.kafka_errors import REBOOTSTRAP_REQUIRED
from pyspark_kafka_meta.metadata.event_recorder import Attempt, EventRecorder
from pyspark_kafka_meta.metadata.refresh_events import RefreshCause, RefreshEvent
from pyspark_kafka_meta.metadata.refresh_policy import BrokerChoice, PolicySettings, RefreshPolicy
from pyspark_kafka_meta.metadata.snapshot import MetadataSnapshot
from pyspark_kafka_meta.model import (
    Address,
    LeaderAndEpoch,
    LeaderHint,
    MetadataResponse,
    RefreshReason,
    TopicPartition,
)

logger = logging.getLogger(__name__)

MAX_IDLE_S = 300.0
"""How long brokers are asked for a topic that is gone and no longer wanted (Kafka's metadata.max.idle.ms)."""
UNKNOWN_HOST_GRACE_S = 3.0
UNREACHABLE_REASONS = frozenset({RefreshReason.CONNECTION_LOST, RefreshReason.REQUEST_TIMEOUT})


class CacheState:
    """The state of one cache. `now` is in seconds of its clock.

    Attributes:
        snapshot: what is known.
        recorder: makes the events.
    """

    def __init__(
        self,
        cache_id: str,
        bootstrap: Sequence[Address],
        settings: PolicySettings,
        rng: random.Random,
        wall_clock: Callable[[], float],
    ) -> None:
        self.snapshot = MetadataSnapshot()
        self.recorder = EventRecorder(cache_id, wall_clock)
        self._bootstrap = bootstrap
        self._policy = RefreshPolicy(settings, rng)
        self._choice = BrokerChoice(bootstrap, rng)
        self._topics: dict[str, float] = {}  # when each was last wanted
        self._failures: dict[Address, KafkaMetaError] = {}  # since the last good answer
        self._warned = False  # of those

    def track(self, topics: Collection[str], now: float) -> None:
        if not self._topics.keys() >= set(topics):
            self._policy.request_update(RefreshCause(RefreshReason.NEW_TOPIC), now)
        self._topics.update(dict.fromkeys(topics, now))

    def leader(self, partition: TopicPartition, now: float) -> LeaderAndEpoch | None:
        self._topics[partition.topic] = now
        self.recorder.count_lookup(now)
        return self.snapshot.leader(partition)

    def request_update(self, cause: RefreshCause, generation: int, now: float, at_once: bool = False) -> None:
        if generation < self.snapshot.generation:
            return
        self._policy.request_update(cause, now, at_once)
        suspect = None if cause.node_id is None else self.snapshot.brokers.get(cause.node_id)
        if suspect is not None and cause.reason in UNREACHABLE_REASONS:
            self._choice.avoid(suspect.address)
        if cause.reason is RefreshReason.ON_DEMAND:
            self._choice.avoid_last()  # a doubtful answer has to be checked with another broker

    def time_to_next_update_ms(self, now: float) -> float:
        return self._policy.time_to_next_update_ms(now)

    def begin(self, now: float) -> Attempt:
        """A refresh starts; `answered` or `failed` must follow."""
        brokers = self._addresses()
        # Otherwise a query over daily topics would keep asking for every topic that ever existed.
        gone = self.snapshot.topic_errors.keys() - self.snapshot.topics.keys()
        self._topics = {
            topic: wanted_at
            for topic, wanted_at in self._topics.items()
            if topic not in gone or now < wanted_at + MAX_IDLE_S
        }
        slow_before = self._policy.slow_attempts
        address = self._choice.next(brokers, slow_before)
        cause, number = self._policy.begin(now)
        if brokers and (self._choice.is_rebootstrapping or address not in brokers):
            cause = replace(cause, reason=RefreshReason.REBOOTSTRAP)
        return Attempt(cause, number, slow_before, self.snapshot, frozenset(self._topics), address, now)

    def failed(self, attempt: Attempt, error: KafkaMetaError, now: float, is_asked_again: bool = True) -> RefreshEvent:
        """No good answer came. The caller gets the error unless somebody is asked again."""
        self._failures[attempt.address] = error
        round_over = self._choice.failed(attempt.address, self._addresses())
        self._policy.failed(now, round_over)
        if round_over and is_asked_again and not self._warned:
            # It may be a minute before a query fails for this, and an hour before somebody looks.
            logger.warning(
                "no broker answers a Metadata request (%s); they are asked again and again, for "
                "kafka.default.api.timeout.ms at most, and where a task is reading for kafkaConsumer.pollTimeoutMs",
                self._tried(),
            )
            self._warned = True
        return self.recorder.failed(attempt, self.snapshot, now, error)

    def answered(self, attempt: Attempt, answer: MetadataResponse, now: float) -> RefreshEvent:
        """An answer came. It may be no good: the event says so."""
        address, code = attempt.address, answer.error_code
        if code == REBOOTSTRAP_REQUIRED:
            self._choice.rebootstrap()
            text = f"{address} wants clients to begin anew with the bootstrap addresses (error {code})"
            return self.failed(attempt, ProtocolError(text), now)
        if code != 0:
            return self.failed(attempt, ProtocolError(f"{address} refused a Metadata request with error {code}"), now)
        if not answer.brokers:
            return self.failed(attempt, ProtocolError(f"{address} knows no brokers: it is starting up"), now)
        return self._merge(attempt, answer, now)

    def take_hint(
        self,
        cause: RefreshCause,
        partition: TopicPartition,
        hint: LeaderHint,
        generation: int,
        now: float,
    ) -> RefreshEvent | None:
        """None if the hint is not taken."""
        before = self.snapshot
        hinted = before.with_leader_hint(partition, hint)
        if hinted is None or generation < before.generation:
            return None
        self.snapshot, changes = hinted
        self._policy.request_update(cause, now)
        recovery_ms = self._policy.end_trouble(now, changes, by_hint=True)
        # Trouble that is not known here has come along with the hint, its end.
        return self.recorder.hinted(cause, before, self.snapshot, now, changes, recovery_ms or 0.0)

    def gives_up_at(self, reason: RefreshReason, began: float, deadline: float) -> float:
        """When a refresh that began then for this reason ends without an answer: soon where a query begins and no name
        in the bootstrap list means anything. A task waits out what may be a resolver's bad moment."""
        failures = [self._failures.get(address) for address in self._bootstrap]
        is_mistake = reason is RefreshReason.BOOTSTRAP and all(isinstance(one, UnknownHostError) for one in failures)
        return min(began + UNKNOWN_HOST_GRACE_S, deadline) if is_mistake else deadline

    def unreachable_text(self) -> str:
        return (
            f"no broker answered a Metadata request in time ({self._tried() or 'there was no time to ask one'}): check "
            "kafka.bootstrap.servers, that the brokers are up, and that this host can reach them"
        )

    def _tried(self) -> str:
        """What each address that was asked since the last good answer did."""
        failures = [(str(address), str(error)) for address, error in self._failures.items()]
        return "; ".join(text if address in text else f"{address}: {text}" for address, text in failures)

    def _merge(self, attempt: Attempt, answer: MetadataResponse, now: float) -> RefreshEvent:
        hinted_meanwhile = self.snapshot is not attempt.before
        asked = (broker.node_id for broker in answer.brokers if broker.address == attempt.address)
        # The answer may have waited for its caller: it is as old as the request at most.
        self.snapshot, changes = self.snapshot.merge(answer, attempt.began, next(asked, None))
        self._failures.clear()
        self._warned = False
        self._choice.answered(attempt.address)
        self._policy.succeeded(now, changes)
        recovery_ms = self._policy.end_trouble(now, changes)
        if self._policy.in_trouble or answer.throttle_ms > 0:
            # It may be cut off from the cluster, and never learn better, or is busy.
            self._choice.avoid(attempt.address)
        if self._topics.keys() != attempt.topics:
            self._policy.request_update(RefreshCause(RefreshReason.NEW_TOPIC), now)
        elif hinted_meanwhile:
            self._policy.request_update(RefreshCause(RefreshReason.LEADER_HINT), now)
        return self.recorder.answered(attempt, self.snapshot, now, answer, changes, recovery_ms)

    def _addresses(self) -> list[Address]:
        return [broker.address for broker in self.snapshot.brokers.values()]
