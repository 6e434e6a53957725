"""Every metric of the exporter, with its labels, and `Readings`, the values of metrics at one moment; pure.

Names follow https://prometheus.io/docs/practices/naming: base units, and `_total` for counters. Executors are labels of
gauges alone: the series of an executor end with its caches. Partitions are labels only on request.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family.

    Attributes:
        doc: what it measures.
        labels: their names.
        buckets: upper bounds of a histogram, without infinity.
    """

    name: str
    kind: Kind
    doc: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


class Source(StrEnum):
    """What the exporter polls: values of the label `source`."""

    EVENTS = "events"
    CLUSTER = "cluster"
    TRANSACTIONS = "transactions"
    LAG = "lag"


class Request(StrEnum):
    """What a broker throttled: values of the label `request`."""

    METADATA = "metadata"
    FETCH = "fetch"
    PRODUCE = "produce"


class Result(StrEnum):
    """How transactions ended: values of the label `result`."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    RECOVERED = "recovered"


NO_VALUE = ""
"""Of a label: unknown, or not applicable. Prometheus treats it as no label."""
BOOTSTRAP = "bootstrap"
"""The broker label of a bootstrap address."""

REQUEST_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LOOKUP_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
RECOVERY_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
BATCH_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)

# --- of events --------------------------------------------------------------------------------------------------------

EVENTS = Metric("kafkameta_events_total", Kind.COUNTER, "Events of metadata caches.", ("role", "kind"))
REFRESHES = Metric(
    "kafkameta_refreshes_total",
    Kind.COUNTER,
    "Metadata requests, answered or not.",
    ("role", "reason", "outcome"),
)
REFRESH_SECONDS = Metric(
    "kafkameta_refresh_seconds",
    Kind.HISTOGRAM,
    "Duration of Metadata requests, connecting included; broker `bootstrap` is any bootstrap address.",
    ("cluster_id", "broker"),
    REQUEST_BUCKETS,
)
REFRESH_BYTES = Metric(
    "kafkameta_refresh_bytes_total",
    Kind.COUNTER,
    "Bytes of Metadata requests and responses.",
    ("cluster_id", "broker"),
)
RECOVERY_SECONDS = Metric(
    "kafkameta_recovery_seconds",
    Kind.HISTOGRAM,
    "Duration of problems that a refresh or hint ended.",
    ("role",),
    RECOVERY_BUCKETS,
)
QUERY_REFRESHES = Metric(
    "kafkameta_query_refreshes_total",
    Kind.COUNTER,
    "Metadata requests in tasks of a streaming query.",
    ("query_id", "outcome"),
)
RETRIES = Metric(
    "kafkameta_retries_total",
    Kind.COUNTER,
    "Failed requests and retriable errors of partitions; of role writer Produce retries, unless its worker reads too.",
    ("role",),
)
THROTTLE_SECONDS = Metric(
    "kafkameta_throttle_seconds_total",
    Kind.COUNTER,
    "Throttle time of `metadata`, `fetch` and `produce` requests.",
    ("role", "request"),
)
FETCH_REQUESTS = Metric(
    "kafkameta_fetch_requests_total", Kind.COUNTER, "Answered Fetch requests.", ("cluster_id", "broker")
)
FETCH_BYTES = Metric(
    "kafkameta_fetch_response_bytes_total", Kind.COUNTER, "Bytes of Fetch responses.", ("cluster_id", "broker")
)
PRODUCE_REQUESTS = Metric(
    "kafkameta_produce_requests_total",
    Kind.COUNTER,
    "Answered Produce requests.",
    ("cluster_id", "broker"),
)
PRODUCE_BYTES = Metric(
    "kafkameta_produce_request_bytes_total", Kind.COUNTER, "Bytes of Produce requests.", ("cluster_id", "broker")
)
DATA_LOSSES = Metric(
    "kafkameta_data_losses_total", Kind.COUNTER, "Times that records of a partition were skipped.", ("topic",)
)
LOST_OFFSETS = Metric(
    "kafkameta_lost_offsets_total", Kind.COUNTER, "Skipped offsets, where their number is known.", ("topic",)
)
MALFORMED_RECORDS = Metric(
    "kafkameta_malformed_records_total",
    Kind.COUNTER,
    "Keys or values that could not be decoded, and did not fail their task.",
    ("topic", "column"),
)
SCHEMA_LOOKUPS = Metric(
    "kafkameta_schema_lookups_total",
    Kind.COUNTER,
    "Requests to the schema registry, answered or not.",
    ("role", "reason", "outcome"),
)
SCHEMA_LOOKUP_SECONDS = Metric(
    "kafkameta_schema_lookup_seconds",
    Kind.HISTOGRAM,
    "Duration of requests to the schema registry, with retries.",
    ("outcome",),
    LOOKUP_BUCKETS,
)
TRANSACTIONS_BEGUN = Metric(
    "kafkameta_transactions_begun_total", Kind.COUNTER, "Transactions that tasks and committers began.", ("role",)
)
TRANSACTIONS_ENDED = Metric(
    "kafkameta_transactions_ended_total",
    Kind.COUNTER,
    "Transactions that were `committed`, `aborted`, or `recovered` from an earlier run.",
    ("sink", "result"),
)
TRANSACTIONS_SECONDS = Metric(
    "kafkameta_transactions_end_seconds",
    Kind.HISTOGRAM,
    "Duration of the commit, abort or recovery of a batch.",
    ("result",),
    BATCH_BUCKETS,
)
COPIED_RECORDS = Metric(
    "kafkameta_copied_records_total",
    Kind.COUNTER,
    "Decided records that were written again, as their transactions had timed out.",
    ("sink",),
)
EVENTS_DROPPED = Metric(
    "kafkameta_events_dropped_total", Kind.COUNTER, "Events that their process lost: full disk, topic down."
)
EVENTS_MISSING = Metric(
    "kafkameta_events_missing",
    Kind.GAUGE,
    "Gaps in the numbers of events: lost, not written at a kill, or deleted with old files.",
)

# --- of caches --------------------------------------------------------------------------------------------------------

_EXECUTOR = ("application_id", "executor")
"""Beside the driver and in commands, and of the caches that write events, the role stands for the executor."""
CACHES = Metric(
    "kafkameta_caches",
    Kind.GAUGE,
    "Caches with an event in the last ten minutes, neither closed nor dead.",
    _EXECUTOR,
)
CACHE_LAST_REFRESH = Metric(
    "kafkameta_cache_last_refresh_timestamp_seconds",
    Kind.GAUGE,
    "Last Metadata response to the oldest of an executor's caches, since 1970 UTC.",
    _EXECUTOR,
)
CACHE_GENERATION = Metric(
    "kafkameta_cache_generation",
    Kind.GAUGE,
    "Metadata responses to one cache, the most of an executor's caches.",
    _EXECUTOR,
)
CACHED_PARTITIONS = Metric(
    "kafkameta_cached_partitions",
    Kind.GAUGE,
    "Partitions in the caches of an executor.",
    _EXECUTOR,
)
STALE_PARTITIONS = Metric(
    "kafkameta_stale_partitions",
    Kind.GAUGE,
    "Of these, partitions with an older leader epoch or topic id than the cluster's.",
    _EXECUTOR,
)

# --- of queries -------------------------------------------------------------------------------------------------------

LAG_RECORDS = Metric(
    "kafkameta_lag_records", Kind.GAUGE, "Offsets between a query and the end of the logs.", ("query_id", "topic")
)
LAG_SECONDS = Metric(
    "kafkameta_lag_seconds",
    Kind.GAUGE,
    "Age of the oldest unread record by its timestamp; 0 without one.",
    ("query_id", "topic"),
)
LAG_SECONDS_UNKNOWN = Metric(
    "kafkameta_lag_seconds_unknown_partitions",
    Kind.GAUGE,
    "Partitions with unread records of unknown age; `kafkameta_lag_seconds` is then a lower bound.",
    ("query_id", "topic"),
)
LAG_UNKNOWN = Metric(
    "kafkameta_lag_unknown_partitions",
    Kind.GAUGE,
    "Partitions whose end is unknown: no leader, gone, or recreated. They are not in the lag.",
    ("query_id", "topic"),
)
PARTITION_LAG_RECORDS = Metric(
    "kafkameta_partition_lag_records",
    Kind.GAUGE,
    "The same by partition, with `--per-partition`.",
    ("query_id", "topic", "partition"),
)
PARTITION_LAG_SECONDS = Metric(
    "kafkameta_partition_lag_seconds",
    Kind.GAUGE,
    "The same by partition, with `--per-partition`.",
    ("query_id", "topic", "partition"),
)
QUERY_INFO = Metric(
    "kafkameta_query_info", Kind.GAUGE, "1, with the name of a query; in a driver only.", ("query_id", "name")
)
QUERY_BATCH = Metric("kafkameta_query_batch", Kind.GAUGE, "Number of the last finished micro-batch.", ("query_id",))
QUERY_BATCH_SECONDS = Metric(
    "kafkameta_query_batch_seconds",
    Kind.HISTOGRAM,
    "Duration of micro-batches; in a driver only.",
    ("query_id",),
    BATCH_BUCKETS,
)
QUERY_RECORDS = Metric(
    "kafkameta_query_records_total", Kind.COUNTER, "Records that a query has read; in a driver only.", ("query_id",)
)

# --- of transactions, from the cluster --------------------------------------------------------------------------------

OPEN_TRANSACTIONS = Metric(
    "kafkameta_open_transactions",
    Kind.GAUGE,
    "Open transactions; the sink of other producers is empty.",
    ("sink",),
)
OPEN_TRANSACTION_SECONDS = Metric(
    "kafkameta_open_transaction_seconds", Kind.GAUGE, "Age of the oldest open transaction.", ("sink",)
)
DECIDED_TRANSACTIONS = Metric(
    "kafkameta_decided_transactions",
    Kind.GAUGE,
    "Transactions of decided batches that are not settled.",
    ("sink",),
)

# --- of the exporter itself -------------------------------------------------------------------------------------------

UP = Metric(
    "kafkameta_exporter_up",
    Kind.GAUGE,
    "Whether the last poll of a source succeeded.",
    ("source",),
)
LAST_SUCCESS = Metric(
    "kafkameta_exporter_last_success_timestamp_seconds",
    Kind.GAUGE,
    "Last successful poll, since 1970 UTC.",
    ("source",),
)
ERRORS = Metric("kafkameta_exporter_errors_total", Kind.COUNTER, "Failed polls.", ("source",))
POLL_SECONDS = Metric("kafkameta_exporter_poll_seconds", Kind.GAUGE, "Duration of the last poll.", ("source",))
UNREADABLE_FILES = Metric(
    "kafkameta_exporter_unreadable_files", Kind.GAUGE, "Event files that cannot be read; tried again at each poll."
)

METRICS: tuple[Metric, ...] = tuple(value for value in globals().copy().values() if isinstance(value, Metric))


Labels = tuple[str, ...]
"""The values of a metric's labels."""


