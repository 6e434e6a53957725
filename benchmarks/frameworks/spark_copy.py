"""Spark: micro-batches as short as they can be, of at most as many records as kafkameta copies in `COMMIT_MS`. The last
argument is the format of source and sink: kafkameta, or kafka for Spark's own."""

import sys

from pyspark.sql import SparkSession

from benchmarks.jvm_source import jvm_source_jars

RECORDS_PER_MS = 200

servers, source, target, commit_ms, format_name = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.jars", ",".join(map(str, jvm_source_jars())))
    .getOrCreate()
)
rows = (
    spark.readStream.format(format_name)
    .option("kafka.bootstrap.servers", servers)
    .option("subscribe", source)
    .option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", int(commit_ms) * RECORDS_PER_MS)
    .load()
)
writer = (
    rows.select("key", "value")
    .writeStream.format(format_name)
    .option("kafka.bootstrap.servers", servers)
    .option("topic", target)
    .option("checkpointLocation", f"checkpoint-{target}")
)
if format_name == "kafkameta":
    writer = writer.option("kafka.transactional.id", target)
writer.start().awaitTermination()
