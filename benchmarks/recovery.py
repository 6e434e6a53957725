"""Measures the cost of a leader change for a running reader: by a preferred election, and by kill -9 of a broker.

    python -m benchmarks.recovery [--elections 20] [--kills 5] [--json FILE]

Four readers follow one topic on a real three-broker Kafka at the same time: a stream of this source and one of Spark's
JVM source in one Spark session, and, to the millisecond, this source's task reader and a confluent-kafka consumer in
their own processes. About a thousand records a second go to 6 partitions; streams use `foreachBatch`.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from pyspark.sql import SparkSession

from benchmarks.delays import Arrivals, Cost, Move, Written, costs, lost_and_repeated
from benchmarks.followers import LoopFollower, StreamFollower, events, follow_by_kafkameta, follow_by_librdkafka
from benchmarks.harness import argument_parser, report, spark_session
from benchmarks.leader_moves import ELECTION, KILL, PARTITIONS, Stage
from pyspark_kafka_meta.testing import LocalKafka

WARM_UP_S = 30.0
"""For the JVM to compile and the Python workers to start."""
CATCH_UP_S = 10.0
CONTROLS = 5
CLUSTER = "cluster and producer"
LOOP, CONSUMER = "kafkameta task reader", "librdkafka consumer"
STREAM, JVM_STREAM = "kafkameta stream", "JVM source stream"


@dataclass(frozen=True, slots=True)
class Run:
    """The results of a run.

    Attributes:
        arrivals: by reader.
        events: the refresh events of each of this source's readers.
        failures: errors of failed streams.
    """

    moves: Sequence[Move]
    written: Written
    arrivals: Mapping[str, Arrivals]
    events: Mapping[str, Sequence[Mapping[str, Any]]]
    failures: Mapping[str, str]


def play(spark: SparkSession, kafka: LocalKafka, folder: Path, elections: int, kills: int) -> Run:
    """Perform all moves of each kind while all readers follow the topic."""
    topic, servers = f"recovery-{uuid.uuid4().hex[:8]}", kafka.bootstrap_servers
    stage = Stage(kafka, topic)
    options = {"kafka.bootstrap.servers": servers, "subscribe": topic}
    streams = {
        STREAM: StreamFollower(spark, "kafkameta", {**options, "eventsPath": str(folder / STREAM)}),
        JVM_STREAM: StreamFollower(spark, "kafka", options),
    }
    loops = {
        LOOP: LoopFollower(follow_by_kafkameta, servers, topic, str(folder / LOOP)),
        CONSUMER: LoopFollower(follow_by_librdkafka, servers, topic, str(PARTITIONS)),
    }
    with stage.feed as feed:
        time.sleep(WARM_UP_S)
        if failures := _failures(streams):
            raise RuntimeError(f"not all streams have started: {failures}")
        moves = [stage.election(number) for number in range(elections)]
        moves += [stage.kill(number) for number in range(kills)]
        moves += [stage.do_nothing(number) for number in range(CONTROLS)]
        time.sleep(CATCH_UP_S)
        failures = _failures(streams)
        arrivals = {name: follower.close() for name, follower in (loops | streams).items()}
    return Run(moves, feed.written(), arrivals, {name: events(folder / name) for name in (LOOP, STREAM)}, failures)


def _failures(streams: Mapping[str, StreamFollower]) -> dict[str, str]:
    return {name: failure for name, stream in streams.items() if (failure := stream.failure())}


def costs_by_reader(run: Run) -> dict[str, dict[str, Cost]]:
    """By reader, then by kind of move. The first reader is the producer, which reads acknowledgements."""
    count = len(run.written.sent)
    arrived = {CLUSTER: run.written.acked, **{name: arrivals.first(count) for name, arrivals in run.arrivals.items()}}
    return {name: costs(run.written, times, run.moves) for name, times in arrived.items()}


def known_ms(run: Run, kind: str) -> list[float]:
    """Time from the brokers' first report of each new leader until the task reader knew it, by hint or refresh."""
    changes = [event for event in run.events[LOOP] if event["outcome"] == "changed"]
    waits = []
    for move in run.moves:
        times = [event["time_ms"] / 1000 for event in changes if move.began <= event["time_ms"] / 1000 < move.until]
        if move.kind == kind:
            waits.append(1000 * (times[0] - move.named) if times else float("inf"))
    return waits


def facts(run: Run) -> dict[str, Any]:
    """Results beside the costs; times in ms."""
    kills = [move for move in run.moves if move.kind == KILL]
    elections = [move for move in run.moves if move.kind == ELECTION]
    return {
        "election to leader ready": [1000 * (move.ready - move.began) for move in elections],
        "kill to new leader named": [1000 * (move.named - move.began) for move in kills],
        "kill to new leader ready": [1000 * (move.ready - move.began) for move in kills],
        "election, named to known": known_ms(run, ELECTION),
        "kill, named to known": known_ms(run, KILL),
        **{f"{name}, events": event_counts(run, name) for name in run.events},
        "records lost, repeated": {
            name: lost_and_repeated(run.written, arrivals, run.moves[-1].until)
            for name, arrivals in run.arrivals.items()
        },
        "streams that failed": dict(run.failures),
    }


def event_counts(run: Run, reader: str) -> dict[str, int]:
    since_ms = run.moves[0].began * 1000
    events = [event for event in run.events[reader] if event["time_ms"] >= since_ms]
    return Counter(f"{event['kind']}, {event['reason']}, {event['outcome']}" for event in events)


def spread(values: Sequence[float]) -> str:
    """Median (minimum to maximum)."""
    if not values:
        return ""
    return f"{np.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"


def result_row(reader: str, kind: str, cost: Cost) -> dict[str, str]:
    is_read = reader != CLUSTER  # others are measured from the producer's acknowledgements
    return {
        "move": f"{kind} x {len(cost.delay_ms)}",
        "reader": reader,
        "usual_ms": f"{cost.usual_ms:.0f}" if is_read else "",
        "added_ms": spread(cost.added_ms) if is_read else "",
        "added_in_other_partitions_ms": spread(cost.others_ms) if is_read else "",
        "whole_delay_ms": spread(cost.delay_ms),
    }


def main() -> None:
    arguments = argument_parser(__doc__, elections=20, kills=5).parse_args()
    # Only the benchmark starts elections, not the controller every five minutes.
    without_rebalancing = {"auto.leader.rebalance.enable": "false"}
    with spark_session() as spark, LocalKafka(config=without_rebalancing) as kafka, TemporaryDirectory() as folder:
        run = play(spark, kafka, Path(folder), arguments.elections, arguments.kills)
    by_reader = costs_by_reader(run)
    rows = [result_row(name, kind, by_reader[name][kind]) for kind in by_reader[CLUSTER] for name in by_reader]
    report("What a leader move adds: median (least to most)", rows, arguments.json)
    for name, value in facts(run).items():
        print(f"{name}: {spread(value) if isinstance(value, list) else value}")


if __name__ == "__main__":
    main()
