"""Lag, transactions and polls as metrics: what is unknown has no value."""

from __future__ import annotations

from typing import Any

from pyspark_kafka_meta.model import Position
from pyspark_kafka_meta.read.planning.checkpoint_offsets import SourceOffset
from pyspark_kafka_meta.tables.rows import LagRow, TransactionRow
from pyspark_kafka_meta.tools.exporter import metric_table as metrics
from pyspark_kafka_meta.tools.exporter.cluster_readings import Health, read_health, read_lag, read_transactions
from pyspark_kafka_meta.tools.exporter.metric_table import Source
from pyspark_kafka_meta.tools.exporter.query_totals import QueryTotals
from pyspark_kafka_meta.tools.exporter.readings import Readings
from tests.checkpoints import text
from tests.partitions import T0


def lag(topic: str, partition: int, records: int | None, seconds: float | None) -> LagRow:
    return LagRow(
        topic=topic,
        partition=partition,
        next_offset=0,
        end_offset=records,
        records_behind=records,
        seconds_behind=seconds,
    )


LAG = [
    lag("t", 0, 5, 1.5),
    lag("t", 1, 7, 60.0),
    lag("t", 2, None, None),
    lag("u", 0, 3, None),
    lag("v", 0, None, None),
]


def test_lag_is_the_sum_of_the_records_and_the_largest_age_of_a_topic() -> None:
    readings = Readings()
    read_lag(readings, "q", LAG, per_partition=False)

    assert readings.numbers == {
        metrics.LAG_RECORDS: {("q", "t"): 12, ("q", "u"): 3},
        metrics.LAG_SECONDS: {("q", "t"): 60.0},
        metrics.LAG_SECONDS_UNKNOWN: {("q", "t"): 0, ("q", "u"): 1},
        metrics.LAG_UNKNOWN: {("q", "t"): 1, ("q", "u"): 0, ("q", "v"): 1},
    }


def test_lag_of_partitions_is_added_on_request() -> None:
    readings = Readings()
    read_lag(readings, "q", LAG, per_partition=True)

    assert readings.numbers[metrics.PARTITION_LAG_RECORDS] == {
        ("q", "t", "0"): 5,
        ("q", "t", "1"): 7,
        ("q", "u", "0"): 3,
    }
    assert readings.numbers[metrics.PARTITION_LAG_SECONDS] == {("q", "t", "0"): 1.5, ("q", "t", "1"): 60.0}


def transaction(sink: str | None, state: str | None, open_ms: int | None, is_decided: bool = False) -> TransactionRow:
    return TransactionRow(
        sink=sink,
        transactional_id="id",
        state=state,
        started=None,
        open_ms=open_ms,
        timeout_ms=None,
        producer_id=1,
        producer_epoch=1,
        partitions=(),
        is_decided=is_decided,
    )


def test_transactions_are_counted_by_sink() -> None:
    readings = Readings()
    rows = [
        transaction("orders", "Ongoing", 5_000),
        transaction("orders", "Ongoing", 9_000, is_decided=True),
        transaction("orders", "CompleteCommit", None, is_decided=True),
        transaction(None, "PrepareAbort", 1_000),
    ]
    read_transactions(readings, rows, {"orders", "idle"})

    assert readings.numbers == {
        metrics.OPEN_TRANSACTIONS: {("orders",): 2, ("idle",): 0, ("",): 1},
        metrics.DECIDED_TRANSACTIONS: {("orders",): 2, ("idle",): 0, ("",): 0},
        metrics.OPEN_TRANSACTION_SECONDS: {("orders",): 9.0, ("idle",): 0, ("",): 1.0},
    }


def test_the_time_of_the_last_success_stays_when_a_source_fails() -> None:
    readings = Readings()
    health = {Source.EVENTS: Health(None, 1, 50.0, 0.5), Source.LAG: Health("down", 3, 40.0, 5.0)}
    read_health(readings, health, unreadable_files=2)

    assert readings.numbers == {
        metrics.UP: {("events",): 1, ("lag",): 0},
        metrics.ERRORS: {("events",): 1, ("lag",): 3},
        metrics.POLL_SECONDS: {("events",): 0.5, ("lag",): 5.0},
        metrics.LAST_SUCCESS: {("events",): 50.0, ("lag",): 40.0},
        metrics.UNREADABLE_FILES: {(): 2},
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
