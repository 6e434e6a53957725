"""Events, caches, leaders, lag and transactions as text and tables for people: `View` is a table that the command line
prints and the page draws. Nothing that a broker sent can steer a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from pyspark_kafka_meta.client_facts import LookupReason
from pyspark_kafka_meta.events.event import EventKind, OtherReason, Outcome
from pyspark_kafka_meta.kafka.protocol.error_codes import describe
from pyspark_kafka_meta.kafka.protocol.transactions import OPEN_STATES
from pyspark_kafka_meta.model import NO_LEADER, RefreshReason, TopicPartition, name_partitions
from pyspark_kafka_meta.tables.caches_from_events import EventRow
from pyspark_kafka_meta.tables.rows import CacheRow, TransactionRow

if TYPE_CHECKING:  # of queries, which few commands look at
    from pyspark_kafka_meta.tools.checkpoints import CheckpointLag

CHANGES_SHOWN = 3
"""A list of changes shows this many, and counts the rest."""
ID_SHOWN = 8
"""This many characters identify a cache."""
UNKNOWN = "unknown"
"""Shown where an event of another version has no value."""
STALE_STYLE = "bold red"
TABLE_STYLE: dict[str, Any] = {"box": SIMPLE_HEAD, "padding": (0, 1, 0, 0)}
NOTABLE_REASONS = frozenset(
    (RefreshReason.ON_DEMAND, OtherReason.DATA_LOSS, OtherReason.MALFORMED, LookupReason.REGISTRATION)
)
OUTCOME_STYLES = {"changed": "green", "failed": "red"}


def escaped(text: str) -> str:
    """`text` with an escape, such as `\\x1b`, for each unprintable character: controls, direction marks."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def plain(value: object, style: str = "") -> Text:
    """A table cell without rich's markup, which wraps a name that is too long; empty for None."""
    return Text("" if value is None else escaped(str(value)), style, overflow="fold")


def table_of(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> Table:
    """A table whose cells are `plain`, but for those that are rich's `Text` already."""
    table = Table(*columns, **TABLE_STYLE)
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else plain(cell) for cell in row))
    return table


def joined(*words: str | None) -> str:
    """The words that are not None."""
    return " ".join(word for word in words if word is not None)


def leader_text(leader_id: int | None, epoch: int | None) -> str:
    """Leader and epoch of a partition: `2@14`."""
    return f"{'none' if leader_id == NO_LEADER else leader_id}@{epoch}"


def leader_cell(row: CacheRow | None, is_stale: bool) -> Text:
    """The cached leader of a partition, with a star if it is stale; `-` if it is missing."""
    if row is None:
        return Text("-")
    text = leader_text(row.leader_id, row.leader_epoch)
    return plain(f"{text}*", STALE_STYLE) if is_stale else plain(text)


def executor_name(executor_id: str | None, pid: int | None) -> str:
    """Not every process can find out its executor's id."""
    return f"executor with pid {pid}" if executor_id is None else f"executor {executor_id}"


def process_name(host: str | None, pid: int | None) -> str | None:
    return host if host is None or pid is None else f"{host}:{pid}"


def cache_text(event: EventRow) -> str:
    """The cache and its process: `reader 1 host:4242 c0ffee12`."""
    process = process_name(event["host"], event["pid"])
    return joined(event["role"], event["executor_id"], process, event["cache_id"][:ID_SHOWN])


def reason_text(event: EventRow) -> str:
    """Why the cache was refreshed, with the affected partition and broker: `connection_lost: broker 2`."""
    partition = None if event["cause_topic"] is None else f"{event['cause_topic']}-{event['cause_partition']}"
    broker = None if event["cause_node_id"] is None else f"broker {event['cause_node_id']}"
    error = describe(event["cause_error_code"]) if event["cause_error_code"] else None
    detail = ", ".join(part for part in (partition, broker, error) if part is not None)
    return f"{event['reason'] or UNKNOWN}{': ' if detail else ''}{detail}"


