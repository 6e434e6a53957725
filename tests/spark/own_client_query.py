"""A program for a test: a stream that reads, writes exactly once, commits to a group and reports its events to a topic,
then a batch. The stream copies a hundred records in two micro-batches: the events of the last one may be lost with the
process that commits it. Its arguments: servers, source, copies, events and checkpoint. Prints the values, and the
module that the processes of each role run."""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

if __name__ == "__main__":
    servers, source, copies, events, checkpoint = sys.argv[1:]
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    kafka = {"kafka.bootstrap.servers": servers, "eventsTopic": events}
    reading = {"subscribe": source, "startingOffsets": "earliest", "commitOffsetsToGroup": copies}
    limited = spark.readStream.format("kafkameta").options(**kafka, **reading, maxOffsetsPerTrigger="60")
    rows = limited.load().select("key", "value")
    writing = {"topic": copies, "checkpointLocation": checkpoint, "kafka.transactional.id": copies}
    stream = rows.writeStream.format("kafkameta").options(**kafka, **writing).trigger(availableNow=True).start()
    stream.awaitTermination()
    copied = spark.read.format("kafkameta").options(**kafka, subscribe=copies).load()
    print(f"copied: {sorted(row.value.decode() for row in copied.collect())}")  # noqa: T201
    told = spark.read.format("kafkameta").options(**kafka, table="refresh_events").load().select("role", "pid")
    for row in told.distinct().collect():
        command = Path(f"/proc/{row.pid}/cmdline")
        if command.exists():
            print(row.role, "runs", *command.read_text().split("\0")[2:3])  # noqa: T201
    spark.stop()
