"""The refresh events: what a metadata cache asked which broker, why, and with what result; frozen, versioned.

No Kafka client publishes these; the reasons name the triggers of Kafka's `Metadata.requestUpdate`, KIP-951 and KIP-899.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, Protocol, get_args, get_type_hints

from pyspark_kafka_meta.kafka.metadata.snapshot import SnapshotChanges
from pyspark_kafka_meta.model import RefreshReason, TopicPartition

SCHEMA_VERSION = 1
"""Version of what `RefreshEvent.to_dict` makes: grows when a field changes its meaning or goes, not for a new one."""


@dataclass(frozen=True, slots=True)
class RefreshCause:
    """What made a refresh due.

    Attributes:
        error_code: Kafka's error code, 0 without an error.
        partition: affected partition, None if no single partition is.
        node_id: affected broker, None if no single broker is.
    """

    reason: RefreshReason
    error_code: int = 0
    partition: TopicPartition | None = None
    node_id: int | None = None


class EventKind(StrEnum):
    BORN = "born"
    """The cache was created: its first event."""
    REFRESH = "refresh"
    """A Metadata request, answered or not."""
    HINT = "hint"
    """A leader from an error response (KIP-951), without a request."""
    CLOSED = "closed"
    """The cache was closed: its last event. A killed cache has none."""
    DATA_LOSS = "data_loss"
    """Records of a partition were skipped, as options allow, or offsets without records at the end of a range, as
    compaction leaves them."""
    TRANSACTIONS_COMMITTED = "transactions_committed"
    """The driver committed a batch."""
    TRANSACTIONS_ABORTED = "transactions_aborted"
    """A failed task aborted its transaction, or the driver those of no batch."""
    TRANSACTIONS_RECOVERED = "transactions_recovered"
    """The driver finished a batch that an earlier run had decided."""
    SCHEMA_LOOKUP = "schema_lookup"
    """A request to the schema registry, answered or not."""
    MALFORMED_RECORDS = "malformed_records"
    """A task could not decode keys or values of a partition."""


@dataclass(frozen=True, slots=True)
class BrokerFetches:
    """Fetch responses of one broker; `response_bytes` includes their length prefixes."""

    broker_id: int
    requests: int
    response_bytes: int


@dataclass(frozen=True, slots=True)
class BrokerProduces:
    """Produce responses of one broker; `request_bytes` is the size of their requests, with length prefixes."""

    broker_id: int
    requests: int
    request_bytes: int


class Role(StrEnum):
    READER = "reader"
    """In a task that reads."""
    WRITER = "writer"
    """In a task that writes."""
    PLANNER = "planner"
    """Beside the driver of a query that reads."""
    COMMITTER = "committer"
    """Beside the driver of a query that writes exactly once, or typed values."""
    EVENTS = "events"
    """In a process that writes to `eventsTopic`."""
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
        role: see Roles.
        application_id: `spark.app.id`; None beside the driver.
        executor_id: Spark's executor id; "driver" in local mode and beside the driver.
        host: host name.
        pid: process id.
        query_id: id of the streaming query, kept across restarts.
        batch_id: micro-batch.
        stage_id: Spark's stage.
        task_partition_id: index of the task in its stage.
        task_attempt: attempt of the task, from 0.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshDetails:
    """A Metadata request, and the changes by its response.

    Attributes:
        broker_id: broker of the request, None for a bootstrap address.
        broker_host: its host.
        broker_port: its port.
        api_version: version of the Metadata request.
        correlation_id: correlation id of the request.
        request_bytes: size with length prefix.
        response_bytes: size with length prefix.
        throttle_ms: throttle time of the response.
        latency_ms: duration of the attempt with connecting, and until a task processes the response between record
            batches; of a request to the schema registry with its retries.
        attempt: its number since the last good response, from 1; 0 without one.
        error: why a request failed, records were lost or a value could not be decoded.
        recovery_ms: duration of the problem that the event ended; 0 for a hint in the error response.
        changes: metadata changes of this event.
    """

    broker_id: int | None
    broker_host: str
    broker_port: int
    api_version: int | None = None
    correlation_id: int | None = None
    request_bytes: int | None = None
    response_bytes: int | None = None
    throttle_ms: int | None = None
    latency_ms: float
    attempt: int
    error: str | None = None
    recovery_ms: float | None = None
    changes: SnapshotChanges = field(default_factory=SnapshotChanges)


@dataclass(frozen=True, slots=True, kw_only=True)
class HintDetails:
    """The change by a leader hint.

    Attributes:
        recovery_ms: duration of the problem that the event ended; 0 for a hint in the error response.
        changes: metadata changes of this event.
    """

    recovery_ms: float
    changes: SnapshotChanges


@dataclass(frozen=True, slots=True, kw_only=True)
class LossDetails:
    """Lost offsets of the partition that the event names as its cause.

    Attributes:
        error: why a request failed, records were lost or a value could not be decoded.
        lost_from_offset: first lost offset.
        lost_until_offset: exclusive end of the lost offsets, None if unknown. Reading continues there, or in a
            truncated log at lost_from_offset.
    """

    error: str
    lost_from_offset: int
    lost_until_offset: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionDetails:
    """Ended transactions.

    Attributes:
        transactional_id: of the sink, or of the failed task.
        transactions: number of ended transactions.
        transactions_ms: duration of the commit, abort or recovery.
        copied_records: decided records that were written again, as their transactions had timed out.
    """

    transactional_id: str
    transactions: int
    transactions_ms: float
    copied_records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupDetails:
    """A request to the schema registry.

    Attributes:
        latency_ms: duration of the attempt with connecting, and until a task processes the response between record
            batches; of a request to the schema registry with its retries.
        error: why a request failed, records were lost or a value could not be decoded.
        schema_id: schema that was requested, found or registered, or that of the first malformed value.
        schema_guid: requested schema, if a header names it by its GUID.
        schema_subject: requested subject.
    """

    latency_ms: float
    error: str | None
    schema_id: int | None
    schema_guid: str | None
    schema_subject: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MalformedDetails:
    """Malformed keys or values of the partition that the event names as its cause; the first of them as an example.

    Attributes:
        error: why a request failed, records were lost or a value could not be decoded.
        schema_id: schema that was requested, found or registered, or that of the first malformed value.
        malformed_column: key or value.
        malformed_records: malformed keys or values of the task.
    """

    error: str
    schema_id: int | None
    malformed_column: str
    malformed_records: int


Details = RefreshDetails | HintDetails | LossDetails | TransactionDetails | LookupDetails | MalformedDetails


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshEvent:
    """One event of a metadata cache: created, closed, Metadata request, leader hint, skipped records, ended
    transactions, or of the schemas of the records that its client reads. Fields that do not apply are None.

    Attributes:
        schema_version: version of this format.
        cache_id: random id; a restarted process has a new one.
        sequence: number of the event in its cache, from 1.
        cluster_id: cluster of the last good response.
        time_ms: end of the event, ms since 1970 UTC.
        kind: see Kinds.
        reason: see Reasons.
        cause_error_code: Kafka's error code of the cause, or 0.
        cause_topic: affected topic.
        cause_partition: affected partition.
        cause_node_id: affected broker.
        outcome: see Outcomes.
        generation_before: good responses before the event.
        generation_after: good responses, this one included.
        age_ms: age of the last good response when the attempt started.
        idle_ms: from the last leader lookup to the start of the attempt.
        lookups: leader lookups since the previous event.
        fetches: Fetch responses since the previous event, by broker.
        retries: failed requests and retriable partition errors since the previous event.
        fetch_throttle_ms: throttle time since the previous event (KIP-219).
        produces: Produce responses since the previous event, by broker.
        produce_throttle_ms: throttle time since the previous event (KIP-219).
        transactions_begun: transactions since the previous event, of tasks or for decisions.
        died_cache_ids: killed caches of this application and machine, not reported before.
        dropped_before: events that this sink lost and no earlier event counted.
        details: of its kind; None for born and closed.
        origin: the Spark context, attached by the publisher.
    """

    schema_version: int = SCHEMA_VERSION
    cache_id: str
    sequence: int
    cluster_id: str | None = None
    time_ms: int
    kind: EventKind
    reason: RefreshReason
    cause_error_code: int
    cause_topic: str | None
    cause_partition: int | None
    cause_node_id: int | None
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
    died_cache_ids: tuple[str, ...] = ()
    dropped_before: int = 0
    details: Details | None = None
    origin: Origin | None = None

    def to_dict(self) -> dict[str, object]:
        """One flat row, ready for JSON: the fields of the event, its details, their changes and its origin, always
        those of `COLUMNS` in this order."""
        row = asdict(self)
        details, origin = row.pop("details") or {}, row.pop("origin") or {}
        changes = details.pop("changes", {})
        for name in ("partitions_added", "partitions_removed"):
            changes[name] = tuple(change._asdict() for change in changes.get(name, ()))
        return {**_NO_VALUES, **row, **details, **changes, **origin}

    def to_json(self) -> str:
        """`to_dict` as a line of JSON: what files, topics and logs hold."""
        return json.dumps(self.to_dict())


COLUMNS = (
    *("schema_version", "cache_id", "sequence", "cluster_id", "time_ms", "kind", "reason"),
    *("cause_error_code", "cause_topic", "cause_partition", "cause_node_id"),
    *("broker_id", "broker_host", "broker_port", "api_version", "correlation_id", "request_bytes", "response_bytes"),
    *("throttle_ms", "latency_ms", "attempt", "outcome", "error", "generation_before", "generation_after"),
    *("age_ms", "recovery_ms", "idle_ms", "lookups", "fetches", "retries", "fetch_throttle_ms"),
    *("produces", "produce_throttle_ms", "transactions_begun", "lost_from_offset", "lost_until_offset"),
    *("transactional_id", "transactions", "transactions_ms", "copied_records"),
    *("schema_id", "schema_guid", "schema_subject", "malformed_column", "malformed_records"),
    *("died_cache_ids", "dropped_before"),
    *(column.name for column in fields(SnapshotChanges)),
    *(column.name for column in fields(Origin)),
)
"""The flat row of an event: what `RefreshEvent.to_dict` returns, and the columns of the table."""
_NO_VALUES: Mapping[str, object] = {**dict.fromkeys(COLUMNS), "attempt": 0, **asdict(SnapshotChanges())}
"""The row of an event without details and origin."""


def column_types() -> dict[str, Any]:
    """The type of each column, in the order of `COLUMNS`."""
    parts = (RefreshEvent, *get_args(Details), SnapshotChanges, Origin)
    types = {name: kind for part in parts for name, kind in get_type_hints(part).items()}
    return {name: types[name] for name in COLUMNS}


class Publisher(Protocol):
    """Where the events of a cache go, `events.publisher.EventPublisher`.

    Attributes:
        origin: of the next events.
    """

    origin: Origin

    def publish(self, event: RefreshEvent) -> None:
        """Take an event. Never blocks."""

    def flush(self) -> None:
        """Deliver the events that were taken."""

    def flush_news(self) -> None:
        """`flush`, unless they are all routine."""

    def close(self) -> None:
        """`flush` for the last time."""
