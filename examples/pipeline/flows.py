"""Keep a table and a topic up to date with another topic, by Spark Declarative Pipelines (PySpark 4.3).

    python examples/producer.py                       # writes records to read
    cd examples/pipeline
    spark-pipelines run --remote 'local[4]' --conf spark.sql.catalogImplementation=hive

Run it again after the producer: only new records are read, and each is in the table and in the topic once. The setting
keeps the names of tables in the folder `metastore_db`, beside `spark-warehouse` with their rows. Without it, a second
run does not know the tables of the first.
"""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

spark = SparkSession.active()
kafka = {"kafka.bootstrap.servers": "localhost:19092"}


@dp.temporary_view
def records() -> DataFrame:
    source = spark.readStream.format("kafkameta").options(**kafka, subscribe="topic-0", startingOffsets="earliest")
    return source.load().select(col("key").cast("string").alias("user"), col("value").cast("string"), "timestamp")


@dp.table
def page_views() -> DataFrame:
    return spark.readStream.table("records")


# The id makes the writes exactly-once, for readers with read_committed. A sink with an id takes one flow.
dp.create_sink("topic_1", "kafkameta", kafka | {"topic": "topic-1", "kafka.transactional.id": "page-views"})


@dp.append_flow(target="topic_1")
def loud_views() -> DataFrame:
    return spark.readStream.table("records").selectExpr("user AS key", "upper(value) AS value")
