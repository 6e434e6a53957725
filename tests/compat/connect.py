"""Batches, streams and the tables through Spark Connect, in an environment with `pyspark[connect]`: `make connect`.

PySpark starts the server on this machine. The server finds the source in its own Python, as any Spark does.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession

import pyspark_kafka_meta as kafkameta
from pyspark_kafka_meta.testing import MockCluster
from tests.compat.smoke import fill, read_batch, read_stream, write_batch, write_stream


def main() -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    try:
        with MockCluster() as cluster, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            fill(cluster)
            where = {"kafka.bootstrap.servers": cluster.bootstrap_servers}
            events: dict[str, Any] = {"metricsPath": str(Path(folder) / "events")}
            options = where | events | {"subscribe": "t"}
            read_batch(spark, options)
            read_stream(spark, options | {"startingOffsets": "earliest"}, Path(folder))
            write_batch(spark, cluster.bootstrap_servers)
            write_stream(spark, cluster.bootstrap_servers, Path(folder))
            look_at_tables(spark, where, events)
    finally:
        spark.stop()
    print(f"pyspark {pyspark.__version__}: batches, streams and tables work through Spark Connect, also written")  # noqa: T201


def look_at_tables(spark: SparkSession, where: dict[str, str], events: dict[str, Any]) -> None:
    roles = {row.role for row in kafkameta.refresh_events(spark, **events).select("role").distinct().collect()}
    assert roles == {"planner", "reader"}, roles
    assert kafkameta.caches(spark, **events).count() > 0
    assert kafkameta.brokers(spark, **where).count() == 3
    assert kafkameta.partitions(spark, **where, subscribe="t").count() == 2


if __name__ == "__main__":
    main()
