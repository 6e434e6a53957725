"""A Spark application that reads and writes with secrets in its options, and prints all that a user can see.

Tests start it as `python secret_queries.py FOLDER` with a JSON list of the options of each query on standard input. It
prints plans, errors, the command lines of the processes of this session, and the files in the folder that contain a
secret: before Spark stops, because Spark removes its files, and after, because Spark writes the end of its event log
last. All loggers are at DEBUG, except Py4J's, which logs each call.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import sys
import traceback
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

REDACTION = "spark.sql.redaction.options.regex"
REDACTED, BY_DEFAULT = "(?i)url|eventspath|keystore[.]key|user[.]info", "(?i)url"
"""The first is from SECURITY.md, the second Spark's."""
READ_ONLY = ("subscribe", "kafkaConsumer.pollTimeoutMs")
TOPIC = rb"{\"t\":"
"""In the event log, whose JSON has the JSON of offsets as text."""


def command_lines() -> str:
    """Of the processes of this session. Other sessions are those of other tests, which have secrets of their own."""
    lines = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.getsid(int(folder.name)) == os.getsid(0):
                lines.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return "\n".join(lines)


def plans(rows: DataFrame) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        rows.explain(True)
        rows.explain("formatted")
    return printed.getvalue() + repr(rows)


def batch(spark: SparkSession, options: dict[str, str]) -> str:
    rows = spark.read.format("kafkameta").options(**options).load()
    return plans(rows) + f"\n{rows.count()} rows\n" + command_lines()


def stream(spark: SparkSession, options: dict[str, str], checkpoint: Path) -> str:
    rows = spark.readStream.format("kafkameta").options(**options, startingOffsets="earliest").load()
    sink = rows.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = sink.trigger(availableNow=True).start()
    query.awaitTermination(120)
    return plans(rows) + str(query.lastProgress) + str(query.exception()) + str(query.status)


def shown_by_default(spark: SparkSession, options: dict[str, str]) -> set[str]:
    """The options with a secret that the plan of a stream shows without the redaction that SECURITY.md recommends."""
    spark.conf.set(REDACTION, BY_DEFAULT)
    try:
        shown = plans(spark.readStream.format("kafkameta").options(**options).load())
    except Exception:  # refused options, or schemas that cannot be read: there is no plan
        shown = ""
    spark.conf.set(REDACTION, REDACTED)
    return {name for name, text in options.items() if "canary" in text and text in shown}


def sink_options(options: dict[str, str]) -> dict[str, str]:
    """To write to topic t what a query with these options reads."""
    shared = {name: text for name, text in options.items() if name not in READ_ONLY}
    return shared | {"topic": "t", "kafka.max.block.ms": options["kafka.default.api.timeout.ms"]}


def write(spark: SparkSession, options: dict[str, str]) -> str:
    rows = spark.range(2).selectExpr("'v' AS value")
    rows.write.format("kafkameta").options(**sink_options(options)).mode("append").save()
    return "2 rows written\n" + command_lines()


def copy(spark: SparkSession, options: dict[str, str], checkpoint: Path) -> str:
    """A stream that appends the records of its topic to the same topic, once."""
    rows = spark.readStream.format("kafkameta").options(**options, startingOffsets="earliest").load().select("value")
    sink = rows.writeStream.format("kafkameta").options(**sink_options(options))
    query = sink.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination(120)
    copied = sum(progress.sink.numOutputRows for progress in query.recentProgress)
    return f"{copied} rows copied\n" + str(query.lastProgress) + str(query.status)


def files_with(folder: Path, text: bytes) -> list[str]:
    return [str(path) for path in folder.rglob("*") if path.is_file() and text in path.read_bytes()]


def main(folder: Path) -> None:
    logging.getLogger("py4j").setLevel(logging.INFO)
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    for name, place in (
        ("spark.local.dir", "local"),
        ("spark.eventLog.dir", "log"),
        ("spark.sql.warehouse.dir", "sql"),
    ):
        (folder / place).mkdir()
        builder = builder.config(name, str(folder / place))
    builder = builder.config(REDACTION, REDACTED)
    builder = builder.config("spark.eventLog.enabled", "true").config("spark.eventLog.compress", "false")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("INFO")
    secrets = set[str]()
    for number, options in enumerate(json.load(sys.stdin)):
        for use in (batch, write):
            try:
                sys.stdout.write(use(spark, options))
                if number < 2 and use is batch:
                    sys.stdout.write(stream(spark, options, folder / f"checkpoint-{number}"))
                if (number, use) == (1, write):
                    sys.stdout.write(copy(spark, options, folder / "copied"))
            except Exception as error:
                sys.stdout.write(f"{use.__name__} failed: " + "".join(traceback.format_exception(error)) + repr(error))
        secrets |= shown_by_default(spark, options)
    sys.stdout.write(f"secrets in the plans of streams: {sorted(secrets)}\n")
    found = files_with(folder, b"canary")
    spark.stop()
    sys.stdout.write(f"files with a secret: {found + files_with(folder, b'canary')}\n")
    sys.stdout.write(f"files of the event log with the topic: {len(files_with(folder / 'log', TOPIC))}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
