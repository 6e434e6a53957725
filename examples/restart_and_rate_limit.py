"""Stop a query, start it again, and count its records: no record is lost or repeated.

    python examples/producer.py
    python examples/restart_and_rate_limit.py         # while no producer writes

`maxOffsetsPerTrigger` keeps micro-batches small. The first run stops after two micro-batches and leaves 600 records for
the second run, or 400 if a third micro-batch ended before the stop. The second run starts at the checkpoint, without
offsets in its options. You will see:

    the topic holds 1000 records
    first run: 400 records, at most 200 in a micro-batch
    second run: 600 records, at most 200 in a micro-batch
    the folder holds 1000 records, 1000 different ones: nothing lost, nothing repeated
"""

from __future__ import annotations

import argparse
import tempfile
import time

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery


def largest_batch(query: StreamingQuery) -> int:
    return max((progress["numInputRows"] for progress in query.recentProgress), default=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-servers", default="localhost:19092")
    parser.add_argument("--topic", default="topic-0")
    parser.add_argument("--max-offsets", type=int, default=200, help="maxOffsetsPerTrigger")
    parser.add_argument("--seconds", type=int, default=60, help="timeout of the first run")
    options = parser.parse_args()

    spark = SparkSession.builder.appName("restart and rate limit").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    source = {
        "kafka.bootstrap.servers": options.bootstrap_servers,
        "subscribe": options.topic,
        "startingOffsets": "earliest",
    }
    in_topic = spark.read.format("kafkameta").options(**source).load().count()
    print(f"the topic holds {in_topic} records")

    with tempfile.TemporaryDirectory(prefix="kafkameta-restart-") as folder:
        limited = spark.readStream.format("kafkameta").options(**source, maxOffsetsPerTrigger=options.max_offsets)
        records = limited.load().select("topic", "partition", "offset", "value")
        sink = records.writeStream.format("parquet").option("path", f"{folder}/records")
        sink = sink.option("checkpointLocation", f"{folder}/checkpoint")

        first = sink.trigger(processingTime="1 second").start()
        deadline = time.monotonic() + options.seconds
        while len(first.recentProgress) < 2 and time.monotonic() < deadline:
            first.awaitTermination(1)
        first.stop()
        written = spark.read.schema(records.schema).parquet(f"{folder}/records")
        before = written.count()
        print(f"first run: {before} records, at most {largest_batch(first)} in a micro-batch")

        second = sink.trigger(availableNow=True).start()
        second.awaitTermination()
        written = spark.read.schema(records.schema).parquet(f"{folder}/records")
        after, different = written.count(), written.select("topic", "partition", "offset").distinct().count()
        print(f"second run: {after - before} records, at most {largest_batch(second)} in a micro-batch")
        verdict = (
            "nothing lost, nothing repeated" if in_topic == after == different else "that is not what the topic holds"
        )
        print(f"the folder holds {after} records, {different} different ones: {verdict}")
        spark.stop()


if __name__ == "__main__":
    main()
