"""`kafkameta demo`: a leader moves under a running stream, and the caches' refresh events tell what happened.

Runs on brokers embedded in this process: nothing is downloaded, nothing stays behind, and it ends by itself.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from pyspark_kafka_meta.cli.metadata import look_at, show
from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.testing import MockCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "clicks"
PARTITIONS = 3
RECORDS_PER_SECOND = 500
STEP_TIMEOUT_S = 60


def run_demo(seconds: int) -> None:
    """Feed, stream, move a leader halfway, stop after `seconds`, and print each step."""
    console = Console()
    with MockCluster() as cluster, tempfile.TemporaryDirectory(prefix="kafkameta-demo-") as folder:
        cluster.create_topic(TOPIC, PARTITIONS)
        console.rule("1. One broker is asked, and tells of all")
        _show_cluster(console, cluster)
        with Feed(cluster.bootstrap_servers) as feed:
            console.rule(f"2. Spark streams {TOPIC}, fed with {RECORDS_PER_SECOND} records a second")
            read = _stream(console, cluster, Path(folder), seconds)
        console.print(f"produced {feed.produced} records, read {read} of them until the stream stopped")
        console.rule("4. What the metadata caches did, and why")
        console.print(_events_table(Path(folder, "events")))


class Feed:
    """Produces to every partition in a thread of its own until the end of `with`."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.produced = 0
        self._bootstrap_servers = bootstrap_servers
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._produce, name="kafkameta-demo-feed")

    def __enter__(self) -> Feed:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(STEP_TIMEOUT_S)

    def _produce(self) -> None:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self._bootstrap_servers, "log_level": 0})
        while not self._stopped.wait(0.1):
            for _ in range(RECORDS_PER_SECOND // 10):
                producer.produce(TOPIC, json.dumps({"click": self.produced}), partition=self.produced % PARTITIONS)
                self.produced += 1
            producer.poll(0)
        producer.flush(STEP_TIMEOUT_S)


def _stream(console: Console, cluster: MockCluster, folder: Path, seconds: int) -> int:
    """Run the query, move a leader halfway; returns how many rows were read."""
    spark = _spark()
    batches: list[int] = []

    def count(batch: DataFrame, batch_id: int) -> None:
        batches.append(batch.count())
        console.print(f"   micro-batch {batch_id}: {batches[-1]} rows")

    query = (
        spark.readStream.format("kafkameta")
        .option("kafka.bootstrap.servers", cluster.bootstrap_servers)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .option("metricsPath", str(folder / "events"))
        .load()
        .writeStream.foreachBatch(count)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(processingTime="1 second")
        .start()
    )
    try:
        _wait_until(lambda: sum(batches) > 0 or query.exception() is not None)
        query.awaitTermination(seconds // 2)
        console.rule(f"3. The leader of {TOPIC}-0 moves")
        cluster.move_leader(TOPIC, 0, _other_leader(cluster))
        _show_cluster(console, cluster)
        query.awaitTermination(seconds - seconds // 2)
    finally:
        query.stop()
        spark.stop()
    return sum(batches)


def _show_cluster(console: Console, cluster: MockCluster) -> None:
    show(look_at(ClientOptions.parse({"kafka.bootstrap.servers": cluster.bootstrap_servers}), [TOPIC], None), console)


def _other_leader(cluster: MockCluster) -> int:
    from confluent_kafka.admin import AdminClient

    topics = AdminClient({"bootstrap.servers": cluster.bootstrap_servers}).list_topics(TOPIC, timeout=10).topics
    return int(topics[TOPIC].partitions[0].leader) % 3 + 1


def _spark() -> SparkSession:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("kafkameta demo")
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    return builder.config("spark.log.level", "ERROR").getOrCreate()


def _wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + STEP_TIMEOUT_S
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError("the demo's stream read nothing in time: try again, or look at Spark's log")
        time.sleep(0.1)


def _events_table(folder: Path) -> Table:
    columns = ("at s", "cache", "reason", "asked", "ms", "outcome", "leader changed", "healed in")
    table = Table(*columns, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    lines = [line for file in folder.glob("*.jsonl") for line in file.read_text().splitlines()]
    events: list[dict[str, Any]] = sorted(map(json.loads, lines), key=lambda event: event["time_ms"])
    caches: list[str] = list(dict.fromkeys(event["cache_id"] for event in events))
    for event in events:
        cache = f"{event['role']} {caches.index(event['cache_id']) + 1}"
        table.add_row(f"{(event['time_ms'] - events[0]['time_ms']) / 1000:.1f}", cache, *_event_cells(event))
    return table


def _event_cells(event: dict[str, Any]) -> list[str]:
    asked = "bootstrap" if event["broker_id"] is None else f"broker {event['broker_id']}"
    moves = (
        f"{change['topic']}-{change['partition']}: {change['old_leader_id']} to {change['new_leader_id']}"
        for change in event["leaders_changed"]
    )
    return [
        event["reason"],
        asked if event["kind"] == "refresh" else f"({event['kind']})",
        "" if event["latency_ms"] is None else f"{event['latency_ms']:.1f}",
        event["outcome"],
        ", ".join(moves),
        "" if event["recovery_ms"] is None else f"{event['recovery_ms']:.0f} ms",
    ]
