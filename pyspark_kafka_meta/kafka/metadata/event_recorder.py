"""`EventRecorder`: makes and publishes the refresh events of one client, and counts lookups, requests, retries and
transactions between them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark_kafka_meta.errors import KafkaMetaError
from pyspark_kafka_meta.kafka.metadata.refresh_events import (
    BrokerFetches,
    BrokerProduces,
    Details,
    EventKind,
    HintDetails,
    LookupDetails,
    LossDetails,
    MalformedDetails,
    Outcome,
    RefreshCause,
    RefreshDetails,
    RefreshEvent,
    TransactionDetails,
)
from pyspark_kafka_meta.kafka.metadata.snapshot import MetadataSnapshot, SnapshotChanges
from pyspark_kafka_meta.model import Address, MetadataResponse, RefreshReason, TopicPartition

logger = logging.getLogger(__name__)

RequestCounts = dict[int, tuple[int, int]]
"""Number of requests and their bytes, by node id."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A Metadata request in flight.

    Attributes:
        number: since the last successful refresh, from 1.
        slow_before: slow attempts among those before it.
        before: snapshot when the attempt began.
        topics: requested topics.
        began: seconds of the cache's clock.
        deadline: of the caller who sent it, seconds of the same clock; infinite in a task, which has its own.
    """

    cause: RefreshCause
    number: int
    slow_before: int
    before: MetadataSnapshot
    topics: frozenset[str]
    address: Address
    began: float
    deadline: float


class EventRecorder:
    """Makes the events of one cache, numbers and publishes them. Not thread-safe. `now` is in seconds of `clock`.

    Attributes:
        cache_id: random; in every event.
    """

    def __init__(
        self,
        cache_id: str,
        publish: Callable[[RefreshEvent], None],
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        """
        Args:
            publish: called with every event; its exceptions are logged only.
            clock: monotonic seconds, of the cache.
            wall_clock: seconds since 1970 UTC.
        """
        self.cache_id = cache_id
        self._publish = publish
        self._clock = clock
        self._wall_clock = wall_clock
        self._snapshot = MetadataSnapshot()  # after the last event
        self._sequence = 0
        self._lookups = 0
        self._last_lookup: float | None = None
        self._fetches: RequestCounts = {}
        self._fetch_throttle_ms = 0
        self._produces: RequestCounts = {}
        self._produce_throttle_ms = 0
        self._transactions_begun = 0
        self._retries = 0

    # --- counted for the next event -----------------------------------------------------------------------------------

    def count_lookup(self, now: float) -> None:
        self._lookups += 1
        self._last_lookup = now

    def count_fetch(self, node_id: int, response_bytes: int, throttle_ms: int) -> None:
        """Count a Fetch response and its throttle time (KIP-219)."""
        _count(self._fetches, node_id, response_bytes)
        self._fetch_throttle_ms += throttle_ms

    def count_produce(self, node_id: int, request_bytes: int, throttle_ms: int) -> None:
        """Count a Produce response and its throttle time (KIP-219)."""
        _count(self._produces, node_id, request_bytes)
        self._produce_throttle_ms += throttle_ms

    def count_transaction(self) -> None:
        """Count a transaction that a task began: an event for each would push the others out of their folder."""
        self._transactions_begun += 1

    def count_retry(self) -> None:
        """Count a failed request, or a retriable error of a partition in a response."""
        self._retries += 1

    # --- events -------------------------------------------------------------------------------------------------------

    def record_birth(self) -> None:
        """Publish the first event of the cache."""
        self._record(EventKind.BORN, RefreshCause(RefreshReason.BOOTSTRAP), self._clock())

    def record_close(self) -> None:
        """Publish the last event of the cache."""
        self._record(EventKind.CLOSED, RefreshCause(RefreshReason.CLOSED), self._clock())

    def record_loss(self, partition: TopicPartition, from_offset: int, until_offset: int | None, cause: str) -> None:
        """Publish an event of skipped records.

        Args:
            until_offset: exclusive; None if unknown.
            cause: text of the event.
        """
        details = LossDetails(error=cause, lost_from_offset=from_offset, lost_until_offset=until_offset)
        reason = RefreshCause(RefreshReason.DATA_LOSS, partition=partition)
        self._record(EventKind.DATA_LOSS, reason, self._clock(), details)

    def record_transactions(
        self, kind: EventKind, transactional_id: str, transactions: int, latency_ms: float, copied_records: int = 0
    ) -> None:
        """Publish an event of ended transactions.

        Args:
            kind: one of `EventKind.TRANSACTIONS_...`.
            transactional_id: of the sink; of the task, if a failed task aborts its transaction.
            transactions: their number.
            latency_ms: duration of the whole commit, abort or recovery.
            copied_records: records of decided but aborted transactions, written again.
        """
        details = TransactionDetails(
            transactional_id=transactional_id,
            transactions=transactions,
            transactions_ms=round(latency_ms, 3),
            copied_records=copied_records,
        )
        self._record(kind, RefreshCause(RefreshReason.TRANSACTION), self._clock(), details)

    def record_lookup(self, reason: RefreshReason, details: LookupDetails) -> None:
        """Publish an event of a request to the schema registry."""
        outcome = Outcome.UNCHANGED if details.error is None else Outcome.FAILED
        self._record(EventKind.SCHEMA_LOOKUP, RefreshCause(reason), self._clock(), details, outcome)

    def record_malformed(self, partition: TopicPartition, details: MalformedDetails) -> None:
        """Publish an event of malformed keys or values."""
        cause = RefreshCause(RefreshReason.MALFORMED, partition=partition)
        self._record(EventKind.MALFORMED_RECORDS, cause, self._clock(), details)

    def record_hint(
        self, cause: RefreshCause, after: MetadataSnapshot, now: float, changes: SnapshotChanges, recovery_ms: float
    ) -> None:
        """Publish the event of a leader hint that was taken. `after` is the snapshot with it."""
        before, self._snapshot = self._snapshot, after
        details = HintDetails(recovery_ms=recovery_ms, changes=changes)
        self._record(EventKind.HINT, cause, now, details, Outcome.CHANGED, before)

    def record_failure(self, attempt: Attempt, now: float, error: KafkaMetaError) -> None:
        """Publish the event of a Metadata request without a usable response."""
        self._record_refresh(attempt, Outcome.FAILED, self._details(attempt, now, error=str(error)))

    def record_response(
        self,
        attempt: Attempt,
        after: MetadataSnapshot,
        now: float,
        response: MetadataResponse,
        changes: SnapshotChanges,
        recovery_ms: float | None,
    ) -> None:
        """Publish the event of a Metadata response. `after` is the snapshot with it."""
        self._snapshot = after
        details = self._details(
            attempt,
            now,
            api_version=response.api_version,
            correlation_id=response.correlation_id,
            request_bytes=response.request_bytes,
            response_bytes=response.response_bytes,
            throttle_ms=response.throttle_ms,
            changes=changes,
            recovery_ms=recovery_ms,
        )
        self._record_refresh(attempt, Outcome.CHANGED if changes else Outcome.UNCHANGED, details)

    def _details(self, attempt: Attempt, now: float, **result: Any) -> RefreshDetails:
        # The first response shows which broker has the bootstrap address, if any.
        responders = (broker.node_id for broker in self._snapshot.brokers.values() if broker.address == attempt.address)
        return RefreshDetails(
            broker_id=next(responders, None),
            broker_host=attempt.address.host,
            broker_port=attempt.address.port,
            latency_ms=_ms(now - attempt.began),
            attempt=attempt.number,
            **result,
        )

    def _record_refresh(self, attempt: Attempt, outcome: Outcome, details: RefreshDetails) -> None:
        self._record(EventKind.REFRESH, attempt.cause, attempt.began, details, outcome, attempt.before)

    def _record(
        self,
        kind: EventKind,
        cause: RefreshCause,
        began: float,
        details: Details | None = None,
        outcome: Outcome = Outcome.UNCHANGED,
        before: MetadataSnapshot | None = None,
    ) -> None:
        """Publish an event. `before` is the snapshot at its beginning, by default the same as after it."""
        after = self._snapshot
        before = after if before is None else before
        self._sequence += 1
        event = RefreshEvent(
            cache_id=self.cache_id,
            sequence=self._sequence,
            cluster_id=after.cluster_id,
            time_ms=int(self._wall_clock() * 1000),
            kind=kind,
            reason=cause.reason,
            cause_error_code=cause.error_code,
            cause_topic=None if cause.partition is None else cause.partition.topic,
            cause_partition=None if cause.partition is None else cause.partition.partition,
            cause_node_id=cause.node_id,
            outcome=outcome,
            generation_before=before.generation,
            generation_after=after.generation,
            age_ms=_ms(began - before.fetched_at) if before.generation > 0 else None,
            idle_ms=_ms(max(began - self._last_lookup, 0)) if self._last_lookup is not None else None,
            lookups=self._lookups,
            fetches=tuple(BrokerFetches(node_id, *counted) for node_id, counted in sorted(self._fetches.items())),
            retries=self._retries,
            fetch_throttle_ms=self._fetch_throttle_ms,
            produces=tuple(BrokerProduces(node_id, *counted) for node_id, counted in sorted(self._produces.items())),
            produce_throttle_ms=self._produce_throttle_ms,
            transactions_begun=self._transactions_begun,
            details=details,
        )
        self._lookups = self._fetch_throttle_ms = self._produce_throttle_ms = 0
        self._retries = self._transactions_begun = 0
        self._fetches, self._produces = {}, {}
        try:
            self._publish(event)
        except Exception:
            logger.warning("refresh event %d was not published", event.sequence, exc_info=True)


def _count(counts: RequestCounts, node_id: int, size_bytes: int) -> None:
    requests, total_bytes = counts.get(node_id, (0, 0))
    counts[node_id] = (requests + 1, total_bytes + size_bytes)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
