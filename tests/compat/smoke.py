"""Batches and streams, read and written, with the installed release of pyspark.

`make compat` and `make dist` run it. It also says how long after the start of Python the first rows came.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from pyspark_kafka_meta.testing import MockCluster

STARTED = time.monotonic()
VALUES = [f"value-{number}" for number in range(100)]


def main() -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings: dict[str, bool | float | int | str | None] = {"spark.ui.enabled": "false", "spark.log.level": "ERROR"}
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    try:
        with MockCluster() as cluster, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            fill(cluster)
            options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": "t"}
            read_batch(spark, options)
            print(f"first rows after {time.monotonic() - STARTED:.1f} s", flush=True)  # noqa: T201
            read_stream(spark, options | {"startingOffsets": "earliest"}, Path(folder))
            read_view(spark, cluster.bootstrap_servers)
            write_batch(spark, cluster.bootstrap_servers)
            write_stream(spark, cluster.bootstrap_servers, Path(folder))
    finally:
        spark.stop()
    print(f"pyspark {pyspark.__version__}: batches and streams are read and written")  # noqa: T201


def fill(cluster: MockCluster) -> None:
    """Topic t has the values. Topics batch and stream are empty."""
    from confluent_kafka import Producer

    for topic in ("t", "batch", "stream"):
        cluster.create_topic(topic, partitions=2)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for number, value in enumerate(VALUES):
        producer.produce("t", value, partition=number % 2)
    assert producer.flush(120) == 0


def read_batch(spark: SparkSession, options: dict[str, str]) -> None:
    """Topic `subscribe` has the values, once each."""
    rows = spark.read.format("kafkameta").options(**options).load().selectExpr("CAST(value AS STRING) AS value")
    assert sorted(row.value for row in rows.collect()) == sorted(VALUES)


def read_stream(spark: SparkSession, options: dict[str, str], folder: Path) -> None:
    """The values of the topic arrive once each through restarts: with Trigger.AvailableNow, with a limit, and after a
    crash that left the first micro-batch without a commit."""
    rows = spark.readStream.format("kafkameta").options(**options).load().selectExpr("CAST(value AS STRING) AS value")
    sink = rows.writeStream.format("parquet").option("path", str(folder / "rows"))
    sink = sink.option("checkpointLocation", str(folder / "checkpoint"))
    for _ in range(2):
        assert sink.trigger(availableNow=True).start().awaitTermination(300), "the query did not end"
        (folder / "checkpoint" / "commits" / "0").unlink(missing_ok=True)
        (folder / "checkpoint" / "commits" / ".0.crc").unlink(missing_ok=True)
    assert sink.trigger(availableNow=True).start().awaitTermination(300), "the query did not end"
    assert sorted(row.value for row in spark.read.parquet(str(folder / "rows")).collect()) == sorted(VALUES)
    read_limited_stream(spark, options, folder / "limited")


def read_limited_stream(spark: SparkSession, options: dict[str, str], folder: Path) -> None:
    """Micro-batches of a running query are limited, and it is continued after each stop."""
    rows = spark.readStream.format("kafkameta").options(**options, maxOffsetsPerTrigger="30").load()
    sink = rows.selectExpr("CAST(value AS STRING) AS value").writeStream.format("parquet")
    sink = sink.option("path", str(folder / "rows")).option("checkpointLocation", str(folder / "checkpoint"))
    sizes = []
    for _ in range(2):
        query = sink.start()
        query.processAllAvailable()
        # Spark Connect forgets the progress of a query that was stopped.
        sizes += [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
        query.stop()
    assert sizes == [30, 30, 30, 10], sizes
    assert sorted(row.value for row in spark.read.parquet(str(folder / "rows")).collect()) == sorted(VALUES)


def write_batch(spark: SparkSession, servers: str) -> None:
    rows = spark.createDataFrame([(value,) for value in VALUES], "value string")
    cluster = {"kafka.bootstrap.servers": servers}
    shared = cluster | {"subscribe": "batch", "topic": "batch"}
    rows.write.format("kafkameta").mode("append").options(**shared).save()
    read_batch(spark, shared)


def read_view(spark: SparkSession, servers: str) -> None:
    """Topic t as a view in SQL."""
    options = f"`kafka.bootstrap.servers` '{servers}', subscribe 't'"
    spark.sql(f"CREATE TEMPORARY VIEW records USING kafkameta OPTIONS ({options})")
    rows = spark.sql("SELECT CAST(value AS STRING) AS value FROM records").collect()
    assert sorted(row.value for row in rows) == sorted(VALUES)


def write_stream(spark: SparkSession, servers: str, folder: Path) -> None:
    """Write a stream of text lines."""
    (folder / "lines").mkdir()
    (folder / "lines" / "1").write_text("\n".join(VALUES))
    cluster = {"kafka.bootstrap.servers": servers}
    sink = spark.readStream.text(str(folder / "lines")).writeStream.format("kafkameta")
    sink = sink.options(**cluster, topic="stream", checkpointLocation=str(folder / "written"))
    assert sink.queryName("copy").trigger(availableNow=True).start().awaitTermination(300), "the query did not end"
    read_batch(spark, cluster | {"subscribe": "stream"})


if __name__ == "__main__":
    main()
