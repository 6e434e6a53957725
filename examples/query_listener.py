"""Log the lag, the time and the metadata refreshes of a query after its micro-batches, with one line of code.

    python examples/producer.py
    python examples/query_listener.py

`QueryListener` logs at the level INFO. The lag comes from the cluster, in records and as the age of the next record.
Refreshes are those of the query's tasks since the line before. The query reads at most 300 records in a micro-batch, so
that it is behind at first.

The listener needs the extra `exporter`. With `--port 9840` the program also serves metrics for Prometheus: see
docs/observe.md.

It runs for fifteen seconds (`--seconds`), or until Ctrl-C. You will see lines such as these:

    views, batch 0: 300 records in 3.1 s; 700 records behind, at most 12.3 s; refreshes: bootstrap 1
    views, batch 1: 300 records in 0.4 s; 400 records behind, at most 12.9 s; refreshes: none
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading

from pyspark.sql import SparkSession

import pyspark_kafka_meta as kafkameta


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-servers", default="localhost:19092")
    parser.add_argument("--topic", default="topic-0")
    parser.add_argument("--seconds", type=int, default=15, help="time to run")
    parser.add_argument("--max-offsets", type=int, default=300, help="records in a micro-batch")
    parser.add_argument("--port", type=int, help="also serve metrics for Prometheus at this port")
    options = parser.parse_args()

    logging.basicConfig(stream=sys.stdout, format="%(message)s")
    logging.getLogger("pyspark_kafka_meta.queries").setLevel(logging.INFO)
    spark = SparkSession.builder.appName("query listener").config("spark.sql.shuffle.partitions", 2).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    ended = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: ended.set())  # Ctrl-C; Spark's own handler interrupts its responses
    cluster = {"kafka.bootstrap.servers": options.bootstrap_servers}

    spark.streams.addListener(kafkameta.QueryListener(**cluster))
    exporter = None if options.port is None else kafkameta.start_exporter(spark, port=options.port, **cluster)
    if exporter is not None:
        print(exporter.url, flush=True)

    stream = spark.readStream.format("kafkameta").options(**cluster, subscribe=options.topic)
    records = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", options.max_offsets).load()
    query = records.writeStream.format("noop").queryName("views").trigger(processingTime="2 seconds").start()
    ended.wait(options.seconds)
    query.stop()
    if exporter is not None:
        exporter.close()
    spark.stop()


if __name__ == "__main__":
    main()
