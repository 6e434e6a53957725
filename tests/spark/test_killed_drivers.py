"""A driver is killed repeatedly at random moments of a rate-limited stream: the sink has each record once."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from benchmarks.processes import kill_session
from tests.spark.killed_driver import start
from tests.spark.traces import logged, run_to_the_end

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.thorough]

KILLS = int(os.environ.get("KAFKAMETA_KILLS", "3"))
SEED = 20


class Driver:
    """A Spark driver with its JVM and Python workers in a new session."""

    def __init__(
        self, kafka: Any, topic: str, folder: Path, *arguments: str, program: str = "killed_driver.py"
    ) -> None:
        command = [sys.executable, str(Path(__file__).parent / program)]
        # pytest removes the temporary files of killed processes with the test's folder.
        java = f"-Djava.io.tmpdir={folder} -XX:-UsePerfData"
        environment = {**os.environ, "TMPDIR": str(folder), "JAVA_TOOL_OPTIONS": java}
        # Python workers have their own process group, but the same session.
        self.process = subprocess.Popen(
            [*command, kafka.bootstrap_servers, topic, str(folder), *arguments],
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
        """Kill the whole session at once, as the end of a machine or container would."""
        wait_for(lambda: not kill_session(self.process.pid))
        self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.mark.timeout(300 + 180 * KILLS)
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds the driver's processes in /proc")
def test_killed_drivers_cost_no_record_and_repeat_none(
    spark: SparkSession, kafka: Any, topic: str, produce: Any, wait_for: Any, tmp_path: Path
) -> None:
    chance, checkpoint = random.Random(SEED), tmp_path / "checkpoint"
    expected = []
    unfinished = 0
    for number in range(4 * KILLS):
        if number >= KILLS and unfinished:
            break
        values = [f"{number}-{value}" for value in range(240)]
        produce(topic, values)
        expected += values
        driver = Driver(kafka, topic, tmp_path)
        try:
            driver.wait_until_begun()
            # Up to two more batches and a second: 240 new records in batches of 40 are enough for that.
            wanted = logged(checkpoint, "offsets") + chance.randrange(3)
            wait_for(lambda wanted=wanted: logged(checkpoint, "offsets") >= wanted, timeout_s=120)
            with pytest.raises(subprocess.TimeoutExpired):  # the driver must still run
                driver.process.wait(chance.uniform(0, 1))
        finally:
            driver.kill(wait_for)
        unfinished += logged(checkpoint, "offsets") > logged(checkpoint, "commits")
    assert unfinished, "no driver was killed within a micro-batch: the test has shown nothing"
    run_to_the_end(lambda: start(spark, kafka.bootstrap_servers, topic, tmp_path, availableNow=True), checkpoint)
    rows = spark.read.parquet(str(tmp_path / "rows"))
    assert Counter(row.value for row in rows.collect()) == Counter(expected)
    assert rows.select("partition", "offset").distinct().count() == len(expected)
