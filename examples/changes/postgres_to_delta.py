"""Keep a Delta table equal to a table of PostgreSQL, through Debezium and Kafka, all started by one command.

    python examples/changes/postgres_to_delta.py

Needs PostgreSQL's programs and Java 17; the first time it downloads Kafka, Kafka Connect, Debezium and Delta (150 MB).
With a PySpark that Delta does not support yet, a dictionary takes the place of the table. You will see:

    PostgreSQL has
    1|green tea|4.75
    3|cocoa|2.00
    the copy has
    1|green tea|4.75
    3|cocoa|2.00
"""

from __future__ import annotations

import os
import sys
import tempfile
from functools import partial

import pyspark
from connect import Connect, postgres_connector
from postgres import Postgres
from pyspark.sql import DataFrame, SparkSession

from pyspark_kafka_meta import apply_changes
from pyspark_kafka_meta.testing import ClusterError, LocalKafka

RELEASE = ".".join(pyspark.__version__.split(".")[:2])
HAS_DELTA = RELEASE in ("4.0", "4.1", "4.2")
DELTA: dict[str, bool | float | int | str | None] = {
    "spark.jars.packages": f"io.delta:delta-spark_{RELEASE}_2.13:4.4.0",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
SMALL: dict[str, bool | float | int | str | None] = {
    "spark.sql.shuffle.partitions": 2,
    "spark.databricks.delta.snapshotPartitions": 2,
    "spark.ui.showConsoleProgress": False,
}
"""For few rows."""
CREATE = "CREATE TABLE drinks (id integer PRIMARY KEY, name text, price numeric(8,2))"
SNAPSHOT = "INSERT INTO drinks VALUES (1, 'tea', 4.50), (2, 'coffee', 3.00)"
CHANGES = (
    "UPDATE drinks SET name = 'green tea', price = 4.75 WHERE id = 1",
    "DELETE FROM drinks WHERE id = 2",
    "INSERT INTO drinks VALUES (3, 'cocoa', 2.00)",
)
ROWS = "SELECT id || '|' || name || '|' || price FROM {} ORDER BY id"
"""In PostgreSQL and in Spark."""


def main() -> None:
    try:
        with Postgres() as postgres, LocalKafka(brokers=1) as kafka, Connect(kafka.bootstrap_servers) as connect:
            with postgres.session() as database:
                database.execute(f"{CREATE}; {SNAPSHOT}")
                connect.put("shop", postgres_connector(postgres.port, "shop", "public.drinks"))
                for change in CHANGES:
                    database.execute(change)
                database.wait_until_sent()
                print("PostgreSQL has", *database.execute(ROWS.format("drinks")), sep="\n")
            copy(kafka.bootstrap_servers)
    except ClusterError as error:  # such as: PostgreSQL is missing
        raise SystemExit(str(error)) from None


def copy(servers: str) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # which has the package, unlike the PATH's, perhaps
    builder = SparkSession.builder.appName("changes").config(map=SMALL)
    spark = (builder.config(map=DELTA) if HAS_DELTA else builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    changes = (
        spark.readStream.format("kafkameta")
        .options(changes="debezium", valueFormat="connect-json", startingOffsets="earliest")
        .options(**{"kafka.bootstrap.servers": servers, "subscribe": "shop.public.drinks"})
        .load()
    )
    with tempfile.TemporaryDirectory(prefix="kafkameta-changes-") as folder:  # keep it to continue at the next start
        table = f"delta.`{folder}/drinks`"
        kept: dict[int, str] = {}
        target = table if HAS_DELTA else partial(keep, kept=kept)
        once = {"availableNow": True}
        apply_changes(changes, target, checkpoint=f"{folder}/checkpoint", trigger=once).awaitTermination()
        found = [row[0] for row in spark.sql(ROWS.format(table)).collect()] if HAS_DELTA else sorted(kept.values())
    spark.stop()
    print("the copy has", *found, sep="\n")


def keep(batch: DataFrame, _: int, kept: dict[int, str]) -> None:
    """The newest change of each key in a micro-batch."""
    for row in batch.collect():
        if row["_change"]["deleted"]:
            kept.pop(row["id"], None)
        else:
            kept[row["id"]] = f"{row['id']}|{row['name']}|{row['price']}"


if __name__ == "__main__":
    main()
