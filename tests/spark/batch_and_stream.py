"""Reads a topic with a batch query and with a stream, and prints the number of rows of each.

Tests start it as `python batch_and_stream.py SERVERS TOPIC FOLDER FILES`. With FILES above 0 the default folder of the
application's events is locked by this process and has this many files.
"""

from __future__ import annotations

import fcntl
import json
import sys
from contextlib import ExitStack
from pathlib import Path

from pyspark.sql import SparkSession

from pyspark_kafka_meta.events.default_folder import DefaultFolder
from pyspark_kafka_meta.events.folder_sink import open_folder
from pyspark_kafka_meta.events.origin import driver_name


def hold(spark: SparkSession, files: int, held: ExitStack) -> None:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    folder = DefaultFolder(driver_name(int(jvm.java.lang.ProcessHandle.current().pid()))).make()
    for number in range(files):
        (folder / f"events-{number:032x}-00000000.jsonl").touch()
    fcntl.flock(held.enter_context(open_folder(folder)), fcntl.LOCK_EX)


def main(servers: str, topic: str, folder: Path, files: int) -> None:
    options = {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest"}
    if not files:
        options["eventsPath"] = str(folder / "events")
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    with ExitStack() as held:
        spark = held.enter_context(builder.config("spark.local.dir", str(folder / "spark")).getOrCreate())
        if files:
            hold(spark, files, held)
        batch = spark.read.format("kafkameta").options(**options).load().count()
        sink = spark.readStream.format("kafkameta").options(**options).load().writeStream.format("memory")
        sink = sink.queryName("rows").option("checkpointLocation", str(folder / "checkpoint"))
        assert sink.trigger(availableNow=True).start().awaitTermination(120)
        sys.stdout.write(json.dumps([batch, spark.table("rows").count()]) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
