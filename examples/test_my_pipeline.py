"""Test your pipeline with real requests to brokers inside the test's process, and compare DataFrames with chispa.

    pip install pytest pytest-timeout chispa
    python -m pytest examples/test_my_pipeline.py

The fixture `mock_kafka` needs neither Java, Docker nor a download, and starts in milliseconds; only Spark takes time.
The fixtures `kafka_topic` and `local_kafka` have a topic, and brokers, of Apache Kafka.
You will see:

    3 passed
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from chispa import assert_df_equality
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

from pyspark_kafka_meta.testing import MockCluster


def views_by_page(records: DataFrame) -> DataFrame:
    """The pipeline, which your test imports. Values such as "user-1 opened page-2" become counts by page."""
    pages = records.selectExpr("split_part(CAST(value AS STRING), ' ', 3) AS page")
    return pages.where("page != ''").groupBy("page").count()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2).getOrCreate()
    yield session
    session.stop()


@pytest.fixture
def cluster(mock_kafka: MockCluster) -> MockCluster:
    mock_kafka.create_topic("views", partitions=2)
    return mock_kafka


def write(cluster: MockCluster, values: list[str], partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for value in values:
        producer.produce("views", value, partition=partition)
    assert producer.flush(10) == 0


def source(cluster: MockCluster) -> dict[str, str]:
    return {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": "views", "startingOffsets": "earliest"}


def test_views_are_counted_by_page(spark: SparkSession, cluster: MockCluster) -> None:
    write(cluster, ["ann opened home", "bob opened home"], partition=0)
    write(cluster, ["ann opened help"], partition=1)
    records = spark.read.format("kafkameta").options(**source(cluster)).load()
    expected = spark.createDataFrame([("home", 2), ("help", 1)], "page string, count bigint")
    assert_df_equality(views_by_page(records), expected, ignore_row_order=True, ignore_nullable=True)


def test_a_record_without_a_page_is_left_out(spark: SparkSession, cluster: MockCluster) -> None:
    write(cluster, ["ann opened home", "nonsense"])
    records = spark.read.format("kafkameta").options(**source(cluster)).load()
    expected = spark.createDataFrame([("home", 1)], "page string, count bigint")
    assert_df_equality(views_by_page(records), expected, ignore_nullable=True)


def test_the_stream_goes_on_when_a_leader_moves(spark: SparkSession, cluster: MockCluster, tmp_path: Path) -> None:
    counts = views_by_page(spark.readStream.format("kafkameta").options(**source(cluster)).load())
    sink = counts.writeStream.outputMode("complete").format("memory").queryName("views")
    query = sink.option("checkpointLocation", str(tmp_path)).start()
    try:
        write(cluster, ["ann opened home"])
        query.processAllAvailable()
        cluster.move_leader("views", 0, broker_id=2)
        cluster.move_leader("views", 0, broker_id=3)
        write(cluster, ["bob opened home"])
        query.processAllAvailable()
    finally:
        query.stop()
    expected = spark.createDataFrame([("home", 2)], "page string, count bigint")
    assert_df_equality(spark.table("views"), expected, ignore_nullable=True)
