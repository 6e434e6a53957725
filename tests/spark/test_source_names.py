"""Named sources of a stream (`spark.readStream.name`, source evolution) keep their offsets while others come and go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

from pyspark_kafka_meta.testing import MockCluster

pytestmark = [pytest.mark.spark, pytest.mark.thorough]

SOURCE_EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
TOPICS_OF_RUNS = (("a", "b"), ("a", "b", "c"), ("c", "b"), ("c", "a"))
"""Source c is new in the second run, a is missing in the third and returns in the fourth, where b is missing."""


@pytest.fixture
def evolving(spark: SparkSession) -> Iterator[SparkSession]:
    spark.conf.set(SOURCE_EVOLUTION, "true")
    yield spark
    spark.conf.unset(SOURCE_EVOLUTION)


def test_named_sources_keep_their_offsets_while_others_come_and_go(
    evolving: SparkSession, mock_cluster: MockCluster, tmp_path: Path
) -> None:
    servers = mock_cluster.bootstrap_servers
    for topic in "abc":
        mock_cluster.create_topic(topic)
    producer = Producer({"bootstrap.servers": servers})
    values: list[str] = []

    for run, topics in enumerate(TOPICS_OF_RUNS):
        for topic in "abc":
            producer.produce(topic, f"{topic}{run}")
        assert producer.flush(10) == 0
        copy_topics(evolving, servers, topics, tmp_path)
        values = sorted(row.value for row in evolving.read.parquet(str(tmp_path / "rows")).collect())

    assert values == ["a0", "a1", "a2", "a3", "b0", "b1", "b2", "c0", "c1", "c2", "c3"]


def copy_topics(spark: SparkSession, servers: str, topics: Sequence[str], folder: Path) -> None:
    """A query with a source for each topic reads what is new."""
    cluster = {"kafka.bootstrap.servers": servers, "startingOffsets": "earliest"}
    sources = [
        spark.readStream.format("kafkameta").options(**cluster, subscribe=topic).name(f"source_{topic}").load()
        for topic in topics
    ]
    rows = reduce(DataFrame.union, sources).selectExpr("CAST(value AS STRING) AS value")
    sink = rows.writeStream.format("parquet").option("path", str(folder / "rows"))
    query = sink.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(120), "the query did not end"
