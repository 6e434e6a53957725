"""Looks at the side tables and the query's progress, again and again, without Spark's help for the tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence

from pyspark_kafka_meta.cli.events_command import order
from pyspark_kafka_meta.cli.parameters import answer_within
from pyspark_kafka_meta.errors import AuthenticationError, KafkaMetaError
from pyspark_kafka_meta.model import Positions
from pyspark_kafka_meta.monitor.cluster_state import State, kept, told_by_caches
from pyspark_kafka_meta.monitor.event_sources import EventSource
from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.tables.caches_from_events import Event, fold
from pyspark_kafka_meta.tables.cluster_query import ask_cluster, broker_rows, partition_rows
from pyspark_kafka_meta.tables.table_rows import BrokerRow, CacheRow, PartitionRow

LOOK_TIMEOUT_MS = 2_000

Progress = Callable[[], tuple[Positions, Positions, float]]
"""As `Stream.progress`."""


class Watcher:
    """One look after the other.

    Args:
        source: of the events.
        options: how to reach the cluster, `kafka.*`; none where the caches alone know of it.
        topics: which are looked at, given what the caches know.
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
        self._client = ClientOptions.parse({**options, **answer_within(LOOK_TIMEOUT_MS)}) if options else None
        self._topics = topics
        self._progress = progress
        self._events: list[Event] = []
        self._brokers: Sequence[BrokerRow] = ()
        self._partitions: Sequence[PartitionRow] = ()
        self._refused: str | None = None  # why the cluster is not asked again

    def look(self) -> State:
        """What is there now. Raises KafkaMetaError: the query ended, or no events can be read."""
        begins, positions, records_per_s = self._progress()
        now_ms = int(time.time() * 1000)
        self._events = kept(sorted([*self._events, *self._source.read()], key=order), now_ms)
        caches = fold(self._events, now_ms)
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
        """Ask the cluster; returns why it did not answer. After a refused login no more requests are sent: an
        account may be locked for that."""
        if self._client is None:
            self._brokers, self._partitions = told_by_caches(self._events, caches)
            return None
        if self._refused is not None:
            return self._refused
        try:
            self._brokers = broker_rows(ask_cluster(self._client, ()))
            topics = tuple(self._topics(caches))
            self._partitions = partition_rows(self._client, topics) if topics else ()
        except AuthenticationError as error:
            self._refused = f"{error} (this is not tried again: start anew)"
            return self._refused
        except KafkaMetaError as error:
            return str(error)
        return None
