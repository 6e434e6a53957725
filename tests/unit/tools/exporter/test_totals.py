"""Metrics of refresh events, queries, lag, transactions and polls."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from pyspark_kafka_meta.client_facts import LookupReason
from pyspark_kafka_meta.events.event import (
    BrokerFetches,
    BrokerProduces,
    EventKind,
    FilteredRecords,
    Origin,
    OtherReason,
    Outcome,
    Role,
    TableChanges,
)
from pyspark_kafka_meta.kafka.metadata.snapshot import SnapshotChanges, TopicRecreated
from pyspark_kafka_meta.model import Position, RefreshReason
from pyspark_kafka_meta.read.planning.checkpoint_offsets import SourceOffset
from pyspark_kafka_meta.tables.caches_from_events import EventRow
from pyspark_kafka_meta.tables.rows import PartitionRow, by_partition
from pyspark_kafka_meta.tools.cluster_state import Leaders, stale_entries
from pyspark_kafka_meta.tools.exporter import metric_table as metrics
from pyspark_kafka_meta.tools.exporter.metric_table import Metric, Readings
from pyspark_kafka_meta.tools.exporter.totals import EventTotals, QueryTotals, read_lag, read_transactions
from tests.checkpoints import text
from tests.partitions import T0
from tests.unit.tools.states import FIRST, NOW_MS, SECOND, lag_row, transaction_row
from tests.unit.written_events import cache_rows, learning, made, moving

THIRD = "c" * 32
SECOND_EXECUTOR = {"origin": Origin(role=Role.WRITER, application_id="app", executor_id="2", host="other", pid=9)}
PLANNER = {"origin": Origin(role=Role.PLANNER, executor_id="driver", host="head", pid=3)}
LIVE = by_partition(
    [
        PartitionRow(topic="t", partition=0, leader_id=1, leader_epoch=4),
        PartitionRow(topic="t", partition=1, leader_id=3, leader_epoch=6),
    ]
)


def event(cache: str, sequence: int, ago_ms: Any = 1_000, **fields: Any) -> EventRow:
    """As a source returns it."""
    return dict(json.loads(made(cache, sequence, NOW_MS - ago_ms, **fields).to_json()))


EVENTS = [
    event(FIRST, 1, 9_000, **learning("t", 1, 2, epoch=4)),
    event(FIRST, 2, 8_000, **moving("t", 1, (2, 3), (4, 5))),
    event(FIRST, 3, 7_000, outcome=Outcome.FAILED, reason=RefreshReason.CONNECTION_LOST, generation_after=2),
    event(SECOND, 1, 9_000, **learning("t", 1, 2, epoch=4), **SECOND_EXECUTOR),
    event(SECOND, 4, 5_000, **SECOND_EXECUTOR),
    event(THIRD, 1, 2_000, kind=EventKind.BORN, reason=RefreshReason.BOOTSTRAP, **PLANNER),
]


def readings(
    *events: EventRow, now_ms: int = NOW_MS, dead: tuple[str, ...] = (), live: Leaders | None = None
) -> Readings:
    totals = EventTotals()
    totals.add(events)
    totals.end(dead)
    return totals.readings(now_ms, live)


def numbers(found: Readings, metric: Metric) -> dict[tuple[str, ...], float]:
    """Those above 0."""
    return {labels: number for labels, number in found.numbers.get(metric, {}).items() if number}


def test_refreshes_are_counted_by_role_reason_and_outcome() -> None:
    expected = Counter(
        (event["role"], event["reason"], event["outcome"]) for event in EVENTS if event["kind"] == EventKind.REFRESH
    )

    assert numbers(readings(*EVENTS), metrics.REFRESHES) == expected


def test_requests_of_a_query_are_counted_by_outcome() -> None:
    of_query = {"origin": Origin(role=Role.READER, query_id="q")}
    failed = event(FIRST, 2, outcome=Outcome.FAILED, **of_query)

    assert numbers(readings(event(FIRST, 1, **of_query), failed, *EVENTS[3:]), metrics.QUERY_REFRESHES) == {
        ("q", "unchanged"): 1,
        ("q", "failed"): 1,
    }


def test_an_event_counts_once_in_any_order_and_however_often_it_is_read() -> None:
    totals = EventTotals()
    for events in (EVENTS[1:2], EVENTS[::-1], EVENTS, EVENTS[3:]):
        totals.add(events)
    once = readings(*EVENTS)
    again = totals.readings(NOW_MS, None)

    for metric in (metrics.REFRESHES, metrics.EVENTS, metrics.EVENTS_MISSING, metrics.REFRESH_BYTES):
        assert again.numbers[metric] == once.numbers[metric]
    assert again.distributions[metrics.RECOVERY_SECONDS]["reader",].counts == [0, 0, 0, 1] + [0] * 9


def test_events_of_before_tell_what_caches_know_and_count_nothing() -> None:
    """But for events that are missing before a new one."""
    totals = EventTotals()
    totals.add([*EVENTS[:2], EVENTS[4]], are_new=False)
    before = totals.readings(NOW_MS, LIVE)
    totals.add(EVENTS)
    after = totals.readings(NOW_MS, LIVE)
    counters = [metric for metric in metrics.METRICS if metric.kind == "counter"]

    assert [numbers(before, metric) for metric in counters] == [{}] * len(counters)
    assert before.distributions == {}
    assert before.numbers[metrics.EVENTS_MISSING] == {(): 0}
    assert before.numbers[metrics.STALE_PARTITIONS]["", "1"] == 1
    assert numbers(after, metrics.EVENTS) == {("reader", "refresh"): 1, ("planner", "born"): 1}
    totals.add([event(SECOND, 7, **SECOND_EXECUTOR)])
    assert totals.readings(NOW_MS, None).numbers[metrics.EVENTS_MISSING] == {(): 2}


def test_a_query_without_requests_for_a_day_is_forgotten() -> None:
    totals, of_query = EventTotals(), {"origin": Origin(role=Role.READER, query_id="q")}
    totals.add([event(FIRST, 1, **of_query)])
    kept = []
    for hours in (23, 25):
        now_ms = NOW_MS + hours * 3_600_000
        totals.forget(now_ms)
        kept.append(numbers(totals.readings(now_ms, None), metrics.QUERY_REFRESHES))

    assert kept == [{("q", "unchanged"): 1}, {}]


def test_missing_events_are_those_of_the_table_until_they_come() -> None:
    rows = {row.cache_id: row.events_missing for row in cache_rows(EVENTS, NOW_MS)}
    totals = EventTotals()
    totals.add(EVENTS)
    before = totals.readings(NOW_MS, None).numbers[metrics.EVENTS_MISSING]
    totals.add([event(SECOND, 3, 6_000, **SECOND_EXECUTOR)])
    after = totals.readings(NOW_MS, None).numbers[metrics.EVENTS_MISSING]

    assert before == {(): sum(rows.values())} == {(): 2}
    assert after == {(): 1}


def test_caches_of_an_executor_have_the_figures_of_the_table() -> None:
    rows = [row for row in cache_rows(EVENTS, NOW_MS) if row.cache_id == FIRST]
    stale = list(stale_entries(rows, LIVE, EVENTS, NOW_MS))
    found = readings(*EVENTS, live=LIVE)
    executor = ("", "1")

    assert found.numbers[metrics.CACHED_PARTITIONS][executor] == len(rows)
    assert found.numbers[metrics.CACHE_LAST_REFRESH][executor] == (NOW_MS - (rows[0].age_at_most_ms or 0)) / 1000
    assert found.numbers[metrics.CACHE_GENERATION][executor] == rows[0].generation_at_least == 2
    assert found.numbers[metrics.STALE_PARTITIONS][executor] == len(stale) == 1
    assert found.numbers[metrics.CACHES] == {executor: 1, ("app", "2"): 1, ("", "planner"): 1}


def test_the_last_refresh_of_an_executor_is_that_of_its_oldest_cache() -> None:
    found = readings(event(FIRST, 1, 9_000), event(SECOND, 1, 20_000), event(THIRD, 1, 3_000))

    assert found.numbers[metrics.CACHE_LAST_REFRESH] == {("", "1"): (NOW_MS - 20_000) / 1000}


def test_stale_partitions_are_counted_again_if_the_cache_or_the_cluster_changes() -> None:
    totals = EventTotals()
    totals.add(EVENTS[:2])
    older = by_partition([PartitionRow(topic="t", partition=1, leader_id=3, leader_epoch=5)])

    def stale(live: Leaders | None) -> float | None:
        return totals.readings(NOW_MS, live).numbers.get(metrics.STALE_PARTITIONS, {}).get(("", "1"))

    assert [stale(None), stale(older), stale(LIVE)] == [None, 0, 1]
    totals.add([event(FIRST, 3, **moving("t", 1, (3, 2), (5, 6)))])
    assert stale(LIVE) == 0


@pytest.mark.parametrize(
    ("topic_id", "cluster_id", "stale"), [("new", None, 2), ("old", None, 0), (None, None, 0), ("new", "another", 0)]
)
def test_recreated_topic_is_stale_in_its_own_cluster(topic_id: str | None, cluster_id: str | None, stale: int) -> None:
    learned = event(FIRST, 1, cluster_id="c", **learning("t", 1, 2, epoch=4, topic_id="old"))
    live = by_partition(
        [
            PartitionRow(cluster_id=cluster_id, topic="t", partition=each, leader_epoch=4, topic_id=topic_id)
            for each in (0, 1)
        ]
    )

    assert readings(learned, live=live).numbers[metrics.STALE_PARTITIONS]["", "1"] == stale


def test_ended_dead_and_silent_caches_have_no_gauges() -> None:
    closed = event(FIRST, 4, kind=EventKind.CLOSED, reason=OtherReason.CLOSED)
    reported = event(THIRD, 2, died_cache_ids=(SECOND,), **PLANNER)
    planner = {("", "planner"): 1}

    assert numbers(readings(*EVENTS, closed, reported), metrics.CACHES) == planner
    assert numbers(readings(*EVENTS, dead=(FIRST, SECOND)), metrics.CACHES) == planner
    assert numbers(readings(*EVENTS, now_ms=NOW_MS + 3_600_000), metrics.CACHES) == {}


def test_forgotten_caches_stay_in_the_totals() -> None:
    totals = EventTotals()
    totals.add([*EVENTS, event(FIRST, 4, kind=EventKind.CLOSED, reason=OtherReason.CLOSED)])
    tomorrow_ms = NOW_MS + 25 * 3_600_000
    before = totals.readings(tomorrow_ms, None)
    totals.forget(tomorrow_ms)
    after = totals.readings(tomorrow_ms, None)

    assert after.numbers == before.numbers
    assert not totals.topics(NOW_MS)


def test_topics_are_those_of_living_caches() -> None:
    totals = EventTotals()
    recreated = SnapshotChanges(topics_recreated=(TopicRecreated("v", "old", "new"),))
    totals.add([*EVENTS, event(THIRD, 2, **{**learning("u", 1), **PLANNER})])
    totals.add([event(THIRD, 3, outcome=Outcome.CHANGED, changes=recreated, **PLANNER)])

    assert totals.topics(NOW_MS) == ["t", "u"]
    totals.end([THIRD])
    assert totals.topics(NOW_MS) == ["t"]


def test_traffic_is_counted_by_broker_and_throttling_by_request() -> None:
    busy = event(
        FIRST,
        1,
        cluster_id="c",
        request_bytes=30,
        response_bytes=70,
        throttle_ms=5,
        fetches=(BrokerFetches(1, 3, 3_000), BrokerFetches(2, 1, 10)),
        fetch_throttle_ms=1_500,
        produces=(BrokerProduces(2, 4, 400),),
        produce_throttle_ms=20,
        retries=3,
        filtered=(FilteredRecords("t", 0, 5), FilteredRecords("t", 1, 6)),
    )
    found = readings(busy, event(FIRST, 2, cluster_id="c", fetches=(BrokerFetches(1, 1, 500),), broker_id=None))

    assert numbers(found, metrics.FETCH_REQUESTS) == {("c", "1"): 4, ("c", "2"): 1}
    assert numbers(found, metrics.FETCH_BYTES) == {("c", "1"): 3_500, ("c", "2"): 10}
    assert numbers(found, metrics.PRODUCE_REQUESTS) == {("c", "2"): 4}
    assert numbers(found, metrics.PRODUCE_BYTES) == {("c", "2"): 400}
    assert numbers(found, metrics.REFRESH_BYTES) == {("c", "1"): 100}
    assert numbers(found, metrics.RETRIES) == {("reader",): 3}
    assert numbers(found, metrics.FILTERED_RECORDS) == {("t",): 11}
    assert numbers(found, metrics.THROTTLE_SECONDS) == {
        ("reader", "metadata"): 0.005,
        ("reader", "fetch"): 1.5,
        ("reader", "produce"): 0.02,
    }
    assert set(found.distributions[metrics.REFRESH_SECONDS]) == {("c", "1"), ("c", "bootstrap")}


def test_losses_are_counted_by_topic() -> None:
    loss = {"kind": EventKind.DATA_LOSS, "reason": OtherReason.DATA_LOSS, "cause_topic": "t"}
    found = readings(
        event(FIRST, 1, **loss, lost_from_offset=10, lost_until_offset=15),
        event(FIRST, 2, **loss, lost_from_offset=20, lost_until_offset=None),
        event(FIRST, 3, dropped_before=7),
    )

    assert numbers(found, metrics.DATA_LOSSES) == {("t",): 2}
    assert numbers(found, metrics.LOST_OFFSETS) == {("t",): 5}
    assert numbers(found, metrics.EVENTS_DROPPED) == {(): 7}


def test_malformed_values_are_counted_by_topic_and_column() -> None:
    malformed = {"kind": EventKind.MALFORMED_RECORDS, "reason": OtherReason.MALFORMED, "cause_topic": "t"}
    events = [
        event(FIRST, 1, **malformed, malformed_records=100),
        event(FIRST, 2, **malformed, malformed_records=5),
        event(FIRST, 3, **malformed, malformed_column="key", malformed_records=1),
        event(FIRST, 4, **malformed, malformed_column="of a newer version", malformed_records=1),
    ]

    assert numbers(readings(*events, *events), metrics.MALFORMED_RECORDS) == {
        ("t", "value"): 105,
        ("t", "key"): 1,
        ("t", "unknown"): 1,
    }


def test_changes_of_databases_are_counted_by_topic_and_op() -> None:
    first = event(FIRST, 1, table_changes=(TableChanges("t", "c", 2), TableChanges("t", "skipped", 1)))
    second = event(FIRST, 2, table_changes=(TableChanges("t", "c", 3), TableChanges("t", "of a newer version", 1)))

    assert numbers(readings(first, second, second), metrics.TABLE_CHANGES) == {
        ("t", "c"): 5,
        ("t", "skipped"): 1,
        ("t", "unknown"): 1,
    }


def test_schema_lookups_are_counted_by_role_reason_and_outcome_with_their_latency() -> None:
    lookup = {"kind": EventKind.SCHEMA_LOOKUP, "schema_subject": "t-value"}
    refused = {"reason": LookupReason.REGISTRATION, "outcome": Outcome.FAILED, "error": "incompatible"}
    found = readings(
        event(FIRST, 1, **lookup, reason=LookupReason.QUERY_SCHEMA, latency_ms=250.0, **PLANNER),
        event(FIRST, 2, **lookup, reason=LookupReason.QUERY_SCHEMA, latency_ms=500.0, **PLANNER),
        event(FIRST, 3, **lookup, **refused, latency_ms=60_000.0, origin=Origin(role=Role.COMMITTER)),
    )

    assert numbers(found, metrics.SCHEMA_LOOKUPS) == {
        ("planner", "query_schema", "unchanged"): 2,
        ("committer", "registration", "failed"): 1,
    }
    by_outcome = found.distributions[metrics.SCHEMA_LOOKUP_SECONDS]
    assert {labels: (sum(each.counts), each.total) for labels, each in by_outcome.items()} == {
        ("unchanged",): (2, 0.75),
        ("failed",): (1, 60.0),
    }
    assert numbers(found, metrics.REFRESHES) == {}


def test_transactions_are_counted_by_sink_and_result() -> None:
    def ended(sequence: int, kind: EventKind, transactional_id: str, count: int, copied: int = 0) -> EventRow:
        of_sink = {"transactional_id": transactional_id, "transactions": count, "copied_records": copied}
        return event(FIRST, sequence, kind=kind, reason=OtherReason.TRANSACTION, transactions_ms=300.0, **of_sink)

    found = readings(
        event(FIRST, 1, transactions_begun=4),
        ended(2, EventKind.TRANSACTIONS_COMMITTED, "orders", 3),
        ended(3, EventKind.TRANSACTIONS_ABORTED, "orders/7/0", 1),
        ended(4, EventKind.TRANSACTIONS_RECOVERED, "orders", 2, copied=9),
    )

    assert numbers(found, metrics.TRANSACTIONS_BEGUN) == {("reader",): 4}
    assert numbers(found, metrics.TRANSACTIONS_ENDED) == {
        ("orders", "committed"): 3,
        ("orders", "aborted"): 1,
        ("orders", "recovered"): 2,
    }
    assert numbers(found, metrics.COPIED_RECORDS) == {("orders",): 9}
    assert found.distributions[metrics.TRANSACTIONS_SECONDS]["committed",].total == 0.3


def test_values_of_newer_versions_make_no_further_series() -> None:
    strange = {**event(FIRST, 1), "role": "poet", "reason": "whim", "outcome": None, "kind": "refresh"}

    assert numbers(readings(strange), metrics.REFRESHES) == {("unknown", "unknown", "unknown"): 1}


LAG = [
    lag_row(5, 1.5, 0),
    lag_row(7, 60.0, 1),
    lag_row(None, None, 2),
    lag_row(3, None, topic="u"),
    lag_row(None, None, topic="v"),
]


def test_lag_is_the_sum_of_the_records_and_the_largest_age_of_a_topic_and_of_partitions_on_request() -> None:
    readings, by_topic = Readings(), Readings()
    read_lag(readings, "q", LAG, per_partition=True)
    read_lag(by_topic, "q", LAG, per_partition=False)

    assert by_topic.numbers == {
        metrics.LAG_RECORDS: {("q", "t"): 12, ("q", "u"): 3},
        metrics.LAG_SECONDS: {("q", "t"): 60.0},
        metrics.LAG_SECONDS_UNKNOWN: {("q", "t"): 0, ("q", "u"): 1},
        metrics.LAG_UNKNOWN: {("q", "t"): 1, ("q", "u"): 0, ("q", "v"): 1},
    }
    assert readings.numbers == {
        **by_topic.numbers,
        metrics.PARTITION_LAG_RECORDS: {("q", "t", "0"): 5, ("q", "t", "1"): 7, ("q", "u", "0"): 3},
        metrics.PARTITION_LAG_SECONDS: {("q", "t", "0"): 1.5, ("q", "t", "1"): 60.0},
    }


def test_transactions_are_counted_by_sink() -> None:
    readings = Readings()
    rows = [
        transaction_row(),
        transaction_row(open_ms=9_000, is_decided=True),
        transaction_row(state="CompleteCommit", open_ms=None, is_decided=True),
        transaction_row(sink=None, state="PrepareAbort", open_ms=1_000),
    ]
    read_transactions(readings, rows, {"orders", "idle"})

    assert readings.numbers == {
        metrics.OPEN_TRANSACTIONS: {("orders",): 2, ("idle",): 0, ("",): 1},
        metrics.DECIDED_TRANSACTIONS: {("orders",): 2, ("idle",): 0, ("",): 0},
        metrics.OPEN_TRANSACTION_SECONDS: {("orders",): 9.0, ("idle",): 0, ("",): 1.0},
    }


def progress(batch: int, **others: Any) -> dict[str, Any]:
    offset = text(SourceOffset({T0: Position(40 + batch)}, {T0.topic: None}))
    return {
        "id": "q",
        "name": "copies",
        "batchId": batch,
        "numInputRows": 10,
        "batchDuration": 400,
        "sources": [{"endOffset": offset}, {"endOffset": '{"other": 1}'}, {"endOffset": None}],
        **others,
    }


def test_micro_batches_of_a_query_add_up() -> None:
    queries, readings = QueryTotals(), Readings()
    queries.add(progress(1))
    queries.add(progress(2, numInputRows=None))
    queries.read(readings)

    assert readings.numbers == {
        metrics.QUERY_INFO: {("q", "copies"): 1},
        metrics.QUERY_BATCH: {("q",): 2},
        metrics.QUERY_RECORDS: {("q",): 10},
    }
    assert readings.distributions[metrics.QUERY_BATCH_SECONDS]["q",].counts[:4] == [0, 0, 2, 0]
    assert [offset.positions for offset in queries.offsets()["q"]] == [{T0: Position(42)}]


def shown(queries: QueryTotals, now_s: float) -> list[bool]:
    """Whether a query has lag, and whether it has other metrics."""
    readings = Readings()
    queries.forget(now_s)
    queries.read(readings)
    return [bool(queries.offsets()), bool(readings.numbers[metrics.QUERY_RECORDS])]


def test_a_stopped_query_has_no_lag_and_keeps_its_totals_for_an_hour() -> None:
    queries = QueryTotals()
    queries.add(progress(1))
    queries.end("q", has_failed=False, now_s=0.0)

    assert [shown(queries, 3_599.0), shown(queries, 3_601.0)] == [[False, True], [False, False]]


def test_a_failed_query_has_lag_for_a_day_and_again_once_it_runs() -> None:
    queries = QueryTotals()
    queries.add(progress(1))
    queries.end("q", has_failed=True, now_s=0.0)

    assert [shown(queries, 86_399.0), shown(queries, 86_401.0)] == [[True, True], [False, False]]
    queries.end("q", has_failed=True, now_s=0.0)
    queries.add(progress(2))
    assert shown(queries, 86_401.0) == [True, True]
