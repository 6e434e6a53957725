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


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family; `buckets` are the upper bounds of a histogram, without infinity."""

    name: str
    kind: Kind
    doc: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


def _counter(name: str, labels: str, doc: str) -> Metric:
    return Metric(f"kafkameta_{name}", Kind.COUNTER, doc, tuple(labels.split()))


def _gauge(name: str, labels: str, doc: str) -> Metric:
    return Metric(f"kafkameta_{name}", Kind.GAUGE, doc, tuple(labels.split()))


def _histogram(name: str, labels: str, buckets: tuple[float, ...], doc: str) -> Metric:
    return Metric(f"kafkameta_{name}", Kind.HISTOGRAM, doc, tuple(labels.split()), buckets)


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

EVENTS = _counter("events_total", "role kind", "Events of metadata caches.")
REFRESHES = _counter("refreshes_total", "role reason outcome", "Metadata requests.")
REFRESH_SECONDS = _histogram(
    "refresh_seconds",
    "cluster_id broker",
    REQUEST_BUCKETS,
    "Duration of Metadata requests with connecting; broker `bootstrap` is any bootstrap address.",
)
REFRESH_BYTES = _counter("refresh_bytes_total", "cluster_id broker", "Bytes of Metadata requests and responses.")
RECOVERY_SECONDS = _histogram(
    "recovery_seconds", "role", RECOVERY_BUCKETS, "Duration of problems that a refresh or hint ended."
)
QUERY_REFRESHES = _counter(
    "query_refreshes_total", "query_id outcome", "Metadata requests in tasks of a streaming query."
)
RETRIES = _counter("retries_total", "role", "Failed requests and retriable errors of partitions.")
THROTTLE_SECONDS = _counter(
    "throttle_seconds_total", "role request", "Throttle time of `metadata`, `fetch` and `produce` requests."
)
FETCH_REQUESTS = _counter("fetch_requests_total", "cluster_id broker", "Answered requests.")
FETCH_BYTES = _counter("fetch_response_bytes_total", "cluster_id broker", "Bytes of Fetch responses.")
PRODUCE_REQUESTS = _counter("produce_requests_total", "cluster_id broker", "Answered requests.")
PRODUCE_BYTES = _counter("produce_request_bytes_total", "cluster_id broker", "Bytes of Produce requests.")
DATA_LOSSES = _counter("data_losses_total", "topic", "Times that records were skipped.")
LOST_OFFSETS = _counter("lost_offsets_total", "topic", "Skipped offsets, if their number is known.")
MALFORMED_RECORDS = _counter(
    "malformed_records_total", "topic column", "Keys or values that could not be decoded, in tasks that did not fail."
)
TABLE_CHANGES = _counter(
    "table_changes_total", "topic op", "Changes of databases that tasks read; op is also `skipped` or `malformed`."
)
FILTERED_RECORDS = _counter("filtered_records_total", "topic", "Records that the option `where` dropped.")
SCHEMA_LOOKUPS = _counter("schema_lookups_total", "role reason outcome", "Requests to the schema registry.")
SCHEMA_LOOKUP_SECONDS = _histogram(
    "schema_lookup_seconds", "outcome", LOOKUP_BUCKETS, "Duration of requests to the schema registry, with retries."
)
TRANSACTIONS_BEGUN = _counter("transactions_begun_total", "role", "Begun transactions.")
TRANSACTIONS_ENDED = _counter(
    "transactions_ended_total",
    "sink result",
    "Transactions that were `committed`, `aborted`, or `recovered` from an earlier run.",
)
TRANSACTIONS_SECONDS = _histogram(
    "transactions_end_seconds", "result", BATCH_BUCKETS, "Duration of the commit, abort or recovery of a batch."
)
COPIED_RECORDS = _counter("copied_records_total", "sink", "Decided records that were written again after a timeout.")
EVENTS_DROPPED = _counter("events_dropped_total", "", "Events that a process lost: full disk, topic down.")
EVENTS_MISSING = _gauge("events_missing", "", "Missing events: lost, not written at a kill, or deleted with old files.")

# --- of caches --------------------------------------------------------------------------------------------------------

_EXECUTOR = "application_id executor"
"""Beside the driver and in commands, the role stands for the executor."""
CACHES = _gauge("caches", _EXECUTOR, "Caches with an event in the last ten minutes, neither closed nor dead.")
CACHE_LAST_REFRESH = _gauge("cache_last_refresh_timestamp_seconds", _EXECUTOR, "Oldest last refresh of a cache.")
CACHE_GENERATION = _gauge("cache_generation", _EXECUTOR, "Most Metadata responses to one cache.")
CACHED_PARTITIONS = _gauge("cached_partitions", _EXECUTOR, "Partitions in caches.")
STALE_PARTITIONS = _gauge(
    "stale_partitions", _EXECUTOR, "Partitions in caches with an older leader epoch or topic id than the cluster's."
)

# --- of queries -------------------------------------------------------------------------------------------------------

LAG_RECORDS = _gauge("lag_records", "query_id topic", "Offsets between a query and the end of the logs.")
LAG_SECONDS = _gauge("lag_seconds", "query_id topic", "Age of the oldest unread record by its timestamp.")
LAG_SECONDS_UNKNOWN = _gauge(
    "lag_seconds_unknown_partitions",
    "query_id topic",
    "Partitions with unread records of unknown age, which make `kafkameta_lag_seconds` a lower bound.",
)
LAG_UNKNOWN = _gauge(
    "lag_unknown_partitions", "query_id topic", "Partitions without a lag: no leader, gone, or recreated."
)
PARTITION_LAG_RECORDS = _gauge(
    "partition_lag_records", "query_id topic partition", "The same by partition, with `--per-partition`."
)
PARTITION_LAG_SECONDS = _gauge(
    "partition_lag_seconds", "query_id topic partition", "The same by partition, with `--per-partition`."
)
QUERY_INFO = _gauge("query_info", "query_id name", "1, with the name of a query; in a driver only.")
QUERY_BATCH = _gauge("query_batch", "query_id", "Number of the last finished micro-batch.")
QUERY_BATCH_SECONDS = _histogram(
    "query_batch_seconds", "query_id", BATCH_BUCKETS, "Duration of micro-batches; in a driver only."
)
QUERY_RECORDS = _counter("query_records_total", "query_id", "Records that a query has read; in a driver only.")

# --- of transactions, from the cluster --------------------------------------------------------------------------------

OPEN_TRANSACTIONS = _gauge("open_transactions", "sink", "Open transactions; the sink of other producers is empty.")
OPEN_TRANSACTION_SECONDS = _gauge("open_transaction_seconds", "sink", "Age of the oldest open transaction.")
DECIDED_TRANSACTIONS = _gauge("decided_transactions", "sink", "Transactions of decided batches that are not settled.")

# --- of the exporter itself -------------------------------------------------------------------------------------------

UP = _gauge("exporter_up", "source", "Whether the last poll of a source succeeded.")
LAST_SUCCESS = _gauge("exporter_last_success_timestamp_seconds", "source", "Last successful poll.")
ERRORS = _counter("exporter_errors_total", "source", "Failed polls.")
POLL_SECONDS = _gauge("exporter_poll_seconds", "source", "Duration of the last poll.")
UNREADABLE_FILES = _gauge("exporter_unreadable_files", "", "Event files that cannot be read, tried again at each poll.")

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
