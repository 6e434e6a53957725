"""The rows of the side tables, as dataclasses from which `schemas` derives the columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from pyspark_kafka_meta.model import TopicPartition


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
