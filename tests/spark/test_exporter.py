"""`start_exporter` in a driver: a scrape has the figures of the tables, and of Spark's own progress reports."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession

import pyspark_kafka_meta as kafkameta
from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.testing import MockCluster

pytestmark = pytest.mark.spark


def scrape(url: str, name: str, *labels: str, value: float | None = 0) -> dict[tuple[str, ...], float]:
    """The series of a metric that do not have this value."""
    with urlopen(url, timeout=30) as response:
        families = text_string_to_metric_families(response.read().decode())
    return {
        tuple(sample.labels[label] for label in labels): sample.value
        for family in families
        for sample in family.samples
        if sample.name == f"kafkameta_{name}" and sample.value != value
    }


@pytest.mark.thorough
def test_a_driver_serves_the_metrics_of_its_own_queries(
    spark: SparkSession, mock_cluster: MockCluster, tmp_path: Path, wait_for: Callable[..., Any]
) -> None:
    mock_cluster.create_topic("t", partitions=2)
    producer = Producer({"bootstrap.servers": mock_cluster.bootstrap_servers})
    for number in range(10):
        producer.produce("t", b"v", partition=number % 2)
    assert producer.flush(30) == 0
    cluster: dict[str, Any] = {"kafka.bootstrap.servers": mock_cluster.bootstrap_servers}
    stream = spark.readStream.format("kafkameta").options(**cluster, subscribe="t", startingOffsets="earliest")
    with kafkameta.start_exporter(spark, port=0, interval_s=0.5, **cluster) as exporter:
        query = stream.option("maxOffsetsPerTrigger", 6).load().writeStream.format("noop").queryName("copies").start()
        query.processAllAvailable()
        # Spark may still report a query of an earlier test.
        wait_for(lambda: scrape(exporter.url, "query_records_total", "query_id").get((query.id,)) == 10)
        wait_for(lambda: scrape(exporter.url, "lag_records", "query_id", "topic", value=None).get((query.id, "t")) == 0)
        query.stop()
        reports = [report for report in query.recentProgress if report["numInputRows"]]
        events = kafkameta.refresh_events(spark).where(f"query_id = '{query.id}' AND kind = 'refresh'")
        by_outcome = events.groupBy("query_id", "outcome").count()

        def are_equal() -> bool:
            counted = {(row.query_id, row.outcome): row["count"] for row in by_outcome.collect()}
            shown = scrape(exporter.url, "query_refreshes_total", "query_id", "outcome")
            return bool(counted) and {key: shown.get(key) for key in counted} == counted

        wait_for(are_equal)
        info = scrape(exporter.url, "query_info", "query_id", "name")
        batches = scrape(exporter.url, "query_batch_seconds_count", "query_id")
        up = {("events",), ("cluster",), ("lag",)}  # mock brokers list no transactions
        wait_for(lambda: scrape(exporter.url, "exporter_up", "source").keys() == up)

    assert info[query.id, "copies"] == 1
    assert batches[query.id,] >= len(reports) >= 2


@pytest.mark.parametrize(("option", "value"), [("interval_s", 0), ("port", 70_000)])
def test_an_impossible_setting_is_refused(spark: SparkSession, option: str, value: Any) -> None:
    with pytest.raises(OptionError, match=f"^{option} must be from .* got {value}$"):
        kafkameta.start_exporter(spark, **{option: value})
