"""A Spark application with two executors of one core that streams a topic and runs SQL queries on its side tables.

Tests start it as `python two_executors.py SERVERS TOPIC FOLDER`. Each line of standard input is `start`, `stop` or a
SQL query. The reply is one line of JSON: null or the rows.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from pyspark_kafka_meta.tools.demo.query import spark_session


def start(spark: SparkSession, options: dict[str, str], folder: Path) -> StreamingQuery:
    rows = spark.readStream.format("kafkameta").options(**options, startingOffsets="earliest", minPartitions="2").load()
    sink = rows.selectExpr("CAST(value AS STRING) AS value").writeStream.format("parquet")
    sink = sink.option("path", str(folder / "rows")).option("checkpointLocation", str(folder / "checkpoint"))
    return sink.trigger(processingTime="1 second").start()


def main(servers: str, topic: str, folder: Path) -> None:
    with spark_session(folder) as spark:  # as in the demo: the work folder of the executors is removed
        spark.sparkContext.setLogLevel("ERROR")
        spark.conf.set("spark.sql.shuffle.partitions", "2")
        run_commands(spark, servers, topic, folder)


def run_commands(spark: SparkSession, servers: str, topic: str, folder: Path) -> None:
    options = {"kafka.bootstrap.servers": servers, "subscribe": topic, "eventsPath": str(folder / "events")}
    tables = {
        "refresh_events": {"eventsPath": options["eventsPath"]},
        "caches": {"eventsPath": options["eventsPath"]},
        "partitions": {"kafka.bootstrap.servers": servers, "subscribe": topic},
    }
    query: StreamingQuery | None = None
    for command in map(str.strip, sys.stdin):
        reply = None
        if command == "start":
            query = start(spark, options, folder)
        elif command == "stop":
            assert query is not None
            query.stop()
        else:
            for table in (name for name in tables if name in command):  # loaded for each query, to be current
                rows = spark.read.format("kafkameta").options(**tables[table], table=table)
                rows.load().createOrReplaceTempView(table)
            reply = [row.asDict(recursive=True) for row in spark.sql(command).collect()]
        sys.stdout.write(json.dumps(reply, default=str) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
