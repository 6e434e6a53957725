"""Queries the open transactions of a cluster (KIP-664), and which of them belong to decided batches of sinks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime

from pyspark_kafka_meta.errors import UnknownTopicError, UnsupportedBrokerError
from pyspark_kafka_meta.events.origin import planner_origin
from pyspark_kafka_meta.events.publisher import client_without_events
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.protocol.transactions import ENDING_STATES, OPEN_STATES, DescribedTransaction
from pyspark_kafka_meta.model import OpenTransaction, RefreshReason
from pyspark_kafka_meta.options import ClusterOptions
from pyspark_kafka_meta.tables.rows import TransactionPartition, TransactionRow
from pyspark_kafka_meta.write.exactly_once.decision import BatchId, Decision, sink_of_task
from pyspark_kafka_meta.write.exactly_once.decisions_topic import DecisionsTopic, require_one_partition

SinkDecisions = Mapping[tuple[str, str], Decision]
"""As `DecisionsTopic.read_all`."""


def query_transactions(options: ClusterOptions) -> list[TransactionRow]:
    """The open transactions of a cluster, and those of unsettled batches, with a client of their own.

    Raises:
        KafkaMetaError: as `open_transactions`, or this user may not read the decisions topic.
    """
    with closing(client_without_events(options.client, planner_origin())) as client:
        return open_transactions(client, read_decisions(client, options.decisions_topic))


def read_decisions(client: KafkaClient, decisions_topic: str) -> SinkDecisions:
    """The last decision of each sink and series; none without the topic, which the first sink creates."""
    deadline = client.api_deadline()
    try:
        require_one_partition(client.partitions([decisions_topic], deadline))
    except UnknownTopicError:
        return {}
    # From a second broker: a leader that was replaced would show decided transactions as undecided.
    client.cache.refresh(RefreshReason.ON_DEMAND, deadline)
    return DecisionsTopic(client, decisions_topic, None).read_all()


def open_transactions(client: KafkaClient, decisions: SinkDecisions) -> list[TransactionRow]:
    """The open transactions of a cluster, and those of unsettled batches, by sink and id.

    Raises:
        UnsupportedBrokerError: the brokers cannot list transactions (before Kafka 3.0).
        AuthorizationError: this user may not describe an id of a decided transaction.
        ConnectError: a broker did not respond.
    """
    deadline = client.api_deadline()
    try:
        listed = client.coordinators.list_transactions(deadline)
    except UnsupportedBrokerError:
        raise UnsupportedBrokerError(
            "brokers before Kafka 3.0 cannot list transactions (KIP-664): a lost task attempt leaves its transaction "
            "open until kafka.transaction.timeout.ms, or until its sink uses the id again"
        ) from None
    decided = {each.transactional_id for decision in decisions.values() for each in decision.transactions}
    described = client.coordinators.describe_transactions(sorted({*listed, *decided}), deadline)
    return transaction_rows(described, decisions, client.cache.snapshot.cluster_id, int(time.time() * 1000))


def transaction_rows(
    described: Iterable[DescribedTransaction], decisions: SinkDecisions, cluster_id: str | None, now_ms: int
) -> list[TransactionRow]:
    """The rows of open and of decided transactions, by sink and id; transactions of other producers come last.

    Args:
        now_ms: ms since 1970 UTC.
    """
    sinks = {sink for sink, _ in decisions}
    queries = {sink: decision.batch.owner for (sink, _), decision in decisions.items() if decision.batch.is_stream}
    decided = {
        (each.transactional_id, each.producer): (each, sink, decision.batch)
        for (sink, _), decision in decisions.items()
        for each in decision.transactions
    }
    rows, states = [], {}
    for transaction in described:
        if transaction.state in OPEN_STATES:
            transactional_id, producer = transaction.transactional_id, transaction.producer
            if (transactional_id, producer) not in decided and transaction.state in ENDING_STATES:
                producer = producer._replace(epoch=producer.epoch - 1)  # the end has raised it already (KIP-890)
            _, _, batch = decided.pop((transactional_id, producer), (None, None, None))
            # None for the id of another producer than a task attempt or a driver.
            sink = sink_of_task(transactional_id) or (transactional_id if transactional_id in sinks else None)
            rows.append(_row(transaction, transaction.partitions, transaction.state, sink, batch, now_ms))
        else:
            states[transaction.transactional_id] = transaction.state
    for ended, sink, batch in decided.values():  # committed or aborted, but their batch is not settled
        partitions = {(written.topic, written.partition) for written in ended.written}
        rows.append(_row(ended, partitions, states.get(ended.transactional_id), sink, batch, now_ms))
    rows = [
        replace(row, cluster_id=cluster_id, query_id=row.query_id if row.is_decided else queries.get(row.sink or ""))
        for row in rows
    ]
    return sorted(rows, key=lambda row: (row.sink is None, row.sink or "", row.transactional_id))


def _row(
    transaction: DescribedTransaction | OpenTransaction,
    partitions: Iterable[tuple[str, int]],
    state: str | None,
    sink: str | None,
    batch: BatchId | None,
    now_ms: int,
) -> TransactionRow:
    opened = transaction if isinstance(transaction, DescribedTransaction) else None
    started_ms = None if opened is None else opened.started_ms
    return TransactionRow(
        sink=sink,
        transactional_id=transaction.transactional_id,
        state=state,
        started=None if started_ms is None else datetime.fromtimestamp(started_ms / 1000, UTC),
        open_ms=None if started_ms is None else max(now_ms - started_ms, 0),
        timeout_ms=None if opened is None else opened.timeout_ms,
        producer_id=transaction.producer.producer_id,
        producer_epoch=transaction.producer.epoch,
        partitions=tuple(TransactionPartition(*partition) for partition in sorted(partitions)),
        is_decided=batch is not None,
        query_id=batch.owner if batch is not None and batch.is_stream else None,
        batch_id=None if batch is None else batch.version,
    )
