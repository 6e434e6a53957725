"""What a stream leaves of events is bounded: so many for each move of a leader, and none while leaders stay."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from pyspark_kafka_meta.planning.offset_planner import PLANNER_MAX_AGE_MS
from pyspark_kafka_meta.testing import MockCluster
from tests.unit.written_events import events_in

logger = logging.getLogger(__name__)

pytestmark = [pytest.mark.spark, pytest.mark.slow]

MOVES = int(os.environ.get("KAFKAMETA_MOVES", "4"))
"""One a second, after as many seconds without any."""
PARTITIONS = 6
MAX_EVENTS_A_CACHE = 2
"""As it is born: that, and the first answer. Of each move: a hint, and the refresh that confirms it."""
SECOND_LOOK = 1
"""The planner asks a second broker for the partitions that the query begins with."""
MAX_BYTES_AN_EVENT = 2_000


def test_a_move_leaves_few_events_and_time_without_one_leaves_none(
    spark: SparkSession, mock_cluster: MockCluster, tmp_path: Path
) -> None:
    mock_cluster.create_topic("busy", PARTITIONS)
    servers, folder = {"kafka.bootstrap.servers": mock_cluster.bootstrap_servers}, tmp_path / "events"
    rows = spark.readStream.format("kafkameta").options(**servers, subscribe="busy", metricsPath=str(folder)).load()
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
    quiet = [event for event in events_in(folder) if event["reason"] != "request_timeout"]  # of a machine that is slow
    for number in range(MOVES):
        mock_cluster.move_leader("busy", number % PARTITIONS, 1 + (number + number // PARTITIONS) % 3)
        write_for_a_second()
    query.stop()
    routine = (time.monotonic() - began) * 1000 / PLANNER_MAX_AGE_MS  # told with the next news, as none are lost
    events, files = events_in(folder), list(folder.glob("*.jsonl"))
    caches, written_bytes = caches_of(events), sum(file.stat().st_size for file in files)

    logger.info("%d moves: %d events in %d files, %d bytes", MOVES, len(events), len(files), written_bytes)

    assert moves_in(events) == {(number % PARTITIONS, 1 + number // PARTITIONS) for number in range(MOVES)}
    assert caches >= 2, "the planner's, and those of workers, of which a busy machine starts more"
    assert len(quiet) <= MAX_EVENTS_A_CACHE * caches_of(quiet) + SECOND_LOOK
    assert len(events) <= MAX_EVENTS_A_CACHE * caches * (1 + MOVES) + SECOND_LOOK + routine
    assert len(files) <= caches * (1 + MAX_EVENTS_A_CACHE * MOVES) + SECOND_LOOK
    assert written_bytes <= MAX_BYTES_AN_EVENT * len(events)


def caches_of(events: list[dict[str, Any]]) -> int:
    return len({event["cache_id"] for event in events})


def moves_in(events: list[dict[str, Any]]) -> set[tuple[int, int]]:
    """Partition and new epoch of each that was told."""
    return {(move["partition"], move["new_epoch"]) for event in events for move in event["leaders_changed"]}
