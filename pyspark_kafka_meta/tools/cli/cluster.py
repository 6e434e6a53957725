"""What `kafkameta metadata`, `lag` and `transactions` show of a live cluster, once or with `--watch`; and how
`transactions --settle` ends those of a sink.

The request of `metadata` bypasses caches. With --refresh, the command also refreshes a cache of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from pyspark_kafka_meta.errors import KafkaMetaError, UnsupportedBrokerError
from pyspark_kafka_meta.events.event import Event
from pyspark_kafka_meta.events.origin import cli_origin
from pyspark_kafka_meta.events.publisher import EventPublisher, client_without_events
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.protocol.error_codes import describe
from pyspark_kafka_meta.model import MetadataResponse, RefreshReason, name_first, shortened
from pyspark_kafka_meta.options import (
    ClientOptions,
    ClusterOptions,
    EventsOptions,
    ProducerOptions,
    SinkOptions,
    TransactionOptions,
    default_options,
)
from pyspark_kafka_meta.tables.caches_from_events import EventRow
from pyspark_kafka_meta.tables.cluster_query import ClusterDescription, describe_cluster
from pyspark_kafka_meta.tables.lag import LagSummary
from pyspark_kafka_meta.tables.open_transactions import (
    SinkDecisions,
    open_transactions,
    read_decisions,
    transaction_rows,
)
from pyspark_kafka_meta.tables.rows import TransactionRow
from pyspark_kafka_meta.tools.checkpoints import CheckpointLag
from pyspark_kafka_meta.tools.console import Shown, note
from pyspark_kafka_meta.tools.formatting import EventsTable, plain
from pyspark_kafka_meta.tools.views import lag_view, transactions_view
from pyspark_kafka_meta.write.exactly_once.batch_committer import BatchCommitter
from pyspark_kafka_meta.write.exactly_once.decision import tasks_of_sink


@dataclass(frozen=True, slots=True)
class Look:
    """A description of the cluster at one time.

    Attributes:
        events: of the command's cache since the last look; none without a cache.
    """

    description: ClusterDescription
    events: list[EventRow]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        found = self.description
        about = {"answered_by": str(found.address), "latency_ms": round(found.latency_ms, 3)}
        return {**about, **asdict(found.response), "events": self.events}


def look_at(options: ClientOptions, topics: Collection[str] | None, own_cache: OwnCache | None) -> Look:
    """Look at the cluster. Raises KafkaMetaError: as `describe_cluster`.

    Args:
        topics: None for all topics.
    """
    description = describe_cluster(options, topics)
    events = [] if own_cache is None else own_cache.refresh([topic.name for topic in description.response.topics])
    return Look(description, events)


def _metadata_tables(seen: Look) -> Group:
    description, response = seen.description, seen.description.response
    heading = Text.assemble(
        "Cluster ",
        plain(response.cluster_id, "bold"),
        f"; {description.address} answered Metadata v{response.api_version} in {description.latency_ms:.1f} ms with "
        f"{response.response_bytes} bytes",
    )
    tables: list[RenderableType] = [heading, _brokers_table(response), _topics_table(response)]
    if seen.events:
        tables += [Text("Events of the cache of this command"), EventsTable(seen.events)]
    return Group(*tables)


def _brokers_table(response: MetadataResponse) -> Table:
    table = Table("id", "host", "port", "rack", title="Brokers in the cluster", title_justify="left")
    for broker in sorted(response.brokers):
        table.add_row(*map(plain, (broker.node_id, broker.address.host, broker.address.port, broker.rack)))
    return table


def _topics_table(response: MetadataResponse) -> Table:
    columns = ("topic", "partition", "leader", "epoch", "replicas", "in sync", "error")
    table = Table(*columns, title="Topics and leaders", title_justify="left")
    for topic in sorted(response.topics, key=lambda topic: topic.name):
        if topic.error_code:
            table.add_row(plain(topic.name), *[""] * 5, plain(describe(topic.error_code)))
        for partition in sorted(topic.partitions, key=lambda partition: partition.partition):
            row = (
                topic.name,
                partition.partition,
                partition.leader_id if partition.leader_id >= 0 else "none",
                partition.leader_epoch,
                " ".join(map(str, partition.replicas)),
                " ".join(map(str, sorted(partition.isr))),
                describe(partition.error_code) if partition.error_code else "",
            )
            table.add_row(*map(plain, row))
    return table


class _Screen:
    """A sink that keeps the events until they are shown."""

    def __init__(self) -> None:
        self.events: list[EventRow] = []

    def write(self, events: Sequence[Event]) -> None:
        self.events += [event.to_dict() for event in events]

    def close(self) -> None:
        """Nothing is open."""


class OwnCache:
    """A client whose cache keeps its events until the next `refresh`."""

    def __init__(self, options: ClientOptions) -> None:
        self._screen = _Screen()
        self._client = KafkaClient(options, EventPublisher([self._screen], cli_origin()))

    def refresh(self, topics: Collection[str]) -> list[EventRow]:
        """Refresh the cache on demand, with these and all earlier topics. The first call also bootstraps the cache.
        Returns the events since the last call. Raises ConnectError: no broker responded in time."""
        cache, deadline = self._client.cache, self._client.api_deadline()
        cache.track(topics)
        if cache.snapshot.generation == 0:
            cache.refresh(RefreshReason.BOOTSTRAP, deadline)
        cache.refresh(RefreshReason.ON_DEMAND, deadline)
        self._client.publisher.flush()
        events, self._screen.events = self._screen.events, []
        return events

    def close(self) -> None:
        self._client.close()


def _lag_rows(lag: CheckpointLag) -> Iterator[dict[str, Any]]:
    for row in lag.rows:
        yield {"query_id": lag.progress.query_id, "batch_id": lag.progress.batch_id, **asdict(row)}


def _lag_tables(lag: CheckpointLag) -> Group:
    view, summary = lag_view(lag), LagSummary.of(lag.rows)
    parts = [f"{summary.records} records behind"]
    bound = "at least" if summary.unknown_ages or summary.unknown else "at most"
    parts += [] if summary.oldest_s is None else [f"{bound} {summary.oldest_s:.1f} s"]
    parts += [f"{summary.unknown} partitions without an end"] if summary.unknown else []
    return Group(plain(f"{view.title}, at {datetime.now():%H:%M:%S}: {', '.join(parts)}", "bold"), view.table())


METADATA = Shown[Look](lambda seen: [seen.as_dict()], _metadata_tables)
LAG = Shown(_lag_rows, _lag_tables)


def _tables(rows: Sequence[TransactionRow]) -> Group:
    view = transactions_view(rows)
    return Group(plain(f"At {datetime.now():%H:%M:%S}: {view.title}", "bold"), view.table())


TRANSACTIONS = Shown[Sequence[TransactionRow]](lambda rows: map(asdict, rows), _tables)


def settle(
    options: ClusterOptions,
    sink: str,
    is_confirmed: Callable[[str], bool],
    console: Console | None,
    *,
    is_topic_given: bool = False,
) -> bool:
    """Settle what a sink has decided and abort its other transactions, as its next run would. Returns whether nothing
    is left to do. Raises KafkaMetaError: the sink is unknown, perhaps in this topic only, transactions stay open, or as
    `BatchCommitter.plan`.

    Args:
        is_confirmed: asks the user a question, if there is something to end; returns whether to go on.
        is_topic_given: whether the user has named the topic of decisions.
    """
    with closing(client_without_events(options.client, cli_origin())) as client:
        decisions = read_decisions(client, options.decisions_topic)
        rows = _rows_of(client, decisions)
        chosen = [row for row in rows if row.sink == sink]
        sinks = {name for name, _ in decisions} | {row.sink for row in rows if row.sink is not None}
        if sink not in sinks:
            raise KafkaMetaError(
                f"no query has written with kafka.transactional.id {shortened(sink)}: correct --settle; known are "
                f"{name_first(sorted(sinks))}"
            )
        if not chosen:
            note(f"nothing to settle: no transaction of {sink} is known to be open")
            return True
        if not is_topic_given and all(name != sink for name, _ in decisions):
            raise KafkaMetaError(
                f"{sink} has decided nothing in topic {options.decisions_topic}, and perhaps in another one, whose "
                "batches would be aborted: give the query's option decisionsTopic as --decisions-topic, or this topic "
                "if the query did not set it"
            )
        TRANSACTIONS.show(chosen, console)
        decided = sum(row.is_decided for row in chosen)
        others = len(chosen) - decided
        question = f"Make the decided transactions of {sink} visible ({decided}), and abort the others ({others})?"
        if not is_confirmed(f"{question} A query that still runs repeats its tasks."):
            return False
        BatchCommitter(client, _sink_options(options, sink)).recover()
        if left := _still_open(client, sink):
            raise KafkaMetaError(
                f"transactions of {sink} are open ({len(left)}): its query runs, or a broker did not respond in time: "
                "stop the query, and settle again"
            )
        note(f"settled {sink}: the decided transactions are visible ({decided}), the others are aborted ({others})")
        return True


def _rows_of(client: KafkaClient, decisions: SinkDecisions) -> list[TransactionRow]:
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


def _sink_options(options: ClusterOptions, sink: str) -> SinkOptions:
    transaction = default_options(TransactionOptions)
    return default_options(
        SinkOptions,
        client=options.client,
        events=EventsOptions(None, None, options.client.bootstrap_servers),
        producer=default_options(ProducerOptions),
        transaction=replace(transaction, transactional_id=sink, decisions_topic=options.decisions_topic),
    )
