"""`EventRecorder`: makes the refresh events of one cache, and counts lookups, requests and retries between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pyspark_kafka_meta.errors import KafkaMetaError
from pyspark_kafka_meta.kafka.metadata.refresh_events import (
    BrokerFetches,
    BrokerProduces,
    EventKind,
    Outcome,
    RefreshCause,
    RefreshEvent,
)
from pyspark_kafka_meta.kafka.metadata.snapshot import MetadataSnapshot
from pyspark_kafka_meta.kafka.metadata.snapshot_changes import SnapshotChanges
from pyspark_kafka_meta.model import Address, MetadataResponse, RefreshReason, TopicPartition

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
    """

    cause: RefreshCause
    number: int
    slow_before: int
    before: MetadataSnapshot
    topics: frozenset[str]
    address: Address
    began: float


class EventRecorder:
    """Makes the events of one cache. Not thread-safe. `after` is the snapshot after the event, `now` is in seconds of
    the cache's clock."""

    def __init__(self, cache_id: str, wall_clock: Callable[[], float]) -> None:
        self._cache_id = cache_id
        self._wall_clock = wall_clock
        self._sequence = 0
        self._lookups = 0
        self._last_lookup: float | None = None
        self._fetches: RequestCounts = {}
        self._fetch_throttle_ms = 0
        self._produces: RequestCounts = {}
        self._produce_throttle_ms = 0
        self._transactions_begun = 0
        self._retries = 0

    def count_lookup(self, now: float) -> None:
        self._lookups += 1
        self._last_lookup = now

    def count_fetch(self, node_id: int, response_bytes: int, throttle_ms: int) -> None:
        _count(self._fetches, node_id, response_bytes)
        self._fetch_throttle_ms += throttle_ms

    def count_produce(self, node_id: int, request_bytes: int, throttle_ms: int) -> None:
        _count(self._produces, node_id, request_bytes)
        self._produce_throttle_ms += throttle_ms

    def count_transaction(self) -> None:
        self._transactions_begun += 1

    def count_retry(self) -> None:
        self._retries += 1

    def born(self, snapshot: MetadataSnapshot, now: float) -> RefreshEvent:
        """The first event of the cache."""
        cause = RefreshCause(RefreshReason.BOOTSTRAP)
        return self._event(EventKind.BORN, Outcome.UNCHANGED, cause, snapshot, snapshot, now)

    def closed(self, snapshot: MetadataSnapshot, now: float) -> RefreshEvent:
        """The last event of the cache."""
        cause = RefreshCause(RefreshReason.CLOSED)
        return self._event(EventKind.CLOSED, Outcome.UNCHANGED, cause, snapshot, snapshot, now)

    def hinted(
        self,
        cause: RefreshCause,
        before: MetadataSnapshot,
        after: MetadataSnapshot,
        now: float,
        changes: SnapshotChanges,
        recovery_ms: float,
    ) -> RefreshEvent:
        event = self._event(EventKind.HINT, Outcome.CHANGED, cause, before, after, now)
        return replace(event, changes=changes, recovery_ms=recovery_ms)

    def lost(
        self,
        partition: TopicPartition,
        from_offset: int,
        until_offset: int | None,
        why: str,
        snapshot: MetadataSnapshot,
        now: float,
    ) -> RefreshEvent:
        cause = RefreshCause(RefreshReason.DATA_LOSS, partition=partition)
        event = self._event(EventKind.DATA_LOSS, Outcome.UNCHANGED, cause, snapshot, snapshot, now)
        return replace(event, error=why, lost_from_offset=from_offset, lost_until_offset=until_offset)

    def transactions_ended(
        self,
        kind: EventKind,
        transactional_id: str,
        transactions: int,
        latency_ms: float,
        copied_records: int,
        snapshot: MetadataSnapshot,
        now: float,
    ) -> RefreshEvent:
        cause = RefreshCause(RefreshReason.TRANSACTION)
        return replace(
            self._event(kind, Outcome.UNCHANGED, cause, snapshot, snapshot, now),
            transactional_id=transactional_id,
            transactions=transactions,
            transactions_ms=round(latency_ms, 3),
            copied_records=copied_records,
        )

    def failed(self, attempt: Attempt, after: MetadataSnapshot, now: float, error: KafkaMetaError) -> RefreshEvent:
        return replace(self._refresh_event(Outcome.FAILED, attempt, after, now), error=str(error))

    def answered(
        self,
        attempt: Attempt,
        after: MetadataSnapshot,
        now: float,
        response: MetadataResponse,
        changes: SnapshotChanges,
        recovery_ms: float | None,
    ) -> RefreshEvent:
        outcome = Outcome.CHANGED if changes else Outcome.UNCHANGED
        return replace(
            self._refresh_event(outcome, attempt, after, now),
            api_version=response.api_version,
            correlation_id=response.correlation_id,
            request_bytes=response.request_bytes,
            response_bytes=response.response_bytes,
            throttle_ms=response.throttle_ms,
            changes=changes,
            recovery_ms=recovery_ms,
        )

    def _refresh_event(self, outcome: Outcome, attempt: Attempt, after: MetadataSnapshot, now: float) -> RefreshEvent:
        # The first response shows which broker has the bootstrap address, if any.
        responders = (broker.node_id for broker in after.brokers.values() if broker.address == attempt.address)
        return replace(
            self._event(EventKind.REFRESH, outcome, attempt.cause, attempt.before, after, attempt.began),
            broker_id=next(responders, None),
            broker_host=attempt.address.host,
            broker_port=attempt.address.port,
            latency_ms=_ms(now - attempt.began),
            attempt=attempt.number,
        )

    def _event(
        self,
        kind: EventKind,
        outcome: Outcome,
        cause: RefreshCause,
        before: MetadataSnapshot,
        after: MetadataSnapshot,
        began: float,
    ) -> RefreshEvent:
        self._sequence += 1
        lookups, self._lookups = self._lookups, 0
        fetches, self._fetches = self._fetches, {}
        fetch_throttle_ms, self._fetch_throttle_ms = self._fetch_throttle_ms, 0
        produces, self._produces = self._produces, {}
        produce_throttle_ms, self._produce_throttle_ms = self._produce_throttle_ms, 0
        transactions_begun, self._transactions_begun = self._transactions_begun, 0
        retries, self._retries = self._retries, 0
        return RefreshEvent(
            cache_id=self._cache_id,
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
            lookups=lookups,
            fetches=tuple(BrokerFetches(node_id, *counted) for node_id, counted in sorted(fetches.items())),
            retries=retries,
            fetch_throttle_ms=fetch_throttle_ms,
            produces=tuple(BrokerProduces(node_id, *counted) for node_id, counted in sorted(produces.items())),
            produce_throttle_ms=produce_throttle_ms,
            transactions_begun=transactions_begun,
        )


def _count(counts: RequestCounts, node_id: int, size_bytes: int) -> None:
    requests, total_bytes = counts.get(node_id, (0, 0))
    counts[node_id] = (requests + 1, total_bytes + size_bytes)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
