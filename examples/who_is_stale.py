"""Find executors whose caches hold an old leader: compare the caches with the brokers' current metadata.

    python examples/producer.py
    python examples/who_is_stale.py                   # then kill broker 3

A cache learns of a new leader with its next request to the old leader, or at `metadata.max.age.ms`. The planner sends
requests at every trigger, so it is current at once. A reader of a partition without new records stays stale, which
costs nothing. Start the producer again: the worker with the next task refreshes its cache, other workers do not.
`docker compose kill broker-3` kills a broker, or `kill 3` in local_kafka.py. Do not kill broker 2, the only bootstrap
server of this program.

It runs for a minute (`--seconds`), or until Ctrl-C. You will see one line every two seconds; after a leader change, one
line for each partition in a stale cache:

    no cache is stale
    reader 4242 on executor driver: topic-0 partition 1 is led by 3, its cache, at most 9876 ms old, says 2
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
    parser.add_argument("--seconds", type=int, default=60, help="time to run")
    parser.add_argument("--once", action="store_true", help="end after the first stale reader")
    options = parser.parse_args()

    spark = SparkSession.builder.appName("who is stale").config("spark.sql.shuffle.partitions", 2).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    ended = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: ended.set())  # Ctrl-C; Spark's own handler interrupts its responses
    cluster = {"kafka.bootstrap.servers": options.bootstrap_servers, "subscribe": options.topic}
    with tempfile.TemporaryDirectory(prefix="kafkameta-events-of-") as folder:
        stream = spark.readStream.format("kafkameta").options(**cluster)
        records = stream.option("startingOffsets", "earliest").option("eventsPath", folder).load()
        query = records.writeStream.format("noop").trigger(processingTime="1 second").start()
        while not query.recentProgress and not ended.is_set():
            query.awaitTermination(1)

        deadline = time.monotonic() + options.seconds
        while time.monotonic() < deadline and not ended.is_set() and not query.awaitTermination(2):
            # New DataFrames each time: Spark plans a DataFrame once, at its first use.
            cached = kafkameta.caches(spark, eventsPath=folder)
            live = kafkameta.partitions(spark, **cluster).withColumnsRenamed(
                {"leader_id": "leader_now", "leader_epoch": "epoch_now", "topic_id": "id_now"}
            )
            # A recreated topic has another id, and its epochs start again.
            is_old = "leader_epoch < epoch_now OR topic_id <> id_now"
            stale = cached.join(live, ["cluster_id", "topic", "partition"]).where(is_old)
            rows = stale.orderBy("role", "pid", "partition").collect()
            for row in rows:
                cache = f"{row.role} {row.pid} on executor {row.executor_id}"
                leader = f"{row.topic} partition {row.partition} is led by {row.leader_now}"
                says = f"its cache, at most {row.age_at_most_ms} ms old, says {row.leader_id}"
                print(f"{cache}: {leader}, {says}", flush=True)
            if not rows:
                print("no cache is stale", flush=True)
            if options.once and any(row.role == "reader" for row in rows):
                break
        query.stop()
        spark.stop()


if __name__ == "__main__":
    main()
