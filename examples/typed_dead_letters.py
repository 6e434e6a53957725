"""Read Avro values as columns, and send the values that cannot be decoded to another topic, with the cause as a header.

    python examples/typed_dead_letters.py

Without --registry, the program starts a schema registry in this process. It registers a schema, and writes two Avro
records and two other records. You will see:

    +---+------+
    |id |page  |
    +---+------+
    |1  |page-1|
    |2  |page-2|
    page-opened-dead has 2 records
    |nonsense|no frame: its first byte is not 0                   |
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack, suppress

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from pyspark_kafka_meta.testing import MockRegistry

SCHEMA = (
    '{"type": "record", "name": "PageOpened", "fields": [{"name": "id", "type": "long"}, {"name": "page", "type": '
    '"string"}]}'
)


def page_opened(schema_id: int, number: int, page: str) -> bytes:
    """A value as Confluent's serializer writes it: the byte 0, the id, and the fields. Avro doubles small numbers."""
    return bytes([0, *schema_id.to_bytes(4, "big"), 2 * number, 2 * len(page)]) + page.encode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-servers", default="localhost:19092")
    parser.add_argument("--topic", default="page-opened")
    parser.add_argument("--registry", help="URL of a registry that has the schema as version 1 of TOPIC-value, id 1")
    options = parser.parse_args()
    dead_letters = f"{options.topic}-dead"

    admin = AdminClient({"bootstrap.servers": options.bootstrap_servers})
    for topic in (options.topic, dead_letters):
        with suppress(KafkaException):  # it exists
            admin.create_topics([NewTopic(topic, 1)])[topic].result(30)

    spark = SparkSession.builder.appName("typed dead letters").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    cluster = {"kafka.bootstrap.servers": options.bootstrap_servers}
    with ExitStack() as started:
        url, schema_id = options.registry, 1
        if url is None:
            registry = started.enter_context(MockRegistry())
            url, schema_id = registry.url, registry.register(f"{options.topic}-value", SCHEMA)

        values = [page_opened(schema_id, 1, "page-1"), b"nonsense", page_opened(schema_id, 2, "page-2"), b""]
        rows = spark.createDataFrame([(value,) for value in values], "value binary")
        rows.write.format("kafkameta").mode("append").options(**cluster, topic=options.topic).save()

        typed = {"valueFormat": "avro", "schema.registry.url": url, "onMalformedRecord": "record"}
        opened = spark.read.format("kafkameta").options(**cluster, **typed, subscribe=options.topic).load()
        opened.where("value IS NOT NULL").select("value.*").orderBy("id").show(truncate=False)
        dead = opened.where("value_error IS NOT NULL").selectExpr(
            "key",
            "value_error.raw AS value",
            "array(struct('cause' AS key, CAST(value_error.cause AS BINARY) AS value)) AS headers",
        )
        dead.write.format("kafkameta").mode("append").options(**cluster, topic=dead_letters).save()

    written = spark.read.format("kafkameta").options(**cluster, subscribe=dead_letters, includeHeaders=True).load()
    print(f"{dead_letters} has {written.count()} records")
    written.selectExpr("CAST(value AS STRING)", "CAST(headers[0].value AS STRING) AS cause").show(truncate=False)
    spark.stop()


if __name__ == "__main__":
    main()
