"""The driver of a query that keeps a copy of a table, in SQLite, by `apply_changes`: a process that tests kill.

python -m tests.changes.copy_table BOOTSTRAP_SERVERS TOPIC FOLDER [available-now]
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import threading
from collections.abc import Iterable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from benchmarks.processes import kill_session
from pyspark_kafka_meta import apply_changes
from tests.changes.random_changes import ADDED, COLUMNS

COPY = "copy.sqlite"
SETTINGS: dict[str, bool | float | int | str | None] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": 1,
    "spark.ui.enabled": False,
    "spark.log.level": "ERROR",
}


def apply(rows: DataFrame, _: int, file: Path) -> None:
    """All rows of a micro-batch in one transaction."""
    known = {name: column for name, column in {**COLUMNS, **ADDED}.items() if name in rows.columns}
    values = [F.expr(column.spark.format(f"`{name}`")).alias(name) for name, column in known.items()]
    change = [F.col(f"_change.{name}").alias(f"_{name}") for name in ("op", "deleted", "unavailable")]
    found = rows.select("id", *change, *values).collect()
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("CREATE TABLE IF NOT EXISTS copy (id INTEGER PRIMARY KEY, row TEXT)")
        if any(row["_op"] == "t" for row in found):
            database.execute("DELETE FROM copy")
        put(database, [row for row in found if row["_op"] != "t"], known)


def put(database: sqlite3.Connection, rows: Iterable[Row], names: Iterable[str]) -> None:
    for row in rows:
        if row["_deleted"]:
            database.execute("DELETE FROM copy WHERE id = ?", [row["id"]])
            continue
        (kept,) = database.execute("SELECT row FROM copy WHERE id = ?", [row["id"]]).fetchone() or ["{}"]
        sent = {name: row[name] for name in names if name not in (row["_unavailable"] or ())}
        database.execute("REPLACE INTO copy VALUES (?, ?)", [row["id"], json.dumps(json.loads(kept) | sent)])


def lines(folder: Path, names: Iterable[str]) -> list[str]:
    """As those of `random_changes.select`."""
    with closing(sqlite3.connect(folder / COPY)) as database:
        rows = [(key, json.loads(text)) for key, text in database.execute("SELECT id, row FROM copy")]
    return [json.dumps([key, *(row.get(name) for name in names)]) for key, row in rows]


def main(servers: str, topic: str, folder: Path, trigger: dict[str, bool | str]) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master("local[1]").config(map=SETTINGS).getOrCreate()
    cluster = {"kafka.bootstrap.servers": servers, "subscribe": topic}
    rows = {"changes": "debezium", "valueFormat": "connect-json", "onTruncate": "row", "startingOffsets": "earliest"}
    rows["valueSchema"] = newest_schema(spark, cluster)
    changes = spark.readStream.format("kafkameta").options(**cluster, **rows, maxOffsetsPerTrigger=2000).load()
    target = partial(apply, file=folder / COPY)
    query = apply_changes(changes, target, checkpoint=str(folder / "checkpoint"), keys=["id"], trigger=trigger)
    query.awaitTermination()


def newest_schema(spark: SparkSession, cluster: Mapping[str, str]) -> str:
    """After a restart with a new column the query fails, unless the schema is chosen."""
    last = spark.read.format("kafkameta").options(**cluster, startingOffsets="-1000")
    newest = None
    while newest is None:  # compaction has removed all of them, as the same keys came after them meanwhile
        changes = last.load().where("value IS NOT NULL")
        ((newest,),) = changes.selectExpr("max_by(CAST(value AS STRING), offset)").collect()
    return json.dumps(json.loads(newest)["schema"])


def end_with_parent() -> None:
    """Kill the session of this process once its standard input ends, as that of a killed parent does."""
    sys.stdin.read()
    kill_session(os.getsid(0))


if __name__ == "__main__":
    threading.Thread(target=end_with_parent, daemon=True).start()
    servers, topic, folder, *once = sys.argv[1:]
    main(servers, topic, Path(folder), {"availableNow": True} if once else {"processingTime": "0 seconds"})
