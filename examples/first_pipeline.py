"""Read a topic as a batch, then as a stream.

    python examples/producer.py                       # writes records to read
    python examples/first_pipeline.py                 # or: spark-submit examples/first_pipeline.py

You will see the number of records in each partition, then, after each micro-batch, the count of each word so far.
Start the producer again for the next table:

    +---------+-----+
    |partition|count|
    +---------+-----+
    |        0|  400|
    |        1|  600|
    +---------+-----+

    -------------------------------------------
    Batch: 0
    -------------------------------------------
    +------+-----+
    |  word|count|
    +------+-----+
    |opened| 1000|
    |page-0|  143|
"""

from __future__ import annotations

import argparse

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, desc, explode, split


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-servers", default="localhost:19092")
    parser.add_argument("--topic", default="topic-0")
    parser.add_argument("--seconds", type=int, default=30, help="how long the stream runs")
    parser.add_argument("--once", action="store_true", help="end after all existing records")
    options = parser.parse_args()

    spark = SparkSession.builder.appName("first pipeline").config("spark.sql.shuffle.partitions", 2).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    source = {
        "kafka.bootstrap.servers": options.bootstrap_servers,
        "subscribe": options.topic,
        "startingOffsets": "earliest",  # streams start at latest by default
    }

    batch = spark.read.format("kafkameta").options(**source).load()
    batch.groupBy("partition").count().orderBy("partition").show()

    stream = spark.readStream.format("kafkameta").options(**source).load()
    words = stream.select(explode(split(col("value").cast("string"), " ")).alias("word"))
    counts = words.groupBy("word").count().orderBy(desc("count"), "word")
    writer = counts.writeStream.outputMode("complete").format("console")
    if options.once:
        writer = writer.trigger(availableNow=True)
    query = writer.start()
    query.awaitTermination(None if options.once else options.seconds)
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
