"""Test what your pipeline writes to Kafka, with brokers inside the test's process, and compare DataFrames with chispa.

    pip install pytest pytest-timeout chispa
    python -m pytest examples/test_my_sink.py

The test writes with your sink's options, and reads the topics as any consumer does. You will see:

    3 passed
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from chispa import assert_df_equality
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pyspark_kafka_meta.testing import MockCluster

VIEWS = "user string, page string"


def to_records(views: DataFrame) -> DataFrame:
    """The end of the pipeline, which your test imports. Each page has a topic, each user a partition."""
    return views.selectExpr("concat('views-of-', page) AS topic", "user AS key", "to_json(struct(*)) AS value")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2).getOrCreate()
    yield session
    session.stop()


@pytest.fixture
def cluster(mock_kafka: MockCluster) -> MockCluster:
    for topic in ("views-of-home", "views-of-help"):
        mock_kafka.create_topic(topic, partitions=3)
    return mock_kafka


def write(cluster: MockCluster, views: DataFrame) -> None:
    sink = to_records(views).write.format("kafkameta").mode("append")
    sink.option("kafka.bootstrap.servers", cluster.bootstrap_servers).option("kafka.max.block.ms", 2000).save()


def written(spark: SparkSession, cluster: MockCluster) -> DataFrame:
    source = spark.read.format("kafkameta").option("kafka.bootstrap.servers", cluster.bootstrap_servers)
    return source.option("subscribePattern", "views-of-.*").load()


def test_each_view_goes_to_the_topic_of_its_page(spark: SparkSession, cluster: MockCluster) -> None:
    write(cluster, spark.createDataFrame([("ann", "home"), ("bob", "help"), ("ann", "help")], VIEWS))
    values = written(spark, cluster).selectExpr("topic", "CAST(value AS STRING) AS value")
    expected = spark.createDataFrame(
        [
            ("views-of-home", '{"user":"ann","page":"home"}'),
            ("views-of-help", '{"user":"bob","page":"help"}'),
            ("views-of-help", '{"user":"ann","page":"help"}'),
        ],
        "topic string, value string",
    )
    assert_df_equality(values, expected, ignore_row_order=True, ignore_nullable=True)


def test_views_of_a_user_stay_together_when_a_leader_moves(spark: SparkSession, cluster: MockCluster) -> None:
    views = spark.createDataFrame([("ann", "home")], VIEWS)
    write(cluster, views)
    for partition in range(3):
        cluster.move_leader("views-of-home", partition, broker_id=2)
    write(cluster, views)
    counts = written(spark, cluster).selectExpr("CAST(key AS STRING) AS user", "partition").groupBy("user", "partition")
    expected = spark.createDataFrame([("ann", 2)], "user string, count bigint")
    assert_df_equality(counts.count().drop("partition"), expected, ignore_nullable=True)


def test_a_view_without_a_page_fails_the_batch(spark: SparkSession, cluster: MockCluster) -> None:
    with pytest.raises(PySparkException, match="null topic present in the data, in row 0"):
        write(cluster, spark.createDataFrame([("ann", None)], VIEWS))
