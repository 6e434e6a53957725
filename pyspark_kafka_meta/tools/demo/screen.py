"""What the demo shows: a frame that stays up to date on a terminal, plain lines in a pipe."""

from __future__ import annotations

import select
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table

from pyspark_kafka_meta.kafka.metadata.refresh_events import Outcome
from pyspark_kafka_meta.tables.caches_from_events import Event
from pyspark_kafka_meta.tools.demo.scenes import Scene, SceneResult
from pyspark_kafka_meta.tools.shared.cluster_state import State, caches_by_process
from pyspark_kafka_meta.tools.shared.formatting import (
    STALE_STYLE,
    TABLE_STYLE,
    EventsTable,
    event_line,
    is_notable,
    leader_cell,
    leader_text,
    plain,
)
from pyspark_kafka_meta.tools.shared.staleness import is_stale

POLL_S = 0.3
EVENTS_SHOWN = 6
LINES_PER_SCENE = 12
"""Event lines for each scene in a pipe."""
HOLD_S = 3.0
"""How long a terminal keeps showing a finished scene."""


class DemoScreen:
    """Shows each state that it gets, inside `with`.

    Args:
        get_state: returns the state now.
        produced: returns the records produced so far; None if nothing is produced.
    """

    def __init__(self, console: Console, get_state: Callable[[], State], produced: Callable[[], int | None]) -> None:
        self._console = console
        self._get_state = get_state
        self._produced = produced
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._heading = ""
        self._lines_left = LINES_PER_SCENE
        self._shown: set[tuple[str, int]] = set()

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def begin(self, scene: Scene) -> None:
        self._heading, self._lines_left = heading(scene), LINES_PER_SCENE
        self._print(self._heading)

    def update(self) -> State:
        """Get the state, and show it. Raises StreamFailedError: the query ended."""
        state = self._get_state()
        if self._live is not None:
            self._live.update(frame(state, self._heading, self._produced()), refresh=True)
        else:
            self._print_events([e for e in state.events if (e["cache_id"], e["sequence"]) not in self._shown])
        return state

    def end(self, result: SceneResult) -> None:
        """Show the result of a scene; a terminal holds it for a while."""
        self._print(result_line(result))
        self._print(f"   {progress_line(self.update(), self._produced())}")
        if self._live is not None:
            hold_until = time.monotonic() + HOLD_S
            while time.monotonic() < hold_until:
                self.wait()

    def wait(self) -> State:
        """Update after a moment."""
        time.sleep(POLL_S)
        return self.update()

    def confirm_next(self) -> bool:
        """Wait for Enter while updating; False for q, and at the end of the input."""
        self._print("Enter: the next scene; q and Enter: the end")
        while not select.select([sys.stdin], [], [], POLL_S)[0]:
            self.update()
        line = sys.stdin.readline()
        return line.endswith("\n") and line.strip().lower() != "q"

    def _print_events(self, events: Sequence[Event]) -> None:
        self._shown.update((event["cache_id"], event["sequence"]) for event in events)
        lines = [f"   {line}" for line in event_lines(events)]
        for line in lines[: self._lines_left]:
            self._print(line)
        if 0 < self._lines_left < len(lines):
            self._print("   ... and more events")
        self._lines_left = max(0, self._lines_left - len(lines))

    def _print(self, text: str) -> None:
        for line in text.splitlines():
            self._console.print(plain(line), soft_wrap=True)


def event_lines(events: Iterable[Event]) -> Iterator[str]:
    """A line for each notable event; failed attempts of one refresh, at one address after the other, share a line."""

    def attempts_of(event: Event) -> tuple[object, ...]:
        is_failed = event["outcome"] == Outcome.FAILED
        return event["cache_id"], event["reason"], None if is_failed else event["sequence"]

    for _, members in groupby(filter(is_notable, events), attempts_of):
        first, *others = members
        yield event_line(first) + (f", and {len(others)} more failed attempts" if others else "")


def frame(state: State, heading: str, produced: int | None) -> RenderableType:
    """The state as tables, below the heading of a scene; `produced` as in `progress_line`."""
    cluster = Table.grid(padding=(0, 3))
    cluster.add_row(_caches_table(state), _brokers_table(state))
    parts: list[RenderableType] = [
        *(plain(line, "bold") for line in heading.splitlines()),
        cluster,
        plain(progress_line(state, produced)),
        EventsTable(state.events[-EVENTS_SHOWN:]),
    ]
    if state.trouble is not None:
        parts.append(plain(f"No broker answers: {state.trouble}", "red"))
    return Group(*parts)


def heading(scene: Scene) -> str:
    return f"{scene.number}. {scene.title}\n   {scene.explanation}"


def progress_line(state: State, produced: int | None) -> str:
    """Throughput and lag; `produced` is None if nothing is produced."""
    fed = "" if produced is None else f"; {produced} produced"
    if not state.positions:
        return f"No records read yet: executors are starting, which may take a minute{fed}"
    rate, lag = f"{state.records_per_s:.0f} a second", state.lag()
    behind = f"{lag.records} behind" + (f", {lag.unknown} partitions without an end" if lag.unknown else "")
    return f"{state.records_read()} records read, {rate} in the last batch, {behind}{fed}"


def result_line(result: SceneResult) -> str:
    if result.observation is None:
        return f"   NOT SEEN in {result.took_s:.0f} s"
    return f"   seen after {result.took_s:.1f} s: {result.observation}"


def summary(results: Iterable[SceneResult]) -> Table:
    table = Table("", "scene", "seen", "what was seen", **TABLE_STYLE)
    for result in results:
        is_seen = result.observation is not None
        seen = plain(f"{result.took_s:.1f} s", "green") if is_seen else plain("NO", STALE_STYLE)
        table.add_row(plain(result.scene.number), plain(result.scene.title), seen, plain(result.observation))
    return table


def _brokers_table(state: State) -> Table:
    leads = Counter(row.leader_id for row in state.partitions)
    table = Table("broker", "address", "leads", **TABLE_STYLE)
    for row in state.brokers:
        table.add_row(plain(row.node_id), plain(f"{row.host}:{row.port}"), plain(leads[row.node_id]))
    return table


def _caches_table(state: State) -> Table:
    """The live leader and epoch of each partition beside those in each cache."""
    leaders, caches = state.leaders(), caches_by_process(state.caches)
    table = Table("partition", "now", *caches, **TABLE_STYLE)
    for partition, leader in sorted(leaders.items()):
        entries = [cache.get(partition) for cache in caches.values()]
        cells = [leader_cell(entry, entry is not None and is_stale(entry, leaders)) for entry in entries]
        table.add_row(plain(partition), plain(leader_text(leader.leader_id, leader.leader_epoch)), *cells)
    return table
