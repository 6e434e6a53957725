"""`MetadataCache`: one client's knowledge of the cluster, refreshed by one request at a time, each of them an event.

What it knows and has to ask is in `state`; here are the requests. A request is sent without waiting for its answer, so
that a broker that hangs delays nobody who knows enough. Follows Kafka's `Metadata`, and rskafka's `MetadataCache` for
the generation that a request to refresh must name.
"""

from __future__ import annotations

import logging
import math
import random
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from pyspark_kafka_meta.errors import ConnectError, KafkaMetaError, ProtocolError, RequestTimeoutError
from pyspark_kafka_meta.metadata.cache_state import CacheState
from pyspark_kafka_meta.metadata.event_recorder import Attempt
from pyspark_kafka_meta.metadata.refresh_events import Outcome, RefreshCause, RefreshEvent
from pyspark_kafka_meta.metadata.refresh_policy import PolicySettings, attempt_timeout_ms
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

RETRIABLE_ERRORS = (ConnectError, ProtocolError, RequestTimeoutError)
"""Another broker, or the same one later, may answer."""


class MetadataWire(Protocol):
    """The part of `wire.messages.Wire` that a cache needs."""

    def send_metadata(self, address: Address, topics: Collection[str] | None, deadline: float) -> None:
        """Ask the broker at `address`; see `Wire.send_metadata`."""

    def receive_metadata(self, deadline: float) -> MetadataResponse | None:
        """See `Wire.receive_metadata`."""


