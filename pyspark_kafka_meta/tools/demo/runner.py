"""Starts the demo's cluster and query, plays the scenes in order, and cleans up whatever happens."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from pyspark_kafka_meta.java_launcher import find_java
from pyspark_kafka_meta.options import ClientOptions, SourceOptions
from pyspark_kafka_meta.tables.cluster_query import describe_cluster
from pyspark_kafka_meta.testing import LocalKafka, MockCluster
from pyspark_kafka_meta.tools.demo import DemoCluster
from pyspark_kafka_meta.tools.demo.clusters import (
    ChangeableCluster,
    Cluster,
    EmbeddedCluster,
    LocalKafkaCluster,
    UserCluster,
)
from pyspark_kafka_meta.tools.demo.query import Stream, StreamFailedError, spark_session
from pyspark_kafka_meta.tools.demo.record_feed import RecordFeed
from pyspark_kafka_meta.tools.demo.scenes import Act, Scene, SceneResult, scenes_of
from pyspark_kafka_meta.tools.demo.screen import DemoScreen, summary
from pyspark_kafka_meta.tools.shared.cluster_access import check_topics, timeout_options
from pyspark_kafka_meta.tools.shared.event_sources import FolderEvents
from pyspark_kafka_meta.tools.shared.watcher import Watcher

CLUSTER_TIMEOUT_MS = 10_000
START_TIMEOUT_S = 180.0
SCENE_TIMEOUT_S = 60.0
REPEAT_AFTER_S = 8.0
KAFKA_CONFIG = {"broker.session.timeout.ms": "5000", "broker.heartbeat.interval.ms": "1000"}
"""The controller notices a dead broker sooner than by default, after 9 s."""


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


@dataclass(frozen=True, slots=True)
class RunningQuery:
    """The demo's query, while it runs.

    Attributes:
        events: the folder of its refresh events.
        checkpoint: its checkpointLocation.
        feed: None if nothing is produced.
    """

    watcher: Watcher
    events: Path
    checkpoint: Path
    feed: RecordFeed | None


@contextmanager
def start_query(cluster: Cluster, console: Console, is_fed: bool) -> Iterator[RunningQuery]:
    """Two executors that read the cluster's topics and write their copies; cleans up.

    Raises:
        KafkaMetaError: the query cannot start.
    """
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
        console.print(f"Two executors start, to read from {cluster.name}", highlight=False, soft_wrap=True)
        spark = opened.enter_context(spark_session(folder))
        if feed is not None:
            opened.enter_context(feed)
        events, checkpoint = folder / "events", folder / "checkpoint"
        stream = opened.enter_context(closing(Stream(spark, cluster, events, checkpoint)))
        source = FolderEvents(str(events))
        watcher = Watcher(source, cluster.options, lambda _: [*cluster.topics, *cluster.copies], stream.progress)
        yield RunningQuery(watcher, events, checkpoint, feed)


def run_demo(cluster: Cluster, console: Console, is_fed: bool, interactive: bool) -> bool:
    """Play the scenes of the cluster; returns whether each played scene was seen.

    Raises:
        KafkaMetaError: the query cannot start, or it ended.
    """
    with start_query(cluster, console, is_fed) as query:
        feed = query.feed
        with DemoScreen(console, query.watcher.state, lambda: None if feed is None else feed.produced) as screen:
            _wait_for_first_batch(screen)
            results = list(_play(scenes_of(cluster, query.events), screen, interactive))
    console.print(summary(results))
    return all(result.observation is not None for result in results)


def _wait_for_first_batch(screen: DemoScreen) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not screen.wait().positions:
        if time.monotonic() > deadline:
            raise StreamFailedError(
                f"the demo's query read nothing in {START_TIMEOUT_S:.0f} s: try again when the machine is less busy, "
                "and where the topic is empty use --feed"
            )


def _play(scenes: Iterable[Scene], screen: DemoScreen, interactive: bool) -> Iterator[SceneResult]:
    with ThreadPoolExecutor(1, "kafkameta-demo-act") as act_thread:
        for scene in scenes:
            if interactive and not screen.confirm_next():
                return
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
    running, acted_at = act_thread.submit(act, screen.update()), time.monotonic()
    while (now := time.monotonic()) < deadline:
        state = screen.wait()
        if not running.done():
            acted_at = now
        elif (observation := running.result()(state)) is not None:
            return observation
        elif is_repeatable and now > acted_at + REPEAT_AFTER_S:
            running, acted_at = act_thread.submit(act, state), now
    return None
