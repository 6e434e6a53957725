"""`MetadataCache`: one client's knowledge of the cluster, refreshed by one request at a time, each of them an event.

Follows Kafka's `Metadata` for the rules, which are in `snapshot` and `policy`, and rskafka's `MetadataCache` for the
generation that a request to refresh must name.
"""

from __future__ import annotations

import logging
import random
import threading
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Protocol

from pyspark_kafka_meta.errors import ConnectError, KafkaMetaError, ProtocolError, RequestTimeoutError
from pyspark_kafka_meta.metadata.events import RefreshCause, RefreshEvent, RefreshReason
from pyspark_kafka_meta.metadata.model import Address, Broker, LeaderAndEpoch, MetadataAnswer, TopicPartition
from pyspark_kafka_meta.metadata.policy import BrokerChoice, PolicySettings, RefreshPolicy, attempt_timeout_ms
from pyspark_kafka_meta.metadata.recorder import Attempt, EventRecorder
from pyspark_kafka_meta.metadata.snapshot import MetadataSnapshot

logger = logging.getLogger(__name__)

RETRIABLE_ERRORS = (ConnectError, ProtocolError, RequestTimeoutError)
"""Another broker, or the same one later, may answer."""
REBOOTSTRAP_REQUIRED = 129
"""Error code of a whole Metadata answer: what the client knows of the cluster is of no use any more (KIP-1102)."""
MAX_IDLE_S = 300.0
"""This long brokers are asked for a topic that is gone and that nobody wants (Kafka's metadata.max.idle.ms)."""
UNREACHABLE_REASONS = frozenset({RefreshReason.CONNECTION_LOST, RefreshReason.REQUEST_TIMEOUT})


class MetadataWire(Protocol):
    """The part of `wire.messages.Wire` that a cache needs."""

    def metadata(self, address: Address, topics: Collection[str] | None, deadline: float) -> MetadataAnswer:
        """Ask the broker at `address`; see `Wire.metadata`."""


