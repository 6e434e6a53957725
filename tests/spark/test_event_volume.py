"""A stream whose leaders keep moving leaves a bounded trace: so many bytes of events a minute, and so many files."""

from __future__ import annotations

import itertools
import logging
import os
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

import pyspark_kafka_meta as kafkameta
from pyspark_kafka_meta.testing import MockCluster

logger = logging.getLogger(__name__)

pytestmark = [pytest.mark.spark, pytest.mark.slow]

STREAM_S = float(os.environ.get("KAFKAMETA_VOLUME_S", "20"))
MOVE_EVERY_S = 5
MAX_BYTES_A_SECOND = 5_000_000 / 600
MAX_FILES_A_MOVE = 8
"""The planner and two workers hear of each move, by a hint and by the refresh that confirms it."""
PARTITIONS = 6


def test_a_leader_move_every_five_seconds_leaves_little(
    spark: SparkSession, mock_cluster: MockCluster, tmp_path: Path
) -> None:
    mock_cluster.create_topic("busy", PARTITIONS)
    servers, folder = {"kafka.bootstrap.servers": mock_cluster.bootstrap_servers}, tmp_path / "events"
    rows = spark.readStream.format("kafkameta").options(**servers, subscribe="busy", metricsPath=str(folder)).load()
    sink = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = sink.trigger(processingTime="500 milliseconds").start()
    producer = Producer({"bootstrap.servers": mock_cluster.bootstrap_servers, "log_level": 0})
    moves, began = 0, time.monotonic()
    for tick in itertools.count():
        now = time.monotonic() - began
        if now >= STREAM_S or query.exception():
            break
        if now >= (moves + 1) * MOVE_EVERY_S:
            mock_cluster.move_leader("busy", moves % PARTITIONS, 1 + (moves + moves // PARTITIONS) % 3)
            moves += 1
        producer.produce("busy", b"x" * 100, partition=tick % PARTITIONS)
        producer.poll(0.02)
    query.processAllAvailable()
    query.stop()
    files = list(folder.glob("*.jsonl"))
    written_bytes = sum(file.stat().st_size for file in files)
    events = kafkameta.refresh_events(spark, metricsPath=str(folder))
    told, heard = events.count(), events.where("size(leaders_changed) > 0").count()

    logger.info("%.0f s, %d moves: %d events in %d files, %d bytes", STREAM_S, moves, told, len(files), written_bytes)

    assert query.exception() is None
    assert heard >= moves > 0
    assert written_bytes <= STREAM_S * MAX_BYTES_A_SECOND, f"{written_bytes} bytes after {moves} moves"
    assert len(files) <= 20 + moves * MAX_FILES_A_MOVE, f"{len(files)} files after {moves} moves"
