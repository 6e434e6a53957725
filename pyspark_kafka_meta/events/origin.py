"""The origin of events: the Spark application, executor, query and task that this process works for.

The task's local properties contain all but the executor id, which comes from the environment that a cluster manager
sets, or from the command line of the executor that started the worker.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from pyspark_kafka_meta.events.event import Origin, Role

EXECUTOR_ID = "--executor-id"
"""Argument of an executor's JVM."""


def task_origin(role: Role) -> Origin:
    """The origin of the running task's events, which has this role. Tasks of Sail are threads of its driver, without a
    context."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return replace(planner_origin(), role=role)
    local_property = context.getLocalProperty
    return Origin(
        role=role,
        application_id=local_property("spark.app.id"),
        executor_id=_executor_id(),
        host=socket.gethostname(),
        pid=os.getpid(),
        query_id=local_property("sql.streaming.queryId"),
        batch_id=_number(local_property("streaming.sql.batchId")),
        stage_id=context.stageId(),
        task_partition_id=context.partitionId(),
        task_attempt=context.attemptNumber(),
    )


def planner_origin() -> Origin:
    """The origin of a planner's events. A planner runs beside the driver and knows no query."""
    return Origin(role=Role.PLANNER, executor_id="driver", host=socket.gethostname(), pid=os.getpid())


def committer_origin(query_id: str | None, batch_id: int | None) -> Origin:
    """The origin of a committer's events: it ends the transactions of micro-batches, or of batches without ids."""
    return replace(planner_origin(), role=Role.COMMITTER, query_id=query_id, batch_id=batch_id)


def cli_origin() -> Origin:
    """The origin of a command's events. A command belongs to no Spark application."""
    return Origin(role=Role.CLI, host=socket.gethostname(), pid=os.getpid())


def driver_name(jvm_pid: int | None = None) -> str:
    """Stands for the application in a planner, which does not know the application's id.

    Args:
        jvm_pid: of the driver's JVM; None in a planner, which finds it out.
    """
    return f"driver-{socket.gethostname()}-{driver_pid() if jvm_pid is None else jvm_pid}"


def driver_pid() -> int:
    """Process id of the driver's JVM, in a planner: the planner's parent, or the parent of its `pyspark.daemon`. Sail
    plans in its own process."""
    if "pysail" in sys.modules:
        return os.getpid()
    parent = os.getppid()
    try:
        return _parent_of(parent) if "pyspark.daemon" in _command_line(parent) else parent
    except (OSError, ValueError, IndexError):
        return parent


def _executor_id() -> str | None:
    match = re.search(r"[?&]executorId=([^&]+)", os.environ.get("SPARK_LOG_URL_STDERR", ""))
    if match:
        return match.group(1)
    # The parent is the JVM, or pyspark.daemon whose parent is the JVM. An executor's command line contains its id, a
    # driver's in local mode does not.
    pid = os.getppid()
    try:
        arguments = dict(pairwise(_command_line(pid)))
        if EXECUTOR_ID not in arguments:
            arguments = dict(pairwise(_command_line(_parent_of(pid))))
    except (OSError, ValueError, IndexError):  # no /proc, as on macOS, or /proc hides other processes
        return None
    return arguments.get(EXECUTOR_ID, "driver")


def _parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _command_line(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
