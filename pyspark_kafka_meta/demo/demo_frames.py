"""What the demo shows of a state: a frame for a terminal, lines for a pipe; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pyspark_kafka_meta.cli.caches_command import LOOK, OLD, leader_text
from pyspark_kafka_meta.cli.events_command import EventsTable, what_changed, who, why
from pyspark_kafka_meta.demo.scenes import Scene
from pyspark_kafka_meta.metadata.refresh_events import Outcome
from pyspark_kafka_meta.model import RefreshReason, TopicPartition
from pyspark_kafka_meta.monitor.cluster_state import State, is_stale, newest_caches
from pyspark_kafka_meta.monitor.console import plain
from pyspark_kafka_meta.tables.caches_from_events import Event
from pyspark_kafka_meta.tables.table_rows import CacheRow, PartitionRow

EVENTS_SHOWN = 6


@dataclass(frozen=True, slots=True)
class SceneResult:
    """What came of a scene.

    Attributes:
        figures: what was seen; None if it was not.
        took_s: from its beginning until then, or until it was given up.
    """

    scene: Scene
    figures: str | None
    took_s: float


def frame(state: State, heading: str, produced: int | None) -> RenderableType:
    """All at one moment.

    Args:
        heading: of the scene.
        produced: by the feed; None if there is none.
    """
    cluster = Table.grid(padding=(0, 3))
    cluster.add_row(_caches_table(state), _brokers_table(state))
    parts: list[RenderableType] = [
        *(plain(line, "bold") for line in heading.splitlines()),
        cluster,
        plain(reading_line(state, produced)),
        EventsTable(state.events[-EVENTS_SHOWN:]),
    ]
    if state.trouble is not None:
        parts.append(plain(f"No broker answers: {state.trouble}", "red"))
    return Group(*parts)


def heading(scene: Scene) -> str:
    return f"{scene.number}. {scene.title}\n   {scene.line}"


def reading_line(state: State, produced: int | None) -> str:
    """Throughput and lag."""
    fed = "" if produced is None else f"; {produced} produced"
    if not state.positions:
        return f"No records read yet: executors are starting, which may take a minute{fed}"
    rate, behind = f"{state.records_per_s:.0f} a second", f"{state.records_behind()} behind"
    return f"{state.records_read()} records read, {rate} in the last batch, {behind}{fed}"


def event_line(event: Event) -> str:
    """One event, for a pipe."""
    at = datetime.fromtimestamp(event["time_ms"] / 1000)
    healed = "" if event["recovery_ms"] is None else f", healed in {event['recovery_ms']:.0f} ms"
    return f"   {at:%H:%M:%S} {who(event)}: {why(event)} -> {what_changed(event)}{healed}"


def is_news(event: Event) -> bool:
    """Whether a pipe gets it: answers that bring nothing new would be most of the lines."""
    return bool(event["outcome"] != Outcome.UNCHANGED or event["reason"] == RefreshReason.ON_DEMAND)


def result_line(result: SceneResult) -> str:
    if result.figures is None:
        return f"   NOT SEEN in {result.took_s:.0f} s"
    return f"   seen after {result.took_s:.1f} s: {result.figures}"


def summary(results: Iterable[SceneResult]) -> Table:
    table = Table("", "scene", "seen", "what was seen", **LOOK)
    for one in results:
        seen = plain("NO", OLD) if one.figures is None else plain(f"{one.took_s:.1f} s", "green")
        table.add_row(plain(one.scene.number), plain(one.scene.title), seen, plain(one.figures))
    return table


def _brokers_table(state: State) -> Table:
    leads = Counter(row.leader_id for row in state.partitions)
    table = Table("broker", "address", "leads", **LOOK)
    for row in state.brokers:
        table.add_row(plain(row.node_id), plain(f"{row.host}:{row.port}"), plain(leads[row.node_id]))
    return table


def _caches_table(state: State) -> Table:
    """The leader and epoch of each partition: the truth, and beside it what each cache knows."""
    live, caches = state.live(), newest_caches(state.caches)
    table = Table("partition", "now", *(name for _, name in caches), **LOOK)
    for partition, row in sorted(live.items()):
        cells = [_cell(cache.get(partition), live) for cache in caches.values()]
        table.add_row(plain(partition), plain(leader_text(row.leader_id, row.leader_epoch)), *cells)
    return table


def _cell(row: CacheRow | None, live: Mapping[TopicPartition, PartitionRow]) -> Text:
    """What a cache knows of a partition, leader@epoch; with a star what is stale."""
    if row is None:
        return plain("-")
    text = leader_text(row.leader_id, row.leader_epoch)
    return plain(f"{text}*", OLD) if is_stale(row, live) else plain(text)
