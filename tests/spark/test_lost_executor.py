"""An executor is killed under a running stream: another takes its tasks, and nothing is lost or repeated."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).parent.parent.parent

# Reads until the end of its input says that there is nothing more to come.
APPLICATION = """
import sys
from pyspark.sql import SparkSession

servers, topic, folder = sys.argv[1:]
spark = SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.ui.enabled", "false").getOrCreate()
source = spark.readStream.format("kafkameta").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
source = source.option("startingOffsets", "earliest").option("metricsPath", folder + "/events")
sink = source.load().selectExpr("CAST(value AS STRING) AS value").writeStream.format("parquet")
query = sink.option("path", folder + "/rows").option("checkpointLocation", folder + "/checkpoint").start()
sys.stdin.read()
query.processAllAvailable()
query.stop()
"""


def reader_events(folder: Path) -> list[dict[str, Any]]:
    events = [json.loads(line) for file in folder.glob("*.jsonl") for line in file.read_text().splitlines()]
    return [event for event in events if event["role"] == "reader"]


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.skipif(sys.platform != "linux", reason="finds the executor of a worker in /proc")
def test_a_killed_executor_costs_no_record_and_repeats_none(
    spark: SparkSession, kafka: Any, topic: str, produce: Any, wait_for: Any, spark_home: Path, tmp_path: Path
) -> None:
    expected: list[str] = []

    def written_and_read_by(executors: int) -> list[dict[str, Any]]:
        """Writes some more records; the readers' events, once that many executors have read."""
        values = [str(len(expected) + number) for number in range(60)]
        produce(topic, values)
        expected.extend(values)
        events = reader_events(tmp_path / "events")
        return events if len({event["executor_id"] for event in events}) >= executors else []

    environment = {**os.environ, "SPARK_HOME": str(spark_home), "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT)}
    environment["PYSPARK_PYTHON"] = sys.executable
    command = [sys.executable, "-c", APPLICATION, kafka.bootstrap_servers, topic, str(tmp_path)]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as application:
        try:
            killed, *_ = wait_for(lambda: written_and_read_by(executors=2), timeout_s=120)
            daemon = parent(killed["pid"])
            os.kill(parent(daemon), signal.SIGKILL)  # the executor's JVM
            wait_for(lambda: written_and_read_by(executors=3), timeout_s=120)
            _, errors = application.communicate(timeout=120)
        finally:
            application.kill()
    assert application.returncode == 0, errors.decode()[-2000:]

    rows = spark.read.parquet(str(tmp_path / "rows")).collect()
    assert Counter(row.value for row in rows) == Counter(expected)
    died = {cache for event in reader_events(tmp_path / "events") for cache in event["died_cache_ids"]}
    assert killed["cache_id"] in died, "a cache that is born later reports it"
