"""The number of events of a stream is bounded: a few per leader change, and none without leader changes."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from pyspark_kafka_meta.read.planning.offset_planner import PLANNER_MAX_AGE_MS
from pyspark_kafka_meta.testing import MockCluster
from tests.unit.written_events import events_in

logger = logging.getLogger(__name__)

pytestmark = [pytest.mark.spark, pytest.mark.thorough]

MOVES = int(os.environ.get("KAFKAMETA_MOVES", "4"))
"""Leader changes, one per second, after the same number of seconds without changes."""
PARTITIONS = 6
MAX_EVENTS_PER_CACHE = 2
"""At the start: the birth and the first refresh. Per leader change: a hint and the refresh that confirms it."""
SECOND_BROKER = 1
"""The planner requests the initial partitions of a query from a second broker, too."""
MAX_BYTES_PER_EVENT = 2_000


def test_a_move_leaves_few_events_and_time_without_one_leaves_none(
    spark: SparkSession, mock_cluster: MockCluster, tmp_path: Path
) -> None:
    mock_cluster.create_topic("busy", PARTITIONS)
    servers, folder = {"kafka.bootstrap.servers": mock_cluster.bootstrap_servers}, tmp_path / "events"
    rows = spark.readStream.format("kafkameta").options(**servers, subscribe="busy", eventsPath=str(folder)).load()
    sink = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    began = time.monotonic()
    query = sink.trigger(processingTime="500 milliseconds").start()
    producer = Producer({"bootstrap.servers": mock_cluster.bootstrap_servers, "log_level": 0})

    def write_for_a_second() -> None:
        ends = time.monotonic() + 1
        while time.monotonic() < ends:
            for partition in range(PARTITIONS):
                producer.produce("busy", b"x" * 100, partition=partition)
            producer.poll(0.05)
        query.processAllAvailable()

    for _ in range(MOVES):
        write_for_a_second()
    quiet = [event for event in events_in(folder) if event["reason"] != "request_timeout"]  # on a slow machine
    for number in range(MOVES):
        mock_cluster.move_leader("busy", number % PARTITIONS, 1 + (number + number // PARTITIONS) % 3)
        write_for_a_second()
    query.stop()
    routine = (time.monotonic() - began) * 1000 / PLANNER_MAX_AGE_MS  # delivered with the next change
    written, files = events_in(folder), list(folder.glob("*.jsonl"))
    events = [event for event in written if event["reason"] != "request_timeout"]
    caches, written_bytes = caches_of(events), sum(file.stat().st_size for file in files)

    logger.info("%d moves: %d events in %d files, %d bytes", MOVES, len(events), len(files), written_bytes)

    assert changes_in(events) == {(number % PARTITIONS, 1 + number // PARTITIONS) for number in range(MOVES)}
    assert caches >= 2, "one of the planner, and one per worker; a busy machine starts more workers"
    assert len(quiet) <= MAX_EVENTS_PER_CACHE * caches_of(quiet) + SECOND_BROKER
    assert len(events) <= MAX_EVENTS_PER_CACHE * caches * (1 + MOVES) + SECOND_BROKER + routine
    most_files = caches * (1 + MAX_EVENTS_PER_CACHE * MOVES) + SECOND_BROKER
    assert len(files) <= most_files + len(written) - len(events)
    assert written_bytes <= MAX_BYTES_PER_EVENT * len(written)


def caches_of(events: list[dict[str, Any]]) -> int:
    return len({event["cache_id"] for event in events})


def changes_in(events: list[dict[str, Any]]) -> set[tuple[int, int]]:
    """Partition and new epoch of each reported leader change."""
    return {(move["partition"], move["new_epoch"]) for event in events for move in event["leaders_changed"]}
