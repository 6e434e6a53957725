"""Spark's own Kafka source, to compare with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
from pyspark.sql import SparkSession

from benchmarks.jvm_source import jvm_source_jars
from pyspark_kafka_meta.errors import ClusterError


@pytest.fixture(scope="session")
def jvm_jars(go_without: Callable[[str], NoReturn]) -> list[Path]:
    """The jars of Spark's own Kafka source."""
    try:
        return jvm_source_jars()
    except ClusterError as error:
        go_without(f"without the jars of Spark's own source: {error}")


@pytest.fixture(scope="session")
def jvm_source(spark: SparkSession, jvm_jars: list[Path]) -> str:
    """The format name of Spark's own Kafka source, whose jars are in the session."""
    for jar in jvm_jars:
        spark.sql(f"ADD JAR '{jar}'")
    return "kafka"
