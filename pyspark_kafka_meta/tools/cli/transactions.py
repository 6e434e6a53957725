"""What `kafkameta transactions` shows: the open transactions of a cluster; and how `--settle` ends those of a sink."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict
from datetime import datetime

from rich.console import Console, Group

from pyspark_kafka_meta.errors import KafkaMetaError, UnsupportedBrokerError
from pyspark_kafka_meta.events.publisher import client_without_events
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.model import name_first
from pyspark_kafka_meta.options import SinkOptions
from pyspark_kafka_meta.tables.cluster_query import SinkDecisions, open_transactions, read_decisions, transaction_rows
from pyspark_kafka_meta.tables.rows import TransactionRow
from pyspark_kafka_meta.tools.console import Shown, note
from pyspark_kafka_meta.tools.formatting import plain, transactions_view
from pyspark_kafka_meta.write.exactly_once.batch_committer import BatchCommitter
from pyspark_kafka_meta.write.exactly_once.decision import tasks_of_sink


def _tables(rows: Sequence[TransactionRow]) -> Group:
    view = transactions_view(rows)
    return Group(plain(f"At {datetime.now():%H:%M:%S}: {view.title}", "bold"), view.table())


TRANSACTIONS = Shown[Sequence[TransactionRow]](lambda rows: map(asdict, rows), _tables)


def settle(
    options: SinkOptions, is_confirmed: Callable[[str], bool], console: Console | None, *, is_topic_given: bool = False
) -> bool:
    """Settle what a sink has decided and abort its other transactions, as its next run would. Returns whether nothing
    is left to do. Raises KafkaMetaError: the sink is unknown, perhaps in this topic only, transactions stay open, or as
    `BatchCommitter.plan`.

    Args:
        is_confirmed: asks the user a question, if there is something to end; returns whether to go on.
        is_topic_given: whether the user has named the topic of decisions.
    """
    sink, topic = str(options.transaction.transactional_id), options.transaction.decisions_topic
    with closing(client_without_events(options.client)) as client:
        decisions = read_decisions(client, topic)
        rows = _rows(client, decisions)
        chosen = [row for row in rows if row.sink == sink]
        sinks = {name for name, _ in decisions} | {row.sink for row in rows if row.sink is not None}
        if sink not in sinks:
            raise KafkaMetaError(
                f"no query has written with kafka.transactional.id {sink}: correct --settle; known are "
                f"{name_first(sorted(sinks))}"
            )
        if not chosen:
            note(f"nothing to settle: no transaction of {sink} is known to be open")
            return True
        if not is_topic_given and all(name != sink for name, _ in decisions):
            raise KafkaMetaError(
                f"{sink} has decided nothing in topic {topic}, and perhaps in another one, whose "
                "batches would be aborted: give the query's option decisionsTopic as --decisions-topic, or this topic "
                "if the query did not set it"
            )
        TRANSACTIONS.show(chosen, console)
        decided = sum(row.is_decided for row in chosen)
        others = len(chosen) - decided
        question = f"Make the decided transactions of {sink} visible ({decided}), and abort the others ({others})?"
        if not is_confirmed(f"{question} A query that still runs repeats its tasks."):
            return False
        BatchCommitter(client, options).recover()
        if left := _still_open(client, sink):
            raise KafkaMetaError(
                f"transactions of {sink} are open ({len(left)}): its query runs, or a broker did not respond in time: "
                "stop the query, and settle again"
            )
        note(f"settled {sink}: the decided transactions are visible ({decided}), the others are aborted ({others})")
        return True


def _rows(client: KafkaClient, decisions: SinkDecisions) -> list[TransactionRow]:
    """Before Kafka 3.0 only the transactions of unsettled batches."""
    try:
        return open_transactions(client, decisions)
    except UnsupportedBrokerError as error:
        note(str(error))
        return transaction_rows((), decisions, client.cache.snapshot.cluster_id, int(time.time() * 1000))


def _still_open(client: KafkaClient, sink: str) -> tuple[str, ...]:
    """Open transactions of the sink's tasks; before Kafka 3.0 none is known."""
    try:
        return tasks_of_sink(client.coordinators.list_transactions(client.api_deadline()), sink)
    except UnsupportedBrokerError:
        return ()
