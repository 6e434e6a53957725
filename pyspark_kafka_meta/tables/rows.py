"""The rows of the side tables as dataclasses, and the columns and Arrow batches that are derived from them; pure.

int becomes bigint, float double, an enumeration string, datetime timestamp, a tuple an array, and a dataclass or
named tuple in a tuple a struct. All columns are nullable: events of other versions may lack fields.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from datetime import datetime
from enum import StrEnum
from itertools import islice
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin, get_type_hints

from pyspark_kafka_meta.events.event import Event, column_types
from pyspark_kafka_meta.kafka.records.schema import rows_without_columns
from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.options import Table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRow:
    """One partition in one metadata cache, as far as the cache's events show. A cache that knows no partition has one
    row, with topic, partition and leader null. Ended caches have no row. The cache of a killed process stays until the
    next cache that starts on its machine reports it as dead.

    Attributes:
        cache_id, role, application_id, executor_id, host, pid, query_id: of the latest event; see `Origin`. A Python
            worker may use one cache in tasks that read and in tasks that write: the cache of a writer may have the role
            reader, and the reverse.
        cluster_id: of the cache's cluster; null if no event has it.
        leader_id: cached leader, -1 if the partition has no leader.
        leader_epoch: of the leader, -1 if brokers report none.
        topic_id: null if no event has it: events of earlier versions and of old brokers lack it.
        generation_at_least: successful responses to the cache. The true number is larger if events of refreshes are not
            written yet: those of a running task, and a planner's refreshes without a change.
        age_at_most_ms: time since the last successful response, ms; null if there is none. The true age is smaller if
            events of refreshes are not written yet.
        last_reason: reason of the cache's latest event.
        last_refresh: time of the cache's latest event.
        lookups: leaders found in the cache without a request, over all of its events.
        events_missing: events of the cache that were dropped, lost, or deleted by retention. Above 0 the row may be out
            of date.
    """

    cache_id: str
    role: str | None
    application_id: str | None
    executor_id: str | None
    host: str | None
    pid: int | None
    query_id: str | None
    cluster_id: str | None = None
    topic: str | None = None
    partition: int | None = None
    leader_id: int | None = None
    leader_epoch: int | None = None
    topic_id: str | None = None
    generation_at_least: int | None
    age_at_most_ms: int | None
    last_reason: str | None
    last_refresh: datetime
    lookups: int
    events_missing: int

    @property
    def topic_partition(self) -> TopicPartition | None:
        return None if self.topic is None or self.partition is None else TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderChangeRow:
    """One change of a partition's leader or leader epoch, as far as the events of caches show it. Times are of the
    clocks of their machines. Of brokers without leader epochs, the changes to one leader are one row.

    Attributes:
        topic_id: null if brokers report none.
        from_leader_id: the leader before, of the cache that knew the latest; -1 if there was none.
        to_leader_id: -1 if there was none.
        leader_epoch: the epoch that the change began, -1 if brokers report none.
        first_seen: when the first cache knew, also one that was new.
        first_cache_id, first_reason: that cache, and the reason of its event.
        caches: how many knew an earlier leader and learned this one.
        median_ms: from `first_seen` until half of these caches knew, ms.
        last_seen: when the last of them knew.
        longest_recovery_ms: the longest of the problems that this change ended in a cache, for as long as which records
            were late; null if no request of any cache had failed.
        retries: failed requests and retriable errors of partitions in these caches since the events before.
        stale_caches: how many caches know an earlier epoch alone, of those that have neither ended nor been silent for
            an hour at the time of the last event.
        stale_cache_ids: the first ten of them.
    """

    cluster_id: str | None
    topic: str
    topic_id: str | None
    partition: int
    from_leader_id: int
    to_leader_id: int
    leader_epoch: int
    first_seen: datetime
    first_cache_id: str
    first_reason: str | None
    caches: int
    median_ms: int
    last_seen: datetime
    longest_recovery_ms: float | None
    retries: int
    stale_caches: int
    stale_cache_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRow:
    """One live broker.

    Attributes:
        is_controller: whether clients send administrative requests to this broker; with KRaft it may be any broker.
        answered_by: address of the broker that sent the response, host:port.
    """

    node_id: int
    host: str
    port: int
    rack: str | None
    is_controller: bool
    cluster_id: str | None
    answered_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRow:
    """One partition as a broker and its leader report it; a topic with an error is one row.

    Attributes:
        leader_id: -1 without a leader.
        offline_replicas: replicas whose broker is down or whose disk failed.
        start_offset: the first offset in the log; null if the leader did not return it.
        end_offset: exclusive: the high watermark, or the last stable offset with read_committed.
        error: null without an error.
    """

    cluster_id: str | None = None
    topic: str
    partition: int | None = None
    topic_id: str | None = None
    leader_id: int | None = None
    leader_epoch: int | None = None
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    offline_replicas: tuple[int, ...] = ()
    start_offset: int | None = None
    end_offset: int | None = None
    error: str | None = None

    @property
    def topic_partition(self) -> TopicPartition | None:
        return None if self.partition is None else TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class TransactionPartition:
    """A partition that a transaction has written to."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionRow:
    """One open transaction of any producer, or one of an exactly-once batch that is decided but not settled.

    Attributes:
        sink: kafka.transactional.id of the query that writes; null for other producers.
        transactional_id: of a task attempt, sink/task/attempt, or of the sink's driver.
        state: as the coordinator names it, Ongoing, PrepareCommit or PrepareAbort if it is open; null if the
            coordinator does not know the id any more.
        started: when the transaction began, by the coordinator's clock; null if it is not open.
        open_ms: time since then.
        timeout_ms: after which the coordinator aborts it.
        partitions: those written to.
        is_decided: whether the transaction belongs to a decided batch: its records become visible, even if the
            coordinator aborts it.
        query_id: the streaming query of the decided batch; without a decision that which wrote last with this sink.
        batch_id: micro-batch of the decided batch, or the txnVersion of a batch write.
    """

    cluster_id: str | None = None
    sink: str | None
    transactional_id: str
    state: str | None
    started: datetime | None
    open_ms: int | None
    timeout_ms: int | None
    producer_id: int
    producer_epoch: int
    partitions: tuple[TransactionPartition, ...]
    is_decided: bool = False
    query_id: str | None = None
    batch_id: int | None = None


