"""Copy records to another topic, with the country of their user as a header.

    python examples/producer.py                       # writes records to enrich
    python examples/enrich_with_headers.py

The countries come from a table. Keys, values, timestamps and earlier headers stay as they are. You will see:

    +------+------------+-----+
    |key   |headers     |count|
    +------+------------+-----+
    |user-0|[country=PT]|100  |
    |user-1|[country=KE]|100  |
    |user-2|[country=?] |100  |
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import suppress

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from pyspark.sql.functions import broadcast

COUNTRIES = [("user-0", "PT"), ("user-1", "KE")]
ADD_COUNTRY = """
    array_append(
        coalesce(headers, array()),
        named_struct('key', 'country', 'value', CAST(coalesce(country, '?') AS BINARY))
    ) AS headers
"""
SHOW_HEADERS = "transform(headers, header -> concat(header.key, '=', CAST(header.value AS STRING))) AS headers"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-servers", default="localhost:19092")
    parser.add_argument("--topic", default="topic-0")
    parser.add_argument("--enriched", default="enriched", help="topic of the enriched records")
    options = parser.parse_args()

    admin = AdminClient({"bootstrap.servers": options.bootstrap_servers})
    with suppress(KafkaException):  # it exists
        admin.create_topics([NewTopic(options.enriched, 2)])[options.enriched].result(30)

    spark = SparkSession.builder.appName("enrich").config("spark.sql.shuffle.partitions", 2).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    cluster = {"kafka.bootstrap.servers": options.bootstrap_servers}
    source = spark.readStream.format("kafkameta").options(**cluster, includeHeaders=True)
    records = source.options(subscribe=options.topic, startingOffsets="earliest").load()
    countries = spark.createDataFrame(COUNTRIES, "user string, country string")
    joined = records.join(broadcast(countries), records.key.cast("string") == countries.user, "left")
    with tempfile.TemporaryDirectory(prefix="kafkameta-enriched-") as checkpoint:  # keep yours, to continue
        query = (
            joined.selectExpr("key", "value", "timestamp", ADD_COUNTRY)
            .writeStream.format("kafkameta")
            .options(**cluster, topic=options.enriched, checkpointLocation=checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    enriched = spark.read.format("kafkameta").options(**cluster, includeHeaders=True, subscribe=options.enriched).load()
    shown = enriched.selectExpr("CAST(key AS STRING) AS key", SHOW_HEADERS)
    shown.groupBy("key", "headers").count().orderBy("key").show(truncate=False)
    spark.stop()


if __name__ == "__main__":
    main()
