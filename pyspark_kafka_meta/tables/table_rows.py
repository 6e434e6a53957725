"""One frozen dataclass for each row of a side table; `schemas` derives the columns from the fields."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from pyspark_kafka_meta.model import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRow:
    """One partition in one metadata cache, as far as the cache's events show. A cache that knows no partition has one
    row, with topic, partition and leader null. Caches that ended have none; a process that was killed says nothing,
    and its cache stays until the next one that is born on its machine reports it.

    Attributes:
        cache_id, role, application_id, executor_id, host, pid, query_id: of the latest event; see `Origin`.
        cluster_id: of the cluster that the cache is about; null where no event has it.
        leader_id: cached leader, -1 where the cache knows that there is none.
        leader_epoch: its epoch, -1 where brokers report none.
        topic_id: null unless an event had it: those of earlier versions and of old brokers lack it.
        generation_at_least: good answers that the cache has got. Refreshes whose events are not written yet, as those
            of a running task and the uneventful ones of a planner, make the true number larger.
        age_at_most_ms: from the last good answer to the query, ms; null where no event has one. The same refreshes make
            the true age smaller.
        last_reason: why the cache's latest event came about.
        last_refresh: when that was.
        lookups: leaders looked up in the cache without a request, over all of its events.
        events_missing: events of the cache that are not there: dropped, lost, or deleted by retention. Above 0 the row
            may be out of date.
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
        is_controller: whether clients are to send administrative requests there; with KRaft any broker may be named.
        answered_by: address of the broker that returned all this, host:port.
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
    """One partition as a broker and its leader see it; a topic that cannot be described is one row with an error.

    Attributes:
        leader_id: -1 while there is none.
        offline_replicas: replicas whose broker is down or whose disk failed.
        start_offset: the first offset in the log; null where the leader did not return it.
        end_offset: exclusive: the high watermark, or the last stable offset with read_committed.
        error: what is wrong, null if nothing is.
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


RowT = TypeVar("RowT", CacheRow, PartitionRow)


def by_partition(rows: Iterable[RowT]) -> dict[TopicPartition, RowT]:
    """Without the rows that are about no partition."""
    return {one: row for row in rows if (one := row.topic_partition) is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class LagRow:
    """How far a streaming query is behind in one partition.

    Attributes:
        next_offset: the first that the query has not read.
        end_offset: exclusive end of the log now; null where the partition is gone, its topic was
            recreated, or its leader did not return it.
        records_behind: offsets between the two.
        seconds_behind: age of the record at `next_offset` by its timestamp; 0 where none is unread, null where that
            offset has no record to show (compaction, a transaction's marker, retention).
    """

    topic: str
    partition: int
    next_offset: int
    end_offset: int | None
    records_behind: int | None
    seconds_behind: float | None
