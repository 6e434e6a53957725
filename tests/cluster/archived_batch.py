"""A program for `spark-submit --archives`: reads a topic and writes its records to another one.

python archived_batch.py SERVERS SOURCE TARGET EVENTS
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main(servers: str, source: str, target: str, events: str) -> None:
    spark = SparkSession.builder.appName("archived batch").getOrCreate()
    cluster = {"kafka.bootstrap.servers": servers, "eventsPath": events}
    source_options = {**cluster, "subscribe": source, "minPartitions": "6"}
    rows = spark.read.format("kafkameta").options(**source_options).load().select("key", "value")
    rows.write.format("kafkameta").mode("append").options(**cluster, topic=target).save()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
