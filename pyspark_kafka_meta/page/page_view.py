"""What the page shows of a state, as text ready for a template; pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from pyspark_kafka_meta.cli.caches_command import leader_text
from pyspark_kafka_meta.cli.events_command import ID_SHOWN, asked, joined, ms, what_changed, who, why
from pyspark_kafka_meta.demo.demo_frames import event_line, is_news
from pyspark_kafka_meta.metadata.refresh_events import Outcome
from pyspark_kafka_meta.model import NO_LEADER, TopicPartition
from pyspark_kafka_meta.monitor.cluster_state import State, is_stale, newest_caches
from pyspark_kafka_meta.tables.caches_from_events import Event
from pyspark_kafka_meta.tables.query_lag import lag_rows
from pyspark_kafka_meta.tables.table_rows import BrokerRow, CacheRow, LagRow, PartitionRow, by_partition

EVENTS_SHOWN = 10
CACHES_SHOWN = 12
MOVED_SHOWN_MS = 8_000
SILENT_MS = 600_000
"""A cache without an event for this long is left out where nothing says that it ended."""


class Move(NamedTuple):
    """A leader that moved: from which broker, and when that was seen, ms since 1970 UTC."""

    old_leader_id: int
    time_ms: int


Moves = Mapping[TopicPartition, Move]


@dataclass(frozen=True, slots=True)
class Led:
    """A partition at its leader; `old_leader_id` if it came from there just now."""

    partition: TopicPartition
    old_leader_id: int | None


@dataclass(frozen=True, slots=True)
class BrokerCard:
    """One broker, as the page shows it.

    Attributes:
        is_alive: None where no cluster is asked: that a cache asked it once says nothing of now.
    """

    node_id: int
    address: str
    is_alive: bool | None
    leads: Sequence[Led]


@dataclass(frozen=True, slots=True)
class Cell:
    """What a cache knows of a partition, leader@epoch."""

    text: str
    is_stale: bool


@dataclass(frozen=True, slots=True)
class CacheTable:
    """The caches side by side.

    Attributes:
        names: of the caches, and the process of each.
        rows: each partition, what the cluster says of it, and a cell for each cache.
        left_out: caches that there was no room for.
    """

    names: Sequence[tuple[str, str]]
    rows: Sequence[tuple[TopicPartition, str, Sequence[Cell]]]
    left_out: int

    def stale(self) -> int:
        return sum(cell.is_stale for _, _, cells in self.rows for cell in cells)


@dataclass(frozen=True, slots=True)
class EventRow:
    """One event, as the page shows it.

    Attributes:
        iso: when it was, for machines.
        outcome: changed, unchanged or failed; also how it is coloured.
    """

    at: str
    iso: str
    who: str
    why: str
    asked: str
    latency: str
    outcome: str
    changed: str
    healed: str


@dataclass(frozen=True, slots=True)
class View:
    """All that the page shows.

    Attributes:
        trouble: why the picture is old, else None.
        is_reading: whether there is a query that has read something.
        events: the newest that brought something.
        last_event: the newest of them in a line.
    """

    trouble: str | None
    brokers: Sequence[BrokerCard]
    leaderless: Sequence[TopicPartition]
    caches: CacheTable
    lag: Sequence[LagRow]
    events: Sequence[EventRow]
    last_event: str
    is_reading: bool
    records_per_s: float
    records_read: int
    records_behind: int


def view_of(state: State, known: Mapping[int, BrokerRow], dead: Collection[int], moves: Moves, by_place: bool) -> View:
    """All that the page shows at one moment.

    Args:
        known: every broker that was ever reported.
        dead: brokers that were killed here; those that the cluster no longer reports are found without.
        by_place: whether one cache stands for its executor, as where Spark has one worker in each.
    """
    caches = _by_place(state) if by_place else _by_cache(state)
    live = dict(sorted(state.live().items()))
    news = [event for event in state.events if is_news(event)][-EVENTS_SHOWN:][::-1]
    return View(
        trouble=state.trouble,
        brokers=_broker_cards({row.node_id for row in state.brokers} - set(dead), live, known, moves),
        leaderless=[each for each, row in live.items() if row.leader_id == NO_LEADER],
        caches=_cache_table(caches, live),
        lag=lag_rows(state.positions, state.partitions, {}, 0.0),
        events=[_event_row(event) for event in news],
        last_event=event_line(news[0]).strip() if news else "none yet",
        is_reading=bool(state.positions),
        records_per_s=state.records_per_s,
        records_read=state.records_read(),
        records_behind=state.records_behind(),
    )


def moves_since(moves: Moves, before: State | None, now: State) -> dict[TopicPartition, Move]:
    """The moves that are still news, with those between two looks."""
    recent = {each: move for each, move in moves.items() if move.time_ms > now.now_ms - MOVED_SHOWN_MS}
    if before is None:
        return recent
    old = before.live()
    moved = {
        each: Move(old_leader_id, now.now_ms)
        for each, row in now.live().items()
        if each in old and (old_leader_id := old[each].leader_id) not in (None, row.leader_id)
    }
    return recent | moved


def _broker_cards(
    alive: Collection[int],
    live: Mapping[TopicPartition, PartitionRow],
    known: Mapping[int, BrokerRow],
    moves: Moves,
) -> list[BrokerCard]:
    return [
        BrokerCard(
            node_id=node_id,
            address=f"{row.host}:{row.port}" if row.host else "address not told",
            is_alive=node_id in alive if row.answered_by else None,
            leads=[
                Led(each, moves[each].old_leader_id if each in moves else None)
                for each, one in live.items()
                if one.leader_id == node_id
            ],
        )
        for node_id, row in sorted(known.items())
    ]


def _by_place(state: State) -> list[tuple[tuple[str, str], Mapping[TopicPartition, CacheRow]]]:
    return [
        ((name, _process(next(iter(rows.values())))), rows)
        for (_, name), rows in newest_caches(state.caches).items()
        if rows
    ]


def _by_cache(state: State) -> list[tuple[tuple[str, str], Mapping[TopicPartition, CacheRow]]]:
    """Those that spoke of late, the latest first."""
    by_id: dict[str, list[CacheRow]] = {}
    for row in state.caches:
        if row.last_refresh.timestamp() * 1000 > state.now_ms - SILENT_MS:
            by_id.setdefault(row.cache_id, []).append(row)
    return [
        ((joined(rows[0].role, rows[0].executor_id), _process(rows[0])), by_partition(rows))
        for rows in sorted(by_id.values(), key=lambda rows: rows[0].last_refresh, reverse=True)
    ]


def _cache_table(
    caches: Sequence[tuple[tuple[str, str], Mapping[TopicPartition, CacheRow]]],
    live: Mapping[TopicPartition, PartitionRow],
) -> CacheTable:
    shown = caches[:CACHES_SHOWN]
    rows = [
        (each, leader_text(row.leader_id, row.leader_epoch), [_cell(known.get(each), live) for _, known in shown])
        for each, row in live.items()
    ]
    return CacheTable([name for name, _ in shown], rows, len(caches) - len(shown))


def _cell(row: CacheRow | None, live: Mapping[TopicPartition, PartitionRow]) -> Cell:
    if row is None:
        return Cell("", False)
    return Cell(leader_text(row.leader_id, row.leader_epoch), is_stale(row, live))


def _process(row: CacheRow) -> str:
    return joined(None if row.pid is None else f"pid {row.pid},", f"cache {row.cache_id[:ID_SHOWN]}")


def _event_row(event: Event) -> EventRow:
    at = datetime.fromtimestamp(event["time_ms"] / 1000)
    return EventRow(
        at=f"{at:%H:%M:%S}",
        iso=at.astimezone().isoformat(timespec="milliseconds"),
        who=who(event),
        why=why(event),
        asked=asked(event),
        latency=ms(event["latency_ms"]),
        outcome=event["outcome"] or Outcome.UNCHANGED,
        changed=what_changed(event),
        healed=ms(event["recovery_ms"]),
    )