RowT = TypeVar("RowT", CacheRow, PartitionRow)


def by_partition(rows: Iterable[RowT]) -> dict[TopicPartition, RowT]:
    """The rows by partition, without rows that have no partition."""
    return {partition: row for row in rows if (partition := row.topic_partition) is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class LagRow:
    """The lag of a streaming query in one partition.

    Attributes:
        next_offset: the first unread offset.
        end_offset: exclusive end of the log; null if the partition is gone, its topic was recreated, or its leader did
            not return the offset.
        records_behind: offsets between the two.
        seconds_behind: age of the record at `next_offset` by its timestamp; 0 without unread records, null if that
            offset has no record (compaction, a transaction's marker, retention).
    """

    topic: str
    partition: int
    next_offset: int
    end_offset: int | None
    records_behind: int | None
    seconds_behind: float | None


T = TypeVar("T")
ROWS_PER_BATCH = 4_096
ROWS: Mapping[Table, type] = {
    Table.REFRESH_EVENTS: Event,
    Table.CACHES: CacheRow,
    Table.LEADER_CHANGES: LeaderChangeRow,
    Table.BROKERS: BrokerRow,
    Table.PARTITIONS: PartitionRow,
    Table.TRANSACTIONS: TransactionRow,
}


def struct_type(row_type: type) -> StructType:
    """The Spark columns of a table whose rows are `row_type`s."""
    from pyspark.sql import types

    scalars: dict[type, types.DataType] = {
        int: types.LongType(),
        float: types.DoubleType(),
        str: types.StringType(),
        bool: types.BooleanType(),
        datetime: types.TimestampType(),
    }

    def struct(members: Mapping[str, types.DataType]) -> types.DataType:
        return types.StructType([types.StructField(name, kind) for name, kind in members.items()])

    build = type_builder(scalars, types.ArrayType, struct)
    return types.StructType([types.StructField(name, build(hint)) for name, hint in _columns(row_type).items()])


def arrow_schema(row_type: type, names: Collection[str] | None = None) -> pa.Schema:
    """The Arrow columns of a table whose rows are `row_type`s: all columns, or `names` in their order."""
    import pyarrow as pa

    scalars = {
        int: pa.int64(),
        float: pa.float64(),
        str: pa.string(),
        bool: pa.bool_(),
        datetime: pa.timestamp("us", tz="UTC"),
    }

    def array(member: pa.DataType) -> pa.DataType:
        return pa.list_(pa.field("element", member))

    build = type_builder(scalars, array, lambda members: pa.struct(list(members.items())))
    columns = _columns(row_type)
    return pa.schema([(name, build(columns[name])) for name in (columns if names is None else names)])


def to_batches(rows: Iterable[Mapping[str, Any]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows as Arrow."""
    import pyarrow as pa

    remaining = iter(rows)
    while chunk := list(islice(remaining, ROWS_PER_BATCH)):
        yield pa.RecordBatch.from_pylist(chunk, schema) if len(schema) else rows_without_columns(len(chunk))


def _columns(row_type: type) -> dict[str, Any]:
    """The type of each column. `time_ms` is also a timestamp column, the first one."""
    types = column_types() if row_type is Event else get_type_hints(row_type)
    return {**({"time": datetime} if "time_ms" in types else {}), **types}


def type_builder(
    scalars: Mapping[type, T], array: Callable[[T], T], struct: Callable[[Mapping[str, T]], T]
) -> Callable[[Any], T]:
    """Returns what makes a type of another library from a type hint of a column."""

    def build(hint: Any) -> T:
        kind = without_none(hint)
        if get_origin(kind) is tuple:
            return array(build(get_args(kind)[0]))
        if is_dataclass(kind) or issubclass(kind, tuple):
            return struct({name: build(member) for name, member in get_type_hints(kind).items()})
        return scalars[str if issubclass(kind, StrEnum) else kind]

    return build


def without_none(hint: Any) -> Any:
    """X of `X | None`."""
    return next(kind for kind in get_args(hint) if kind is not NoneType) if NoneType in get_args(hint) else hint
