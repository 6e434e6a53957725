"""What the page shows of a state, ready for a template; pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyspark_kafka_meta.model import NO_LEADER, TopicPartition
from pyspark_kafka_meta.monitor.cluster_state import State, caches_by_process
from pyspark_kafka_meta.monitor.formatting import ID_SHOWN, event_line, is_notable, joined, leader_text
from pyspark_kafka_meta.monitor.staleness import SILENT_MS, Leaders, is_stale
from pyspark_kafka_meta.tables.caches_from_events import Event
from pyspark_kafka_meta.tables.query_lag import lag_rows
from pyspark_kafka_meta.tables.table_rows import BrokerRow, CacheRow, LagRow, by_partition

EVENTS_SHOWN = 10
CACHES_SHOWN = 12
MOVE_SHOWN_MS = 8_000

Cache = tuple[tuple[str, str], Mapping[TopicPartition, CacheRow]]
"""The name and the process of a cache, and what it knows."""


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


@dataclass(frozen=True, slots=True)
class PageView:
    """All that the page shows; `events` are the newest notable ones, newest first."""

    state: State
    brokers: Sequence[BrokerCard]
    leaderless: Sequence[TopicPartition]
    caches: CacheTable
    lag: Sequence[LagRow]
    events: Sequence[Event]
    last_event: str


def view_of(
    state: State, known: Mapping[int, BrokerRow], dead: Collection[int], moves: Moves, by_process: bool
) -> PageView:
    """All that the page shows at one moment.

    Args:
        known: every broker that was ever reported.
        dead: brokers killed by a button; brokers that the cluster no longer reports are dead, too.
        by_process: whether to show one cache for each executor: right where Spark has one worker in each.
    """
    leaders = dict(sorted(state.leaders().items()))
    events = [event for event in state.events if is_notable(event)][-EVENTS_SHOWN:][::-1]
    return PageView(
        state=state,
        brokers=_broker_cards({row.node_id for row in state.brokers} - set(dead), leaders, known, moves),
        leaderless=[partition for partition, row in leaders.items() if row.leader_id == NO_LEADER],
        caches=_cache_table(_executor_caches(state) if by_process else _recent_caches(state), leaders),
        lag=lag_rows(state.positions, state.partitions, {}, 0.0),
        events=events,
        last_event=event_line(events[0]) if events else "none yet",
    )


def moves_since(moves: Moves, before: State | None, now: State) -> dict[TopicPartition, Move]:
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


def _executor_caches(state: State) -> list[Cache]:
    return [
        ((name, _process(next(iter(rows.values())))), rows)
        for name, rows in caches_by_process(state.caches).items()
        if rows
    ]


def _recent_caches(state: State) -> list[Cache]:
    """Those with a recent event, the latest first."""
    by_id: dict[str, list[CacheRow]] = {}
    for row in state.caches:
        if row.last_refresh.timestamp() * 1000 > state.now_ms - SILENT_MS:
            by_id.setdefault(row.cache_id, []).append(row)
    return [
        ((joined(rows[0].role, rows[0].executor_id), _process(rows[0])), by_partition(rows))
        for rows in sorted(by_id.values(), key=lambda rows: rows[0].last_refresh, reverse=True)
    ]


def _cache_table(caches: Sequence[Cache], leaders: Leaders) -> CacheTable:
    shown = caches[:CACHES_SHOWN]
    rows = [
        (
            partition,
            leader_text(row.leader_id, row.leader_epoch),
            [_cell(entries.get(partition), leaders) for _, entries in shown],
        )
        for partition, row in leaders.items()
    ]
    return CacheTable([name for name, _ in shown], rows, len(caches) - len(shown))


def _cell(row: CacheRow | None, leaders: Leaders) -> Cell:
    return (
        Cell("", False) if row is None else Cell(leader_text(row.leader_id, row.leader_epoch), is_stale(row, leaders))
    )


def _process(row: CacheRow) -> str:
    return joined(None if row.pid is None else f"pid {row.pid},", f"cache {row.cache_id[:ID_SHOWN]}")
