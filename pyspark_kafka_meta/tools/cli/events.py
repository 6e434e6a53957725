"""What `kafkameta events` and `caches` show: the refresh events of all metadata caches, newest last, and what each
cache knows by its events, side by side, with its stale entries.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from time import sleep
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pyspark_kafka_meta.events.default_folder import dead_caches
from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.tables.caches_from_events import CacheContents, EventRow, KnownCaches, has_news, runs
from pyspark_kafka_meta.tables.cluster_query import newest_metadata
from pyspark_kafka_meta.tables.known_leaders import UNKNOWN as NO_ENTRY
from pyspark_kafka_meta.tables.rows import CacheRow
from pyspark_kafka_meta.tools.cluster_state import (
    Leaders,
    NewestEvents,
    StaleEntry,
    event_order,
    is_stale,
    live_leaders,
    newest_leaders,
    partitions_by_topic,
    stale_entries,
    topics_of,
)
from pyspark_kafka_meta.tools.console import note, print_json
from pyspark_kafka_meta.tools.event_sources import EventSource
from pyspark_kafka_meta.tools.formatting import (
    ID_SHOWN,
    STALE_STYLE,
    TABLE_STYLE,
    UNKNOWN,
    joined,
    leader_cell,
    leader_text,
    plain,
    process_name,
    table_of,
)
from pyspark_kafka_meta.value_checks import INT64_MAX

POLL_S = 1.0
LAST = 1_000
"""This many events are shown unless `--last` is given."""
EVENTS_AT_ONCE = 1_000
"""While following, at most this many new events are sorted and printed together."""


NAME_WIDTH, CACHE_WIDTH = 12, 20
"""Approximate columns of a terminal for the partition and for each cache."""


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events are shown; `reasons` empty, or another field None, for all. Times are ms since 1970 UTC."""

    reasons: Collection[str] = ()
    role: str | None = None
    since_ms: int = 0
    until_ms: int = INT64_MAX
    application_id: str | None = None

    def accepts(self, event: EventRow) -> bool:
        return (
            (not self.reasons or event["reason"] in self.reasons)
            and self.role in (None, event["role"])
            and self.since_ms <= event["time_ms"] <= self.until_ms
            and self.application_id in (None, event["application_id"])
        )


def show_events(
    source: EventSource, wanted: EventFilter, show: Callable[[list[EventRow]], None], last: int | None
) -> None:
    """Show the newest `last` events; None for `LAST`, and a note if there are more."""
    limit = last or LAST
    events = heapq.nlargest(limit + 1, filter(wanted.accepts, source.read()), key=event_order)
    if not events:
        note(f"no such events in {source.name}")
    elif last is None and len(events) > limit:
        note(f"only the newest {limit} events are shown: --last 1000000 shows more")
    show(events[:limit][::-1])


def follow_events(source: EventSource, wanted: EventFilter, show: Callable[[list[EventRow]], None]) -> None:
    """Show new events until Ctrl-C."""
    while True:
        sleep(POLL_S)
        events = filter(wanted.accepts, source.read())
        while chunk := sorted(islice(events, EVENTS_AT_ONCE), key=event_order):
            show(chunk)


@dataclass(frozen=True, slots=True)
class FoundCaches:
    """What caches, which share their `Partitions`, know at one time, or why there are none; and the newest events that
    changed what they know."""

    caches: Sequence[CacheContents]
    news: Sequence[EventRow]
    now_ms: int
    why_none: str = ""

    def rows(self) -> Iterator[CacheRow]:
        """By cache and partition."""
        return (row for contents in self.caches for row in contents.rows(self.now_ms))


def known_caches(source: EventSource, since_ms: int, now_ms: int, application_id: str | None = None) -> FoundCaches:
    """What the caches with an event since `since_ms` know; a note counts the caches left out. `application_id` of None
    is for all.

    Spark kills Python workers, whose caches then write no last event; dead caches of this machine are left out.
    """
    caches, news, has_events = KnownCaches(), NewestEvents(), False
    for run in runs(source.read()):
        has_events = True
        caches.add(run)
        news.add(filter(has_news, run))
    dead = dead_caches()
    chosen = [each for each in caches.living() if application_id in (None, each.last["application_id"])]
    alive = [contents for contents in chosen if contents.last["cache_id"] not in dead]
    recent = [contents for contents in alive if contents.last_ms >= since_ms]
    why_none = ""
    if not has_events:
        why_none = f"no events in {source.name}"
    elif not alive:
        of_application = "" if application_id is None else f" of application {application_id}"
        why_none = f"no cache{of_application} is alive: look while a query runs, or see kafkameta events"
    elif not recent:
        why_none = "no cache had an event since then: --since 1d goes back further"
    else:
        if ended := len(chosen) - len(alive):
            note(f"omitted caches whose processes on this machine ended: {ended}")
        if silent := len(alive) - len(recent):
            note(f"omitted caches without an event since then: {silent}; --since 1d goes back further")
    return FoundCaches(recent, news.in_order(), now_ms, why_none)


