"""`apply_changes` into tables of Delta and Iceberg, with the installed release of pyspark: `make compat`.

Tables equal the database through repeated batches, a column that is added, a truncate, and a row that is missing; so
does a table whose columns are all of the key.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pyspark
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from pyspark_kafka_meta import apply_changes
from pyspark_kafka_meta.errors import SchemaError
from pyspark_kafka_meta.testing.maven_jars import resolve_jars
from tests.spark.change_histories import (
    KEYS,
    LARGE,
    WITH_NULL_KEYS,
    Change,
    Table,
    applied,
    as_table,
    comparable,
    history,
    rows,
)
from tests.spark.test_streaming import forget_last_commit

RELEASE = ".".join(pyspark.__version__.split(".")[:2])
FORMATS = {
    "delta": (f"io.delta:delta-spark_{RELEASE}_2.13:4.4.0", ("4.0", "4.1", "4.2")),
    "iceberg": (f"org.apache.iceberg:iceberg-spark-runtime-{RELEASE}_2.13:1.11.0", ("4.0", "4.1")),
}
"""The jar, and the releases of Spark that it supports."""
EXTENSIONS = {
    "delta": "io.delta.sql.DeltaSparkSessionExtension",
    "iceberg": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
}
CATALOGS = {
    "delta": {
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "2",
    },
    "iceberg": {
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
    },
}
HISTORIES = 50
ADDED = ("*", "'new' AS added")
KEY_ALONE = (*KEYS, "_change")
"""Of a table that joins two others."""
KEY, OTHER_KEY = (0, "a"), (0, "c")
OLD, NEW = (1, "old", [0.0]), (2, "new", None)


def main() -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    formats = [name for name, (_, releases) in FORMATS.items() if RELEASE in releases]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        spark = session(formats, Path(folder))
        try:
            for name in formats:
                table = f"delta.`{folder}/table`" if name == "delta" else "lake.shop.table"
                Copy(spark, Path(folder) / name, name, table).run()
                Copy(spark, Path(folder) / f"{name}-2", name, table.replace("table", "other")).begin_without_a_row()
                Copy(spark, Path(folder) / f"{name}-3", name, table.replace("table", "join")).run_with_a_key_alone()
        finally:
            spark.stop()
    print(f"pyspark {pyspark.__version__}: tables of {' and '.join(formats) or 'no format'} equal the database")  # noqa: T201


def session(formats: Sequence[str], folder: Path) -> SparkSession:
    jars = chain.from_iterable(resolve_jars([FORMATS[name][0]]) for name in formats)
    settings: dict[str, bool | float | int | str | None] = {
        "spark.jars": ",".join(map(str, jars)),
        "spark.sql.extensions": ",".join(EXTENSIONS[name] for name in formats),
        "spark.sql.catalog.lake.warehouse": str(folder / "lake"),
        "spark.sql.shuffle.partitions": 2,
        "spark.ui.enabled": False,
        "spark.ui.showConsoleProgress": False,
        "spark.log.level": "ERROR",
    }
    for name in formats:
        settings |= CATALOGS[name]
    return SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()


class Copy:
    """A table of a format, and the files of changes that a stream applies to it."""

    def __init__(self, spark: SparkSession, folder: Path, table_format: str, table: str) -> None:
        self._spark, self._folder, self._format, self._table = spark, folder, table_format, table
        self._sent = 0

    def run(self) -> None:
        histories = [history(number) for number in range(HISTORIES)]
        cuts = [random.Random(number).randint(0, len(changes)) for number, (_, changes) in enumerate(histories)]
        pairs = list(zip(cuts, histories, strict=True))
        first = list(chain.from_iterable(changes[:cut] for cut, (_, changes) in pairs))
        self.receive(first)
        self.equals(applied({}, first))
        self.receive(list(chain.from_iterable(changes[cut:] for cut, (_, changes) in pairs)))
        self.equals({key: row for table, _ in histories for key, row in table.items()})
        try:
            self.receive([], ADDED)
        except SchemaError:
            self.receive([Change("u", KEY, OLD)], ADDED, add_columns=True)
        assert self._spark.table(self._table).where("added = 'new'").count() == 1
        self.receive([Change("u", KEY, OLD), Change("t", (0, "")), Change("c", OTHER_KEY, NEW)], ADDED)
        self.equals({OTHER_KEY: NEW})

    def begin_without_a_row(self) -> None:
        """Whose values that were not sent are lost."""
        try:
            self.receive([Change("c", OTHER_KEY, NEW), Change("u", KEY, OLD, LARGE)])
        except StreamingQueryException as error:
            assert "1 changes lack" in str(error), error
        self.equals({})
        self.receive([], on_lost_value="null")
        self.equals({OTHER_KEY: NEW, KEY: (OLD[0], None, None)})

    def run_with_a_key_alone(self) -> None:
        self.receive([Change("c", KEY), Change("c", OTHER_KEY)], KEY_ALONE)
        self.receive([Change("u", OTHER_KEY), Change("d", KEY)], KEY_ALONE)
        found = [tuple(row) for row in self._spark.table(self._table).collect()]
        assert found == [OTHER_KEY], f"{self._format}: {found}"

    def receive(self, changes: Sequence[Change], columns: Sequence[str] = ("*",), **options: Any) -> None:
        """Apply the changes, and the last of them again, as after a crash."""
        batch = self._spark.createDataFrame(rows(changes, self._sent), WITH_NULL_KEYS).selectExpr(*columns)
        batch.coalesce(1).write.mode("append").parquet(str(self._folder / "topic"))
        self._sent += len(changes)
        for _ in range(2):
            stream = self._spark.readStream.schema(batch.schema).parquet(str(self._folder / "topic"))
            query = apply_changes(
                stream,
                self._table,
                checkpoint=str(self._folder / "checkpoint"),
                keys=KEYS,
                table_format=self._format,
                trigger={"availableNow": True},
                **options,
            )
            assert query.awaitTermination(300), "the query did not end"
            forget_last_commit(self._folder / "checkpoint")

    def equals(self, expected: Table) -> None:
        found, wanted = comparable(as_table(self._spark.table(self._table).collect())), comparable(expected)
        assert found == wanted, f"{self._format}: {sorted(found.items() ^ wanted.items())}"


if __name__ == "__main__":
    main()
