"""What the page shows of a state, ready for a template; pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Generic, NamedTuple, TypeVar

from pyspark_kafka_meta.events.event import Role
from pyspark_kafka_meta.kafka.protocol.transactions import OPEN_STATES
from pyspark_kafka_meta.model import NO_LEADER, TopicPartition, name_partitions
from pyspark_kafka_meta.tables.caches_from_events import CacheContents, EventRow
from pyspark_kafka_meta.tables.lag import LagSummary
from pyspark_kafka_meta.tables.rows import BrokerRow, LagRow, TransactionRow
from pyspark_kafka_meta.tools.checkpoints import CheckpointLag
from pyspark_kafka_meta.tools.cluster_state import (
    SILENT_MS,
    ClusterState,
    Leaders,
    caches_by_process,
    map_caches,
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
    transactions_view,
)
from pyspark_kafka_meta.tools.page.caches_view import CachesView
from pyspark_kafka_meta.tools.page.plots import Behind

T = TypeVar("T")
EVENTS_SHOWN = 10
LEADS_SHOWN = 24
"""Partitions of each broker."""
WRITERS_SHOWN = 12
WRITERS_MS = 3_600_000
"""Whose requests are counted."""
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
    contents: CacheContents


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
    """One broker; `is_alive` is None where no cluster is asked: an old event does not show that a broker lives.

    Attributes:
        address: empty if no event has it.
        leads: partitions, those that moved here before the others.
        left_out: how many more it leads.
    """

    node_id: int
    address: str
    is_alive: bool | None
    leads: Sequence[LedPartition]
    left_out: int

    @classmethod
    def of(cls, node_id: int, address: str, is_alive: bool | None, leads: Iterable[LedPartition]) -> BrokerCard:
        """Of a broker that leads these partitions."""
        moved_first = sorted(leads, key=lambda led: led.old_leader_id is None)
        left_out = max(0, len(moved_first) - LEADS_SHOWN)
        return cls(node_id, address, is_alive, moved_first[:LEADS_SHOWN], left_out)


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
    """What the page shows of a state; `events` are the newest notable events, newest first, `last_event` is any, and
    `leaderless` names partitions."""

    state: ClusterState
    brokers: Sequence[BrokerCard]
    leaderless: str
    caches: CachesView
    writers: Sequence[Writer]
    writers_left_out: int
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
    state: ClusterState,
    known: Mapping[int, BrokerRow],
    dead: Collection[int],
    moves: Moves,
    by_process: bool,
    before: PageView | None = None,
) -> PageView:
    """All that the page shows at one moment.

    Args:
        known: every broker that was ever reported.
        dead: brokers killed by a button; brokers that the cluster no longer reports are dead, too.
        by_process: whether to show one cache for each executor: right where Spark has one worker in each.
        before: the last view. Its `caches` are taken if nothing that they show has changed.
    """
    leaders = dict(sorted(state.leaders().items()))
    if by_process:
        contents = {each.last["cache_id"]: each for each in state.caches}
        rows = {name: next(iter(rows.values())) for name, rows in caches_by_process(state.cache_rows()).items() if rows}
        caches = [_cache(name, contents[row.cache_id]) for name, row in rows.items()]
    else:
        caches = _recent_caches(state)
    leaderless = [partition for partition, row in leaders.items() if row.leader_id == NO_LEADER]
    writers = _writers(caches, state.since(state.now_ms - WRITERS_MS))
    events = [event for event in state.events if is_notable(event)][-EVENTS_SHOWN:][::-1]
    return PageView(
        state=state,
        brokers=_broker_cards({row.node_id for row in state.brokers} - set(dead), leaders, known, moves),
        leaderless=name_partitions(leaderless) if leaderless else "",
        caches=_caches_view(state, caches, leaders, before),
        writers=writers[:WRITERS_SHOWN],
        writers_left_out=max(0, len(writers) - WRITERS_SHOWN),
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
    if before is None or before.partitions is now.partitions:
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
    leads: dict[int | None, list[LedPartition]] = defaultdict(list)
    for partition, leader in leaders.items():
        led = LedPartition(partition, moves[partition].old_leader_id if partition in moves else None)
        leads[leader.leader_id].append(led)
    return [
        BrokerCard.of(
            node_id,
            f"{row.host}:{row.port}" if row.host else "address unknown",
            node_id in alive if row.answered_by else None,
            leads[node_id],
        )
        for node_id, row in sorted(known.items())
    ]


def _recent_caches(state: ClusterState) -> list[Cache]:
    """Those with a recent event, the latest first."""
    recent = [contents for contents in state.caches if contents.last_ms > state.now_ms - SILENT_MS]
    return [
        _cache(joined(contents.last["role"], contents.last["executor_id"]), contents)
        for contents in sorted(recent, key=lambda contents: contents.last_ms, reverse=True)
    ]


def _caches_view(state: ClusterState, caches: Sequence[Cache], leaders: Leaders, before: PageView | None) -> CachesView:
    names = [(cache.name, cache.process) for cache in caches]
    if before is not None and names and state.caches is before.state.caches:
        seen = before.caches
        if names == seen.names and list(leaders.values()) == seen.map.leaders:
            return seen
    return CachesView(names, map_caches([cache.contents for cache in caches], leaders))


def _cache(name: str, contents: CacheContents) -> Cache:
    pid, cache_id = contents.last["pid"], contents.last["cache_id"]
    process = joined(None if pid is None else f"pid {pid},", f"cache {cache_id[:ID_SHOWN]}")
    return Cache(name, process, contents)


def _writers(caches: Iterable[Cache], events: Iterable[EventRow]) -> list[Writer]:
    """Of the caches whose tasks wrote, those with the most retries first."""
    by_cache: dict[str, list[EventRow]] = {}
    for event in events:
        by_cache.setdefault(event["cache_id"], []).append(event)
    writers = [
        Writer(
            joined(Role.WRITER, own[-1]["executor_id"]),
            cache.process,
            dict(sorted(requests.items())),
            _known_sum(event["retries"] for event in own if event["role"] == Role.WRITER),
            _known_sum(event["produce_throttle_ms"] for event in own),
        )
        for cache in caches
        if (own := by_cache.get(cache.contents.last["cache_id"])) and (requests := requests_by_broker(own, "produces"))
    ]
    return sorted(writers, key=lambda writer: -(writer.retries or 0))


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
