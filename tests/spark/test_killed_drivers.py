"""A driver is killed again and again at random moments of a rate-limited stream: the sink holds each record once."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

KILLS = int(os.environ.get("KAFKAMETA_KILLS", "5"))
SEED = 20
DRIVER = """
import sys
from pyspark.sql import SparkSession

servers, topic, folder, trigger = sys.argv[1:]
settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1", "spark.local.dir": folder + "/spark"}
spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
source = spark.readStream.format("kafkameta").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
rows = source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "40").load()
sink = rows.selectExpr("CAST(value AS STRING) AS value", "partition", "offset").writeStream.format("parquet")
sink = sink.option("path", folder + "/rows").option("checkpointLocation", folder + "/checkpoint")
query = sink.trigger(availableNow=True) if trigger == "to the end" else sink.trigger(processingTime="0 seconds")
query = query.start()
print("begun", flush=True)
query.awaitTermination()
"""


class Driver:
    """A Spark driver in a session of its own, its JVM and Python workers with it."""

    def __init__(self, kafka: Any, topic: str, folder: Path, trigger: str) -> None:
        arguments = [sys.executable, "-c", DRIVER, kafka.bootstrap_servers, topic, str(folder), trigger]
        # What a killed process leaves of its temporary files goes with the test's folder.
        java = f"-Djava.io.tmpdir={folder} -XX:-UsePerfData"
        environment = {**os.environ, "TMPDIR": str(folder), "JAVA_TOOL_OPTIONS": java}
        # Python workers have a process group of their own; a session holds all.
        self.process = subprocess.Popen(
            arguments,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            env=environment,
        )

    def wait_until_begun(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "begun\n", "the driver ended before its query began"

    def kill(self, wait_for: Any) -> None:
        """The whole session at once, as the end of a machine or container would."""
        wait_for(lambda: not kill_session(self.process.pid))
        self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()


def kill_session(session: int) -> list[int]:
    """Kill what runs of a session, by Linux's /proc, and return its pids; the JVM first, for it starts workers."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended meanwhile
            name, _, rest = (folder / "stat").read_text().rpartition(")")
            state, _, _, its_session = rest.split()[:4]
            if int(its_session) == session and state != "Z":
                found.append((not name.endswith("(java"), int(folder.name)))
    for _, pid in sorted(found):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return [pid for _, pid in found]


@pytest.mark.timeout(300 + 180 * KILLS)
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds the driver's processes in /proc")
def test_killed_drivers_cost_no_record_and_repeat_none(
    spark: SparkSession, kafka: Any, topic: str, produce: Any, wait_for: Any, tmp_path: Path
) -> None:
    def logged(log: str) -> int:
        """Micro-batches in one of the checkpoint's logs: offsets, once planned; commits, once done."""
        return sum(file.name.isdecimal() for file in (tmp_path / "checkpoint" / log).glob("*"))

    chance = random.Random(SEED)
    expected = []
    unfinished = 0
    for number in range(KILLS):
        values = [f"{number}-{each}" for each in range(240)]
        produce(topic, values)
        expected += values
        driver = Driver(kafka, topic, tmp_path, "until killed")
        try:
            driver.wait_until_begun()
            # Up to two more batches and a second: 240 new records in batches of 40 are enough for that.
            wanted = logged("offsets") + chance.randrange(3)
            wait_for(lambda wanted=wanted: logged("offsets") >= wanted, timeout_s=120)
            with pytest.raises(subprocess.TimeoutExpired):  # unless it ended by itself
                driver.process.wait(chance.uniform(0, 1))
        finally:
            driver.kill(wait_for)
        unfinished += logged("offsets") > logged("commits")
    assert unfinished, "no driver was killed within a micro-batch, so nothing was tried"
    last = Driver(kafka, topic, tmp_path, "to the end")
    try:
        assert last.process.wait(300) == 0
    finally:
        last.kill(wait_for)
    rows = spark.read.parquet(str(tmp_path / "rows"))
    assert Counter(row.value for row in rows.collect()) == Counter(expected)
    assert rows.select("partition", "offset").distinct().count() == len(expected)
