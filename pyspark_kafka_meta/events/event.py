"""The events of a client: a head, which all events have, and the fact that the client reported; frozen, versioned.

No Kafka client publishes these; the reasons name the triggers of Kafka's `Metadata.requestUpdate`, KIP-951 and KIP-899.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, NamedTuple, get_args, get_type_hints

from pyspark_kafka_meta.client_facts import (
    ClientFact,
    Closed,
    LookupReason,
    MalformedRecords,
    Opened,
    RecordsLost,
    SchemaLookup,
    TransactionsEnded,
)
from pyspark_kafka_meta.kafka.metadata.cache_state import CacheFact, LeaderHinted, Refreshed
from pyspark_kafka_meta.kafka.metadata.snapshot import SnapshotChanges
from pyspark_kafka_meta.model import RefreshReason, TopicPartition

SCHEMA_VERSION = 1
"""Version of what `Event.to_dict` makes: grows when a field changes its meaning or goes, not for a new one."""

Fact = CacheFact | ClientFact


class EventKind(StrEnum):
    BORN = "born"
    """The first event of a cache."""
    REFRESH = "refresh"
    """A Metadata request, answered or not."""
    HINT = "hint"
    """A leader from an error response (KIP-951), without a request."""
    CLOSED = "closed"
    """The last event of a cache that was not killed."""
    DATA_LOSS = "data_loss"
    "Records of a partition were skipped, or offsets that compaction left empty at the end of a range."
    TRANSACTIONS_COMMITTED = "transactions_committed"
    """The driver committed a batch."""
    TRANSACTIONS_ABORTED = "transactions_aborted"
    """A failed task aborted its transaction, or the driver aborted transactions of no batch."""
    TRANSACTIONS_RECOVERED = "transactions_recovered"
    """The driver finished a batch that an earlier run had decided."""
    SCHEMA_LOOKUP = "schema_lookup"
    """A request to the schema registry, answered or not."""
    MALFORMED_RECORDS = "malformed_records"
    """A task could not decode keys or values of a partition."""


class OtherReason(StrEnum):
    """Of events without a request."""

    CLOSED = "closed"
    """The cache was closed."""
    DATA_LOSS = "data_loss"
    """Records were skipped."""
    TRANSACTION = "transaction"
    """Transactions of a sink ended."""
    MALFORMED = "malformed"
    """Keys or values of records could not be decoded."""


REASONS: tuple[StrEnum, ...] = (*RefreshReason, *LookupReason, *OtherReason)


class Role(StrEnum):
    READER = "reader"
    """In a task that reads."""
    WRITER = "writer"
    """In a task that writes."""
    PLANNER = "planner"
    """Beside the driver of a query that reads."""
    COMMITTER = "committer"
    """Beside the driver of a query that writes exactly once, or typed values."""
    CLI = "cli"
    """In a command of `kafkameta`."""


class Outcome(StrEnum):
    CHANGED = "changed"
    """The metadata changed."""
    UNCHANGED = "unchanged"
    """The metadata stayed the same."""
    FAILED = "failed"
    """No usable response; the cached metadata stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The Spark context of an event. Fields that do not apply are None: a planner and a committer have no task, a batch
    has no query.

    Attributes:
        application_id: `spark.app.id`; None beside the driver.
        executor_id: Spark's executor id; "driver" in local mode and beside the driver.
        query_id: id of the streaming query, kept across restarts.
    """

    role: Role
    application_id: str | None = None
    executor_id: str | None = None
    host: str | None = None
    pid: int | None = None
    query_id: str | None = None
    batch_id: int | None = None
    stage_id: int | None = None
    task_partition_id: int | None = None
    task_attempt: int | None = None


class BrokerFetches(NamedTuple):
    """Fetch responses of one broker; `response_bytes` includes their length prefixes."""

    broker_id: int
    requests: int
    response_bytes: int


class BrokerProduces(NamedTuple):
    """Produce responses of one broker; `request_bytes` is the size of their requests, with length prefixes."""

    broker_id: int
    requests: int
    request_bytes: int


class TableChanges(NamedTuple):
    """Records that a query with the option `changes` read.

    Attributes:
        op: as in `_change.op`; skipped, without a row; or malformed.
    """

    topic: str
    op: str
    records: int


class FilteredRecords(NamedTuple):
    """Records of one partition that the condition of `where` dropped."""

    topic: str
    partition: int
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event of a metadata cache: created, closed, Metadata request, leader hint, skipped records, ended
    transactions, or of the schemas of the records that its client reads. Fields that do not apply are None.
    `lookups` to `filtered` count since the previous event.

    Attributes:
        cache_id: random id; a restarted process has a new one.
        sequence: number of the event in its cache, from 1.
        time_ms: end of the event, ms since 1970 UTC.
        cause_error_code: Kafka's error code of the cause, or 0.
        outcome: changed, unchanged, or failed, after which the cached metadata stays.
        generation_before: good responses until then.
        generation_after: good responses until then.
        age_ms: age of the last good response when the attempt started.
        idle_ms: from the last leader lookup to the start of the attempt.
        lookups: leader lookups.
        fetches: Fetch responses by broker.
        retries: failed requests and retriable partition errors.
        fetch_throttle_ms: throttle time (KIP-219).
        produces: Produce responses by broker.
        produce_throttle_ms: throttle time (KIP-219).
        table_changes: changes of databases that were read.
        filtered: records that `where` dropped.
        died_cache_ids: killed caches of this application and machine, not reported before.
        dropped_before: events that this sink lost and no earlier event counted.
        details: what happened.
        origin: the Spark context.
    """

    schema_version: int = SCHEMA_VERSION
    cache_id: str
    sequence: int
    cluster_id: str | None = None
    time_ms: int
    kind: EventKind
    reason: StrEnum
    cause_error_code: int = 0
    cause_topic: str | None = None
    cause_partition: int | None = None
    cause_node_id: int | None = None
    outcome: Outcome
    generation_before: int
    generation_after: int
    age_ms: float | None
    idle_ms: float | None
    lookups: int
    fetches: tuple[BrokerFetches, ...] = ()
    retries: int = 0
    fetch_throttle_ms: int = 0
    produces: tuple[BrokerProduces, ...] = ()
    produce_throttle_ms: int = 0
    transactions_begun: int = 0
    table_changes: tuple[TableChanges, ...] = ()
    filtered: tuple[FilteredRecords, ...] = ()
    died_cache_ids: tuple[str, ...] = ()
    dropped_before: int = 0
    details: Fact
    origin: Origin

    def to_dict(self) -> dict[str, object]:
        """One flat row, ready for JSON: the fields of the event, its details, their changes and its origin, always
        those of `COLUMNS` in this order."""
        changes = getattr(self.details, "changes", _NO_CHANGES)
        values = {**self.details._asdict(), **_values(self), **_values(changes), **_values(self.origin)}
        return {name: _plain(values.get(name, _DEFAULTS.get(name))) for name in COLUMNS}

    def to_json(self) -> str:
        """`to_dict` as a line of JSON: what files, topics and logs hold."""
        return json.dumps(self.to_dict())


