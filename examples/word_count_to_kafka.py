"""Count words, and keep the count of each word in a compacted topic.

    python examples/producer.py                       # writes records to count
    python examples/word_count_to_kafka.py

Output mode complete writes the whole result after each micro-batch. The key is the word, so that compaction keeps the
last count of each word, as a table with one row per word does. The partition of a word is the hash of its key, so its
counts stay in order. A reader takes the last record of each key, as compaction runs later. You will see:

    +------+-----+
    |  word|count|
    +------+-----+
    |opened| 1000|
    |page-0|  143|
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import suppress

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, desc, explode, max_by, split


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-servers", default="localhost:19092")
    parser.add_argument("--topic", default="topic-0")
    parser.add_argument("--counts", default="word-counts", help="topic of the counts")
    options = parser.parse_args()

    admin = AdminClient({"bootstrap.servers": options.bootstrap_servers})
    compacted = NewTopic(options.counts, 2, config={"cleanup.policy": "compact"})
    with suppress(KafkaException):  # it exists
        admin.create_topics([compacted])[options.counts].result(30)

    spark = SparkSession.builder.appName("word count").config("spark.sql.shuffle.partitions", 2).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    cluster = {"kafka.bootstrap.servers": options.bootstrap_servers}
    records = (
        spark.readStream.format("kafkameta")
        .options(**cluster, subscribe=options.topic, startingOffsets="earliest", maxOffsetsPerTrigger=500)
        .load()
    )
    words = records.select(explode(split(col("value").cast("string"), " ")).alias("key"))
    counts = words.groupBy("key").count().select("key", col("count").cast("string").alias("value"))
    with tempfile.TemporaryDirectory(prefix="kafkameta-counts-") as checkpoint:  # keep it to continue at the next start
        query = (
            counts.writeStream.format("kafkameta")
            .outputMode("complete")
            .options(**cluster, topic=options.counts, checkpointLocation=checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    written = spark.read.format("kafkameta").options(**cluster, subscribe=options.counts).load()
    last = written.groupBy(col("key").cast("string").alias("word")).agg(max_by("value", "offset").alias("value"))
    last.select("word", col("value").cast("string").cast("long").alias("count")).orderBy(desc("count"), "word").show()
    spark.stop()


if __name__ == "__main__":
    main()
