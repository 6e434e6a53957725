"""A query in processes of its own, `own_client_query.py`: its processes use the package's own client alone, and Spark's
settings of Python workers change nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyspark
import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.consumer import consume, consume_committed

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.thorough]

PROGRAM = Path(__file__).with_name("own_client_query.py")
ROOT = Path(__file__).parents[2]
REPORT = """
import os
with open(os.environ["IMPORTS_OF_CONFLUENT_KAFKA"], "a") as file:
    file.write(f"{os.getpid()} imported confluent_kafka\\n")
raise ImportError("a query imported confluent_kafka")
"""
VALUES = sorted(map(str, range(100)))


@pytest.fixture
def topics(make_topic: Callable[..., str], produce: Any) -> tuple[str, str, str]:
    """Of the source, which has the values, of the copies and of the events."""
    source = make_topic(3)
    produce(source, VALUES)
    return source, make_topic(3), make_topic()


def copy(command: Sequence[str | Path], *arguments: str, **environment: str) -> str:
    """What the program prints, run by this command."""
    given = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", **environment}
    done = subprocess.run(
        [*command, PROGRAM, *arguments], env={**os.environ, **given}, capture_output=True, text=True, timeout=200
    )
    assert f"copied: {VALUES}" in done.stdout, (done.stdout + done.stderr)[-3000:]
    return done.stdout


def test_no_process_of_a_query_imports_another_client(kafka: Any, topics: tuple[str, str, str], tmp_path: Path) -> None:
    source, copies, events = topics
    stub, imports = tmp_path / "stub", tmp_path / "imports"
    stub.mkdir()
    (stub / "confluent_kafka.py").write_text(REPORT)
    environment = {"PYTHONPATH": os.pathsep.join([str(stub), str(ROOT)]), "IMPORTS_OF_CONFLUENT_KAFKA": str(imports)}
    offsets = [TopicPartition(source, number) for number in range(3)]
    with closing(Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": copies})) as group:
        group.committed(offsets, timeout=60)  # the group has a coordinator: the query waits for it five seconds at most
        copy([sys.executable], kafka.bootstrap_servers, *topics, str(tmp_path / "checkpoint"), **environment)
        committed = group.committed(offsets, timeout=60)

    assert not imports.exists(), imports.read_text()
    assert sum(partition.offset for partition in committed if partition.offset > 0) == len(VALUES)
    told = b"".join(message.value() or b"" for message in consume(kafka.bootstrap_servers, events, "read_committed"))
    roles = {role for role in ("planner", "committer", "reader") if f'"role": "{role}"'.encode() in told}
    assert roles == {"planner", "committer", "reader"}


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
    kafka: Any, topics: tuple[str, str, str], tmp_path: Path, settings: dict[str, str]
) -> None:
    confs = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    command: list[str | Path] = [Path(sys.executable).with_name("spark-submit"), *confs]
    copy(command, kafka.bootstrap_servers, *topics, str(tmp_path / "checkpoint"))

    committed = consume_committed(kafka.bootstrap_servers, topics[1])
    assert sorted((message.value() or b"").decode() for message in committed) == VALUES


def test_kafkameta_python_starts_the_processes_of_a_query(
    kafka: Any, topics: tuple[str, str, str], tmp_path: Path
) -> None:
    python = tmp_path / "kafkameta-python"
    python.symlink_to(ROOT / "bin" / python.name)
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / "python").chmod(0o700)
    # PySpark prefers the second, which a session of other tests may have set.
    started = dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), str(python))
    arguments = kafka.bootstrap_servers, *topics, str(tmp_path / "checkpoint")

    output = copy([sys.executable], *arguments, **started)
    for role in ("planner", "reader", "writer"):
        assert f"{role} runs pyspark_kafka_meta.spark_python\n" in output, output
    assert "runs pyspark." not in output
