"""Reads events, cluster and query progress again and again; the tables are built without Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence

from pyspark_kafka_meta.errors import AuthenticationError, KafkaMetaError
from pyspark_kafka_meta.kafka.metadata.refresh_events import Outcome
from pyspark_kafka_meta.model import Positions
from pyspark_kafka_meta.options import ClientOptions, FetchOptions
from pyspark_kafka_meta.tables.caches_from_events import Event, cache_rows, ended_caches
from pyspark_kafka_meta.tables.cluster_query import broker_rows, describe_cluster, partition_rows
from pyspark_kafka_meta.tables.rows import BrokerRow, CacheRow, PartitionRow
from pyspark_kafka_meta.tools.shared.cluster_access import timeout_options
from pyspark_kafka_meta.tools.shared.cluster_state import State, event_order, known_brokers
from pyspark_kafka_meta.tools.shared.event_sources import EventSource
from pyspark_kafka_meta.tools.shared.staleness import newest_leaders

CLUSTER_TIMEOUT_MS = 2_000
KEEP_EVENTS_MS = 3_600_000

Progress = Callable[[], tuple[Positions, Positions, float]]
"""As `Stream.progress`."""


class Watcher:
    """Args:
    source: of the events.
    options: of the cluster, `kafka.*`; empty to take brokers and leaders from the caches.
    topics: to show, given what the caches know.
    progress: of the query.
    """

    def __init__(
        self,
        source: EventSource,
        options: Mapping[str, str],
        topics: Callable[[Sequence[CacheRow]], Collection[str]],
        progress: Progress,
    ) -> None:
        self._source = source
        self._client = ClientOptions.parse({**options, **timeout_options(CLUSTER_TIMEOUT_MS)}) if options else None
        self._read_committed = FetchOptions.parse(options).read_committed
        self._topics = topics
        self._progress = progress
        self._events: list[Event] = []
        self._brokers: Sequence[BrokerRow] = ()
        self._partitions: Sequence[PartitionRow] = ()
        self._refused: str | None = None

    def state(self) -> State:
        """The state now. Raises KafkaMetaError: the query ended, or the events cannot be read."""
        begins, positions, records_per_s = self._progress()
        now_ms = int(time.time() * 1000)
        self._events = without_old_events(sorted([*self._events, *self._source.read()], key=event_order), now_ms)
        caches = cache_rows(self._events, now_ms)
        trouble = self._ask(caches)
        return State(
            now_ms=now_ms,
            brokers=self._brokers,
            partitions=self._partitions,
            trouble=trouble,
            events=tuple(self._events),
            caches=caches,
            positions=positions,
            begins=begins,
            records_per_s=records_per_s,
        )

    def _ask(self, caches: Sequence[CacheRow]) -> str | None:
        """Ask the cluster; returns why it did not answer. After a refused login it is not asked again: repeated
        attempts may lock the account."""
        if self._client is None:
            self._partitions = tuple(newest_leaders(caches).values())
            self._brokers = known_brokers(self._events, self._partitions)
            return None
        if self._refused is not None:
            return self._refused
        try:
            self._brokers = broker_rows(describe_cluster(self._client, ()))
            topics = tuple(self._topics(caches))
            self._partitions = partition_rows(self._client, topics, self._read_committed) if topics else ()
        except AuthenticationError as error:
            self._refused = f"{error} (not tried again: restart the command)"
            return self._refused
        except KafkaMetaError as error:
            return str(error)
        return None


def without_old_events(events: Sequence[Event], now_ms: int) -> list[Event]:
    """Without the events older than `KEEP_EVENTS_MS`, unless they say what a live cache knows: a page may stay open for
    days."""
    ended = ended_caches(events)
    return [
        event
        for event in events
        if event["time_ms"] >= now_ms - KEEP_EVENTS_MS
        or (event["outcome"] == Outcome.CHANGED and event["cache_id"] not in ended)
    ]
