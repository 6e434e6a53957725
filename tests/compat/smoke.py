"""`make compat`: a batch, and a stream or its refusal, with the installed release of pyspark."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from pyspark_kafka_meta.testing import MockCluster

VALUES = [f"value-{number}" for number in range(100)]
STREAMS_FROM = (4, 2)
REFUSAL = "streams need pyspark 4.2 or later"


def main() -> None:
    release = tuple(map(int, pyspark.__version__.split(".")[:2]))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings: dict[str, bool | float | int | str | None] = {"spark.ui.enabled": "false", "spark.log.level": "ERROR"}
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    try:
        with MockCluster() as cluster, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            fill(cluster)
            options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": "t"}
            read_batch(spark, options)
            error = read_stream(spark, options | {"startingOffsets": "earliest"}, Path(folder))
    finally:
        spark.stop()
    refused = REFUSAL in error
    assert refused == (release < STREAMS_FROM), error
    print(f"pyspark {pyspark.__version__}: batch works, stream {'is refused' if refused else 'works'}")  # noqa: T201


def fill(cluster: MockCluster) -> None:
    from confluent_kafka import Producer

    cluster.create_topic("t", partitions=2)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for number, value in enumerate(VALUES):
        producer.produce("t", value, partition=number % 2)
    assert producer.flush(30) == 0


def read_batch(spark: SparkSession, options: dict[str, str]) -> None:
    rows = spark.read.format("kafkameta").options(**options).load().selectExpr("CAST(value AS STRING) AS value")
    assert sorted(row.value for row in rows.collect()) == sorted(VALUES)


def read_stream(spark: SparkSession, options: dict[str, str], folder: Path) -> str:
    """Read the topic as a stream. Returns the error of a refused stream, or an empty text."""
    try:
        rows = (
            spark.readStream.format("kafkameta").options(**options).load().selectExpr("CAST(value AS STRING) AS value")
        )
        sink = rows.writeStream.format("parquet").option("path", str(folder / "rows"))
        query = sink.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
        assert query.awaitTermination(120), "the query did not end"
    except Exception as error:
        return str(error)
    assert sorted(row.value for row in spark.read.parquet(str(folder / "rows")).collect()) == sorted(VALUES)
    return ""


if __name__ == "__main__":
    main()
