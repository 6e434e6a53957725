"""Reads and exactly-once writes with Spark's settings of Python workers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.consumer import consume_committed

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.thorough]

PROGRAM = Path(__file__).with_name("own_client_query.py")
ROOT = Path(__file__).parents[2]
RECORDS = 100
HAS_SOCKETS = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 1)
SMALL_AND_WATCHED = {
    "spark.python.unix.domain.socket.enabled": str(HAS_SOCKETS).lower(),
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "7",
    "spark.sql.execution.arrow.maxBytesPerBatch": "200",
}
LIMITED_AND_NEW = {
    "spark.executor.pyspark.memory": "1536m",
    "spark.python.worker.reuse": "false",
    "spark.sql.execution.arrow.useLargeVarTypes": "true",
    "spark.python.profile": "true",
    "spark.sql.pyspark.udf.profiler": "perf",
    "spark.sql.pyspark.dataSource.profiler": "perf",
}


@pytest.mark.parametrize("settings", [SMALL_AND_WATCHED, LIMITED_AND_NEW], ids=["small batches", "limited memory"])
def test_rows_are_read_and_written_once(
    kafka: Any, make_topic: Callable[..., str], produce: Any, tmp_path: Path, settings: dict[str, str]
) -> None:
    source, copies, events = make_topic(3), make_topic(3), make_topic()
    values = sorted(map(str, range(RECORDS)))
    produce(source, values)
    confs = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    command = [str(Path(sys.executable).with_name("spark-submit")), *confs, str(PROGRAM)]
    done = subprocess.run(
        [*command, kafka.bootstrap_servers, source, copies, events, str(tmp_path / "checkpoint")],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=200,
    )

    assert f"copied: {values}" in done.stdout, (done.stdout + done.stderr)[-3000:]
    committed = consume_committed(kafka.bootstrap_servers, copies)
    assert sorted((message.value() or b"").decode() for message in committed) == values
