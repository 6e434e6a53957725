"""kafkameta: micro-batches as short as they can be, of at most as many records as it copies between two commits."""

import sys

from pyspark.sql import SparkSession

RECORDS_PER_MS = 200

servers, source, target, commit_ms = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
rows = (
    spark.readStream.format("kafkameta")
    .option("kafka.bootstrap.servers", servers)
    .option("subscribe", source)
    .option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", int(commit_ms) * RECORDS_PER_MS)
    .load()
)
query = (
    rows.select("key", "value")
    .writeStream.format("kafkameta")
    .option("kafka.bootstrap.servers", servers)
    .option("topic", target)
    .option("kafka.transactional.id", target)
    .option("checkpointLocation", f"checkpoint-{target}")
    .start()
)
query.awaitTermination()
