"""Read a topic, and the refresh events of its metadata caches as a second stream.

    python examples/producer.py --seconds 60 &
    python examples/side_stream.py

The first event of a cache is `born`, its first Metadata response `bootstrap`. This example refreshes metadata after two
seconds (default: five minutes) to show `max_age`. Kill a broker, as in who_is_stale.py, for other reasons:
connection_lost, not_leader, leader_hint ... A reader's events are written at the end of its task. The planner's
refreshes by age without a change are written with its next other event.

It runs for twenty seconds (`--seconds`), or until Ctrl-C. You will see tables such as this one, and a last line:

    Batch: 0
    |        time|   role|   kind|   reason|broker_id|  outcome|leaders_moved|
    |09:00:00.123|planner|   born|bootstrap|     NULL|unchanged|            0|
    |09:00:00.145|planner|refresh|bootstrap|        2|  changed|            0|
    |09:00:00.987| reader|refresh|bootstrap|        2|  changed|            0|
    |09:00:04.321| reader|refresh|  max_age|        2|unchanged|            0|

    1000 records read; refreshes by reason: {'bootstrap': 2, 'max_age': 5}
"""

from __future__ import annotations

import argparse
import signal
import tempfile
import threading
import time

from pyspark.sql import SparkSession

import pyspark_kafka_meta as kafkameta


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-servers", default="localhost:19092")
    parser.add_argument("--topic", default="topic-0")
    parser.add_argument("--seconds", type=int, default=20, help="time to run after the first micro-batch")
    options = parser.parse_args()

    spark = SparkSession.builder.appName("side stream").config("spark.sql.shuffle.partitions", 2).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    ended = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: ended.set())  # Ctrl-C; Spark's own handler interrupts its responses
    with tempfile.TemporaryDirectory(prefix="kafkameta-events-of-") as folder:
        records = (
            spark.readStream.format("kafkameta")
            .option("kafka.bootstrap.servers", options.bootstrap_servers)
            .option("subscribe", options.topic)
            .option("startingOffsets", "earliest")
            .option("kafka.metadata.max.age.ms", 2000)
            .option("eventsPath", folder)
            .load()
        )
        main_query = records.writeStream.format("noop").trigger(processingTime="1 second").start()

        events = kafkameta.refresh_events(spark, stream=True, eventsPath=folder)
        columns = events.selectExpr(
            "date_format(time, 'HH:mm:ss.SSS') AS time",
            *("role", "kind", "reason", "broker_id", "outcome"),
            "size(leaders_changed) AS leaders_moved",
        )
        side_query = columns.writeStream.format("console").option("truncate", False).start()

        while not main_query.recentProgress and not ended.is_set():
            main_query.awaitTermination(1)
        deadline = time.monotonic() + options.seconds
        while time.monotonic() < deadline and not ended.is_set():
            main_query.awaitTermination(1)
        main_query.stop()
        side_query.processAllAvailable()
        side_query.stop()

        read = sum(progress["numInputRows"] for progress in main_query.recentProgress)
        refreshes = kafkameta.refresh_events(spark, eventsPath=folder).where("kind = 'refresh'")
        reasons = {
            row["reason"]: row["count"] for row in refreshes.groupBy("reason").count().orderBy("reason").collect()
        }
        print(f"{read} records read; refreshes by reason: {reasons}")
        spark.stop()


if __name__ == "__main__":
    main()
