"""The origin of events, as far as Spark gives it to a Python worker."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import pytest
from pyspark import TaskContext

from pyspark_kafka_meta.events.event import Origin, Role
from pyspark_kafka_meta.events.origin import committer_origin, driver_pid, planner_origin, task_origin

STREAM = {"spark.app.id": "app-1", "sql.streaming.queryId": "q-1", "streaming.sql.batchId": "12"}


@dataclass(frozen=True)
class FakeTask:
    """The part of a TaskContext that `task_origin` uses."""

    properties: dict[str, str]

    def getLocalProperty(self, key: str) -> str | None:  # noqa: N802
        return self.properties.get(key)

    def stageId(self) -> int:  # noqa: N802
        return 3

    def partitionId(self) -> int:  # noqa: N802
        return 5

    def attemptNumber(self) -> int:  # noqa: N802
        return 1


@pytest.fixture(autouse=True)
def outside_of_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_LOG_URL_STDERR", raising=False)


def fake_files(content: Mapping[str, str]) -> Callable[[Path], str]:
    """Replaces `Path.read_text`: only these files exist."""

    def read_text(path: Path) -> str:
        if str(path) not in content:
            raise FileNotFoundError(path)
        return content[str(path)]

    return read_text


def run_task(monkeypatch: pytest.MonkeyPatch, properties: dict[str, str], role: Role = Role.READER) -> Origin:
    monkeypatch.setattr(TaskContext, "get", lambda: FakeTask(properties))
    return task_origin(role)


@pytest.mark.parametrize("role", [Role.READER, Role.WRITER])
def test_origin_of_a_stream_task_is_complete(monkeypatch: pytest.MonkeyPatch, role: Role) -> None:
    assert run_task(monkeypatch, STREAM, role) == Origin(
        role=role,
        application_id="app-1",
        executor_id="driver",
        host=socket.gethostname(),
        pid=os.getpid(),
        query_id="q-1",
        batch_id=12,
        stage_id=3,
        task_partition_id=5,
        task_attempt=1,
    )


@pytest.mark.parametrize("batch_id", [None, "", "-1", "x"])
def test_batch_query_has_no_query_and_no_batch_id(monkeypatch: pytest.MonkeyPatch, batch_id: str | None) -> None:
    origin = run_task(monkeypatch, {} if batch_id is None else {"streaming.sql.batchId": batch_id})

    assert (origin.application_id, origin.query_id, origin.batch_id) == (None, None, None)


def test_task_without_a_context_runs_in_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskContext, "get", lambda: None)
    assert task_origin(Role.READER) == replace(planner_origin(), role=Role.READER)


def test_planner_runs_beside_the_driver() -> None:
    assert planner_origin() == Origin(
        role=Role.PLANNER, executor_id="driver", host=socket.gethostname(), pid=os.getpid()
    )


@pytest.mark.parametrize("ids", [("q-1", 12), (None, None)])
def test_committer_knows_the_query_of_a_micro_batch(ids: tuple[str | None, int | None]) -> None:
    origin = committer_origin(*ids)

    assert (origin.role, origin.executor_id) == (Role.COMMITTER, "driver")
    assert (origin.query_id, origin.batch_id) == ids


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://host:8081/logPage/?appId=app-1&executorId=42&logType=stderr", "42"),
        ("http://host/logs?executorId=driver", "driver"),
        ("http://host/node/containerlogs/container_1/user/stderr", "driver"),
        ("", "driver"),
    ],
)
def test_executor_id_comes_from_the_managers_log_url(monkeypatch: pytest.MonkeyPatch, url: str, expected: str) -> None:
    monkeypatch.setenv("SPARK_LOG_URL_STDERR", url)

    assert run_task(monkeypatch, STREAM).executor_id == expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("java\0org.apache.spark.executor.CoarseGrainedExecutorBackend\0--executor-id\0008\0--cores\0001\0", "8"),
        ("java\0org.apache.spark.deploy.SparkSubmit\0pyspark-shell\0", "driver"),
        ("java\0--executor-id", "driver"),
        (None, None),
    ],
)
def test_executor_id_comes_from_the_command_line_of_the_executor(
    monkeypatch: pytest.MonkeyPatch, command: str | None, expected: str | None
) -> None:
    parent = f"/proc/{os.getppid()}"
    files = {f"{parent}/stat": "11 (python (daemon)) S 77 11 11 0 -1", f"{parent}/cmdline": "python\0-m\0daemon\0"}
    if command is not None:
        files["/proc/77/cmdline"] = command
    monkeypatch.setattr(Path, "read_text", fake_files(files))

    assert run_task(monkeypatch, STREAM).executor_id == expected


def test_executor_id_comes_from_an_executor_that_starts_workers_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    parent = f"/proc/{os.getppid()}"
    files = {f"{parent}/stat": "1 (java) S 0 11 11 0 -1"}  # in a container the JVM may be the first process
    files[f"{parent}/cmdline"] = "java\0CoarseGrainedExecutorBackend\0--executor-id\0008\0"
    monkeypatch.setattr(Path, "read_text", fake_files(files))

    assert run_task(monkeypatch, STREAM).executor_id == "8"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python\0-m\0pyspark.daemon\0", 77),
        ("java\0org.apache.spark.deploy.SparkSubmit\0", os.getppid()),
        (None, os.getppid()),
    ],
)
def test_driver_is_parent_of_a_planner(monkeypatch: pytest.MonkeyPatch, command: str | None, expected: int) -> None:
    parent = f"/proc/{os.getppid()}"
    files = {f"{parent}/stat": "11 (python (daemon)) S 77 11 11 0 -1"}
    if command is not None:
        files[f"{parent}/cmdline"] = command
    monkeypatch.setattr(Path, "read_text", fake_files(files))

    assert driver_pid() == expected


def test_in_sail_the_driver_is_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pysail", ModuleType("pysail"))
    assert driver_pid() == os.getpid()