def broker_text(event: EventRow) -> str:
    """The broker or registry that was asked; the kind of an event without a request."""
    if event["kind"] == EventKind.SCHEMA_LOOKUP:
        return "schema registry"
    if event["broker_host"] is None:
        return f"({event['kind'] or UNKNOWN})"
    name = "bootstrap" if event["broker_id"] is None else f"broker {event['broker_id']}"
    return f"{name} {event['broker_host']}:{event['broker_port']}"


def changes_text(event: EventRow) -> str:
    """What changed, ended, was lost, looked up or failed; without any of these the outcome."""
    parts = [*_schemas(event), *_losses(event), *_transactions(event), *_changes(event)]
    return ", ".join(parts) or str(event["outcome"] or UNKNOWN)


def ms_text(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def recovery_text(event: EventRow) -> str:
    """How long the recovery took, to append to a sentence; empty where there was none."""
    return "" if event["recovery_ms"] is None else f", healed in {event['recovery_ms']:.0f} ms"


def event_line(event: EventRow) -> str:
    """An event in one line."""
    time = datetime.fromtimestamp(event["time_ms"] / 1000)
    return f"{time:%H:%M:%S} {cache_text(event)}: {reason_text(event)} -> {changes_text(event)}{recovery_text(event)}"


def is_notable(event: EventRow) -> bool:
    """Whether an event changed or registered something, failed, tells of bad records, or was requested by a user."""
    return event["outcome"] != Outcome.UNCHANGED or event["reason"] in NOTABLE_REASONS


def events_table(events: Iterable[EventRow]) -> Table:
    """Each event as a paragraph beside its time: columns would split the names of hosts and topics."""
    table = Table.grid(padding=(0, 1, 0, 0))
    for event in events:
        time = datetime.fromtimestamp(event["time_ms"] / 1000)
        table.add_row(plain(f"{time:%m-%d %H:%M:%S}"), _paragraph(event))
    return table


def _paragraph(event: EventRow) -> Text:
    costs = {"ms": ms_text(event["latency_ms"]), "bytes": event["response_bytes"]}
    cost = ", ".join(f"{value} {unit}" for unit, value in costs.items() if value)
    asked = "" if event["broker_host"] is None and event["kind"] != EventKind.SCHEMA_LOOKUP else "asked "
    request = f"{cache_text(event)} {asked}{broker_text(event)}" + (f" ({cost})" if cost else "")
    recovery = "" if event["recovery_ms"] is None else f", healed in {ms_text(event['recovery_ms'])} ms"
    changes = plain(changes_text(event), OUTCOME_STYLES.get(event["outcome"], "")).append(recovery)
    return Text("\n", overflow="fold").join([plain(reason_text(event)), plain(request), changes])


def _schemas(event: EventRow) -> Iterator[str]:
    if event["malformed_records"]:
        yield f"{event['malformed_records']} malformed records ({event['malformed_column']})"
        return
    if event["schema_subject"] is not None:
        yield f"subject {event['schema_subject']}"
    if event["schema_id"] is not None:
        yield f"schema id {event['schema_id']}"
    elif event["schema_guid"] is not None:
        yield f"schema GUID {event['schema_guid']}"


def _losses(event: EventRow) -> Iterator[str]:
    if event["dropped_before"]:
        yield f"{event['dropped_before']} events lost before"
    if event["lost_from_offset"] is not None:
        yield f"records from offset {event['lost_from_offset']} on skipped"
    if event["error"] is not None:
        yield event["error"]


def _transactions(event: EventRow) -> Iterator[str]:
    if event["transactional_id"] is not None:
        done = str(event["kind"] or UNKNOWN).removeprefix("transactions_")
        took = ms_text(event["transactions_ms"])
        yield f"transactions {done}: {event['transactions']} of {event['transactional_id']} in {took} ms"
    if event["copied_records"]:
        yield f"{event['copied_records']} records copied"


def _changes(event: EventRow) -> Iterator[str]:
    moves = [
        f"{change['topic']}-{change['partition']}: {change['old_leader_id']} to {change['new_leader_id']} "
        f"(epoch {change['old_epoch']} to {change['new_epoch']})"
        for change in event["leaders_changed"] or ()
    ]
    changes: dict[str, Sequence[object]] = {
        "": moves,
        "recreated: ": [change["topic"] for change in event["topics_recreated"] or ()],
        "new partitions: ": [f"{added['topic']}-{added['partition']}" for added in event["partitions_added"] or ()],
        "new topics: ": event["topics_added"] or (),
        "topics gone: ": event["topics_removed"] or (),
        "new brokers: ": event["brokers_added"] or (),
        "brokers gone: ": event["brokers_removed"] or (),
        "brokers moved: ": event["brokers_moved"] or (),
        "caches that died: ": [cache_id[:ID_SHOWN] for cache_id in event["died_cache_ids"] or ()],
    }
    for label, values in changes.items():
        if values:
            more = f" and {len(values) - CHANGES_SHOWN} more" if len(values) > CHANGES_SHOWN else ""
            yield label + ", ".join(map(str, values[:CHANGES_SHOWN])) + more


class Column(NamedTuple):
    title: str
    is_number: bool = False


class View(NamedTuple):
    """A table, and how many rows it leaves out."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    left_out: int

    def table(self) -> Table:
        """For a terminal."""
        table = Table(**TABLE_STYLE)
        for column in self.columns:
            table.add_column(column.title.lower(), justify="right" if column.is_number else "left")
        for row in self.rows:
            table.add_row(*map(plain, row))
        return table


_LAG_COLUMNS = tuple(
    Column(title, title != "Partition")
    for title in ("Partition", "Next offset", "End offset", "Records behind", "Seconds behind")
)
_TRANSACTION_COLUMNS = tuple(
    Column(title, title in ("Open for", "Timeout"))
    for title in ("Transactional id", "Sink", "State", "Open for", "Timeout", "Partitions", "Decided")
)


def lag_view(lag: CheckpointLag, limit: int | None = None) -> View:
    """How far a query is behind, by partition; with a limit the partitions that are furthest behind or unknown."""
    batch_id, rows = lag.progress.batch_id, lag.rows
    if limit is not None:
        furthest = sorted(rows, key=lambda row: -math.inf if row.records_behind is None else -row.records_behind)
        rows = sorted(furthest[:limit], key=lambda row: (row.topic, row.partition))
    cells = [
        (
            f"{row.topic}-{row.partition}",
            *(
                UNKNOWN if number is None else f"{number:,}"
                for number in (row.next_offset, row.end_offset, row.records_behind)
            ),
            UNKNOWN if row.seconds_behind is None else f"{row.seconds_behind:,.1f}",
        )
        for row in rows
    ]
    finished = "no micro-batch finished yet" if batch_id is None else f"after micro-batch {batch_id}"
    return View(f"Query {lag.progress.query_id}, {finished}", _LAG_COLUMNS, cells, len(lag.rows) - len(rows))


def transactions_view(rows: Sequence[TransactionRow], limit: int | None = None) -> View:
    """Open and decided transactions."""
    cells = [
        (
            row.transactional_id,
            row.sink or "-",
            row.state or UNKNOWN,
            (_seconds(row.open_ms) or UNKNOWN) if row.state in OPEN_STATES else "not open",
            _seconds(row.timeout_ms) or "-",
            name_partitions([TopicPartition(each.topic, each.partition) for each in row.partitions]),
            _decided(row),
        )
        for row in rows[:limit]
    ]
    title = "1 transaction" if len(rows) == 1 else f"{len(rows) or 'no'} transactions"
    return View(title, _TRANSACTION_COLUMNS, cells, len(rows) - len(cells))


def _seconds(value_ms: int | None) -> str | None:
    return None if value_ms is None else f"{value_ms / 1000:.1f} s"


def _decided(row: TransactionRow) -> str:
    """The decided batch that a transaction belongs to."""
    if not row.is_decided:
        return "no"
    return f"version {row.batch_id}" if row.query_id is None else f"micro-batch {row.batch_id} of query {row.query_id}"
