"""`kafkameta events`: the refresh events of all metadata caches, newest last, as a table or as JSON lines."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from time import sleep

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.table import Table
from rich.text import Text

from pyspark_kafka_meta.kafka_errors import describe
from pyspark_kafka_meta.monitor.console import note, plain, print_json
from pyspark_kafka_meta.monitor.event_sources import EventSource
from pyspark_kafka_meta.tables.caches_from_events import Event

POLL_S = 1.0
LAST = 1_000
"""This many events are shown unless `--last` says otherwise."""
EVENTS_AT_ONCE = 1_000
"""Up to this many of those that come while following are put in order and printed together."""
SHOWN = 3
"""This many of a list of changes are spelt out."""
ID_SHOWN = 8
"""This much of a cache's id identifies it."""
UNKNOWN = "unknown"
"""Shown where another version has no value."""
COLORS = {"changed": "green", "failed": "red"}


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events are shown.

    Attributes:
        reasons: none for all.
        role: None for all.
        since_ms: earlier ones are not, ms since 1970 UTC.
        application_id: None for all.
    """

    reasons: Collection[str] = ()
    role: str | None = None
    since_ms: int = 0
    application_id: str | None = None

    def accepts(self, event: Event) -> bool:
        return (
            (not self.reasons or event["reason"] in self.reasons)
            and self.role in (None, event["role"])
            and event["time_ms"] >= self.since_ms
            and self.application_id in (None, event["application_id"])
        )


def show_events(
    source: EventSource, wanted: EventFilter, show: Callable[[list[Event]], None], last: int | None
) -> None:
    """Show the newest `last` of the events that are there; None for `LAST`, and a note if there are more."""
    most = last or LAST
    found = heapq.nlargest(most + 1, filter(wanted.accepts, source.read()), key=order)
    if not found:
        note(f"no such events in {source.name}")
    elif last is None and len(found) > most:
        note(f"events before the newest {most} are left out: --last 1000000 shows more")
    show(found[:most][::-1])


def follow_events(
    source: EventSource,
    wanted: EventFilter,
    show: Callable[[list[Event]], None],
) -> None:
    """Show events as they come, until Ctrl-C."""
    while True:
        sleep(POLL_S)
        events = filter(wanted.accepts, source.read())
        while chunk := sorted(islice(events, EVENTS_AT_ONCE), key=order):
            show(chunk)


def print_events(events: Iterable[Event]) -> None:
    """As JSON lines."""
    for event in events:
        print_json(event)


class EventTables:
    """Prints tables that line up, so that they read as one; the first has the names of the columns."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._is_first = True

    def __call__(self, events: Collection[Event]) -> None:
        if events:
            self._console.print(EventsTable(events, self._is_first))
            self._is_first = False