def show_caches(known: FoundCaches, console: Console | None) -> None:
    """For each topic a table with a column for each cache; without a console a JSON line for each row."""
    if known.why_none:
        note(known.why_none)
    if console is None:
        for row in known.rows():
            print_json(asdict(row))
        return
    leaders = _newest_by_cluster(known.caches)
    caches = sorted(known.caches, key=lambda contents: _cache_name(contents.last))
    per_table, has_stale = max(1, (console.width - NAME_WIDTH) // CACHE_WIDTH), False
    names = caches[0].leaders.partitions.names if caches else ()
    for topic, numbers in partitions_by_topic(caches):
        console.print(plain(f"Topic {topic}", "bold"))
        knowing = [each for each in caches if (each.leaders.arrays()[0][numbers] != NO_ENTRY).any()]
        for start in range(0, len(knowing), per_table):
            rows = [row for each in knowing[start : start + per_table] for row in each.rows(known.now_ms, numbers)]
            stale = {row for row in rows if is_stale(row, leaders[row.cluster_id])}
            has_stale |= bool(stale)
            console.print(_caches_table([names[number].partition for number in numbers], rows, stale))
    if has_stale:
        console.print(Text.assemble(("*", STALE_STYLE), " stale: another cache knows a newer leader epoch or topic"))


def show_stale(known: FoundCaches, client: ClientOptions, console: Console | None) -> bool:
    """The entries that are older than the state of the cluster. Returns whether there was a cache to compare. Raises
    ConnectError: no broker responded."""
    if known.why_none:
        note(f"nothing to compare with the cluster: {known.why_none}")
        return False
    response = newest_metadata(client, topics_of(known.caches))
    if all(contents.last["cluster_id"] not in (None, response.cluster_id) for contents in known.caches):
        note("nothing to compare with the cluster: all known caches are of other clusters")
        return False
    found = stale_entries(known.rows(), live_leaders(response), known.news, known.now_ms)
    if console is None:
        for entry in found:
            live = {"live_leader_id": entry.live.leader_id, "live_leader_epoch": entry.live.leader_epoch}
            print_json({**asdict(entry.row), **live, "recreated": entry.is_recreated, "behind_ms": entry.behind_ms})
    elif entries := list(found):
        columns = ("cache", "partition", "knows", "now", "behind for")
        console.print(table_of(columns, map(_stale_cells, entries)))
    else:
        console.print("No cache is behind the cluster.")
    return True


def _newest_by_cluster(caches: Sequence[CacheContents]) -> dict[str | None, Leaders]:
    of_cluster: dict[str | None, list[CacheContents]] = {}
    for contents in caches:
        of_cluster.setdefault(contents.last["cluster_id"], []).append(contents)
    return {cluster: newest_leaders(caches) for cluster, caches in of_cluster.items()}


def _caches_table(partitions: Sequence[int], rows: Sequence[CacheRow], stale: set[CacheRow]) -> Table:
    """Of one topic, with a column for each cache, in the order of `rows`."""
    table, caches = Table("partition", **TABLE_STYLE), {row.cache_id: row for row in rows}.values()
    for cache in caches:
        table.add_column(Text("\n").join(map(plain, _cache_name(asdict(cache)))))
    by_cell = {(row.partition, row.cache_id): row for row in rows}
    for partition in partitions:
        entries = [by_cell.get((partition, cache.cache_id)) for cache in caches]
        table.add_row(str(partition), *(leader_cell(entry, entry in stale) for entry in entries))
    return table


def _stale_cells(entry: StaleEntry) -> Sequence[object]:
    row, now = entry.row, leader_text(entry.live.leader_id, entry.live.leader_epoch)
    known, now = leader_cell(row, True), f"{now}, recreated" if entry.is_recreated else now
    return " ".join(_cache_name(asdict(row))), row.topic_partition, known, now, _behind_for(entry)


def _behind_for(entry: StaleEntry) -> str:
    if entry.behind_ms is not None:
        return f"{entry.behind_ms / 1000:.1f} s at least"
    return "" if entry.row.age_at_most_ms is None else f"{entry.row.age_at_most_ms / 1000:.1f} s at most"


def _cache_name(of: Mapping[str, Any]) -> tuple[str, str, str]:
    """The cache and its process; also the sort key of caches."""
    process = process_name(of["host"], of["pid"]) or UNKNOWN
    return joined(of["role"], of["executor_id"]), process, of["cache_id"][:ID_SHOWN]
