"""Brokers fail under a running stream: no record is lost or repeated, and the query continues without a restart."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_kafka_meta.testing import LocalKafka
from tests.kafka.harness import SteadyProducer

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.mark.thorough
def test_a_killed_leader_costs_the_stream_no_record_and_no_restart(
    spark: SparkSession, breakable_kafka: LocalKafka, topic: str, leader_of: Any, wait_for: Any, tmp_path: Path
) -> None:
    options = {"kafka.bootstrap.servers": breakable_kafka.bootstrap_servers, "subscribe": topic}
    stream = spark.readStream.format("kafkameta").options(**options).option("startingOffsets", "earliest").load()
    sink = stream.selectExpr("CAST(value AS STRING) AS value").writeStream.format("parquet")
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "10000")
    sink = sink.option("path", str(tmp_path / "rows")).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = sink.trigger(processingTime="200 milliseconds").start()
    run_id = query.runId

    def rows_read() -> int:
        return sum(progress["numInputRows"] for progress in query.recentProgress)

    with SteadyProducer(breakable_kafka.bootstrap_servers, topic, 3) as producer:
        wait_for(lambda: rows_read() > 200 or query.exception())
        victim = leader_of(topic, 0)
        breakable_kafka.kill(victim)
        acked_at_kill = len(producer.acked)
        wait_for(lambda: leader_of(topic, 0) not in (-1, victim))
        wait_for(lambda: len(producer.acked) > acked_at_kill + 500)
    wait_for(lambda: rows_read() >= len(producer.acked) or query.exception())
    assert query.exception() is None
    assert query.isActive
    assert query.runId == run_id
    query.processAllAvailable()
    query.stop()

    values = Counter(row.value for row in spark.read.parquet(str(tmp_path / "rows")).collect())
    assert values == Counter({record.value for record in producer.acked}), "each acknowledged record once"
