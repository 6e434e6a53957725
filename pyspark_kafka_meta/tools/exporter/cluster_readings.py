"""Lag, transactions, queries and the polls themselves as metrics; pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from pyspark_kafka_meta.kafka.protocol.transactions import OPEN_STATES
from pyspark_kafka_meta.tables.rows import LagRow, TransactionRow
from pyspark_kafka_meta.tools.exporter import metric_table as metrics
from pyspark_kafka_meta.tools.exporter.metric_table import NO_VALUE, Source
from pyspark_kafka_meta.tools.exporter.readings import Readings


@dataclass(slots=True)
class Health:
    """How the polls of one source went.

    Attributes:
        trouble: why the last poll failed, else None; "not polled yet" before the first.
        errors: polls that failed.
        last_success_s: seconds since 1970 UTC; None before the first.
        not_before_s: when the source may be polled again, seconds since 1970 UTC.
    """

    trouble: str | None = "not polled yet"
    errors: int = 0
    last_success_s: float | None = None
    duration_s: float = 0.0
    not_before_s: float = 0.0


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
            readings.raise_to(metrics.LAG_SECONDS, row.seconds_behind, *topic)
            if per_partition:
                readings.set(metrics.PARTITION_LAG_SECONDS, row.seconds_behind, *partition)


def read_transactions(readings: Readings, rows: Iterable[TransactionRow], sinks: Collection[str]) -> None:
    """The open and the unsettled transactions by sink. The other producers of the cluster count together.

    Args:
        sinks: that had transactions before.
    """
    for sink in (NO_VALUE, *sinks):
        for metric in (metrics.OPEN_TRANSACTIONS, metrics.DECIDED_TRANSACTIONS, metrics.OPEN_TRANSACTION_SECONDS):
            readings.set(metric, 0, sink)
    for row in rows:
        sink = row.sink or NO_VALUE
        is_open = row.state in OPEN_STATES
        readings.add(metrics.OPEN_TRANSACTIONS, is_open, sink)
        readings.add(metrics.DECIDED_TRANSACTIONS, row.is_decided, sink)
        if is_open and row.open_ms is not None:
            readings.raise_to(metrics.OPEN_TRANSACTION_SECONDS, row.open_ms / 1000, sink)


def read_health(readings: Readings, polled: Mapping[Source, Health], unreadable_files: int) -> None:
    for source, health in polled.items():
        readings.set(metrics.UP, health.trouble is None, source)
        readings.set(metrics.ERRORS, health.errors, source)
        readings.set(metrics.POLL_SECONDS, health.duration_s, source)
        if health.last_success_s is not None:
            readings.set(metrics.LAST_SUCCESS, health.last_success_s, source)
    readings.set(metrics.UNREADABLE_FILES, unreadable_files)
