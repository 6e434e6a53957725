"""The flows of a pipeline: from a topic to sinks with and without `kafka.transactional.id`, for `pipelines.py`.

Settings of the pipeline: `kafkameta.servers`; `kafkameta.source`, the topic to read, whose name the topics of the sinks
begin with; `kafkameta.hold_ms`, for which tasks stand still at a record `hold`.
"""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
kafka = {"kafka.bootstrap.servers": str(spark.conf.get("kafkameta.servers"))}
source, hold_ms = str(spark.conf.get("kafkameta.source")), spark.conf.get("kafkameta.hold_ms")


def records() -> DataFrame:
    """In two tasks, if the topic has two partitions."""
    options = kafka | {"subscribe": source, "startingOffsets": "earliest", "minPartitions": "2"}
    rows = spark.readStream.format("kafkameta").options(**options).load().selectExpr("CAST(value AS STRING) AS value")
    return rows.where(f"value <> 'hold' OR reflect('java.lang.Thread', 'sleep', {hold_ms}L) IS NOT NULL")


for name, options in {"at_least_once": {}, "exactly_once": {"kafka.transactional.id": source}}.items():
    dp.create_sink(name, "kafkameta", kafka | {"topic": f"{source}-{name}"} | options)
    dp.append_flow(target=name, name=f"to_{name}")(records)