class MetadataCache:
    """Who leads which partition. May be used by several threads, which share one request at a time.

    Attributes:
        cache_id: random; in all of its events.
    """

    def __init__(
        self,
        wire: MetadataWire,
        bootstrap: Sequence[Address],
        settings: PolicySettings,
        *,
        request_timeout_ms: int,
        publish: Callable[[RefreshEvent], None],
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        rng: random.Random | None = None,
    ) -> None:
        """
        Args:
            bootstrap: asked in random order until a broker is known; at least one.
            request_timeout_ms: bound of one attempt, so that one hung broker does not use up a whole deadline.
            publish: gets every event; whatever it raises is logged and changes nothing.
            clock: seconds that never go back; deadlines are of this clock.
            wall_clock: seconds since 1970 UTC.
        """
        rng = rng or random.Random()
        self.cache_id = uuid.uuid4().hex
        self._wire = wire
        self._request_timeout_ms = request_timeout_ms
        self._publish_event = publish
        self._clock = clock
        self._sleep = sleep
        self._asking = threading.Lock()  # held during a request, and taken before the other
        self._lock = threading.Lock()  # guards everything below, never held during I/O
        self._snapshot = MetadataSnapshot()
        self._policy = RefreshPolicy(settings, rng)
        self._choice = BrokerChoice(bootstrap, rng)
        self._recorder = EventRecorder(self.cache_id, wall_clock)
        self._topics: dict[str, float] = {}  # when each was last wanted
        self._failures: dict[Address, KafkaMetaError] = {}  # since the last good answer
        self._publish(self._recorder.born(self._snapshot, self._clock()))

    @property
    def snapshot(self) -> MetadataSnapshot:
        """What is known now; costs nothing."""
        return self._snapshot

    def track(self, topics: Collection[str]) -> None:
        """Ask for these topics too from now on. A new one makes a refresh due."""
        with self._lock:
            now = self._clock()
            if not self._topics.keys() >= set(topics):
                self._policy.request_update(RefreshCause(RefreshReason.NEW_TOPIC), now)
            self._topics.update(dict.fromkeys(topics, now))

    def leader(self, partition: TopicPartition) -> LeaderAndEpoch | None:
        """Whom to fetch from; None if nobody is known to lead. Never a request."""
        with self._lock:
            self._topics[partition.topic] = self._clock()
            self._recorder.count_lookup(self._topics[partition.topic])
        return self._snapshot.leader(partition)

    def count_throttle(self, throttle_ms: int) -> None:
        """A broker asked a Fetch for patience (KIP-219): the next event tells how much there was."""
        with self._lock:
            self._recorder.count_throttle(throttle_ms)

    def count_fetch(self, node_id: int, response_bytes: int) -> None:
        """A broker answered a Fetch."""
        with self._lock:
            self._recorder.count_fetch(node_id, response_bytes)

    def count_retry(self) -> None:
        """A request failed, or a partition in its answer had an error that may pass."""
        with self._lock:
            self._recorder.count_retry()

    def close(self) -> None:
        """Say that the cache has ended. It is not used any more."""
        with self._lock:
            event = self._recorder.closed(self._snapshot, self._clock())
        self._publish(event)

    def record_loss(self, partition: TopicPartition, from_offset: int, until_offset: int | None, cause: str) -> None:
        """Records were skipped for good.

        Args:
            from_offset: first of them.
            until_offset: where reading goes on, exclusive; None if that is not known.
            cause: how they were lost, in words.
        """
        with self._lock:
            now = self._clock()
            event = self._recorder.lost(partition, from_offset, until_offset, cause, self._snapshot, now)
        self._publish(event)

    def request_update(
        self,
        reason: RefreshReason,
        generation: int,
        partition: TopicPartition | None = None,
        error_code: int = 0,
        node_id: int | None = None,
    ) -> bool:
        """Make a refresh due.

        Args:
            generation: of the snapshot that was used when the trouble arose.
            node_id: the broker that it came from.

        Returns:
            False if a newer answer has come since: look at that first, nothing was done.
        """
        with self._lock:
            if generation < self._snapshot.generation:
                return False
            self._policy.request_update(RefreshCause(reason, error_code, partition, node_id), self._clock())
            suspect = self._snapshot.brokers.get(node_id) if node_id is not None else None
            if suspect is not None and reason in UNREACHABLE_REASONS:
                self._choice.avoid(suspect.address)
            if reason is RefreshReason.ON_DEMAND:
                self._choice.avoid_last()  # who doubts an answer wants another broker's word
            return True

    def time_to_next_update_ms(self) -> float:
        """0 if a refresh is due now."""
        with self._lock:
            return self._policy.time_to_next_update_ms(self._clock())

    def refresh_if_due(self, deadline: float) -> bool:
        """Send one Metadata request if a refresh is due; never sleeps. That a broker does not answer is an event. The
        refresh stays due then, at another broker at once, after a pause when all have been asked.

        Returns:
            Whether a good answer came. Who waited for another thread's request sends none, unless that failed.

        Raises:
            KafkaMetaError: what no other broker and no later time heals, such as UnsupportedBrokerError.
        """
        patience_s = deadline - self._clock()
        if patience_s <= 0 or self.time_to_next_update_ms() > 0 or not self._asking.acquire(timeout=patience_s):
            return False
        try:
            return self.time_to_next_update_ms() == 0 and self._ask(deadline)
        finally:
            self._asking.release()

    def refresh(self, reason: RefreshReason, deadline: float) -> MetadataSnapshot:
        """Ask until a good answer comes, one broker after the other, with pauses. One that another thread got
        meanwhile will do.

        Raises:
            ConnectError: none came by `deadline`; the text tells what each address did.
            KafkaMetaError: as `refresh_if_due`.
        """
        generation = self._snapshot.generation
        self.request_update(reason, generation)
        while self._snapshot.generation == generation:
            pause_s = self.time_to_next_update_ms() / 1000
            if self._clock() + pause_s >= deadline:
                raise ConnectError(self._unreachable_text())
            self._sleep(pause_s)
            self.refresh_if_due(deadline)
        return self._snapshot

    def take_hint(
        self,
        partition: TopicPartition,
        leader_id: int,
        leader_epoch: int,
        broker: Broker | None,
        generation: int,
        error_code: int = 0,
        node_id: int | None = None,
    ) -> bool:
        """Use the leader that a broker named along with an error (KIP-951), and have it confirmed by a refresh.

        Args:
            broker: where the leader is, None if the answer did not say.
            generation: of the snapshot that was used for the request that got the error.
            error_code: that error.
            node_id: the broker that it came from.

        Returns:
            Whether it was taken. It is not if its epoch is not newer than any seen, its broker is not known, or an
            answer has come since, which may even be about another topic of that name.
        """
        with self._lock:
            before, now = self._snapshot, self._clock()
            hinted = before.with_leader_hint(partition, leader_id, leader_epoch, broker)
            if hinted is None or generation < before.generation:
                return False
            self._snapshot, changes = hinted
            cause = RefreshCause(RefreshReason.LEADER_HINT, error_code, partition, node_id)
            self._policy.request_update(cause, now)
            recovery_ms = self._policy.recovery_ms(now, changes) or 0.0  # the trouble may have come with its end
            event = self._recorder.hinted(cause, before, self._snapshot, now, changes, recovery_ms)
        self._publish(event)
        return True

    def _ask(self, deadline: float) -> bool:
        """One attempt. The caller holds `_asking`."""
        attempt = self._begin()
        timeout_ms = attempt_timeout_ms(attempt.number, self._request_timeout_ms)
        attempt_deadline = min(deadline, attempt.began + timeout_ms / 1000)
        try:
            answer = self._wire.metadata(attempt.address, attempt.topics, attempt_deadline)
            if answer.error_code != 0:
                raise self._refused(attempt.address, answer.error_code)
            if not answer.brokers:
                raise ProtocolError(f"{attempt.address} knows no brokers: it is starting up")
        except KafkaMetaError as error:
            self._publish(self._fail(attempt, error))
            if not isinstance(error, RETRIABLE_ERRORS):
                raise
            return False
        self._publish(self._merge(attempt, answer))
        return True

    def _begin(self) -> Attempt:
        with self._lock:
            now, brokers = self._clock(), self._addresses()
            # A query over topics of a day would else ask for all that ever were.
            gone = self._snapshot.topic_errors.keys() - self._snapshot.topics.keys()
            self._topics = {
                topic: wanted_at
                for topic, wanted_at in self._topics.items()
                if topic not in gone or now < wanted_at + MAX_IDLE_S
            }
            cause, number = self._policy.begin(now)
            address = self._choice.next(brokers)
            if brokers and (self._choice.is_rebootstrapping or address not in brokers):
                cause = replace(cause, reason=RefreshReason.REBOOTSTRAP)
            return Attempt(cause, number, self._snapshot, frozenset(self._topics), address, now)

    def _fail(self, attempt: Attempt, error: KafkaMetaError) -> RefreshEvent:
        with self._lock:
            now = self._clock()
            self._failures[attempt.address] = error
            self._policy.failed(now, self._choice.failed(attempt.address, self._addresses()))
            return self._recorder.failed(attempt, self._snapshot, now, error)

    def _refused(self, address: Address, code: int) -> KafkaMetaError:
        if code == REBOOTSTRAP_REQUIRED:
            with self._lock:
                self._choice.rebootstrap()
            return ProtocolError(f"{address} wants clients to begin anew with the bootstrap addresses (error {code})")
        return ProtocolError(f"{address} refused a Metadata request with error {code}")

    def _merge(self, attempt: Attempt, answer: MetadataAnswer) -> RefreshEvent:
        with self._lock:
            now, hinted_meanwhile = self._clock(), self._snapshot is not attempt.before
            asked = (broker.node_id for broker in answer.brokers if broker.address == attempt.address)
            self._snapshot, changes = self._snapshot.merge(answer, now, next(asked, None))
            self._failures.clear()
            self._choice.answered(attempt.address)
            self._policy.succeeded(now, changes)
            recovery_ms = self._policy.recovery_ms(now, changes)
            if self._policy.in_trouble:
                self._choice.avoid(attempt.address)  # it may be cut off from the cluster, and never learn better
            if self._topics.keys() != attempt.topics:
                self._policy.request_update(RefreshCause(RefreshReason.NEW_TOPIC), now)
            elif hinted_meanwhile:
                self._policy.request_update(RefreshCause(RefreshReason.LEADER_HINT), now)
            return self._recorder.answered(attempt, self._snapshot, now, answer, changes, recovery_ms)

    def _publish(self, event: RefreshEvent) -> None:
        try:
            self._publish_event(event)
        except Exception:
            logger.warning("refresh event %d was not published", event.sequence, exc_info=True)

    def _addresses(self) -> list[Address]:
        return [broker.address for broker in self._snapshot.brokers.values()]

    def _unreachable_text(self) -> str:
        with self._lock:
            failures = [(str(address), str(error)) for address, error in self._failures.items()]
        tried = "; ".join(text if address in text else f"{address}: {text}" for address, text in failures)
        return (
            f"no broker answered a Metadata request in time ({tried or 'there was no time to ask one'}): check "
            "kafka.bootstrap.servers, that the brokers are up, and that this host can reach them"
        )
