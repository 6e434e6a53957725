"""Continue a query of Spark's own Kafka source with this source, where it stopped.

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 examples/migrate_from_spark_kafka.py

The packages contain the old source, in the version of your Spark. To use `python` instead of `spark-submit`, set the
environment variable PYSPARK_SUBMIT_ARGS to `--packages ... pyspark-shell`. The query drops duplicates, so it has state
that must migrate too: the second ten records repeat five keys of the first ten. If the topic has a thousand records
before, you will see:

    kafka read 1010 new records
    kafkameta migrate-checkpoint: wrote .../new
    kafkameta read 10 new records
    the folder holds 15 rows, 15 different keys: nothing lost, nothing repeated
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import uuid

from confluent_kafka import Producer
from pyspark.sql import SparkSession


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-servers", default="localhost:19092")
    parser.add_argument("--topic", default="topic-0")
    options = parser.parse_args()
    spark = SparkSession.builder.appName("migrate").config("spark.sql.shuffle.partitions", 2).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    this_run = uuid.uuid4().hex

    def write(numbers: range) -> None:
        producer = Producer({"bootstrap.servers": options.bootstrap_servers})
        for number in numbers:
            producer.produce(options.topic, key=f"{this_run}-{number}", value="...")
        producer.flush(60)

    def run(source: str, checkpoint: str) -> None:
        """The query. Only the name of its source and its checkpoint change."""
        records = (
            spark.readStream.format(source)
            .option("kafka.bootstrap.servers", options.bootstrap_servers)
            .option("subscribe", options.topic)
            .option("startingOffsets", "earliest")
            .load()
        )
        keys = records.selectExpr("CAST(key AS STRING) AS key").where(f"key LIKE '{this_run}%'").dropDuplicates(["key"])
        query = (
            keys.writeStream.format("parquet")
            .option("path", f"{folder}/rows")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        print(f"{source} read {sum(progress['numInputRows'] for progress in query.recentProgress)} new records")

    with tempfile.TemporaryDirectory(prefix="kafkameta-migrate-") as folder:
        write(range(10))
        run("kafka", f"{folder}/old")

        migrate = ["pyspark_kafka_meta", "migrate-checkpoint", f"{folder}/old", "--write", f"{folder}/new"]
        done = subprocess.run([sys.executable, "-m", *migrate], check=True, capture_output=True, text=True)
        print(f"kafkameta migrate-checkpoint: {done.stdout.strip().replace(folder, '...')}")

        write(range(5, 15))
        run("kafkameta", f"{folder}/new")

        rows = spark.read.parquet(f"{folder}/rows")
        total, different = rows.count(), rows.distinct().count()
        verdict = "nothing lost, nothing repeated" if total == different == 15 else "15 expected"
        print(f"the folder holds {total} rows, {different} different keys: {verdict}")
        spark.stop()


if __name__ == "__main__":
    main()
