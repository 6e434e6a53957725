"""Spark's own Kafka source beside this one, where its jars can be had."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks.jvm_source import jvm_source_jars
from pyspark_kafka_meta.testing.errors import ClusterError


@pytest.fixture(scope="session")
def jvm_jars() -> list[Path]:
    """Those of Spark's own Kafka source. Tests that cannot have them are skipped, but not in CI, where that is a
    failure."""
    try:
        return jvm_source_jars()
    except ClusterError as error:
        complaint = f"without the jars of Spark's own source: {error}"
        if "CI" in os.environ:
            pytest.fail(complaint)
        pytest.skip(complaint)


@pytest.fixture(scope="session")
def jvm_source(spark: SparkSession, jvm_jars: list[Path]) -> str:
    """The name of Spark's own Kafka source, its jars added to the session."""
    for jar in jvm_jars:
        spark.sql(f"ADD JAR '{jar}'")
    return "kafka"
