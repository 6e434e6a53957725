"""Every metric of the exporter, with its labels, and `Readings`, the values of metrics at one moment; pure.

Names follow https://prometheus.io/docs/practices/naming: base units, and `_total` for counters; each begins with
`kafkameta_`. Executors are labels of gauges alone: the series of an executor end with its caches. Partitions are labels
only on request.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family; `buckets` are the upper bounds of a histogram, without infinity. Only names of counters end in
    `_total`."""

    name: str
    doc: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def kind(self) -> str:
        return "histogram" if self.buckets else "counter" if self.name.endswith("_total") else "gauge"


def _metric(name: str, labels: str, doc: str, buckets: tuple[float, ...] = ()) -> Metric:
    return Metric(f"kafkameta_{name}", doc, tuple(labels.split()), buckets)


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


NO_VALUE = ""
"""Of a label: unknown, or not applicable. Prometheus treats it as no label."""
BOOTSTRAP = "bootstrap"
"""The broker label of a bootstrap address."""

REQUEST_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LOOKUP_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
RECOVERY_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
BATCH_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)

# --- of events --------------------------------------------------------------------------------------------------------

EVENTS = _metric("events_total", "role kind", "Events of metadata caches.")
REFRESHES = _metric("refreshes_total", "role reason outcome", "Metadata requests.")
REFRESH_SECONDS = _metric(
    "refresh_seconds",
    "cluster_id broker",
    "Duration of Metadata requests with connecting; broker `bootstrap` is any bootstrap address.",
    REQUEST_BUCKETS,
)
REFRESH_BYTES = _metric("refresh_bytes_total", "cluster_id broker", "Bytes of Metadata requests and responses.")
RECOVERY_SECONDS = _metric(
    "recovery_seconds", "role", "Duration of problems that a refresh or hint ended.", RECOVERY_BUCKETS
)
QUERY_REFRESHES = _metric(
    "query_refreshes_total", "query_id outcome", "Metadata requests in tasks of a streaming query."
)
RETRIES = _metric("retries_total", "role", "Failed requests and retriable errors of partitions.")
THROTTLE_SECONDS = _metric(
    "throttle_seconds_total", "role request", "Throttle time of `metadata`, `fetch` and `produce` requests."
)
FETCH_REQUESTS = _metric("fetch_requests_total", "cluster_id broker", "Answered requests.")
FETCH_BYTES = _metric("fetch_response_bytes_total", "cluster_id broker", "Bytes of Fetch responses.")
PRODUCE_REQUESTS = _metric("produce_requests_total", "cluster_id broker", "Answered requests.")
PRODUCE_BYTES = _metric("produce_request_bytes_total", "cluster_id broker", "Bytes of Produce requests.")
DATA_LOSSES = _metric("data_losses_total", "topic", "Times that records were skipped.")
LOST_OFFSETS = _metric("lost_offsets_total", "topic", "Skipped offsets, if their number is known.")
MALFORMED_RECORDS = _metric(
    "malformed_records_total", "topic column", "Keys or values that could not be decoded, in tasks that did not fail."
)
TABLE_CHANGES = _metric(
    "table_changes_total", "topic op", "Changes of databases that tasks read; op is also `skipped` or `malformed`."
)
FILTERED_RECORDS = _metric("filtered_records_total", "topic", "Records that the option `where` dropped.")
SCHEMA_LOOKUPS = _metric("schema_lookups_total", "role reason outcome", "Requests to the schema registry.")
SCHEMA_LOOKUP_SECONDS = _metric(
    "schema_lookup_seconds", "outcome", "Duration of requests to the schema registry, with retries.", LOOKUP_BUCKETS
)
TRANSACTIONS_BEGUN = _metric("transactions_begun_total", "role", "Begun transactions.")
TRANSACTIONS_ENDED = _metric(
    "transactions_ended_total",
    "sink result",
    "Transactions that were `committed`, `aborted`, or `recovered` from an earlier run.",
)
TRANSACTIONS_SECONDS = _metric(
    "transactions_end_seconds", "result", "Duration of the commit, abort or recovery of a batch.", BATCH_BUCKETS
)
COPIED_RECORDS = _metric("copied_records_total", "sink", "Decided records that were written again after a timeout.")
EVENTS_DROPPED = _metric("events_dropped_total", "", "Events that a process lost: full disk, topic down.")
EVENTS_MISSING = _metric(
    "events_missing", "", "Missing events: lost, not written at a kill, or deleted with old files."
)

# --- of caches --------------------------------------------------------------------------------------------------------

