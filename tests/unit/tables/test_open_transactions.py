"""The table of transactions: what coordinators describe, beside what sinks have decided."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from pyspark_kafka_meta.errors import UnsupportedBrokerError
from pyspark_kafka_meta.kafka.protocol.transactions import DescribedTransaction
from pyspark_kafka_meta.model import OpenTransaction, ProducerIdAndEpoch, TopicPartition, TransactionSpan
from pyspark_kafka_meta.tables.cluster_query import open_transactions, transaction_rows
from pyspark_kafka_meta.tables.rows import TransactionPartition, TransactionRow, arrow_schema, to_batches
from pyspark_kafka_meta.write.exactly_once.decision import STREAM, BatchId, Decision

NOW_MS = 1_700_000_060_000
PRODUCER = ProducerIdAndEpoch(7, 3)


def described(
    transactional_id: str,
    state: str = "Ongoing",
    producer: ProducerIdAndEpoch = PRODUCER,
    started_ms: int | None = None,
) -> DescribedTransaction:
    partitions = (TopicPartition("t", 1), TopicPartition("t", 0))
    return DescribedTransaction(transactional_id, state, producer, 900_000, started_ms or NOW_MS - 5_000, partitions)


def written(transactional_id: str, producer: ProducerIdAndEpoch = PRODUCER) -> OpenTransaction:
    return OpenTransaction(
        transactional_id, producer, (TransactionSpan("t", 0, 5, 9, 4), TransactionSpan("t", 0, 9, 10, 1))
    )


def decided(*transactions: OpenTransaction, series: str = STREAM) -> Decision:
    return Decision(BatchId(series, "query-1", 12), transactions, NOW_MS)


def rows(*given: DescribedTransaction, **decisions: Decision) -> list[TransactionRow]:
    keyed = {(sink, decision.batch.series): decision for sink, decision in decisions.items()}
    return transaction_rows(given, keyed, "cluster-1", NOW_MS)


def test_open_transaction_of_a_task_names_its_sink_and_age() -> None:
    (row,) = rows(described("shop/orders/12/0"))

    assert (row.sink, row.state, row.is_decided, row.cluster_id) == ("shop/orders", "Ongoing", False, "cluster-1")
    assert (row.started, row.open_ms) == (datetime.fromtimestamp(NOW_MS / 1000 - 5, UTC), 5_000)
    assert (row.producer_id, row.producer_epoch, row.timeout_ms) == (7, 3, 900_000)
    assert row.partitions == (TransactionPartition("t", 0), TransactionPartition("t", 1))


@pytest.mark.parametrize("other", ["flink-0-12", "a/b", "a/b/c", "orders/1", "/", ""])
def test_transactions_of_other_producers_have_no_sink_and_come_last(other: str) -> None:
    assert [row.sink for row in rows(described(other), described("z/0/0"))] == ["z", None]


def test_open_transaction_of_a_driver_names_its_sink() -> None:
    (row,) = rows(described("orders"), orders=decided().settled())
    assert (row.sink, row.is_decided) == ("orders", False)


def test_decided_transaction_names_query_and_micro_batch() -> None:
    (row,) = rows(described("orders/0/0"), orders=decided(written("orders/0/0")))
    assert (row.is_decided, row.query_id, row.batch_id, row.state) == (True, "query-1", 12, "Ongoing")


def test_open_transaction_of_a_task_names_the_query_that_wrote_last_with_its_sink() -> None:
    (row,) = rows(described("orders/0/0"), orders=decided().settled())
    assert (row.is_decided, row.query_id, row.batch_id) == (False, "query-1", None)


def test_decided_batch_write_has_a_version_and_no_query() -> None:
    decision = decided(written("orders/0/0"), series="nightly")
    (row,) = rows(described("orders/0/0"), orders=decision)
    assert (row.is_decided, row.query_id, row.batch_id) == (True, None, 12)


@pytest.mark.parametrize("state", ["CompleteAbort", "Empty", None])
def test_decided_transaction_stays_until_its_batch_is_settled(state: str | None) -> None:
    """Else nobody would see that records still have to become visible."""
    known = [] if state is None else [described("orders/0/0", state, ProducerIdAndEpoch(7, 4))]
    (row,) = rows(*known, orders=decided(written("orders/0/0")))

    assert (row.sink, row.state, row.is_decided) == ("orders", state, True)
    assert (row.started, row.open_ms, row.timeout_ms) == (None, None, None)
    assert (row.producer_epoch, row.partitions) == (3, (TransactionPartition("t", 0),))


@pytest.mark.parametrize("state", ["PrepareCommit", "PrepareAbort"])
def test_decided_transaction_whose_end_has_raised_its_epoch_is_one_row(state: str) -> None:
    found = rows(described("orders/0/0", state, ProducerIdAndEpoch(7, 4)), orders=decided(written("orders/0/0")))
    assert [(row.producer_epoch, row.is_decided, row.state) for row in found] == [(4, True, state)]


def test_next_transaction_of_an_id_is_not_taken_for_the_decided_one() -> None:
    later = described("orders/0/0", producer=ProducerIdAndEpoch(7, 5))
    found = rows(later, orders=decided(written("orders/0/0")))
    assert [(row.producer_epoch, row.is_decided, row.state) for row in found] == [
        (5, False, "Ongoing"),
        (3, True, None),
    ]


@pytest.mark.parametrize("state", ["CompleteCommit", "CompleteAbort", "Empty", "Dead"])
def test_ended_transactions_have_no_rows(state: str) -> None:
    assert rows(described("orders/0/0", state), orders=decided().settled()) == []


def test_rows_fit_the_columns_of_the_table() -> None:
    (row,) = rows(described("orders/0/0"))
    (batch,) = to_batches([asdict(row)], arrow_schema(TransactionRow))

    (found,) = batch.to_pylist()
    assert found["partitions"] == [{"topic": "t", "partition": 0}, {"topic": "t", "partition": 1}]
    assert found["started"] == row.started


def test_decided_transactions_are_described_even_if_no_broker_lists_them() -> None:
    asked: list[Any] = []
    coordinators = SimpleNamespace(
        list_transactions=lambda deadline: ["orders/1/0"],
        describe_transactions=lambda ids, deadline: asked.extend(ids) or [described("orders/1/0")],
    )
    client: Any = SimpleNamespace(
        coordinators=coordinators,
        api_deadline=lambda: 60.0,
        cache=SimpleNamespace(snapshot=SimpleNamespace(cluster_id="c")),
    )
    found = open_transactions(client, {("orders", STREAM): decided(written("orders/0/0"))})

    assert asked == ["orders/0/0", "orders/1/0"]
    assert [(row.transactional_id, row.is_decided) for row in found] == [("orders/0/0", True), ("orders/1/0", False)]


def test_brokers_that_cannot_list_are_named() -> None:
    def refuse(deadline: float) -> list[str]:
        raise UnsupportedBrokerError("no ListTransactions")

    client: Any = SimpleNamespace(coordinators=SimpleNamespace(list_transactions=refuse), api_deadline=lambda: 60.0)
    with pytest.raises(UnsupportedBrokerError, match=r"before Kafka 3\.0 cannot list transactions"):
        open_transactions(client, {})