class Distribution:
    """The observations of a histogram.

    Attributes:
        counts: observations in each bucket, the last one without an upper bound.
        total: sum of all observations.
    """

    def __init__(self, buckets: tuple[float, ...]) -> None:
        self.counts = [0] * (len(buckets) + 1)
        self.total = 0.0
        self._buckets = buckets

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self._buckets, value)] += 1
        self.total += value

    def copy(self) -> Distribution:
        copied = Distribution(self._buckets)
        copied.counts, copied.total = list(self.counts), self.total
        return copied


class Readings:
    """The values of metrics at one moment.

    Attributes:
        numbers: of counters and gauges.
        distributions: of histograms.
    """

    def __init__(self) -> None:
        self.numbers: dict[Metric, dict[Labels, float]] = {}
        self.distributions: dict[Metric, dict[Labels, Distribution]] = {}

    def set(self, metric: Metric, value: float, *labels: str) -> None:
        self.numbers.setdefault(metric, {})[labels] = value

    def add(self, metric: Metric, value: float, *labels: str) -> None:
        numbers = self.numbers.setdefault(metric, {})
        numbers[labels] = numbers.get(labels, 0) + value

    def raise_to(self, metric: Metric, value: float, *labels: str) -> None:
        """Keep the largest value."""
        numbers = self.numbers.setdefault(metric, {})
        numbers[labels] = max(numbers.get(labels, value), value)

    def lower_to(self, metric: Metric, value: float, *labels: str) -> None:
        """Keep the smallest value."""
        numbers = self.numbers.setdefault(metric, {})
        numbers[labels] = min(numbers.get(labels, value), value)

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        distributions = self.distributions.setdefault(metric, {})
        distributions.setdefault(labels, Distribution(metric.buckets)).observe(value)

    def remove(self, label: str, value: str) -> None:
        """Remove what has this value of a label, of all metrics."""
        for values in (self.numbers, self.distributions):
            for metric, by_labels in values.items():
                if label in metric.labels:
                    at = metric.labels.index(label)
                    for labels in [labels for labels in by_labels if labels[at] == value]:
                        del by_labels[labels]

    def update(self, others: Readings) -> None:
        """Take over a copy of the values of other metrics."""
        for metric, numbers in others.numbers.items():
            self.numbers[metric] = dict(numbers)
        for metric, distributions in others.distributions.items():
            self.distributions[metric] = {labels: each.copy() for labels, each in distributions.items()}