_EXECUTOR = "application_id executor"
"""Beside the driver and in commands, the role stands for the executor."""
CACHES = _metric("caches", _EXECUTOR, "Caches with an event in the last ten minutes, neither closed nor dead.")
CACHE_LAST_REFRESH = _metric("cache_last_refresh_timestamp_seconds", _EXECUTOR, "Oldest last refresh of a cache.")
CACHE_GENERATION = _metric("cache_generation", _EXECUTOR, "Most Metadata responses to one cache.")
CACHED_PARTITIONS = _metric("cached_partitions", _EXECUTOR, "Partitions in caches.")
STALE_PARTITIONS = _metric(
    "stale_partitions", _EXECUTOR, "Partitions in caches with an older leader epoch or topic id than the cluster's."
)

# --- of queries -------------------------------------------------------------------------------------------------------

LAG_RECORDS = _metric("lag_records", "query_id topic", "Offsets between a query and the end of the logs.")
LAG_SECONDS = _metric("lag_seconds", "query_id topic", "Age of the oldest unread record by its timestamp.")
LAG_SECONDS_UNKNOWN = _metric(
    "lag_seconds_unknown_partitions",
    "query_id topic",
    "Partitions with unread records of unknown age, which make `kafkameta_lag_seconds` a lower bound.",
)
LAG_UNKNOWN = _metric(
    "lag_unknown_partitions", "query_id topic", "Partitions without a lag: no leader, gone, or recreated."
)
PARTITION_LAG_RECORDS = _metric(
    "partition_lag_records", "query_id topic partition", "The same by partition, with `--per-partition`."
)
PARTITION_LAG_SECONDS = _metric(
    "partition_lag_seconds", "query_id topic partition", "The same by partition, with `--per-partition`."
)
QUERY_INFO = _metric("query_info", "query_id name", "1, with the name of a query; in a driver only.")
QUERY_BATCH = _metric("query_batch", "query_id", "Number of the last finished micro-batch.")
QUERY_BATCH_SECONDS = _metric(
    "query_batch_seconds", "query_id", "Duration of micro-batches; in a driver only.", BATCH_BUCKETS
)
QUERY_RECORDS = _metric("query_records_total", "query_id", "Records that a query has read; in a driver only.")

# --- of transactions, from the cluster --------------------------------------------------------------------------------

OPEN_TRANSACTIONS = _metric("open_transactions", "sink", "Open transactions; the sink of other producers is empty.")
OPEN_TRANSACTION_SECONDS = _metric("open_transaction_seconds", "sink", "Age of the oldest open transaction.")
DECIDED_TRANSACTIONS = _metric("decided_transactions", "sink", "Transactions of decided batches that are not settled.")

# --- of the exporter itself -------------------------------------------------------------------------------------------

UP = _metric("exporter_up", "source", "Whether the last poll of a source succeeded.")
LAST_SUCCESS = _metric("exporter_last_success_timestamp_seconds", "source", "Last successful poll.")
ERRORS = _metric("exporter_errors_total", "source", "Failed polls.")
POLL_SECONDS = _metric("exporter_poll_seconds", "source", "Duration of the last poll.")
UNREADABLE_FILES = _metric(
    "exporter_unreadable_files", "", "Event files that cannot be read, tried again at each poll."
)

METRICS: tuple[Metric, ...] = tuple(value for value in globals().copy().values() if isinstance(value, Metric))


Labels = tuple[str, ...]
"""The values of a metric's labels."""


class Distribution:
    """The observations of a histogram: their `total`, and the `counts` in each bucket, the last one without a bound."""

    def __init__(self, buckets: tuple[float, ...]) -> None:
        self.counts = [0] * (len(buckets) + 1)
        self.total = 0.0
        self._buckets = buckets

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self._buckets, value)] += 1
        self.total += value


class Readings:
    """The values of metrics at one moment: `numbers` of counters and gauges, `distributions` of histograms."""

    def __init__(self) -> None:
        self.numbers: dict[Metric, dict[Labels, float]] = {}
        self.distributions: dict[Metric, dict[Labels, Distribution]] = {}

    def set(self, metric: Metric, value: float, *labels: str) -> None:
        self.numbers.setdefault(metric, {})[labels] = value

    def add(self, metric: Metric, value: float, *labels: str) -> None:
        numbers = self.numbers.setdefault(metric, {})
        numbers[labels] = numbers.get(labels, 0) + value

    def choose(self, which: Callable[[float, float], float], metric: Metric, value: float, *labels: str) -> None:
        """Keep the largest, or the smallest, of several values; `which` is max or min."""
        numbers = self.numbers.setdefault(metric, {})
        numbers[labels] = which(numbers.get(labels, value), value)

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
            self.distributions[metric] = deepcopy(distributions)
