"""What refresh events, reports of queries, lag and transactions are as metrics.

Counters are totals since the exporter began: `EventTotals` counts events, `QueryTotals` a driver's own queries.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from pyspark_kafka_meta.client_facts import Ending
from pyspark_kafka_meta.events.event import REASONS, EventKind, Outcome, Role
from pyspark_kafka_meta.kafka.protocol.transactions import OPEN_STATES
from pyspark_kafka_meta.read.planning.checkpoint_offsets import SourceOffset
from pyspark_kafka_meta.tables.caches_from_events import CacheContents, EventRow
from pyspark_kafka_meta.tables.known_leaders import KnownLeaders, Partitions
from pyspark_kafka_meta.tables.lag import end_offsets
from pyspark_kafka_meta.tables.rows import LagRow, TransactionRow
from pyspark_kafka_meta.tools.cluster_state import EXECUTOR_ROLES, SILENT_MS, Leaders, map_caches, topics_of
from pyspark_kafka_meta.tools.exporter import ENDED_KEPT_S, SILENT_KEPT_S
from pyspark_kafka_meta.tools.exporter import metric_table as metrics
from pyspark_kafka_meta.tools.exporter.metric_table import BOOTSTRAP, NO_VALUE, Readings, Request
from pyspark_kafka_meta.tools.formatting import UNKNOWN
from pyspark_kafka_meta.write.exactly_once.decision import sink_of_task

Progress = Mapping[str, Any]
"""A progress report of Spark (`StreamingQueryProgress`)."""
_ROLES, _KINDS = frozenset(Role), frozenset(EventKind)
_REASONS, _OUTCOMES = frozenset(REASONS), frozenset(Outcome)
_COLUMNS = frozenset(("key", "value"))
_OPS = frozenset((*"curdt", "tombstone", "skipped", "malformed"))
_ENDINGS = {f"transactions_{ending}": ending for ending in Ending}


class _Cache:
    """One cache, and the `gaps` in its events: sequences that would count and are missing so far."""

    def __init__(self, partitions: Partitions) -> None:
        self.contents = CacheContents(partitions)
        self.gaps: list[range] = []

    def fill_gap(self, sequence: int) -> bool:
        """Whether a late event was missing. Its changes may be older than what the cache knows, and are ignored."""
        for index, gap in enumerate(self.gaps):
            if sequence in gap:
                rest = [range(gap.start, sequence), range(sequence + 1, gap.stop)]
                self.gaps[index : index + 1] = filter(None, rest)
                return True
        return False


class EventTotals:
    """Totals over new events, which may come in any order, and repeatedly."""

    def __init__(self) -> None:
        self._totals = Readings()
        self._totals.set(metrics.EVENTS_DROPPED, 0)
        self._totals.set(metrics.EVENTS_MISSING, 0)
        self._caches: dict[str, _Cache] = {}
        self._partitions = Partitions()
        self._ended: set[str] = set()
        self._last_request_ms: dict[str, int] = {}  # of each query

    def add(self, events: Iterable[EventRow], are_new: bool = True) -> None:
        """`are_new` is False for events before the start: they say what caches know, an earlier exporter has counted
        them."""
        for event in sorted(events, key=lambda event: (event["cache_id"], event["sequence"])):
            self._ended.update(event["died_cache_ids"] or ())
            if event["kind"] == EventKind.CLOSED:
                self._ended.add(event["cache_id"])
            if self._take(event, are_new) and are_new:
                self._count(event)

    def _take(self, event: EventRow, is_new: bool) -> bool:
        """Returns False if the event was taken before."""
        cache, sequence = self._caches.setdefault(event["cache_id"], _Cache(self._partitions)), event["sequence"]
        if (known := cache.contents.sequence) >= sequence:
            was_missing = cache.fill_gap(sequence)
            self._totals.add(metrics.EVENTS_MISSING, -was_missing)
            return was_missing
        if is_new and sequence > known + 1:
            cache.gaps.append(range(known + 1, sequence))
            self._totals.add(metrics.EVENTS_MISSING, sequence - known - 1)
        cache.contents.apply(event)
        return True

    def end(self, cache_ids: Iterable[str]) -> None:
        """These caches are known to be dead, beside caches that events report as dead."""
        self._ended.update(cache_ids)

    def forget(self, now_ms: int) -> None:
        """Forget caches that ended or have been silent for long, but not their counts; and queries that are silent."""
        before = len(self._caches)
        for cache_id, cache in list(self._caches.items()):
            is_ended = cache_id in self._ended
            if is_ended:
                cache.contents.leaders.clear()
            if cache.contents.last_ms < now_ms - 1000 * (ENDED_KEPT_S if is_ended else SILENT_KEPT_S):
                del self._caches[cache_id]
        self._ended &= self._caches.keys()
        if len(self._caches) < before:
            KnownLeaders.forget_unknown([cache.contents.leaders for cache in self._caches.values()])
        for query_id, last_ms in list(self._last_request_ms.items()):
            if last_ms < now_ms - 1000 * SILENT_KEPT_S:
                self._totals.remove("query_id", query_id)
                del self._last_request_ms[query_id]

    def topics(self, now_ms: int) -> list[str]:
        return topics_of([cache.contents for cache in self._living(now_ms)])

    def readings(self, now_ms: int, live: Leaders | None) -> Readings:
        """`live` are the leaders of the cluster; None if it was never asked."""
        readings = Readings()
        readings.update(self._totals)
        living = list(self._living(now_ms))
        for cache in living:
            _read_cache(readings, cache)
        if live is not None:
            counts = map_caches([cache.contents for cache in living], live).stale.sum(axis=1).tolist()
            for cache, count in zip(living, counts, strict=True):
                readings.add(metrics.STALE_PARTITIONS, count, *_labels(cache))
        return readings

    def _living(self, now_ms: int) -> Iterator[_Cache]:
        for cache_id, cache in self._caches.items():
            if cache_id not in self._ended and cache.contents.last_ms >= now_ms - SILENT_MS:
                yield cache

    def _count(self, event: EventRow) -> None:
        role, kind = _known(_ROLES, event["role"]), _known(_KINDS, event["kind"])
        add = self._totals.add
        add(metrics.EVENTS, 1, role, kind)
        add(metrics.EVENTS_DROPPED, event["dropped_before"] or 0)
        add(metrics.RETRIES, event["retries"] or 0, role)
        add(metrics.TRANSACTIONS_BEGUN, event["transactions_begun"] or 0, role)
        for changes in event["table_changes"] or ():
            op = _known(_OPS, changes["op"])
            add(metrics.TABLE_CHANGES, changes["records"] or 0, changes["topic"] or NO_VALUE, op)
        if event["recovery_ms"] is not None:
            self._totals.observe(metrics.RECOVERY_SECONDS, event["recovery_ms"] / 1000, role)
        self._count_traffic(event, role)
        if kind == EventKind.REFRESH:
            self._count_refresh(event, role)
        elif kind == EventKind.DATA_LOSS:
            self._count_loss(event)
        elif kind == EventKind.MALFORMED_RECORDS:
            column = _known(_COLUMNS, event["malformed_column"])
            add(metrics.MALFORMED_RECORDS, event["malformed_records"] or 0, event["cause_topic"] or NO_VALUE, column)
        elif kind == EventKind.SCHEMA_LOOKUP:
            self._count_lookup(event, role)
        elif kind in _ENDINGS:
            self._count_transactions(event, _ENDINGS[kind])

    def _count_traffic(self, event: EventRow, role: str) -> None:
        cluster_id, add = event["cluster_id"] or NO_VALUE, self._totals.add
        for fetched in event["fetches"] or ():
            broker = str(fetched["broker_id"])
            add(metrics.FETCH_REQUESTS, fetched["requests"] or 0, cluster_id, broker)
            add(metrics.FETCH_BYTES, fetched["response_bytes"] or 0, cluster_id, broker)
        for produced in event["produces"] or ():
            broker = str(produced["broker_id"])
            add(metrics.PRODUCE_REQUESTS, produced["requests"] or 0, cluster_id, broker)
            add(metrics.PRODUCE_BYTES, produced["request_bytes"] or 0, cluster_id, broker)
        for filtered in event["filtered"] or ():
            add(metrics.FILTERED_RECORDS, filtered["records"] or 0, filtered["topic"] or NO_VALUE)
        throttled_ms = {
            Request.METADATA: event["throttle_ms"],
            Request.FETCH: event["fetch_throttle_ms"],
            Request.PRODUCE: event["produce_throttle_ms"],
        }
        for request, value_ms in throttled_ms.items():
            add(metrics.THROTTLE_SECONDS, (value_ms or 0) / 1000, role, request)

    def _count_refresh(self, event: EventRow, role: str) -> None:
        outcome = _known(_OUTCOMES, event["outcome"])
        broker = BOOTSTRAP if event["broker_id"] is None else str(event["broker_id"])
        labels = (event["cluster_id"] or NO_VALUE, broker)
        self._totals.add(metrics.REFRESHES, 1, role, _known(_REASONS, event["reason"]), outcome)
        size = (event["request_bytes"] or 0) + (event["response_bytes"] or 0)
        self._totals.add(metrics.REFRESH_BYTES, size, *labels)
        if event["latency_ms"] is not None:
            self._totals.observe(metrics.REFRESH_SECONDS, event["latency_ms"] / 1000, *labels)
        if event["query_id"] is not None:
            self._totals.add(metrics.QUERY_REFRESHES, 1, event["query_id"], outcome)
            self._last_request_ms[event["query_id"]] = event["time_ms"]

    def _count_loss(self, event: EventRow) -> None:
        topic, begin, end = event["cause_topic"] or NO_VALUE, event["lost_from_offset"], event["lost_until_offset"]
        self._totals.add(metrics.DATA_LOSSES, 1, topic)
        if None not in (begin, end):
            self._totals.add(metrics.LOST_OFFSETS, max(end - begin, 0), topic)

    def _count_lookup(self, event: EventRow, role: str) -> None:
        outcome = _known(_OUTCOMES, event["outcome"])
        self._totals.add(metrics.SCHEMA_LOOKUPS, 1, role, _known(_REASONS, event["reason"]), outcome)
        if event["latency_ms"] is not None:
            self._totals.observe(metrics.SCHEMA_LOOKUP_SECONDS, event["latency_ms"] / 1000, outcome)

    def _count_transactions(self, event: EventRow, ending: Ending) -> None:
        transactional_id = event["transactional_id"] or NO_VALUE
        sink = sink_of_task(transactional_id) or transactional_id
        self._totals.add(metrics.TRANSACTIONS_ENDED, event["transactions"] or 0, sink, ending)
        self._totals.add(metrics.COPIED_RECORDS, event["copied_records"] or 0, sink)
        if event["transactions_ms"] is not None:
            self._totals.observe(metrics.TRANSACTIONS_SECONDS, event["transactions_ms"] / 1000, ending)


def _labels(cache: _Cache) -> tuple[str, str]:
    last = cache.contents.last
    role = _known(_ROLES, last["role"])
    return last["application_id"] or NO_VALUE, last["executor_id"] or NO_VALUE if role in EXECUTOR_ROLES else role


def _read_cache(readings: Readings, cache: _Cache) -> None:
    contents, labels = cache.contents, _labels(cache)
    readings.add(metrics.CACHES, 1, *labels)
    readings.add(metrics.CACHED_PARTITIONS, len(contents.leaders), *labels)
    readings.choose(max, metrics.CACHE_GENERATION, contents.last["generation_after"] or 0, *labels)
    if contents.last_response_ms is not None:
        readings.choose(min, metrics.CACHE_LAST_REFRESH, contents.last_response_ms / 1000, *labels)


def _known(values: Collection[str], value: str | None) -> str:
    """One of `values`, so that the number of series has a bound whatever events say."""
    return value if value is not None and value in values else UNKNOWN


class QueryTotals:
    """Totals of queries. Spark reports in one thread, the poller reads in another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals = Readings()
        self._latest: dict[str, Progress] = {}
        self._forgotten_at_s: dict[str, float] = {}  # for each query that has ended

    def add(self, progress: Progress) -> None:
        query_id = progress["id"]
        with self._lock:
            self._latest[query_id] = progress
            self._forgotten_at_s.pop(query_id, None)
            self._totals.set(metrics.QUERY_INFO, 1, query_id, progress["name"] or NO_VALUE)
            self._totals.set(metrics.QUERY_BATCH, progress["batchId"], query_id)
            self._totals.add(metrics.QUERY_RECORDS, progress["numInputRows"] or 0, query_id)
            self._totals.observe(metrics.QUERY_BATCH_SECONDS, progress["batchDuration"] / 1000, query_id)

    def end(self, query_id: str, has_failed: bool, now_s: float) -> None:
        """A query that was stopped on purpose has no lag any more; that of a failed query grows."""
        with self._lock:
            if not has_failed:
                self._latest.pop(query_id, None)
            self._forgotten_at_s[query_id] = now_s + (SILENT_KEPT_S if has_failed else ENDED_KEPT_S)

    def forget(self, now_s: float) -> None:
        with self._lock:
            for query_id in [query_id for query_id, at_s in self._forgotten_at_s.items() if at_s < now_s]:
                del self._forgotten_at_s[query_id]
                self._latest.pop(query_id, None)
                self._totals.remove("query_id", query_id)

    def offsets(self) -> dict[str, tuple[SourceOffset, ...]]:
        """The next offsets of each query, by its id."""
        with self._lock:
            latest = dict(self._latest)
        return {query_id: tuple(end_offsets(progress)) for query_id, progress in latest.items()}

    def read(self, readings: Readings) -> None:
        with self._lock:
            readings.update(self._totals)


