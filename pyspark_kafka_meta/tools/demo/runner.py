"""Starts the demo's cluster and query, plays the scenes in order, and cleans up whatever happens.

A terminal shows a frame that stays up to date, a pipe gets plain lines.
"""

from __future__ import annotations

import select
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table

from pyspark_kafka_meta.java_launcher import find_java
from pyspark_kafka_meta.options import ClientOptions, SourceOptions
from pyspark_kafka_meta.tables.caches_from_events import EventRow
from pyspark_kafka_meta.tables.cluster_query import describe_cluster
from pyspark_kafka_meta.testing import LocalKafka, MockCluster
from pyspark_kafka_meta.tools.cluster_state import ClusterState, caches_by_process, is_stale
from pyspark_kafka_meta.tools.console import check_topics, timeout_options
from pyspark_kafka_meta.tools.demo import TOO_BUSY, DemoCluster
from pyspark_kafka_meta.tools.demo.clusters import (
    ChangeableCluster,
    Cluster,
    EmbeddedCluster,
    LocalKafkaCluster,
    UserCluster,
)
from pyspark_kafka_meta.tools.demo.query import DemoQuery, QueryFailedError, RecordFeed, spark_session
from pyspark_kafka_meta.tools.demo.scenes import Act, Scene, SceneResult, scenes_of
from pyspark_kafka_meta.tools.formatting import (
    STALE_STYLE,
    event_line,
    is_notable,
    leader_cell,
    leader_text,
    plain,
    table_of,
)

CLUSTER_TIMEOUT_MS = 10_000
SILENCE_S = 120.0
"""The query is waited for until nothing has changed for this long."""
SCENE_TIMEOUT_S = 180.0
"""For 20 micro-batches of a busy machine."""
REPEAT_AFTER_S = 8.0
KAFKA_CONFIG = {"broker.session.timeout.ms": "5000", "broker.heartbeat.interval.ms": "1000"}
"""The controller notices a dead broker sooner than by default, after 9 s."""
POLL_S = 0.3
EVENTS_SHOWN = 6
LINES_PER_SCENE = 12
"""Event lines for each scene in a pipe."""
HOLD_S = 3.0
"""How long a terminal keeps showing a finished scene."""


@contextmanager
def own_cluster(kind: DemoCluster | None, console: Console) -> Iterator[ChangeableCluster]:
    """A cluster of the demo's own, embedded by default. Raises ClusterError: it cannot be started."""
    if kind is not DemoCluster.KAFKA:
        with MockCluster() as brokers:
            yield EmbeddedCluster(brokers)
        return
    console.print("One controller and three brokers start", highlight=False)
    with LocalKafka(config=KAFKA_CONFIG) as kafka:
        yield LocalKafkaCluster(kafka)


@contextmanager
def start_query(cluster: Cluster, console: Console, is_fed: bool) -> Iterator[DemoQuery]:
    """Two executors that read the cluster's topics and write their copies; cleans up. Raises KafkaMetaError: the query
    cannot start."""
    SourceOptions.parse({**cluster.options, **cluster.selection})
    client = ClientOptions.parse({**cluster.options, **timeout_options(CLUSTER_TIMEOUT_MS)})
    feed = RecordFeed(cluster) if is_fed else None
    # Report missing topics a minute before the query does; the demo's own topics may be created later.
    check_topics(describe_cluster(client, cluster.topics if isinstance(cluster, UserCluster) else ()).response)
    find_java()
    with ExitStack() as opened:
        # An executor that ends late may still write there.
        temporary = tempfile.TemporaryDirectory(prefix="kafkameta-demo-", ignore_cleanup_errors=True)
        folder = Path(opened.enter_context(temporary))
        console.print(f"Spark starts, to read from {cluster.name}", highlight=False, soft_wrap=True)
        spark = opened.enter_context(spark_session(folder))
        if feed is not None:
            opened.enter_context(feed)
        console.print("Spark has started, and starts the query", highlight=False)
        yield opened.enter_context(closing(DemoQuery(spark, cluster, folder)))


