"""Sets the stage, plays the scenes one after the other, and cleans up whatever happens."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from pyspark_kafka_meta.cli.metadata_command import check_topics
from pyspark_kafka_meta.cli.parameters import DemoCluster, answer_within
from pyspark_kafka_meta.demo.demo_clusters import Cluster, Embedded, Real, Yours
from pyspark_kafka_meta.demo.demo_frames import SceneResult, summary
from pyspark_kafka_meta.demo.demo_query import Stream, StreamFailedError, spark_session
from pyspark_kafka_meta.demo.live_feed import Feed
from pyspark_kafka_meta.demo.scenes import Act, Scene, scenes_of
from pyspark_kafka_meta.demo.screen import Screen
from pyspark_kafka_meta.java import find_java
from pyspark_kafka_meta.monitor.event_sources import FolderEvents
from pyspark_kafka_meta.monitor.watcher import Watcher
from pyspark_kafka_meta.options import ClientOptions, SourceOptions
from pyspark_kafka_meta.tables.cluster_query import ask_cluster
from pyspark_kafka_meta.testing import LocalKafka, MockCluster

ANSWER_TIMEOUT_MS = 10_000
START_TIMEOUT_S = 180.0
SCENE_TIMEOUT_S = 60.0
AGAIN_AFTER_S = 8.0
NOTICED_AFTER = {"broker.session.timeout.ms": "5000", "broker.heartbeat.interval.ms": "1000"}
"""Real brokers notice sooner that one of them died: the default is 9 s."""


@contextmanager
def own_cluster(kind: DemoCluster | None, console: Console) -> Iterator[Embedded | Real]:
    """The demo's own, embedded by default. Raises ClusterError: there is no librdkafka, or no way to Kafka's jars, or
    the nodes do not start."""
    if kind is not DemoCluster.KAFKA:
        with MockCluster() as brokers:
            yield Embedded(brokers)
        return
    console.print("One controller and three brokers start", highlight=False)
    with LocalKafka(config=NOTICED_AFTER) as kafka:
        yield Real(kafka)


@dataclass(frozen=True, slots=True)
class Stage:
    """A query on a cluster, while it runs.

    Attributes:
        events: the folder of its refresh events.
        feed: None if nothing is written.
    """

    watcher: Watcher
    events: Path
    feed: Feed | None


@contextmanager
def set_stage(cluster: Cluster, console: Console, is_fed: bool) -> Iterator[Stage]:
    """Two executors that read the cluster's topics; all is gone afterwards. Raises KafkaMetaError: it cannot be set."""
    SourceOptions.parse({**cluster.options, **cluster.selection})
    client = ClientOptions.parse({**cluster.options, **answer_within(ANSWER_TIMEOUT_MS)})
    feed = Feed(cluster) if is_fed else None
    # What the query would say of the brokers and the topics, but a minute sooner; the demo's own topics come later.
    check_topics(ask_cluster(client, cluster.topics if isinstance(cluster, Yours) else ()).answer)
    find_java()
    with ExitStack() as stage:
        # An executor that ends late may write there still.
        temporary = tempfile.TemporaryDirectory(prefix="kafkameta-demo-", ignore_cleanup_errors=True)
        folder = Path(stage.enter_context(temporary))
        console.print(f"Two executors start, to read from {cluster.name}", highlight=False, soft_wrap=True)
        spark = stage.enter_context(spark_session(folder))
        if feed is not None:
            stage.enter_context(feed)
        stream = stage.enter_context(closing(Stream(spark, cluster, folder)))
        events = folder / "events"
        source = FolderEvents(str(events))
        yield Stage(Watcher(source, cluster.options, lambda _: cluster.topics, stream.progress), events, feed)


def run_demo(cluster: Cluster, console: Console, is_fed: bool, interactive: bool) -> bool:
    """Play the scenes of the cluster; returns whether all that were played were seen.

    Raises:
        KafkaMetaError: the stage cannot be set, or the query ended.
    """
    with set_stage(cluster, console, is_fed) as stage:
        feed = stage.feed
        with Screen(console, stage.watcher.look, lambda: None if feed is None else feed.produced) as screen:
            _wait_for_first_batch(screen)
            results = list(_play(scenes_of(cluster, stage.events), screen, interactive))
    console.print(summary(results))
    return all(result.figures is not None for result in results)


def _wait_for_first_batch(screen: Screen) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not screen.pause().positions:
        if time.monotonic() > deadline:
            raise StreamFailedError(
                f"the demo's query read nothing in {START_TIMEOUT_S:.0f} s: try again when the machine is less busy, "
                "and where the topic is empty use --feed"
            )


def _play(scenes: Iterable[Scene], screen: Screen, interactive: bool) -> Iterator[SceneResult]:
    with ThreadPoolExecutor(1, "kafkameta-demo-act") as actor:
        for scene in scenes:
            if interactive and not screen.ask_to_go_on():
                return
            screen.begin(scene)
            result = play_one(scene, screen, actor)
            screen.end(result)
            yield result


def play_one(scene: Scene, screen: Screen, actor: Executor) -> SceneResult:
    """Play a scene until it is seen or its time is over; `actor` runs its acts."""
    began = time.monotonic()
    figures: list[str] = []
    for act in scene.acts:
        seen = _play_act(act, scene.is_repeatable, screen, actor, began + SCENE_TIMEOUT_S)
        if seen is None:
            return SceneResult(scene, None, time.monotonic() - began)
        figures.append(seen)
    return SceneResult(scene, "; ".join(figures), time.monotonic() - began)


def _play_act(act: Act, is_repeatable: bool, screen: Screen, actor: Executor, deadline: float) -> str | None:
    """The figures, or None if they were not to be seen in time. The looks go on while the act does what it does."""
    doing, acted_at = actor.submit(act, screen.look()), time.monotonic()
    while (now := time.monotonic()) < deadline:
        state = screen.pause()
        if not doing.done():
            acted_at = now
        elif (figures := doing.result()(state)) is not None:
            return figures
        elif is_repeatable and now > acted_at + AGAIN_AFTER_S:
            doing, acted_at = actor.submit(act, state), now
    return None
