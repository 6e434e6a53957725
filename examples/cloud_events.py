"""Read CloudEvents as rows: in binary mode (attributes in headers) and in structured mode (one JSON object).

    python examples/cloud_events.py

First it writes three events and a record that is no event, to a topic that it creates. You will see:

    +---+-------+------+-------------------+----------------+------------+
    |id |source |type  |time               |datacontenttype |data        |
    +---+-------+------+-------------------+----------------+------------+
    |A-1|/orders|placed|2026-01-02 03:04:05|application/json|{"total":12}|
    |A-2|/orders|placed|2026-01-02 03:04:06|application/json|{"total":7} |
    |A-3|/orders|note  |NULL               |text/plain      |call first  |
    +---+-------+------+-------------------+----------------+------------+

See the Kafka Protocol Binding for CloudEvents 1.0.
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame, SparkSession

ATTRIBUTES = (
    "id STRING, source STRING, type STRING, time STRING, datacontenttype STRING, data STRING, data_base64 STRING"
)
CONTENT_TYPE = "CAST(headers['content-type'] AS STRING)"
IS_STRUCTURED = f"coalesce(lower({CONTENT_TYPE}) LIKE 'application/cloudevents+json%', false)"
IN_JSON = f"from_json(CAST(value AS STRING), '{ATTRIBUTES}') AS event"
JSON_COLUMNS = [
    *("event.id", "event.source", "event.type", "TRY_CAST(event.time AS TIMESTAMP) AS time", "event.datacontenttype"),
    "coalesce(event.data, CAST(unbase64(event.data_base64) AS STRING)) AS data",
]
HEADER_COLUMNS = [
    *(f"CAST(headers['ce_{name}'] AS STRING) AS {name}" for name in ("id", "source", "type")),
    "TRY_CAST(CAST(headers['ce_time'] AS STRING) AS TIMESTAMP) AS time",
    f"{CONTENT_TYPE} AS datacontenttype",
    "CAST(value AS STRING) AS data",
]
EVENTS = """
    SELECT * FROM VALUES
        (map('ce_specversion', '1.0', 'ce_id', 'A-1', 'ce_source', '/orders', 'ce_type', 'placed',
             'ce_time', '2026-01-02T03:04:05Z', 'content-type', 'application/json'), '{"total":12}'),
        (map('content-type', 'application/cloudevents+json; charset=UTF-8'),
         '{"specversion":"1.0","id":"A-2","source":"/orders","type":"placed","time":"2026-01-02T03:04:06Z",'
         '"datacontenttype":"application/json","data":{"total":7}}'),
        (map('content-type', 'application/cloudevents+json'),
         '{"specversion":"1.0","id":"A-3","source":"/orders","type":"note","datacontenttype":"text/plain",'
         '"data_base64":"Y2FsbCBmaXJzdA=="}'),
        (map('content-type', 'text/plain'), 'no event')
    AS events(attributes, value)
"""


def events(records: DataFrame) -> DataFrame:
    """The events among records that were read with headersAsMap, also of a stream."""
    structured = records.where(IS_STRUCTURED).selectExpr(IN_JSON).where("event.id IS NOT NULL")
    binary = records.where(f"headers['ce_specversion'] IS NOT NULL AND NOT {IS_STRUCTURED}")
    return structured.selectExpr(*JSON_COLUMNS).union(binary.selectExpr(*HEADER_COLUMNS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-servers", default="localhost:19092")
    parser.add_argument("--topic", default="orders")
    options = parser.parse_args()

    spark = SparkSession.builder.appName("CloudEvents").config("spark.sql.session.timeZone", "UTC").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    cluster = {"kafka.bootstrap.servers": options.bootstrap_servers}
    headers = "transform_values(attributes, (name, text) -> CAST(text AS BINARY)) AS headers"
    written = spark.sql(EVENTS).selectExpr(headers, "value").coalesce(1).write.format("kafkameta").mode("append")
    written.options(**cluster, topic=options.topic, createTopics=True).save()

    source = spark.read.format("kafkameta").options(**cluster, subscribe=options.topic)
    events(source.options(includeHeaders=True, headersAsMap=True).load()).orderBy("id").show(truncate=False)


if __name__ == "__main__":
    main()
