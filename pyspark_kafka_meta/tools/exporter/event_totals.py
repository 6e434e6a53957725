"""`EventTotals`: refresh events as metrics, and what their caches know; pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from pyspark_kafka_meta.kafka.metadata.refresh_events import EventKind, Outcome, Role
from pyspark_kafka_meta.model import RefreshReason
from pyspark_kafka_meta.tables.caches_from_events import CacheContents, Event
from pyspark_kafka_meta.tools.exporter import metric_table as metrics
from pyspark_kafka_meta.tools.exporter.defaults import ENDED_KEPT_S, SILENT_KEPT_S
from pyspark_kafka_meta.tools.exporter.metric_table import BOOTSTRAP, NO_VALUE, Process, Request, Result
from pyspark_kafka_meta.tools.exporter.readings import Readings
from pyspark_kafka_meta.tools.shared.cluster_state import EXECUTOR_ROLES
from pyspark_kafka_meta.tools.shared.formatting import UNKNOWN
from pyspark_kafka_meta.tools.shared.staleness import SILENT_MS, Leaders, is_behind
from pyspark_kafka_meta.write.exactly_once.decision import sink_of_task

_ROLES, _KINDS = frozenset(Role), frozenset(EventKind)
_REASONS, _OUTCOMES = frozenset(RefreshReason), frozenset(Outcome)
_RESULTS = {
    EventKind.TRANSACTIONS_COMMITTED: Result.COMMITTED,
    EventKind.TRANSACTIONS_ABORTED: Result.ABORTED,
    EventKind.TRANSACTIONS_RECOVERED: Result.RECOVERED,
}


class _Cache:
    """One cache.

    Attributes:
        gaps: sequences of events that would count and are missing so far, as ranges with an exclusive end.
        stale: number of stale partitions among `stale_beside`; counted again if the contents or the leaders change.
    """

    def __init__(self) -> None:
        self.contents = CacheContents()
        self.gaps: list[range] = []
        self.topics: frozenset[str] = frozenset()
        self.stale = 0
        self.stale_beside: Leaders | None = None

    def take(self, event: Event, is_new: bool) -> bool:
        """Take an event. Returns False if it was taken before.

        Args:
            is_new: whether the event counts, and those that are missing before it.
        """
        sequence = event["sequence"]
        if sequence <= self.contents.sequence:
            return self._fill_gap(sequence)
        if is_new and sequence > self.contents.sequence + 1:
            self.gaps.append(range(self.contents.sequence + 1, sequence))
        self.contents.apply(event)
        if event["outcome"] == Outcome.CHANGED:
            self.topics = frozenset(partition.topic for partition in self.contents.leaders)
            self.stale_beside = None
        return True

    def _fill_gap(self, sequence: int) -> bool:
        """A late event counts, but its changes may be older than what the cache knows."""
        for index, gap in enumerate(self.gaps):
            if sequence in gap:
                rest = [range(gap.start, sequence), range(sequence + 1, gap.stop)]
                self.gaps[index : index + 1] = filter(None, rest)
                return True
        return False

    def events_missing(self) -> int:
        return sum(map(len, self.gaps))

    def count_stale(self, live: Leaders) -> int:
        if self.stale_beside is not live:
            self.stale, self.stale_beside = sum(self._stale(live)), live
        return self.stale

    def _stale(self, live: Leaders) -> Iterator[bool]:
        contents, cluster_id = self.contents, self.contents.last["cluster_id"]
        for partition, (_, epoch) in contents.leaders.items():
            if (leader := live.get(partition)) is not None:
                yield is_behind(cluster_id, contents.topic_ids.get(partition.topic), epoch, leader)


class EventTotals:
    """Totals over new events, which may come in any order, and repeatedly."""

    def __init__(self) -> None:
        self._totals = Readings()
        self._totals.set(metrics.EVENTS_DROPPED, 0)
        self._caches: dict[str, _Cache] = {}
        self._ended: set[str] = set()
        self._last_request_ms: dict[str, int] = {}  # of each query
        self._missing_before = 0  # of caches that are forgotten

    def add(self, events: Iterable[Event], are_new: bool = True) -> None:
        """
        Args:
            are_new: False for events of before: they say what caches know, and an earlier exporter has counted them.
        """
        for event in sorted(events, key=lambda event: (event["cache_id"], event["sequence"])):
            self._ended.update(event["died_cache_ids"] or ())
            if event["kind"] == EventKind.CLOSED:
                self._ended.add(event["cache_id"])
            if self._caches.setdefault(event["cache_id"], _Cache()).take(event, are_new) and are_new:
                self._count(event)

    def end(self, cache_ids: Iterable[str]) -> None:
        """These caches are known to be dead, beside those that events report."""
        self._ended.update(cache_ids)

    def forget(self, now_ms: int) -> None:
        """Forget caches that ended or have been silent for long, but not their counts; and queries that are silent."""
        for cache_id, cache in list(self._caches.items()):
            is_ended = cache_id in self._ended
            if is_ended:
                cache.contents.leaders.clear()
            if cache.contents.last_ms < now_ms - 1000 * (ENDED_KEPT_S if is_ended else SILENT_KEPT_S):
                self._missing_before += cache.events_missing()
                del self._caches[cache_id]
        self._ended &= self._caches.keys()
        for query_id, last_ms in list(self._last_request_ms.items()):
            if last_ms < now_ms - 1000 * SILENT_KEPT_S:
                self._totals.remove("query_id", query_id)
                del self._last_request_ms[query_id]

    def topics(self, now_ms: int) -> set[str]:
        """The topics that living caches know."""
        return set[str]().union(*(cache.topics for cache in self._living(now_ms)))

    def readings(self, now_ms: int, live: Leaders | None) -> Readings:
        """
        Args:
            live: the leaders of the cluster; None if it was never asked.
        """
        readings = Readings()
        readings.update(self._totals)
        missing = sum(cache.events_missing() for cache in self._caches.values())
        readings.set(metrics.EVENTS_MISSING, self._missing_before + missing)
        for cache in self._living(now_ms):
            _read_cache(readings, cache, live)
        return readings

    def _living(self, now_ms: int) -> Iterator[_Cache]:
        for cache_id, cache in self._caches.items():
            if cache_id not in self._ended and cache.contents.last_ms >= now_ms - SILENT_MS:
                yield cache

    def _count(self, event: Event) -> None:
        role, kind = _known(_ROLES, event["role"]), _known(_KINDS, event["kind"])
        add = self._totals.add
        add(metrics.EVENTS, 1, role, kind)
        add(metrics.EVENTS_DROPPED, event["dropped_before"] or 0)
        add(metrics.RETRIES, event["retries"] or 0, role)
        add(metrics.TRANSACTIONS_BEGUN, event["transactions_begun"] or 0, role)
        if event["recovery_ms"] is not None:
            self._totals.observe(metrics.RECOVERY_SECONDS, event["recovery_ms"] / 1000, role)
        self._count_traffic(event, role)
        if kind == EventKind.REFRESH:
            self._count_refresh(event, role)
        elif kind == EventKind.DATA_LOSS:
            self._count_loss(event)
        elif kind in _RESULTS:
            self._count_transactions(event, _RESULTS[EventKind(kind)])

    def _count_traffic(self, event: Event, role: str) -> None:
        cluster_id, add = event["cluster_id"] or NO_VALUE, self._totals.add
        for fetched in event["fetches"] or ():
            broker = str(fetched["broker_id"])
            add(metrics.FETCH_REQUESTS, fetched["requests"] or 0, cluster_id, broker)
            add(metrics.FETCH_BYTES, fetched["response_bytes"] or 0, cluster_id, broker)
        for produced in event["produces"] or ():
            broker = str(produced["broker_id"])
            add(metrics.PRODUCE_REQUESTS, produced["requests"] or 0, cluster_id, broker)
            add(metrics.PRODUCE_BYTES, produced["request_bytes"] or 0, cluster_id, broker)
        throttled_ms = {
            Request.METADATA: event["throttle_ms"],
            Request.FETCH: event["fetch_throttle_ms"],
            Request.PRODUCE: event["produce_throttle_ms"],
        }
        for request, value_ms in throttled_ms.items():
            add(metrics.THROTTLE_SECONDS, (value_ms or 0) / 1000, role, request)

    def _count_refresh(self, event: Event, role: str) -> None:
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

    def _count_loss(self, event: Event) -> None:
        topic, begin, end = event["cause_topic"] or NO_VALUE, event["lost_from_offset"], event["lost_until_offset"]
        self._totals.add(metrics.DATA_LOSSES, 1, topic)
        if None not in (begin, end):
            self._totals.add(metrics.LOST_OFFSETS, end - begin, topic)

    def _count_transactions(self, event: Event, result: Result) -> None:
        transactional_id = event["transactional_id"] or NO_VALUE
        sink = sink_of_task(transactional_id) or transactional_id
        self._totals.add(metrics.TRANSACTIONS_ENDED, event["transactions"] or 0, sink, result)
        self._totals.add(metrics.COPIED_RECORDS, event["copied_records"] or 0, sink)
        if event["transactions_ms"] is not None:
            self._totals.observe(metrics.TRANSACTIONS_SECONDS, event["transactions_ms"] / 1000, result)


def _read_cache(readings: Readings, cache: _Cache, live: Leaders | None) -> None:
    contents = cache.contents
    role = _known(_ROLES, contents.last["role"])
    process = Process.EXECUTOR if role in EXECUTOR_ROLES else role
    labels = (process, contents.last["application_id"] or NO_VALUE, contents.last["executor_id"] or NO_VALUE)
    readings.add(metrics.CACHES, 1, *labels)
    readings.add(metrics.CACHED_PARTITIONS, len(contents.leaders), *labels)
    readings.raise_to(metrics.CACHE_GENERATION, contents.last["generation_after"] or 0, *labels)
    if contents.answered_at_ms is not None:
        readings.lower_to(metrics.CACHE_LAST_REFRESH, contents.answered_at_ms / 1000, *labels)
    if live is not None:
        readings.add(metrics.STALE_PARTITIONS, cache.count_stale(live), *labels)


def _known(values: Collection[str], value: str | None) -> str:
    """One of `values`, so that the number of series has a bound whatever events say."""
    return value if value is not None and value in values else UNKNOWN
