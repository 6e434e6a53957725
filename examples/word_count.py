"""Count words in windows of ten seconds, into a folder of parquet, and go on where the last run stopped.

    python examples/producer.py --seconds 40          # records over some windows
    python examples/word_count.py                     # run both again, and again

Each run reads what has come since the one before and ends; the checkpoint knows how far that was. A window is written
once, when it is complete: as soon as a record has come that is ten seconds (the watermark) later than the window's end.
So the last windows wait for the next run. A new cluster has other topics: begin with another folder then (`--folder`).
You will see what is in the folder so far:

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
        .option("startingOffsets", "earliest")  # of the first run; later ones begin at the checkpoint
        .load()
    )
    words = records.select("timestamp", explode(split(col("value").cast("string"), " ")).alias("word"))
    counts = words.withWatermark("timestamp", "10 seconds").groupBy(window("timestamp", "10 seconds"), "word").count()
    query = (
        counts.select(col("window.start").alias("window"), "word", "count")
        .writeStream.format("parquet")
        .option("path", str(options.folder / "counts"))
        .option("checkpointLocation", str(options.folder / "checkpoint"))
        .trigger(availableNow=True)  # read what is there, and end
        .start()
    )
    query.awaitTermination()

    written = spark.read.schema("window timestamp, word string, count bigint").parquet(str(options.folder / "counts"))
    written.orderBy("window", desc("count"), "word").show(100)
    spark.stop()


if __name__ == "__main__":
    main()
