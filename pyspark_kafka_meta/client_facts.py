"""What rooms report of a client to its publisher; the facts of its metadata cache are in `kafka.metadata.cache_state`.

`events.event` makes an event of each fact, with a column for each field that it names.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from pyspark_kafka_meta.model import TopicPartition


class Opened(NamedTuple):
    """A client was created, and its cache."""


class Closed(NamedTuple):
    """A client was closed, and its cache."""


class RecordsLost(NamedTuple):
    """Records of a partition were skipped.

    Attributes:
        lost_until_offset: exclusive end of the lost offsets, None if unknown.
        error: why the records were lost.
    """

    partition: TopicPartition
    lost_from_offset: int
    lost_until_offset: int | None
    error: str


class Ending(StrEnum):
    """How transactions ended."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    RECOVERED = "recovered"


class TransactionsEnded(NamedTuple):
    """Transactions of a sink, or of a failed task, were ended.

    Attributes:
        transactions_ms: duration of the commit, abort or recovery.
        copied_records: decided records that were written again after a timeout.
    """

    ending: Ending
    transactional_id: str
    transactions: int
    transactions_ms: float
    copied_records: int = 0


class LookupReason(StrEnum):
    """Why the schema registry is asked."""

    QUERY_SCHEMA = "query_schema"
    """A query needs its schemas, at its start or to write a micro-batch."""
    NEW_VERSIONS = "new_versions"
    """A planner looks for schemas that its tasks will need."""
    UNKNOWN_SCHEMA = "unknown_schema"
    """A record names a schema that its worker does not know."""
    REGISTRATION = "registration"
    """A write registers a schema."""


class SchemaLookup(NamedTuple):
    """A request to the schema registry ended.

    Attributes:
        latency_ms: with its retries.
        error: why it failed, else None.
        schema_id: requested, found or registered schema, or that of the first malformed value.
    """

    reason: LookupReason
    latency_ms: float
    error: str | None
    schema_id: int | None
    schema_guid: str | None
    schema_subject: str | None


class MalformedRecords(NamedTuple):
    """A task could not decode keys or values of a partition.

    Attributes:
        error: of the first of them.
        schema_id: of the first of them.
    """

    partition: TopicPartition
    error: str
    schema_id: int | None
    malformed_column: str
    malformed_records: int


ClientFact = Opened | Closed | RecordsLost | TransactionsEnded | SchemaLookup | MalformedRecords