COLUMNS = (
    *("schema_version", "cache_id", "sequence", "cluster_id", "time_ms", "kind", "reason"),
    *("cause_error_code", "cause_topic", "cause_partition", "cause_node_id"),
    *("broker_id", "broker_host", "broker_port", "api_version", "correlation_id", "request_bytes", "response_bytes"),
    *("throttle_ms", "latency_ms", "attempt", "outcome", "error", "generation_before", "generation_after"),
    *("age_ms", "recovery_ms", "idle_ms", "lookups", "fetches", "retries", "fetch_throttle_ms"),
    *("produces", "produce_throttle_ms", "transactions_begun", "table_changes", "filtered"),
    *("lost_from_offset", "lost_until_offset"),
    *("transactional_id", "transactions", "transactions_ms", "copied_records"),
    *("schema_id", "schema_guid", "schema_subject", "malformed_column", "malformed_records"),
    *("died_cache_ids", "dropped_before"),
    *(column.name for column in fields(SnapshotChanges)),
    *(column.name for column in fields(Origin)),
)
"""The flat row of an event: what `Event.to_dict` returns, and the columns of the table."""
ROW_PARTS = (Event, *get_args(CacheFact), *get_args(ClientFact), SnapshotChanges, Origin)
"""Whose fields are columns. The first of them documents a column that several have."""
_DEFAULTS: Mapping[str, object] = {"attempt": 0}
"""Of columns that are not null in events without them."""
_NO_CHANGES = SnapshotChanges()


def column_types() -> dict[str, Any]:
    """The type of each column, in the order of `COLUMNS`."""
    types = {name: kind for part in reversed(ROW_PARTS) for name, kind in get_type_hints(part).items()}
    return {name: types[name] for name in COLUMNS}


class Cause(NamedTuple):
    """Why an event happened: as `RefreshCause`, for all kinds."""

    reason: StrEnum
    error_code: int = 0
    partition: TopicPartition | None = None
    node_id: int | None = None


def head_of(fact: Fact) -> tuple[EventKind, Cause]:
    """The kind of the event of a fact, and its cause."""
    match fact:
        case Opened():
            return EventKind.BORN, Cause(RefreshReason.BOOTSTRAP)
        case Closed():
            return EventKind.CLOSED, Cause(OtherReason.CLOSED)
        case Refreshed():
            return EventKind.REFRESH, Cause(*fact.cause)
        case LeaderHinted():
            return EventKind.HINT, Cause(*fact.cause)
        case RecordsLost():
            return EventKind.DATA_LOSS, Cause(OtherReason.DATA_LOSS, partition=fact.partition)
        case TransactionsEnded():
            return EventKind(f"transactions_{fact.ending}"), Cause(OtherReason.TRANSACTION)
        case SchemaLookup():
            return EventKind.SCHEMA_LOOKUP, Cause(fact.reason)
        case MalformedRecords():
            return EventKind.MALFORMED_RECORDS, Cause(OtherReason.MALFORMED, partition=fact.partition)


def outcome_of(fact: Fact) -> Outcome:
    if isinstance(fact, Refreshed | LeaderHinted) and fact.changes:
        return Outcome.CHANGED
    is_failed = isinstance(fact, Refreshed | SchemaLookup) and fact.error is not None
    return Outcome.FAILED if is_failed else Outcome.UNCHANGED


def _values(part: Any) -> dict[str, Any]:
    return {column.name: getattr(part, column.name) for column in fields(part)}


def _plain(value: object) -> object:
    """As JSON has it: objects for named tuples, and thousandths of a millisecond."""
    if isinstance(value, tuple):
        return [member._asdict() if hasattr(member, "_asdict") else member for member in value]
    return round(value, 3) if isinstance(value, float) else value