def run_demo(cluster: Cluster, console: Console, is_fed: bool, interactive: bool, is_whole: bool) -> bool:
    """Play the scenes of the cluster; returns whether each played scene was seen. Raises KafkaMetaError: the query
    cannot start, or it ended."""
    with start_query(cluster, console, is_fed) as query:
        scenes, whole = (scenes_of(cluster, query.events, each) for each in (is_whole, True))
        with DemoScreen(console, query.state_reader.read, query.activity) as screen:
            results = list(_play(scenes, screen, is_fed, interactive))
    console.print(summary(results))
    are_seen = all(result.observation is not None for result in results)
    if not are_seen:
        console.print(f"Not all was seen in time: perhaps {TOO_BUSY}.", soft_wrap=True)
    if len(scenes) < len(whole):
        console.print(f"Add --all to play all {len(whole)} scenes, in a few minutes.", highlight=False)
    return are_seen


def wait_for_query(screen: DemoScreen, is_ready: Callable[[ClusterState], object], is_fed: bool) -> None:
    """Wait as long as Spark makes progress. Raises QueryFailedError: it makes none, or there is nothing to read."""
    before, changed_at = ("", 0), time.monotonic()
    while not is_ready(state := screen.wait()):
        if not is_fed and state.partitions and not any(row.end_offset for row in state.partitions):
            raise QueryFailedError("the topic is empty: produce to it, or let the demo do so with --feed")
        progress = screen.activity, len(state.events)
        if progress != before:
            before, changed_at = progress, time.monotonic()
        elif time.monotonic() > changed_at + SILENCE_S:
            raise QueryFailedError(f"the demo's query made no progress in {SILENCE_S:.0f} s; {TOO_BUSY}")


def _play(scenes: Iterable[Scene], screen: DemoScreen, is_fed: bool, interactive: bool) -> Iterator[SceneResult]:
    """The first scene needs the planner's cache alone, which is there long before a record is read."""
    with ThreadPoolExecutor(1, "kafkameta-demo-act") as act_thread:
        for scene in scenes:
            if interactive and not screen.confirm_next():
                return
            wait_for_query(screen, attrgetter("events" if scene.number == 1 else "positions"), is_fed)
            screen.begin(scene)
            result = play_scene(scene, screen, act_thread)
            screen.end(result)
            yield result


def play_scene(scene: Scene, screen: DemoScreen, act_thread: Executor) -> SceneResult:
    """Play a scene until it is seen or its time is over; `act_thread` runs its acts."""
    began = time.monotonic()
    observations: list[str] = []
    for act in scene.acts:
        observation = _play_act(act, scene.is_repeatable, screen, act_thread, began + SCENE_TIMEOUT_S)
        if observation is None:
            return SceneResult(scene, None, time.monotonic() - began)
        observations.append(observation)
    return SceneResult(scene, "; ".join(observations), time.monotonic() - began)


def _play_act(act: Act, is_repeatable: bool, screen: DemoScreen, act_thread: Executor, deadline: float) -> str | None:
    """What the act's check saw, or None if it saw nothing in time. The screen is updated while the act runs."""
    state = screen.update()
    running, acted_at = act_thread.submit(act, state), time.monotonic()
    while (now := time.monotonic()) <= deadline:
        state = screen.wait()
        if not running.done():
            acted_at = now
        elif (observation := running.result()(state)) is not None:
            return observation
        elif is_repeatable and now > acted_at + REPEAT_AFTER_S:
            running, acted_at = act_thread.submit(act, state), now
    return None


