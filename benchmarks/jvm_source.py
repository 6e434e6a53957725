"""The jars of Spark's own Kafka source, the peer of the benchmarks.

Always the connector of release 4.2.0: Maven Central had no 4.3.0 when this was written. It runs on PySpark 4.3 too,
whose own work is the same for both sources.
"""

from __future__ import annotations

from pathlib import Path

from pyspark_kafka_meta.testing.maven_jars import resolve_jars

# Not transitive: Spark's class path has the other dependencies, in its own versions.
JVM_SOURCE_JARS = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
)


def jvm_source_jars() -> list[Path]:
    """Downloads missing jars."""
    return resolve_jars(JVM_SOURCE_JARS, transitive=False)