class MetadataCache:
    """Who leads which partition. Not thread-safe.

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
        self.cache_id = uuid.uuid4().hex
        self._wire = wire
        self._request_timeout_ms = request_timeout_ms
        self._publish_event = publish
        self._clock = clock
        self._sleep = sleep
        self._attempt: Attempt | None = None  # under way
        self._state = CacheState(self.cache_id, bootstrap, settings, rng or random.Random(), wall_clock)
        self._publish(self._state.recorder.born(self.snapshot, self._clock()))

    @property
    def snapshot(self) -> MetadataSnapshot:
        """What is known now; costs nothing."""
        return self._state.snapshot

    def track(self, topics: Collection[str]) -> None:
        """Ask for these topics too from now on. A new one makes a refresh due."""
        self._state.track(topics, self._clock())

    def leader(self, partition: TopicPartition) -> LeaderAndEpoch | None:
        """The broker to fetch from; None if no leader is known. Never a request."""
        return self._state.leader(partition, self._clock())

    def count_fetch(self, node_id: int, response_bytes: int, throttle_ms: int) -> None:
        """A broker answered a Fetch, and throttled the client for so long (KIP-219): the next event reports it."""
        self._state.recorder.count_fetch(node_id, response_bytes, throttle_ms)

    def count_retry(self) -> None:
        """A request failed, or a partition in its answer had an error that may pass."""
        self._state.recorder.count_retry()

    def report_failure(self, error: KafkaMetaError, generation: int, node_id: int) -> None:
        """A request to `node_id` failed without an answer: the broker may be gone, so its leaders may have moved.
        `generation` as in `request_update`."""
        self.count_retry()
        timed_out = isinstance(error, RequestTimeoutError)
        reason = RefreshReason.REQUEST_TIMEOUT if timed_out else RefreshReason.CONNECTION_LOST
        self.request_update(reason, generation, node_id=node_id)

    def close(self) -> None:
        """Report that the cache has ended. It is not used any more."""
        now, attempt = self._clock(), self._attempt
        if attempt is not None:
            error = RequestTimeoutError(f"{attempt.address} had not answered when the cache was closed")
            self._publish(self._state.recorder.failed(attempt, self.snapshot, now, error))
        self._publish(self._state.recorder.closed(self.snapshot, now))

    def record_loss(self, partition: TopicPartition, from_offset: int, until_offset: int | None, cause: str) -> None:
        """Records were skipped for good.

        Args:
            from_offset: first of them.
            until_offset: where reading goes on, exclusive; None if that is not known.
            cause: how they were lost, in words.
        """
        event = self._state.recorder.lost(partition, from_offset, until_offset, cause, self.snapshot, self._clock())
        self._publish(event)

    def request_update(
        self,
        reason: RefreshReason,
        generation: int,
        partition: TopicPartition | None = None,
        error_code: int = 0,
        node_id: int | None = None,
    ) -> None:
        """Make a refresh due, unless a newer answer has come since: that is to be looked at first.

        Args:
            generation: of the snapshot that was used when the trouble arose.
            node_id: the broker that it came from.
        """
        cause = RefreshCause(reason, error_code, partition, node_id)
        self._state.request_update(cause, generation, self._clock())

    @property
    def is_asking(self) -> bool:
        """Whether a Metadata request is under way."""
        return self._attempt is not None

    def time_to_next_update_ms(self) -> float:
        """0 if a refresh is due now; infinite while one is under way."""
        return math.inf if self.is_asking else self._state.time_to_next_update_ms(self._clock())

    def refresh_if_due(self, deadline: float, until: float | None = None) -> bool:
        """Send one Metadata request if a refresh is due, and wait for its answer, or for that of the request under way;
        never sleeps. That a broker does not answer is an event. The refresh stays due then, at another broker at once,
        after a pause when all have been asked.

        Args:
            deadline: of the request that is sent.
            until: end of the wait, `deadline` by default; now, to take only an answer that has come already. A request
                without an answer stays under way.

        Returns:
            Whether a good answer came.

        Raises:
            KafkaMetaError: what no other broker and no later time heals, such as UnsupportedBrokerError.
        """
        if self.time_to_next_update_ms() == 0 and self._clock() < deadline:
            self._attempt = self._send(deadline)
        return self._attempt is not None and self._receive(self._attempt, deadline if until is None else until)

    def refresh(self, reason: RefreshReason, deadline: float) -> MetadataSnapshot:
        """Ask until a good answer comes: at once, then one broker after the other, with pauses. The answer to a request
        under way is waited for, but will not do: it may be older than the reason.

        Raises:
            ConnectError: none came by `deadline`, or sooner as `CacheState.gives_up_at` says; the text says what each
            address did.
            KafkaMetaError: as `refresh_if_due`.
        """
        began = self._clock()
        if self._attempt is not None:
            self._receive(self._attempt, deadline)
        generation = self.snapshot.generation
        self._state.request_update(RefreshCause(reason), generation, self._clock(), at_once=True)
        while self.snapshot.generation == generation:
            pause_s = self.time_to_next_update_ms() / 1000
            if self._clock() + pause_s >= self._state.gives_up_at(reason, began, deadline):
                raise ConnectError(self._state.unreachable_text())
            self._sleep(pause_s)
            self.refresh_if_due(deadline)
        return self.snapshot

    def take_hint(
        self,
        partition: TopicPartition,
        hint: LeaderHint,
        generation: int,
        error_code: int = 0,
        node_id: int | None = None,
    ) -> bool:
        """Use the leader that a broker named along with an error (KIP-951), and have it confirmed by a refresh.

        Args:
            generation: of the snapshot that was used for the request that got the error.
            error_code: that error.
            node_id: the broker that it came from.

        Returns:
            Whether it was taken. It is not if its epoch is not newer than any seen, its broker is not known, or an
            answer has come since, which may even be about another topic of that name.
        """
        cause = RefreshCause(RefreshReason.LEADER_HINT, error_code, partition, node_id)
        event = self._state.take_hint(cause, partition, hint, generation, self._clock())
        if event is None:
            return False
        self._publish(event)
        return True

    def _send(self, deadline: float) -> Attempt:
        attempt = self._state.begin(self._clock())
        timeout_ms = attempt_timeout_ms(attempt.slow_before, self._request_timeout_ms)
        self._wire.send_metadata(attempt.address, attempt.topics, min(deadline, attempt.began + timeout_ms / 1000))
        return attempt

    def _receive(self, attempt: Attempt, until: float) -> bool:
        """Whether a good answer came to the attempt under way."""
        self._attempt = None  # also if it ends with an unexpected exception
        try:
            answer = self._wire.receive_metadata(until)
        except KafkaMetaError as error:
            is_asked_again = isinstance(error, RETRIABLE_ERRORS)
            self._publish(self._state.failed(attempt, error, self._clock(), is_asked_again))
            if not is_asked_again:
                raise
            return False
        if answer is None:
            self._attempt = attempt
            return False
        event = self._state.answered(attempt, answer, self._clock())
        self._publish(event)
        return event.outcome is not Outcome.FAILED

    def _publish(self, event: RefreshEvent) -> None:
        try:
            self._publish_event(event)
        except Exception:
            logger.warning("refresh event %d was not published", event.sequence, exc_info=True)
