"""Count words in windows of ten seconds, write them to Parquet, and continue where the last run stopped.

    python examples/producer.py --seconds 40          # records in several windows
    python examples/word_count.py                     # run both several times

Each run reads the records since the last run, according to the checkpoint, and ends. A window is written once, when it
is complete: after a record that is ten seconds (the watermark) later than the window's end. So the last windows wait
for the next run. A new cluster has other topics: use another folder (`--folder`) then. You will see the content of the
folder:

    +-------------------+------+-----+
    |             window|  word|count|
    +-------------------+------+-----+
    |2026-01-01 00:00:00|opened|  100|
    |2026-01-01 00:00:00|page-0|   15|
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, desc, explode, split, window


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-servers", default="localhost:19092")
    parser.add_argument("--topic", default="topic-0")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir(), "kafkameta-word-count"))
    options = parser.parse_args()

    spark = SparkSession.builder.appName("word count").config("spark.sql.shuffle.partitions", 2).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    records = (
        spark.readStream.format("kafkameta")
        .option("kafka.bootstrap.servers", options.bootstrap_servers)
        .option("subscribe", options.topic)
        .option("startingOffsets", "earliest")  # of the first run; later runs start at the checkpoint
        .load()
    )
    words = records.select("timestamp", explode(split(col("value").cast("string"), " ")).alias("word"))
    counts = words.withWatermark("timestamp", "10 seconds").groupBy(window("timestamp", "10 seconds"), "word").count()
    query = (
        counts.select(col("window.start").alias("window"), "word", "count")
        .writeStream.format("parquet")
        .option("path", str(options.folder / "counts"))
        .option("checkpointLocation", str(options.folder / "checkpoint"))
        .trigger(availableNow=True)  # read the existing records, and end
        .start()
    )
    query.awaitTermination()

    written = spark.read.schema("window timestamp, word string, count bigint").parquet(str(options.folder / "counts"))
    written.orderBy("window", desc("count"), "word").show(100)
    spark.stop()


if __name__ == "__main__":
    main()
