"""Queries in an application whose Python processes `kafkameta-python` starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.thorough, pytest.mark.timeout(400)]

ROOT = Path(__file__).parent.parent.parent
RECORDS = 50
PROGRAM = """
import json, sys
from pathlib import Path
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, udf

servers, topic, target, folder = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
cluster = {"kafka.bootstrap.servers": servers, "eventsPath": folder + "/events"}

def read(name):
    return spark.read.format("kafkameta").options(**cluster, subscribe=name, minPartitions="4").load()

rows = spark.readStream.format("kafkameta").options(**cluster, subscribe=topic, startingOffsets="earliest").load()
sink = rows.select("value").writeStream.format("kafkameta").options(**cluster, topic=target)
sink = sink.option("kafka.transactional.id", target).option("checkpointLocation", folder + "/checkpoint")
assert sink.trigger(availableNow=True).start().awaitTermination(120)
read_count = read(topic).count()
lengths = read(target).select(udf(len, "int")(col("value")).alias("length")).where("length > 0").count()
events = [json.loads(line) for file in Path(folder, "events").glob("*.jsonl") for line in file.read_text().splitlines()]
modules = {}
for event in events:
    process = Path(f"/proc/{event['pid']}/cmdline")
    if process.exists():
        modules[event["role"]] = process.read_text().split(chr(0))[2]
print(json.dumps([read_count, lengths, modules]))
"""


def test_batches_streams_and_exactly_once_writes_work(
    kafka: Any, make_topic: Callable[..., str], produce: Callable[..., Any], tmp_path: Path
) -> None:
    topic, target = make_topic(partitions=2), make_topic(partitions=2)
    produce(topic, [str(number) for number in range(RECORDS)])
    python = tmp_path / "kafkameta-python"
    python.symlink_to(ROOT / "bin" / python.name)
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / "python").chmod(0o700)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),  # which Spark prefers, and which a session of other tests may have set
        "PYSPARK_SUBMIT_ARGS": "--master local[2] pyspark-shell",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [sys.executable, "-c", PROGRAM, kafka.bootstrap_servers, topic, target, str(tmp_path)]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=350)

    assert done.returncode == 0, done.stderr[-3000:]
    read, written, modules = json.loads(done.stdout)
    assert (read, written) == (RECORDS, RECORDS)
    assert {modules[role] for role in ("planner", "reader", "writer")} == {"pyspark_kafka_meta.spark_python"}
