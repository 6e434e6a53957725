"""A program for a test: a stream that reads, writes exactly once, commits to a group and reports its events to a topic,
then a batch. The stream copies a hundred records in two micro-batches: the events of the last one may be lost with the
process that commits it. Its arguments: servers, source, copies, events and checkpoint. Prints the values and the module
that workers run."""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

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
    module = udf(lambda _: Path("/proc/self/cmdline").read_text().split("\0")[2])
    print(f"workers: {[row.module for row in spark.range(1).select(module('id').alias('module')).collect()]}")  # noqa: T201
    spark.stop()
