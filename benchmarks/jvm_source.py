"""The jars of Spark's own Kafka source, the peer of the benchmarks, and of its functions for Avro and Protobuf.

Since PySpark 4.2 always those of release 4.2.0: Maven Central had no 4.3.0 when this was written. They run on PySpark
4.3 too, whose own work is the same for both sources.
"""

from __future__ import annotations

from pathlib import Path

import pyspark

from pyspark_kafka_meta.testing.maven_jars import resolve_jars

CONNECTORS = {"4.0": "4.0.2", "4.1": "4.1.1"}
"""Of releases of PySpark before 4.2."""


def jvm_source_jars() -> list[Path]:
    """Downloads missing jars."""
    # Not transitive: Spark's class path has the other dependencies, in its own versions.
    jars = (
        f"org.apache.spark:spark-sql-kafka-0-10_2.13:{_connector()}",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
        "org.apache.kafka:kafka-clients:3.9.1",
        "org.apache.commons:commons-pool2:2.12.1",
    )
    return resolve_jars(jars, transitive=False)


def jvm_format_jars(*formats: str) -> list[Path]:
    """Of Spark's functions for these formats, `avro` and `protobuf`. Downloads missing jars."""
    return resolve_jars([f"org.apache.spark:spark-{name}_2.13:{_connector()}" for name in formats], transitive=False)


def _connector() -> str:
    return CONNECTORS.get(pyspark.__version__[:3], "4.2.0")