class DemoScreen:
    """Shows each state that it gets, inside `with`.

    Attributes:
        activity: what Spark was doing last, by `get_activity`, until the query has read something.
    """

    def __init__(
        self, console: Console, get_state: Callable[[], ClusterState], get_activity: Callable[[], str]
    ) -> None:
        self.activity = ""
        self._console = console
        self._get_state = get_state
        self._get_activity = get_activity
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

    def update(self) -> ClusterState:
        """Get the state, and show it. Raises QueryFailedError: the query ended."""
        state = self._get_state()
        before = self.activity
        if not state.positions:
            self.activity = self._get_activity()
        if self._live is not None:
            self._live.update(frame(state, self._heading, self.activity), refresh=True)
        elif self.activity != before:
            self._print(f"   {self.activity}")
        else:
            self._print_events([e for e in state.events if (e["cache_id"], e["sequence"]) not in self._shown])
        return state

    def end(self, result: SceneResult) -> None:
        """Show the result of a scene; a terminal holds it for a while."""
        self._print(result_line(result))
        self._print(f"   {progress_line(self.update(), self.activity)}")
        if self._live is not None:
            hold_until = time.monotonic() + HOLD_S
            while time.monotonic() < hold_until:
                self.wait()

    def wait(self) -> ClusterState:
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

    def _print_events(self, events: Sequence[EventRow]) -> None:
        self._shown.update((event["cache_id"], event["sequence"]) for event in events)
        lines = [f"   {event_line(event)}" for event in filter(is_notable, events)]
        for line in lines[: self._lines_left]:
            self._print(line)
        if 0 < self._lines_left < len(lines):
            self._print("   ... and more events")
        self._lines_left = max(0, self._lines_left - len(lines))

    def _print(self, text: str) -> None:
        for line in text.splitlines():
            self._console.print(plain(line), soft_wrap=True)


def frame(state: ClusterState, heading: str, activity: str) -> RenderableType:
    """The state as tables, below the heading of a scene; `activity` as in `progress_line`."""
    cluster = Table.grid(padding=(0, 3))
    cluster.add_row(_caches_table(state), _brokers_table(state))
    parts: list[RenderableType] = [
        *(plain(line, "bold") for line in heading.splitlines()),
        cluster,
        plain(progress_line(state, activity)),
        *(plain(event_line(event)) for event in state.events[-EVENTS_SHOWN:]),
    ]
    if state.trouble is not None:
        parts.append(plain(f"No broker answers: {state.trouble}", "red"))
    return Group(*parts)


def heading(scene: Scene) -> str:
    return f"{scene.number}. {scene.title}\n   {scene.explanation}"


def progress_line(state: ClusterState, activity: str) -> str:
    """Throughput and lag, or what Spark is doing until there is some."""
    if not state.positions:
        return f"No records read yet: {activity}"
    rate, lag = f"{state.records_per_s:.0f} a second", state.lag()
    behind = f"{lag.records} behind" + (f", {lag.unknown} partitions without an end" if lag.unknown else "")
    return f"{state.records_read()} records read, {rate} in the last batch, {behind}"


def result_line(result: SceneResult) -> str:
    if result.observation is None:
        return f"   NOT SEEN in {result.took_s:.0f} s"
    return f"   seen after {result.took_s:.1f} s: {result.observation}"


def summary(results: Iterable[SceneResult]) -> Table:
    return table_of(("", "scene", "seen", "what was seen"), map(_result_cells, results))


def _result_cells(result: SceneResult) -> Sequence[object]:
    is_seen = result.observation is not None
    seen = plain(f"{result.took_s:.1f} s", "green") if is_seen else plain("NO", STALE_STYLE)
    return result.scene.number, result.scene.title, seen, result.observation


def _brokers_table(state: ClusterState) -> Table:
    leads = Counter(row.leader_id for row in state.partitions)
    rows = ((row.node_id, f"{row.host}:{row.port}", leads[row.node_id]) for row in state.brokers)
    return table_of(("broker", "address", "leads"), rows)


def _caches_table(state: ClusterState) -> Table:
    """The live leader and epoch of each partition beside the leader and epoch in each cache."""
    leaders, caches = state.leaders(), caches_by_process(state.cache_rows())
    rows = []
    for partition, leader in sorted(leaders.items()):
        entries = [cache.get(partition) for cache in caches.values()]
        cells = [leader_cell(entry, entry is not None and is_stale(entry, leaders)) for entry in entries]
        rows.append((partition, leader_text(leader.leader_id, leader.leader_epoch), *cells))
    return table_of(("partition", "now", *caches), rows)
