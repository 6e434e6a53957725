"""`kafkameta events`: the refresh events of all metadata caches, newest last, as a table or as JSON lines."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import islice
from time import sleep

from rich.console import Console

from pyspark_kafka_meta.tables.caches_from_events import Event
from pyspark_kafka_meta.tools.shared.cluster_state import event_order
from pyspark_kafka_meta.tools.shared.console import note, print_json
from pyspark_kafka_meta.tools.shared.event_sources import EventSource
from pyspark_kafka_meta.tools.shared.formatting import EventsTable

POLL_S = 1.0
LAST = 1_000
"""This many events are shown unless `--last` is given."""
EVENTS_AT_ONCE = 1_000
"""While following, at most this many new events are sorted and printed together."""


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events are shown; `reasons` empty, or another field None, for all.

    Attributes:
        since_ms: the earliest time, ms since 1970 UTC.
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
    """Show the newest `last` events; None for `LAST`, and a note if there are more."""
    limit = last or LAST
    events = heapq.nlargest(limit + 1, filter(wanted.accepts, source.read()), key=event_order)
    if not events:
        note(f"no such events in {source.name}")
    elif last is None and len(events) > limit:
        note(f"only the newest {limit} events are shown: --last 1000000 shows more")
    show(events[:limit][::-1])


def follow_events(source: EventSource, wanted: EventFilter, show: Callable[[list[Event]], None]) -> None:
    """Show new events until Ctrl-C."""
    while True:
        sleep(POLL_S)
        events = filter(wanted.accepts, source.read())
        while chunk := sorted(islice(events, EVENTS_AT_ONCE), key=event_order):
            show(chunk)


def print_events(events: Iterable[Event]) -> None:
    """As JSON lines."""
    for event in events:
        print_json(event)


class EventTables:
    """Prints tables with the same columns; only the first has a header."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._is_first = True

    def __call__(self, events: Collection[Event]) -> None:
        if events:
            self._console.print(EventsTable(events, self._is_first))
            self._is_first = False
