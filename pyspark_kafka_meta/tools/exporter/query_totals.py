"""`QueryTotals`: what a driver's own streaming queries report, as metrics."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from pyspark_kafka_meta.read.planning.checkpoint_offsets import SourceOffset
from pyspark_kafka_meta.tables.query_lag import end_offsets
from pyspark_kafka_meta.tools.exporter import metric_table as metrics
from pyspark_kafka_meta.tools.exporter.defaults import ENDED_KEPT_S, SILENT_KEPT_S
from pyspark_kafka_meta.tools.exporter.metric_table import NO_VALUE
from pyspark_kafka_meta.tools.exporter.readings import Readings

Progress = Mapping[str, Any]
"""A progress report of Spark (`StreamingQueryProgress`)."""


class QueryTotals:
    """Totals of queries. Spark reports in one thread, the poller reads in another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals = Readings()
        self._latest: dict[str, Progress] = {}
        self._forgotten_at_s: dict[str, float] = {}  # for each query that has ended

    def add(self, progress: Progress) -> None:
        """Add the report of a finished micro-batch."""
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
        """Forget queries that ended long ago."""
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
