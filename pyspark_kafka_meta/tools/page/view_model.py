"""What the page shows of a state, ready for a template; pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Generic, NamedTuple, TypeVar

from pyspark_kafka_meta.events.event import Role
from pyspark_kafka_meta.kafka.protocol.transactions import OPEN_STATES
from pyspark_kafka_meta.model import NO_LEADER, TopicPartition
from pyspark_kafka_meta.tables.caches_from_events import EventRow
from pyspark_kafka_meta.tables.lag import LagSummary
from pyspark_kafka_meta.tables.rows import BrokerRow, CacheRow, LagRow, TransactionRow, by_partition
from pyspark_kafka_meta.tools.checkpoints import CheckpointLag
from pyspark_kafka_meta.tools.cluster_state import (
    SILENT_MS,
    ClusterState,
    Leaders,
    caches_by_process,
    is_stale,
    requests_by_broker,
)
from pyspark_kafka_meta.tools.formatting import (
    ID_SHOWN,
    UNKNOWN,
    View,
    event_line,
    is_notable,
    joined,
    lag_view,
    leader_text,
    transactions_view,
)
from pyspark_kafka_meta.tools.page.plots import Behind
from pyspark_kafka_meta.tools.sources import KEEP_EVENTS_MS

T = TypeVar("T")
EVENTS_SHOWN = 10
CACHES_SHOWN = 12
LAG_SHOWN = 50
"""Partitions of each query."""
TRANSACTIONS_SHOWN = 50
MOVE_SHOWN_MS = 8_000


@dataclass(frozen=True, slots=True)
class Polled(Generic[T]):
    """The last value of a poll.

    Attributes:
        value: None while it is unknown: an old one would look like a good state.
        trouble: why it is unknown; None before the first poll.
        is_supported: whether brokers support the request.
    """

    value: T | None = None
    trouble: str | None = None
    is_supported: bool = True

    def shown(self, view: Callable[[T], View]) -> Polled[View]:
        return Polled(None if self.value is None else view(self.value), self.trouble, self.is_supported)


NamedLag = tuple[str, Polled[CheckpointLag]]
"""The name of a checkpoint, and the lag of its query."""


class Cache(NamedTuple):
    name: str
    process: str
    cache_id: str
    entries: Mapping[TopicPartition, CacheRow]


class Move(NamedTuple):
    """A leader that moved away from a broker, seen at `time_ms` since 1970 UTC."""

    old_leader_id: int
    time_ms: int


Moves = Mapping[TopicPartition, Move]


class LedPartition(NamedTuple):
    """A partition at its leader, and the broker it just came from, if any."""

    partition: TopicPartition
    old_leader_id: int | None


class BrokerCard(NamedTuple):
    """One broker; `is_alive` is None where no cluster is asked: an old event does not show that a broker lives."""

    node_id: int
    address: str
    is_alive: bool | None
    leads: Sequence[LedPartition]


class Cell(NamedTuple):
    """What a cache knows of a partition, leader@epoch."""

    text: str
    is_stale: bool


@dataclass(frozen=True, slots=True)
class CacheTable:
    """The caches side by side.

    Attributes:
        names: of each cache, and its process.
        rows: each partition, its newest leader, and a cell for each cache.
        left_out: number of caches that are not shown.
    """

    names: Sequence[tuple[str, str]]
    rows: Sequence[tuple[TopicPartition, str, Sequence[Cell]]]
    left_out: int

    def stale(self) -> int:
        return sum(cell.is_stale for _, _, cells in self.rows for cell in cells)


class Writer(NamedTuple):
    """What a cache whose tasks write has counted in the last hour; None is unknown.

    Attributes:
        requests: Produce requests, by broker.
        retries: in tasks that write.
        throttle_ms: of Produce requests.
    """

    name: str
    process: str
    requests: Mapping[int, int]
    retries: int | None
    throttle_ms: int | None


@dataclass(frozen=True, slots=True)
class PageView:
    """What the page shows of a state; `events` are the newest notable events, newest first, `last_event` is any."""

    state: ClusterState
    brokers: Sequence[BrokerCard]
    leaderless: Sequence[TopicPartition]
    caches: CacheTable
    writers: Sequence[Writer]
    events: Sequence[EventRow]
    last_event: str


@dataclass(frozen=True, slots=True)
class PolledView:
    """What was polled of a cluster beside the state.

    Attributes:
        lags: of each query, by the name of its checkpoint.
        records_behind, seconds_behind: of all queries, as text; None without queries.
        transactions: open and decided; None without a cluster.
        open_transactions: their number; None if unknown.
    """

    lags: Sequence[tuple[str, Polled[View]]]
    records_behind: str | None
    seconds_behind: str | None
    transactions: Polled[View] | None
    open_transactions: int | None


def view_of(
    state: ClusterState, known: Mapping[int, BrokerRow], dead: Collection[int], moves: Moves, by_process: bool
) -> PageView:
    """All that the page shows at one moment.

    Args:
        known: every broker that was ever reported.
        dead: brokers killed by a button; brokers that the cluster no longer reports are dead, too.
        by_process: whether to show one cache for each executor: right where Spark has one worker in each.
    """
    leaders = dict(sorted(state.leaders().items()))
    if by_process:
        by_name = caches_by_process(state.caches)
        caches = [_cache(name, rows, next(iter(rows.values()))) for name, rows in by_name.items() if rows]
    else:
        caches = _recent_caches(state)
    events = [event for event in state.events if is_notable(event)][-EVENTS_SHOWN:][::-1]
    return PageView(
        state=state,
        brokers=_broker_cards({row.node_id for row in state.brokers} - set(dead), leaders, known, moves),
        leaderless=[partition for partition, row in leaders.items() if row.leader_id == NO_LEADER],
        caches=_cache_table(caches, leaders),
        writers=_writers(caches[:CACHES_SHOWN], state.since(state.now_ms - KEEP_EVENTS_MS)),
        events=events,
        last_event=event_line(state.events[-1]) if state.events else "none yet",
    )


def polled_view(named: Collection[NamedLag], transactions: Polled[list[TransactionRow]] | None) -> PolledView:
    """The lag of each query, and the transactions, as far as known."""
    lags = [lag for _, lag in named]
    known = [lag.value.rows for lag in lags if lag.value is not None]
    opened = None if transactions is None else transactions.value
    shown = None if transactions is None else transactions.shown(partial(transactions_view, limit=TRANSACTIONS_SHOWN))
    records, seconds = _behind_texts(list(chain.from_iterable(known)), is_known=len(known) == len(lags))
    return PolledView(
        lags=[(name, lag.shown(partial(lag_view, limit=LAG_SHOWN))) for name, lag in named],
        records_behind=records if lags else None,
        seconds_behind=seconds if lags else None,
        transactions=shown,
        open_transactions=None if opened is None else sum(row.state in OPEN_STATES for row in opened),
    )


def behind(lag: Polled[CheckpointLag]) -> Behind:
    """Of one query; unknown if it is so in a partition."""
    if lag.value is None or (summary := LagSummary.of(lag.value.rows)).unknown:
        return Behind(None, None)
    return Behind(summary.records, None if summary.unknown_ages else summary.oldest_s or 0.0)


def moves_since(moves: Moves, before: ClusterState | None, now: ClusterState) -> dict[TopicPartition, Move]:
    """`moves` that are still shown, with the moves between two states."""
    recent = {partition: move for partition, move in moves.items() if move.time_ms > now.now_ms - MOVE_SHOWN_MS}
    if before is None:
        return recent
    old = before.leaders()
    moved = {
        partition: Move(old_leader_id, now.now_ms)
        for partition, row in now.leaders().items()
        if partition in old and (old_leader_id := old[partition].leader_id) not in (None, row.leader_id)
    }
    return recent | moved


def _broker_cards(
    alive: Collection[int], leaders: Leaders, known: Mapping[int, BrokerRow], moves: Moves
) -> list[BrokerCard]:
    return [
        BrokerCard(
            node_id,
            address=f"{row.host}:{row.port}" if row.host else "address unknown",
            is_alive=node_id in alive if row.answered_by else None,
            leads=[
                LedPartition(partition, moves[partition].old_leader_id if partition in moves else None)
                for partition, leader in leaders.items()
                if leader.leader_id == node_id
            ],
        )
        for node_id, row in sorted(known.items())
    ]


def _recent_caches(state: ClusterState) -> list[Cache]:
    """Those with a recent event, the latest first."""
    by_id: dict[str, list[CacheRow]] = {}
    for row in state.caches:
        if row.last_refresh.timestamp() * 1000 > state.now_ms - SILENT_MS:
            by_id.setdefault(row.cache_id, []).append(row)
    return [
        _cache(joined(rows[0].role, rows[0].executor_id), by_partition(rows), rows[0])
        for rows in sorted(by_id.values(), key=lambda rows: rows[0].last_refresh, reverse=True)
    ]


def _cache(name: str, entries: Mapping[TopicPartition, CacheRow], row: CacheRow) -> Cache:
    process = joined(None if row.pid is None else f"pid {row.pid},", f"cache {row.cache_id[:ID_SHOWN]}")
    return Cache(name, process, row.cache_id, entries)


def _cache_table(caches: Sequence[Cache], leaders: Leaders) -> CacheTable:
    shown = caches[:CACHES_SHOWN]
    rows = []
    for partition, leader in leaders.items():
        known = [cache.entries.get(partition) for cache in shown]
        cells = [
            Cell(leader_text(row.leader_id, row.leader_epoch), is_stale(row, leaders)) if row else Cell("", False)
            for row in known
        ]
        rows.append((partition, leader_text(leader.leader_id, leader.leader_epoch), cells))
    return CacheTable([(cache.name, cache.process) for cache in shown], rows, len(caches) - len(shown))


def _writers(caches: Iterable[Cache], events: Iterable[EventRow]) -> list[Writer]:
    """Of the caches whose tasks wrote."""
    by_cache: dict[str, list[EventRow]] = {}
    for event in events:
        by_cache.setdefault(event["cache_id"], []).append(event)
    return [
        Writer(
            joined(Role.WRITER, own[-1]["executor_id"]),
            cache.process,
            dict(sorted(requests.items())),
            _known_sum(event["retries"] for event in own if event["role"] == Role.WRITER),
            _known_sum(event["produce_throttle_ms"] for event in own),
        )
        for cache in caches
        if (own := by_cache.get(cache.cache_id)) and (requests := requests_by_broker(own, "produces"))
    ]


def _known_sum(values: Iterable[int | None]) -> int | None:
    """None if no event has the value: events of other versions may lack it."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _behind_texts(rows: Sequence[LagRow], is_known: bool) -> tuple[str, str]:
    """Records and seconds; `is_known` is false if other rows are unknown."""
    summary = LagSummary.of(rows)
    oldest_s, is_known = summary.oldest_s or 0.0, is_known and not summary.unknown
    records = _at_least(f"{summary.records:,}", summary.records > 0, is_known)
    return records, _at_least(f"{oldest_s:,.1f}", oldest_s > 0, is_known and not summary.unknown_ages)


def _at_least(text: str, is_positive: bool, is_known: bool) -> str:
    """`text` if all of it is known; what is known in part is a lower bound."""
    return text if is_known else f"{text} or more" if is_positive else UNKNOWN
