"""The scenes of the demo, some of those in tests/scenes.toml: what is done, and what must be visible then."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pyarrow as pa

from pyspark_kafka_meta.events.origin import cli_origin
from pyspark_kafka_meta.events.publisher import new_publisher
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.model import RefreshReason, TopicPartition
from pyspark_kafka_meta.options import CODECS, SinkOptions, SourceOptions
from pyspark_kafka_meta.tools.cluster_state import ClusterState
from pyspark_kafka_meta.tools.demo import scene_checks
from pyspark_kafka_meta.tools.demo.clusters import (
    TOPIC,
    ChangeableCluster,
    Cluster,
    EmbeddedCluster,
    LocalKafkaCluster,
    copy_of,
)
from pyspark_kafka_meta.tools.demo.query import MAX_AGE_MS
from pyspark_kafka_meta.tools.demo.scene_checks import Check
from pyspark_kafka_meta.write.input_columns import SinkColumns
from pyspark_kafka_meta.write.task_writer import TaskWriter

DEAD = [f"127.0.0.{number}:1" for number in range(2, 11)]
NEW_CLIENTS = 5
"""Addresses are tried in random order: it is unlikely that each of these clients begins with the live address."""

CHOICES: tuple[Mapping[str, str], ...] = (*({"kafka.compression.type": codec} for codec in CODECS), {"kafka.acks": "1"})
RECORDS_PER_CHOICE = 100
FIRST_LOOK = (1, 6, 8, 9)
"""Numbers in tests/scenes.toml of what is played without --all."""

Act = Callable[[ClusterState], Check]
"""Does something, which may take a while, and returns what must be visible then."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One scene of the demo.

    Attributes:
        number: its place in the play.
        acts: each starts when the check of the act before has seen something.
        is_repeatable: whether to act again if the check sees nothing: a cache that refreshes by age at that moment, or
            sends no request, meets no error.
    """

    number: int
    title: str
    explanation: str
    acts: tuple[Act, ...]
    is_repeatable: bool = False


@dataclass(frozen=True, slots=True)
class SceneResult:
    """The result of one scene: what its checks saw, None if they saw nothing in time, and how long it took."""

    scene: Scene
    observation: str | None
    took_s: float


def scenes_of(cluster: Cluster, events: Path, is_whole: bool) -> list[Scene]:
    """The scenes that a cluster of the demo's own can play, else those that change nothing; in order. The demo's own
    clients write their events to the folder of the query's."""
    scenes = {scene.number: scene for scene in _harmless_scenes(cluster, events)}
    if isinstance(cluster, ChangeableCluster):
        scenes |= {scene.number: scene for scene in _changing_scenes(cluster)}
        scenes[15] = _producer_choices(cluster, events)
    if isinstance(cluster, EmbeddedCluster):
        scenes[3] = _blackout(cluster)
    if isinstance(cluster, LocalKafkaCluster):
        scenes[12] = _crashed_controller(cluster, events)
    chosen = [scenes[number] for number in sorted(scenes) if is_whole or number in FIRST_LOOK]
    return [replace(scene, number=number) for number, scene in enumerate(chosen, 1)]


def _harmless_scenes(cluster: Cluster, events: Path) -> list[Scene]:
    def fail_over(state: ClusterState) -> Check:
        live = cluster.options["kafka.bootstrap.servers"].split(",")[0]
        for _ in range(NEW_CLIENTS):
            run_client(cluster, events, [*DEAD, live], [])
        return partial(scene_checks.bootstrap_failed_over, dead=DEAD, since_ms=state.now_ms)

    def wait_for_age(state: ClusterState) -> Check:
        return partial(scene_checks.refreshed_by_age, since_ms=state.now_ms)

    demand = partial(_demand, cluster, events)
    max_age = f"metadata.max.age.ms, {MAX_AGE_MS / 1000:.0f} s here"
    return [
        Scene(
            1,
            "Ask one broker, learn them all",
            "One address is enough.",
            (_check_only(scene_checks.all_learned_from_first_response),),
        ),
        Scene(2, "Bootstrap fail-over", "New clients try the next address when one is dead.", (fail_over,)),
        Scene(
            3,
            "The answer replaces the bootstrap list",
            "After the first answer, clients ask brokers by id.",
            (_check_only(scene_checks.brokers_asked_by_id),),
        ),
        Scene(
            4,
            "Cached in memory",
            "Leaders are looked up in the cache: there are many fetches, and few metadata requests.",
            (_check_only(scene_checks.more_fetches_than_refreshes),),
        ),
        Scene(5, "Periodic refresh", f"A cache older than {max_age}, is refreshed without an error.", (wait_for_age,)),
        Scene(7, "Refresh on demand", "A client refreshes its cache at once, however new it is.", (demand,)),
        Scene(
            8,
            "Every client has a cache of its own",
            "Both executors know the leaders, each by its own requests.",
            (_check_only(scene_checks.one_cache_per_executor),),
        ),
    ]