class EventsTable:
    """A row of columns for each event where they are wide enough, and else a paragraph beside its time: no address and
    no name is split unless the screen is narrower than that."""

    def __init__(self, events: Collection[Event], show_header: bool = True) -> None:
        self._events = events
        self._show_header = show_header

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = _column_widths(options.max_width)
        rows = [_cells(event) for event in self._events]
        if all(_longest_word(cell) <= width for row in rows for cell, width in zip(row, widths, strict=True)):
            yield self._columns(rows, widths)
        else:
            yield self._paragraphs()

    def _columns(self, rows: Iterable[Sequence[Text]], widths: Iterable[int]) -> Table:
        """The columns are as wide for any events."""
        table = Table(box=SIMPLE_HEAD, padding=0, show_header=self._show_header, show_edge=False)
        for (name, column), width in zip(COLUMNS.items(), widths, strict=True):
            table.add_column(name, width=width, justify=column.justify)
        for row in rows:
            table.add_row(*row)
        return table

    def _paragraphs(self) -> Table:
        table = Table.grid(padding=(0, 1, 0, 0))
        table.add_column(width=COLUMNS["time"].width)
        for event in self._events:
            time, *lines = _paragraph(event)
            table.add_row(time, Text("\n", overflow="fold").join(lines))
        return table


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of fixed width, or one with a share of the rest."""

    width: int = 0
    share: int = 0
    justify: JustifyMethod = "left"


COLUMNS = {
    "time": _Column(14),
    "who": _Column(share=4),
    "why": _Column(share=5),
    "asked": _Column(share=3),
    "ms": _Column(7, justify="right"),
    "bytes": _Column(6, justify="right"),
    "what changed": _Column(share=5),
    "healed in": _Column(10, justify="right"),
}


def _column_widths(screen: int) -> list[int]:
    rest = screen - (len(COLUMNS) - 1) - sum(column.width for column in COLUMNS.values())
    shares = sum(column.share for column in COLUMNS.values())
    return [column.width or rest * column.share // shares for column in COLUMNS.values()]


def _longest_word(cell: Text) -> int:
    return max(map(cell_len, cell.plain.split()), default=0)


def joined(*words: str | None) -> str:
    """The words that there are."""
    return " ".join(word for word in words if word is not None)


def who(event: Event) -> str:
    """The cache and its process, for people: `reader 1 host:4242 c0ffee12`."""
    process = process_name(event["host"], event["pid"])
    return joined(event["role"], event["executor_id"], process, event["cache_id"][:ID_SHOWN])


def process_name(host: str | None, pid: int | None) -> str | None:
    return host if host is None or pid is None else f"{host}:{pid}"


def why(event: Event) -> str:
    """The reason of one event, and where the trouble showed: `connection_lost: broker 2`."""
    where = None if event["cause_topic"] is None else f"{event['cause_topic']}-{event['cause_partition']}"
    broker = None if event["cause_node_id"] is None else f"broker {event['cause_node_id']}"
    error = describe(event["cause_error_code"]) if event["cause_error_code"] else None
    detail = ", ".join(part for part in (where, broker, error) if part is not None)
    reason = event["reason"] or UNKNOWN
    return f"{reason}: {detail}" if detail else str(reason)


def what_changed(event: Event) -> str:
    """The changes of one event in a few words; why it failed, where it did."""
    parts = [*_losses(event), *_changes(event)]
    return ", ".join(parts) or str(event["outcome"] or UNKNOWN)


def _cells(event: Event) -> list[Text]:
    at = datetime.fromtimestamp(event["time_ms"] / 1000)
    return [
        plain(f"{at:%m-%d %H:%M:%S}"),
        plain(who(event)),
        plain(why(event)),
        plain(asked(event)),
        plain(ms(event["latency_ms"])),
        plain(event["response_bytes"]),
        plain(what_changed(event), COLORS.get(event["outcome"], "")),
        plain("" if event["recovery_ms"] is None else f"{ms(event['recovery_ms'])} ms"),
    ]


def _paragraph(event: Event) -> list[Text]:
    """The time, then the lines beside it."""
    at, whose, reason, peer, latency, size, changed, healed = _cells(event)
    took = [f"{latency} ms" if latency else "", f"{size} bytes" if size else ""]
    cost = ", ".join(filter(None, took))
    verb = "" if event["broker_host"] is None else "asked "
    request = f"{whose} {verb}{peer}" + (f" ({cost})" if cost else "")
    return [at, reason, Text(request), changed + Text(f", healed in {healed}" if healed else "")]


def order(event: Event) -> tuple[int, str, int]:
    """What events are sorted by."""
    return event["time_ms"], event["cache_id"], event["sequence"]


def asked(event: Event) -> str:
    if event["broker_host"] is None:
        return f"({event['kind'] or UNKNOWN})"
    asked = "bootstrap" if event["broker_id"] is None else f"broker {event['broker_id']}"
    return f"{asked} {event['broker_host']}:{event['broker_port']}"


def ms(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _losses(event: Event) -> Iterator[str]:
    if event["dropped_before"]:
        yield f"{event['dropped_before']} events lost before"
    if event["lost_from_offset"] is not None:
        yield f"records from offset {event['lost_from_offset']} on skipped"
    if event["error"] is not None:
        yield event["error"]


def _changes(event: Event) -> Iterator[str]:
    moves = [
        f"{one['topic']}-{one['partition']}: {one['old_leader_id']} to {one['new_leader_id']} "
        f"(epoch {one['old_epoch']} to {one['new_epoch']})"
        for one in event["leaders_changed"] or ()
    ]
    lists = {
        "": moves,
        "recreated: ": [one["topic"] for one in event["topics_recreated"] or ()],
        "new partitions: ": [f"{one['topic']}-{one['partition']}" for one in event["partitions_added"] or ()],
        "new topics: ": event["topics_added"] or (),
        "topics gone: ": event["topics_removed"] or (),
        "new brokers: ": event["brokers_added"] or (),
        "brokers gone: ": event["brokers_removed"] or (),
        "brokers moved: ": event["brokers_moved"] or (),
        "caches that died: ": [cache_id[:ID_SHOWN] for cache_id in event["died_cache_ids"] or ()],
    }
    for words, found in lists.items():
        if found:
            more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
            yield words + ", ".join(map(str, found[:SHOWN])) + more
