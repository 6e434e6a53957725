"""How many series the metrics have at most; pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

from pyspark_kafka_meta.client_facts import Ending
from pyspark_kafka_meta.events.event import REASONS, EventKind, Outcome, Role
from pyspark_kafka_meta.tools.cluster_state import EXECUTOR_ROLES
from pyspark_kafka_meta.tools.exporter.metric_table import Metric, Request, Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What an exporter watches.

    Attributes:
        executors: of all applications.
        topics, partitions: counted for each query that reads them.
        sinks: with exactly-once writes.
    """

    executors: int
    brokers: int
    topics: int
    partitions: int
    queries: int
    sinks: int


EXAMPLE = Size(executors=1_000, brokers=100, topics=100, partitions=10_000, queries=10, sinks=10)
_VALUES: Mapping[str, Callable[[Size], int]] = {
    "role": lambda _: len(Role) + 1,  # unknown, as of events of newer versions
    "kind": lambda _: len(EventKind) + 1,
    "reason": lambda _: len(REASONS) + 1,
    "outcome": lambda _: len(Outcome) + 1,
    "request": lambda _: len(Request),
    "result": lambda _: len(Ending),
    "source": lambda _: len(Source),
    "broker": lambda size: size.brokers + 1,  # bootstrap
    "executor": lambda size: size.executors + len(Role) - len(EXECUTOR_ROLES) + 1,
    "query_id": lambda size: size.queries,
    "topic": lambda size: size.topics,
    "column": lambda _: 3,  # key, value, unknown
    "op": lambda _: 9,  # six of changes, skipped, malformed, unknown
    "partition": lambda size: size.partitions,
    "sink": lambda size: size.sinks + 1,  # other producers
}
"""The largest number of values of each label."""
_IMPLIED: Mapping[str, set[str]] = {
    "broker": {"cluster_id"},
    "executor": {"application_id"},
    "query_id": {"name"},
    "topic": {"query_id"},
    "partition": {"query_id", "topic"},
}
"""Labels that add no series beside a label."""


def max_series(metric: Metric, size: Size) -> int:
    """The largest number of series of a metric."""
    implied = set[str]().union(*(_IMPLIED.get(label, ()) for label in metric.labels))
    values = prod(_VALUES[label](size) for label in metric.labels if label not in implied)
    return values * (len(metric.buckets) + 3 if metric.buckets else 1)  # infinity, sum and count
