"""A Spark driver to kill: a rate-limited stream from a topic to a folder of rows.

Tests start it as `python killed_driver.py SERVERS TOPIC FOLDER`. It prints `begun` once the stream runs and never ends.
With the argument `once` after them, with the Python of any release of pyspark, it is one run with Trigger.AvailableNow,
and prints the rows of each micro-batch.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark.traces import rows_by_batch


def start(spark: SparkSession, servers: str, topic: str, folder: Path, **trigger: Any) -> StreamingQuery:
    """Start or continue the query from the checkpoint in the folder."""
    source = spark.readStream.format("kafkameta").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
    rows = source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "40").load()
    sink = rows.selectExpr("CAST(value AS STRING) AS value", "partition", "offset").writeStream.format("parquet")
    sink = sink.option("path", str(folder / "rows")).option("checkpointLocation", str(folder / "checkpoint"))
    return sink.trigger(**trigger).start()


def main(servers: str, topic: str, folder: Path, *once: str) -> None:
    settings: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.local.dir": str(folder / "spark"),
    }
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    if once:
        query = start(spark, servers, topic, folder, availableNow=True)
        assert query.awaitTermination(120), "the query did not end"
        sys.stdout.write(json.dumps(rows_by_batch(query)) + "\n")
        spark.stop()
        return
    query = start(spark, servers, topic, folder, processingTime="0 seconds")
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    query.awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), *sys.argv[4:])
