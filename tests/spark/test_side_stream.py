"""A second query reads the events of the first query while leaders change, and restarts at random moments: no event is
lost or repeated."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import pyspark_kafka_meta as kafkameta
from pyspark_kafka_meta.testing import MockCluster
from tests.spark.traces import gapless, keys, logged, run_to_the_end

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

WAIT_FOR = ("offsets", "", "commits", "", "offsets", "commits")
"""For each round: wait for a new micro-batch in this log of the checkpoint, or do not wait."""


def start(rows: DataFrame, folder: Path, **trigger: Any) -> StreamingQuery:
    """Start or continue a query to a folder of rows from its checkpoint."""
    sink = rows.writeStream.format("parquet").option("path", str(folder / "rows"))
    return sink.option("checkpointLocation", str(folder / "checkpoint")).trigger(**trigger).start()


@pytest.mark.thorough
@pytest.mark.parametrize("sink", ["path", "topic"])
def test_side_stream_survives_its_own_restarts_without_a_gap_or_a_repeat(
    spark: SparkSession,
    kafka: Any,
    mock_cluster: MockCluster,
    make_topic: Callable[..., str],
    wait_for: Callable[..., Any],
    tmp_path: Path,
    sink: str,
) -> None:
    mock_cluster.create_topic("t", partitions=3)
    servers = mock_cluster.bootstrap_servers
    event_options: dict[str, Any]
    source: dict[str, Any]
    if sink == "path":
        event_options = source = {"eventsPath": str(tmp_path / "events")}
    else:
        event_options = {"eventsTopic": make_topic(), "eventsBootstrapServers": kafka.bootstrap_servers}
        source = {"eventsTopic": event_options["eventsTopic"], "kafka.bootstrap.servers": kafka.bootstrap_servers}
    cluster = {"kafka.bootstrap.servers": servers, "subscribe": "t", "kafka.metadata.max.age.ms": "500"}
    records = spark.readStream.format("kafkameta").options(**cluster, **event_options).load()
    first = start(records, tmp_path / "records", processingTime="300 milliseconds")
    producer, chance = Producer({"bootstrap.servers": servers, "linger.ms": 0}), random.Random(11)
    checkpoint = tmp_path / "side" / "checkpoint"

    def events() -> DataFrame:
        return kafkameta.refresh_events(spark, stream=True, **source)

    for number, log in enumerate(WAIT_FOR):
        mock_cluster.move_leader("t", number % 3, 1 + number % 2)
        producer.produce("t", str(number), partition=number % 3)
        assert producer.flush(30) == 0
        before = logged(checkpoint, log)
        second = start(events(), tmp_path / "side", processingTime="0 seconds")
        if log:
            wait_for(lambda log=log, before=before: logged(checkpoint, log) > before)
        second.awaitTermination(chance.choice([0.001, 0.1, 0.5]))  # type: ignore[arg-type]
        second.stop()
    first.processAllAvailable()
    assert first.exception() is None
    first.stop()

    def side_rows() -> DataFrame:
        return spark.read.parquet(str(tmp_path / "side" / "rows"))

    def has_all() -> bool:
        """Threads of the workers may still write."""
        run_to_the_end(lambda: start(events(), tmp_path / "side", availableNow=True), checkpoint)
        return keys(side_rows()) == keys(kafkameta.refresh_events(spark, **source))

    wait_for(has_all)
    rows = side_rows()
    assert keys(rows) == gapless(keys(rows))
    assert {row.role for row in rows.collect()} == {"planner", "reader"}
    assert rows.where("size(leaders_changed) > 0").count() > 0
