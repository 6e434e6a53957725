"""Spark's own Kafka source beside this one, where its jars can be had."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from benchmarks.jvm_source import jvm_source_jars
from pyspark_kafka_meta.testing.errors import ClusterError


@pytest.fixture(scope="session")
def jvm_source(spark: SparkSession) -> str:
    """The name of Spark's own Kafka source, its jars added to the session; skips where they cannot be downloaded."""
    try:
        jars = jvm_source_jars()
    except ClusterError as error:
        pytest.skip(f"without the jars of Spark's own source: {error}")
    for jar in jars:
        spark.sql(f"ADD JAR '{jar}'")
    return "kafka"
