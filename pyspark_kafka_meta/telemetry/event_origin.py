"""Where an event comes from: the Spark application, executor, query and task that this process works for.

Spark gives a Python worker most of this through the task's local properties; the executor's id is found in the
environment that a cluster manager sets, or in the command line of the executor that started the worker.
"""

from __future__ import annotations

import os
import re
import socket
from itertools import pairwise
from pathlib import Path

from pyspark_kafka_meta.metadata.refresh_events import Origin, Role

EXECUTOR_ID = "--executor-id"
"""What an executor's JVM is started with."""


def task_origin() -> Origin:
    """The origin of events of the task that runs in this Python worker now.

    Raises:
        RuntimeError: no task runs here.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise RuntimeError("task_origin() was called outside of a Spark task")
    properties = context.getLocalProperty
    return Origin(
        role=Role.READER,
        application_id=properties("spark.app.id"),
        executor_id=_executor_id(),
        host=socket.gethostname(),
        pid=os.getpid(),
        query_id=properties("sql.streaming.queryId"),
        batch_id=_number(properties("streaming.sql.batchId")),
        stage_id=context.stageId(),
        task_partition_id=context.partitionId(),
        task_attempt=context.attemptNumber(),
    )


def planner_origin() -> Origin:
    """The origin of events of a planner process, which runs beside the driver and knows no query."""
    return Origin(role=Role.PLANNER, executor_id="driver", host=socket.gethostname(), pid=os.getpid())


def cli_origin() -> Origin:
    """The origin of events of a command, which is part of no Spark application."""
    return Origin(role=Role.CLI, host=socket.gethostname(), pid=os.getpid())


def driver_name() -> str:
    """Names the application of a planner, which does not know the id."""
    return f"driver-{socket.gethostname()}-{driver_pid()}"


def driver_pid() -> int:
    """Process id of the driver's JVM, in a planner: its parent, or that of the daemon that it was forked from."""
    parent = os.getppid()
    try:
        return _parent_of(parent) if "pyspark.daemon" in _command_line(parent) else parent
    except (OSError, ValueError, IndexError):
        return parent


def _executor_id() -> str | None:
    found = re.search(r"[?&]executorId=([^&]+)", os.environ.get("SPARK_LOG_URL_STDERR", ""))
    if found:
        return found.group(1)
    # worker <- pyspark.daemon, if there is one <- executor JVM, which carries its id on its command line; a driver in
    # local mode does not.
    pid = os.getppid()
    try:
        arguments = dict(pairwise(_command_line(pid)))
        if EXECUTOR_ID not in arguments:
            arguments = dict(pairwise(_command_line(_parent_of(pid))))
    except (OSError, ValueError, IndexError):  # there is no /proc, as on macOS, or it hides other processes
        return None
    return arguments.get(EXECUTOR_ID, "driver")


def _parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _command_line(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
