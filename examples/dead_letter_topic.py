"""Send records that cannot be parsed to another topic, with the reason as a header.

    python examples/producer.py                       # writes a thousand page views
    python examples/dead_letter_topic.py

The program adds two records that are no page views. One query writes to both topics: the column `topic` of a row says
where the row goes. You will see:

    page-views has 1000 records
    dead-letters has 2 records
    +--------+-----------------------------------+
    |value   |reason                             |
    +--------+-----------------------------------+
    |nonsense|no page view at topic-0-1, offset 7|
    |        |no page view at topic-0-1, offset 8|
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import suppress

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from pyspark.sql.functions import array, coalesce, concat, lit, regexp_extract, struct, when


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-servers", default="localhost:19092")
    parser.add_argument("--topic", default="topic-0")
    parser.add_argument("--views", default="page-views", help="topic of the parsed records")
    parser.add_argument("--dead-letters", default="dead-letters", help="topic of the other records")
    options = parser.parse_args()

    admin = AdminClient({"bootstrap.servers": options.bootstrap_servers})
    for topic in (options.views, options.dead_letters):
        with suppress(KafkaException):  # it exists
            admin.create_topics([NewTopic(topic, 2)])[topic].result(30)

    spark = SparkSession.builder.appName("dead letters").config("spark.sql.shuffle.partitions", 2).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    cluster = {"kafka.bootstrap.servers": options.bootstrap_servers}
    bad = spark.createDataFrame([("nonsense",), ("",)], "value string")
    bad.write.format("kafkameta").mode("append").options(**cluster, topic=options.topic).save()

    source = spark.readStream.format("kafkameta").options(**cluster, startingOffsets="earliest")
    records = source.option("subscribe", options.topic).load()
    page = regexp_extract(records.value.cast("string"), r"^\S+ opened (\S+)$", 1)
    parsed = records.withColumn("page", coalesce(page, lit("")))  # a value may be null
    is_view = parsed.page != ""
    reason = concat(lit("no page view at "), "topic", lit("-"), "partition", lit(", offset "), "offset")
    rows = parsed.select(
        when(is_view, lit(options.views)).otherwise(lit(options.dead_letters)).alias("topic"),
        "key",
        when(is_view, parsed.page.cast("binary")).otherwise(parsed.value).alias("value"),
        when(~is_view, array(struct(lit("reason").alias("key"), reason.cast("binary").alias("value")))).alias(
            "headers"
        ),
    )
    with tempfile.TemporaryDirectory(prefix="kafkameta-dead-letters-") as checkpoint:  # keep yours, to continue
        sink = rows.writeStream.format("kafkameta").options(**cluster, checkpointLocation=checkpoint)
        sink.trigger(availableNow=True).start().awaitTermination()

    for topic in (options.views, options.dead_letters):
        written = spark.read.format("kafkameta").options(**cluster, subscribe=topic, includeHeaders=True).load()
        print(f"{topic} has {written.count()} records")
    text = ["CAST(value AS STRING) AS value", "CAST(headers[0].value AS STRING) AS reason"]
    written.selectExpr(*text).orderBy("reason").show(truncate=False)
    spark.stop()


if __name__ == "__main__":
    main()
