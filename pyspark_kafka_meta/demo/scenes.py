"""The scenes that the demo plays, numbered as in tests/scenes.toml: what is done, and what must be seen then."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from pyspark_kafka_meta.client.kafka_client import KafkaClient
from pyspark_kafka_meta.demo import scene_conditions
from pyspark_kafka_meta.demo.demo_clusters import TOPIC, Cluster, Embedded, Real
from pyspark_kafka_meta.demo.demo_query import MAX_AGE_MS
from pyspark_kafka_meta.demo.scene_conditions import Condition
from pyspark_kafka_meta.model import RefreshReason, TopicPartition
from pyspark_kafka_meta.monitor.cluster_state import State
from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.telemetry.event_origin import cli_origin
from pyspark_kafka_meta.telemetry.publisher_factory import new_publisher

DEAD = [f"127.0.0.{number}:1" for number in range(2, 11)]
NEW_CLIENTS = 5
"""Addresses are tried in random order: that all of these clients begin with a live one does not happen."""

Act = Callable[[State], Condition]
"""Does something, which may take a while, and returns what must be seen then."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One scene of the demo.

    Attributes:
        line: the explanation.
        acts: each is played when what the one before asks for was seen.
        is_repeatable: whether to act again where that is not seen soon: a cache that happens to refresh by its age, or
            to send no request, at that moment meets no error.
    """

    number: int
    title: str
    line: str
    acts: tuple[Act, ...]
    is_repeatable: bool = False


def scenes_of(cluster: Cluster, events: Path) -> list[Scene]:
    """All eleven on a cluster that may be changed, else those that change nothing; in order.

    Args:
        events: the folder of the query's refresh events, to which clients of the demo's own write theirs.
    """
    scenes = {scene.number: scene for scene in _looking_on(cluster, events)}
    if isinstance(cluster, Embedded | Real):
        scenes |= {scene.number: scene for scene in _breaking(cluster)}
    if isinstance(cluster, Embedded):
        scenes[3] = _blackout(cluster)
    return [scenes[number] for number in sorted(scenes)]


def _looking_on(cluster: Cluster, events: Path) -> list[Scene]:
    def fail_over(state: State) -> Condition:
        one_alive = cluster.options["kafka.bootstrap.servers"].split(",")[0]
        for _ in range(NEW_CLIENTS):
            ask(cluster, events, [*DEAD, one_alive], [])
        return scene_conditions.failed_over(DEAD, state.now_ms)

    def demand(state: State) -> Condition:
        ask(cluster, events, [cluster.options["kafka.bootstrap.servers"]], [RefreshReason.ON_DEMAND])
        return scene_conditions.demanded(state.now_ms)

    age = f"When a cache is metadata.max.age.ms old, {MAX_AGE_MS / 1000:.0f} s here, it asks again, though all is well."
    return [
        Scene(1, "Ask one broker, learn them all", "One address is enough.", (_just(scene_conditions.one_told_all),)),
        Scene(2, "Bootstrap fail-over", "New clients with dead addresses among theirs try the next.", (fail_over,)),
        Scene(
            3,
            "The answer replaces the bootstrap list",
            "From the first answer on, brokers are asked by their ids.",
            (_just(scene_conditions.asked_by_id),),
        ),
        Scene(
            4,
            "Cached in memory",
            "No request asks for what is known: fetches are many, metadata requests few.",
            (_just(scene_conditions.fetched_without_asking),),
        ),
        Scene(5, "Periodic refresh", age, (lambda state: scene_conditions.aged(state.now_ms),)),
        Scene(7, "Refresh on demand", "A client asks at once, however new its cache is.", (demand,)),
        Scene(
            8,
            "Every client has a cache of its own",
            "Both executors know the leaders, each by its own requests.",
            (_just(scene_conditions.side_by_side),),
        ),
    ]


def _breaking(cluster: Embedded | Real) -> list[Scene]:
    first, second, last = (TopicPartition(TOPIC, number) for number in (0, 1, 3))
    victims: list[int] = []

    def move(state: State) -> Condition:
        cluster.move_leader(first, state.leader_of(first))
        return scene_conditions.healed(first, state.leader_of(first), state.now_ms)

    def part(state: State) -> Condition:
        cluster.move_leader(first, state.leader_of(first))
        return scene_conditions.learned_apart(first, state.epoch_of(first), state.now_ms)

    def kill(state: State) -> Condition:
        victims.append(state.leader_of(second))
        cluster.kill(victims[-1])
        return scene_conditions.left(victims[-1], state.now_ms)

    def revive(state: State) -> Condition:
        cluster.revive(victims[-1])
        return scene_conditions.led_again(victims[-1], state.now_ms)

    def misdirect(state: State) -> Condition:
        cluster.move_leader(last, state.leader_of(last))
        return scene_conditions.refused(last, state.leader_of(last), state.now_ms)

    def grow(state: State) -> Condition:
        return scene_conditions.grew(cluster.grow(), state.now_ms)

    return [
        Scene(
            6,
            "Refresh on error",
            f"The leader of {first} moves: who asks the old one meets an error, asks for metadata, and goes on.",
            (move,),
            is_repeatable=True,
        ),
        Scene(
            8,
            "Every client has a cache of its own",
            f"{first} moves again: each executor finds out by itself, and is stale (*) until it does.",
            (part,),
            is_repeatable=True,
        ),
        Scene(
            9,
            "Kill a broker and watch the leaders move",
            f"The leader of {second} crashes, and comes back to lead again.{cluster.elections}",
            (kill, revive),
        ),
        Scene(
            10,
            "Requests go to the leader alone",
            f"{last} moves: the broker that led it refuses, and the fetches go to the new leader.",
            (misdirect,),
            is_repeatable=True,
        ),
        Scene(11, "A topic gets more partitions", cluster.growth, (grow,)),
    ]


def _blackout(cluster: Embedded) -> Scene:
    def black_out(state: State) -> Condition:
        cluster.black_out()
        return scene_conditions.rebootstrapped(state.now_ms)

    return Scene(
        3,
        "The answer replaces the bootstrap list",
        "Brokers are asked by their ids; when all are gone, as now for a moment, the list is used again.",
        (black_out,),
        is_repeatable=True,
    )


def _just(condition: Condition) -> Act:
    """Nothing is done."""
    return lambda _: condition


def ask(cluster: Cluster, events: Path, servers: list[str], reasons: list[RefreshReason]) -> None:
    """A client of the demo's own learns the topics, and refreshes its cache for these reasons."""
    where = {"kafka.bootstrap.servers": ",".join(servers), "metricsPath": str(events)}
    options = SourceOptions.parse({**cluster.options, **cluster.selection, **where})
    publisher = new_publisher(options.metrics, cli_origin())
    client = KafkaClient(options.client, publisher)
    with closing(client):
        client.partitions(cluster.topics, client.api_deadline())
        for reason in reasons:
            client.cache.refresh(reason, client.api_deadline())
