"""The jars of Spark's own Kafka source, the peer that benchmarks compare with.

It is the connector of release 4.2.0, whatever PySpark is installed: 4.3.0 could not be had from Maven Central when this
was written. It runs on PySpark 4.3, whose own share of the work both sources have in common.
"""

from __future__ import annotations

from pathlib import Path

from pyspark_kafka_meta.testing.maven_jars import resolve_jars

# Each by itself: what else they ask for, Spark has on its class path, in versions of its own.
JVM_SOURCE_JARS = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
)


def jvm_source_jars() -> list[Path]:
    """Downloaded at the first call."""
    return resolve_jars(JVM_SOURCE_JARS, transitive=False)
