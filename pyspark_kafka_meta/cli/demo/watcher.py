"""Looks at the side tables and the query's progress, again and again, without Spark's help for the tables."""

from __future__ import annotations

import time
from pathlib import Path

from pyspark_kafka_meta.cli.demo.clusters import Cluster
from pyspark_kafka_meta.cli.demo.query import Stream
from pyspark_kafka_meta.cli.demo.state import State
from pyspark_kafka_meta.cli.metadata import within
from pyspark_kafka_meta.cli.sources import FolderEvents
from pyspark_kafka_meta.errors import KafkaMetaError
from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.tables.folding import Event, fold
from pyspark_kafka_meta.tables.live import ask_cluster, broker_rows, partition_rows
from pyspark_kafka_meta.tables.rows import BrokerRow, PartitionRow

LOOK_TIMEOUT_MS = 2_000


class Watcher:
    """One look after the other at the same query."""

    def __init__(self, cluster: Cluster, stream: Stream, events: Path) -> None:
        self._cluster = cluster
        self._stream = stream
        self._client = within(ClientOptions.parse(cluster.options), LOOK_TIMEOUT_MS)
        self._source = FolderEvents(str(events))
        self._events: list[Event] = []
        self._brokers: list[BrokerRow] = []
        self._partitions: list[PartitionRow] = []

    def look(self) -> State:
        """What is there now. Raises StreamFailedError: the query ended."""
        begins, positions, records_per_s = self._stream.progress()
        trouble = self._ask()
        self._events += self._source.read()
        self._events.sort(key=lambda one: (one["time_ms"], one["cache_id"], one["sequence"]))
        now_ms = int(time.time() * 1000)
        return State(
            now_ms=now_ms,
            brokers=self._brokers,
            partitions=self._partitions,
            trouble=trouble,
            events=tuple(self._events),
            caches=fold(self._events, now_ms),
            positions=positions,
            begins=begins,
            records_per_s=records_per_s,
        )

    def _ask(self) -> str | None:
        """Ask the cluster; returns why it did not answer."""
        try:
            self._brokers = broker_rows(ask_cluster(self._client, ()))
            self._partitions = partition_rows(self._client, tuple(self._cluster.topics))
        except KafkaMetaError as error:
            return str(error)
        return None
