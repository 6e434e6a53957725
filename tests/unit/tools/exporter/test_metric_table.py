"""The metrics have good names, and a known number of series."""

from __future__ import annotations

import json
import re

import pytest

from docs.series_bound import EXAMPLE, Size, max_series
from pyspark_kafka_meta.events.event import (
    BrokerFetches,
    BrokerProduces,
    EventKind,
    FilteredRecords,
    Origin,
    Outcome,
    Role,
)
from pyspark_kafka_meta.model import RefreshReason
from pyspark_kafka_meta.tables.rows import PartitionRow, by_partition
from pyspark_kafka_meta.tools.exporter import metric_table as metrics
from pyspark_kafka_meta.tools.exporter.metric_table import METRICS, Metric, Readings, Source
from pyspark_kafka_meta.tools.exporter.totals import EventTotals, QueryTotals, read_lag, read_transactions
from tests.unit.tools.states import lag_row, transaction_row
from tests.unit.written_events import learning, made

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_names_follow_the_rules_of_prometheus(metric: Metric) -> None:
    assert re.fullmatch("kafkameta(_[a-z]+)+", metric.name)
    assert not re.search("_(ms|millis|kb|mb|count|sum|bucket)(_|$)", metric.name)
    assert not (metric.buckets and metric.name.endswith("_total"))
    assert list(metric.buckets) == sorted(metric.buckets)
    assert metric.doc.endswith(".")


def test_names_are_unique() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)


def test_executors_are_labels_of_gauges_alone() -> None:
    """The series of counters would stay for executors that are gone."""
    assert {metric.kind for metric in METRICS if "executor" in metric.labels} == {"gauge"}


def series(readings: Readings) -> dict[Metric, int]:
    """As in a scrape: each bucket, the sum and the count of a histogram is one."""
    counts = {metric: len(numbers) for metric, numbers in readings.numbers.items()}
    for metric, distributions in readings.distributions.items():
        counts[metric] = sum(len(each.counts) + 2 for each in distributions.values())
    return counts


def busy(size: Size) -> Readings:
    """The readings of an exporter that sees everything that its size allows."""
    totals = EventTotals()
    common = {
        "fetches": tuple(BrokerFetches(broker, 1, 1) for broker in range(size.brokers)),
        "produces": tuple(BrokerProduces(broker, 1, 1) for broker in range(size.brokers)),
        "recovery_ms": 1.0,
    }
    ended = {"transactions_ms": 1.0}
    for number in range(size.executors):
        origin = Origin(
            role=list(Role)[number % 2], executor_id=str(number), query_id=f"query-{number % size.queries}", pid=number
        )
        broker = None if number % 50 == 0 else number % size.brokers
        traffic = common if number == 0 else {}
        first = made(f"{number:032x}", 1, NOW_MS, broker_id=broker, origin=origin, **learning("t0", 1, 2), **traffic)
        totals.add([json.loads(first.to_json()) | (ended if number == 0 else {})])
    sequence = 0
    for role in Role:
        for kind in EventKind:
            for reason in RefreshReason:
                for outcome in Outcome:
                    sequence += 1
                    origin = Origin(role=role, executor_id="driver", query_id=f"query-{sequence % size.queries}")
                    rare = made(
                        f"f{list(Role).index(role):031x}",
                        sequence,
                        NOW_MS,
                        kind=kind,
                        reason=reason,
                        outcome=outcome,
                        origin=origin,
                        cause_topic=f"t{sequence % size.topics}",
                    )
                    details = {
                        "broker_id": None,
                        "lost_from_offset": 0,
                        "lost_until_offset": 1,
                        "transactional_id": f"sink-{sequence % size.sinks}",
                        "recovery_ms": 1.0,
                        "transactions_ms": 1.0,
                        "table_changes": [{"topic": f"t{sequence % size.topics}", "op": "c", "records": 1}],
                        "filtered": [FilteredRecords(f"t{sequence % size.topics}", 0, 1)._asdict()],
                    }
                    totals.add([json.loads(rare.to_json()) | details])
    live = by_partition([PartitionRow(topic="t0", partition=0, leader_epoch=9)])
    readings = totals.readings(NOW_MS, live)
    per_topic = size.partitions // size.topics
    for topic in range(size.topics):
        rows = [lag_row(1, 1.0, each, f"t{topic}") for each in range(per_topic)]
        read_lag(readings, f"query-{topic % size.queries}", rows, per_partition=True)
    queries = QueryTotals()
    for number in range(size.queries):
        progress = {"id": f"query-{number}", "name": None, "batchId": 1, "numInputRows": 1, "batchDuration": 1}
        queries.add(progress)
    queries.read(readings)
    open_transactions = [
        transaction_row(sink=sink, open_ms=1) for sink in (None, *(f"sink-{number}" for number in range(size.sinks)))
    ]
    read_transactions(readings, open_transactions, ())
    for metric in (metrics.UP, metrics.ERRORS, metrics.POLL_SECONDS, metrics.LAST_SUCCESS):
        for source in Source:
            readings.set(metric, 1, source)
    readings.set(metrics.UNREADABLE_FILES, 0)
    return readings


def test_the_number_of_series_has_the_stated_bound() -> None:
    found = series(busy(EXAMPLE))

    assert found.keys() == set(METRICS), "all metrics are seen"
    assert {metric.name: count for metric, count in found.items() if count > max_series(metric, EXAMPLE)} == {}
    by_partition_alone = {metrics.PARTITION_LAG_RECORDS, metrics.PARTITION_LAG_SECONDS}
    assert sum(count for metric, count in found.items() if metric not in by_partition_alone) < 15_000
    assert sum(found[metric] for metric in by_partition_alone) == 2 * EXAMPLE.partitions


def test_more_partitions_make_more_series_only_on_request() -> None:
    larger = Size(**{name: getattr(EXAMPLE, name) for name in EXAMPLE.__dataclass_fields__} | {"partitions": 10**6})
    grown = {metric for metric in METRICS if max_series(metric, larger) > max_series(metric, EXAMPLE)}

    assert grown == {metrics.PARTITION_LAG_RECORDS, metrics.PARTITION_LAG_SECONDS}
