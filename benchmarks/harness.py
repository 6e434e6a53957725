"""What every benchmark of Spark reads needs: brokers, a Spark session, its arguments, and a table with its results."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from benchmarks.jvm_source import jvm_source_jars
from pyspark_kafka_meta.testing import LocalKafka

FILE_WIDTH = 160
"""Of a table that goes to a file or a pipe, which tell none."""


@contextmanager
def brokers() -> Iterator[str]:
    """The bootstrap servers of a real three-broker Kafka: KAFKAMETA_BOOTSTRAP_SERVERS, or a new LocalKafka."""
    given = os.environ.get("KAFKAMETA_BOOTSTRAP_SERVERS")
    if given:
        yield given
        return
    with LocalKafka() as kafka:
        yield kafka.bootstrap_servers


@contextmanager
def spark_session(
    master: str = "local[2]", more_jars: Sequence[Path] = (), settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session with local cores, default settings but for `settings`, and the JVM source's jars and others on the
    class path."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    spark = (
        SparkSession.builder.master(master)
        .appName("kafkameta benchmark")
        .config("spark.jars", ",".join(map(str, [*jvm_source_jars(), *more_jars])))
        .config("spark.driver.memory", "3g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config(map=dict(settings or {}))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def installed_environment(folder: Path) -> dict[str, str]:
    """The environment of a process that imports the package from the checkout in `folder` as if it were installed:
    modules are compiled, by the first such process."""
    return {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": ""}


def argument_parser(description: str | None, **defaults: int) -> argparse.ArgumentParser:
    """A parser with a numeric option for each of `defaults`, and `--json`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"default: {value}")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    return parser


def report(title: str, rows: Sequence[Mapping[str, object]], json_file: Path | None) -> None:
    """Print the rows as a table with their keys as columns, and write them to the JSON file, if any."""
    table = Table(*(name.replace("_", " ") for name in rows[0]), title=title)
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console(width=None if sys.stdout.isatty() else FILE_WIDTH).print(table)
    if json_file:
        json_file.write_text(json.dumps(rows, indent=2))