def read_lag(readings: Readings, query_id: str, rows: Iterable[LagRow], per_partition: bool) -> None:
    """The lag of a query by topic, and also by partition if requested. What is unknown has no value."""
    for row in rows:
        topic, partition = (query_id, row.topic), (query_id, row.topic, str(row.partition))
        readings.add(metrics.LAG_UNKNOWN, row.records_behind is None, *topic)
        if row.records_behind is not None:
            readings.add(metrics.LAG_RECORDS, row.records_behind, *topic)
            readings.add(metrics.LAG_SECONDS_UNKNOWN, row.seconds_behind is None, *topic)
            if per_partition:
                readings.set(metrics.PARTITION_LAG_RECORDS, row.records_behind, *partition)
        if row.seconds_behind is not None:
            readings.choose(max, metrics.LAG_SECONDS, row.seconds_behind, *topic)
            if per_partition:
                readings.set(metrics.PARTITION_LAG_SECONDS, row.seconds_behind, *partition)


def read_transactions(readings: Readings, rows: Iterable[TransactionRow], sinks: Collection[str]) -> None:
    """The open and the unsettled transactions by sink, also of `sinks` that had some before. The other producers of the
    cluster count together."""
    for sink in (NO_VALUE, *sinks):
        for metric in (metrics.OPEN_TRANSACTIONS, metrics.DECIDED_TRANSACTIONS, metrics.OPEN_TRANSACTION_SECONDS):
            readings.set(metric, 0, sink)
    for row in rows:
        sink = row.sink or NO_VALUE
        is_open = row.state in OPEN_STATES
        readings.add(metrics.OPEN_TRANSACTIONS, is_open, sink)
        readings.add(metrics.DECIDED_TRANSACTIONS, row.is_decided, sink)
        if is_open and row.open_ms is not None:
            readings.choose(max, metrics.OPEN_TRANSACTION_SECONDS, row.open_ms / 1000, sink)