def _changing_scenes(cluster: ChangeableCluster) -> list[Scene]:
    first, second, last = (TopicPartition(TOPIC, number) for number in (0, 1, 3))
    killed: list[int] = []

    def move(partition: TopicPartition, check: Callable[..., str | None], **others: str) -> Act:
        """Moves the leader away from the broker `old` of the check."""

        def act(state: ClusterState) -> Check:
            old = state.leader_of(partition)
            cluster.move_leader(partition, old)
            return partial(check, partition=partition, old=old, since_ms=state.now_ms, **others)

        return act

    def move_again(state: ClusterState) -> Check:
        cluster.move_leader(first, state.leader_of(first))
        epoch = state.epoch_of(first)
        return partial(scene_checks.learned_separately, partition=first, epoch=epoch, since_ms=state.now_ms)

    def kill(state: ClusterState) -> Check:
        killed.append(state.leader_of(second))
        cluster.kill(killed[-1])
        copy = copy_of(second)
        return scene_checks.both(
            partial(scene_checks.broker_leads_nothing, broker_id=killed[-1], since_ms=state.now_ms),
            partial(scene_checks.records_written, partition=copy, from_offset=state.end_offset_of(copy)),
        )

    def restore(state: ClusterState) -> Check:
        cluster.restore(killed[-1])
        return partial(scene_checks.broker_leads_again, broker_id=killed[-1], since_ms=state.now_ms)

    def grow(state: ClusterState) -> Check:
        added = cluster.grow()
        return scene_checks.both(
            partial(scene_checks.new_partition_read, partition=added, since_ms=state.now_ms),
            partial(scene_checks.records_written, partition=copy_of(added), from_offset=0),
        )

    return [
        Scene(
            6,
            "Refresh on error",
            f"The leader of {first} moves: clients of the old leader meet an error, refresh, and go on.",
            (move(first, scene_checks.refreshed_by_error),),
            is_repeatable=True,
        ),
        Scene(
            8,
            "Every client has a cache of its own",
            f"{first} moves again: each executor finds out by itself, and is stale (*) until then.",
            (move_again,),
            is_repeatable=True,
        ),
        Scene(
            9,
            "Kill a broker and watch the leaders move",
            f"The leader of {second} and {copy_of(second)} crashes; records are written to another broker until it "
            f"comes back to lead again.{cluster.elections}",
            (kill, restore),
        ),
        Scene(
            10,
            "Requests go to the leader alone",
            f"{last} moves: its old leader refuses a fetch, unless a plan names the new one before. Then "
            f"{copy_of(last)} moves: its old leader refuses a Produce request.",
            (
                move(last, scene_checks.old_leader_left),
                move(copy_of(last), scene_checks.old_leader_left, requests="produces"),
            ),
            is_repeatable=True,
        ),
        Scene(11, "A topic gets more partitions", cluster.growth, (grow,)),
    ]


def _blackout(cluster: EmbeddedCluster) -> Scene:
    def black_out(state: ClusterState) -> Check:
        cluster.black_out()
        return partial(scene_checks.rebootstrapped, since_ms=state.now_ms)

    return Scene(
        3,
        "The answer replaces the bootstrap list",
        "Clients ask brokers by id; when all are gone, as now for a moment, they use the bootstrap list again.",
        (black_out,),
        is_repeatable=True,
    )


def _crashed_controller(cluster: LocalKafkaCluster, events: Path) -> Scene:
    copy = copy_of(TopicPartition(TOPIC, 0))

    def crash(state: ClusterState) -> Check:
        cluster.kill_controller()
        return _demand(cluster, events, state)

    def write_on(state: ClusterState) -> Check:  # the state is from after the crash
        return partial(scene_checks.records_written, partition=copy, from_offset=state.end_offset_of(copy))

    def restore(state: ClusterState) -> Check:
        cluster.restore_controller()
        return write_on(state)

    return Scene(
        12,
        "The controller fails",
        "The controller crashes and returns: brokers answer Metadata requests, and the query reads and writes on.",
        (crash, write_on, restore),
    )


def _producer_choices(cluster: ChangeableCluster, events: Path) -> Scene:
    def write(_: ClusterState) -> Check:
        ends = [_write_one_key(cluster, events, choice) for choice in CHOICES]
        return partial(scene_checks.one_key_read, ends=ends)

    return Scene(
        15,
        "Choices of a producer",
        f"Records of one key are written with compression {', '.join(CODECS)}, and with acks 1: all go to one "
        "partition, and the query reads them.",
        (write,),
    )


def _write_one_key(cluster: Cluster, events: Path, choice: Mapping[str, str]) -> dict[TopicPartition, int]:
    """Writes records without Spark. Returns the end of each partition that has some of them."""
    options = SinkOptions.parse({**cluster.options, **choice, "eventsPath": str(events)})
    columns = SinkColumns(key=0, value=1, headers=None, topic=None, partition=None, timestamp=None)
    values = [f"{choice}, record {number}".encode() for number in range(RECORDS_PER_CHOICE)]
    of_keys, of_values = (pa.array(each, pa.binary()) for each in ([b"one key"] * len(values), values))
    rows = pa.record_batch([of_keys, of_values], names=["key", "value"])
    with closing(KafkaClient(options.client, new_publisher(options.events, cli_origin()))) as client:
        written = TaskWriter(client, options.producer, columns, TOPIC).write([rows])
    return {partition: offsets.until_offset for partition, offsets in written.items()}


def _demand(cluster: Cluster, events: Path, state: ClusterState) -> Check:
    run_client(cluster, events, [cluster.options["kafka.bootstrap.servers"]], [RefreshReason.ON_DEMAND])
    return partial(scene_checks.refreshed_on_demand, since_ms=state.now_ms)


def _check_only(check: Check) -> Act:
    return lambda _: check


def run_client(cluster: Cluster, events: Path, servers: list[str], reasons: list[RefreshReason]) -> None:
    """A client of the demo's own learns the topics, and refreshes its cache for each of `reasons`."""
    client_options = {"kafka.bootstrap.servers": ",".join(servers), "eventsPath": str(events)}
    options = SourceOptions.parse({**cluster.options, **cluster.selection, **client_options})
    with closing(KafkaClient(options.client, new_publisher(options.events, cli_origin()))) as client:
        client.partitions(cluster.topics, client.api_deadline())
        for reason in reasons:
            client.cache.refresh(reason, client.api_deadline())
