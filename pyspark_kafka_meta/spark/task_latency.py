"""Avoids two delays that Spark's Python processes add to each task.

Small messages wait 40 ms. Spark sets TCP_NODELAY on neither end of its socket: a message after a small message waits
until the first is acknowledged (Nagle's algorithm), which Linux delays for 40 ms if it has nothing to send. Each task
begins with two small messages, the reader and its partition. Unix sockets, an option of Spark since 4.1, have no such
delay.

`pyspark.daemon` collects garbage after each task, and after each plan and commit of a write: 10 to 50 ms to traverse
the imported modules, which are never freed, while the next task waits for the process.
"""

from __future__ import annotations

import gc
import socket
import sys
from contextlib import suppress
from itertools import count
from types import FrameType
from typing import Any

ACKNOWLEDGE_NOW = getattr(socket, "TCP_QUICKACK", None)
"""Linux only. It acknowledges received data, and is reset afterwards."""
COLLECT_AFTER_OBJECTS = 20_000
"""New objects between garbage collections in a planner's process. With Python's default of 700, collections took a
third of the time to plan 10,000 partitions, and a fifth of the time of the imports."""


_begun = count(1)
"""Counts the tasks, or other uses, of this process."""


class LowLatencyTask:
    """A mixin for readers and writers: unpickled between a task's two messages, it acknowledges the first message."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        avoid_task_delays()


def avoid_task_delays() -> None:
    """Call it once in each task, or where Spark's process has another use. Does nothing elsewhere.

    At the first two calls in a process it exempts all objects from garbage collection (`gc.freeze`). At the first,
    Spark's modules are imported: collections while this package's modules are imported need not traverse them. At the
    second, those are imported too, and Spark has just collected. Not later, so that garbage of other code is collected.
    """
    avoid_socket_delays()
    if spark_main_frame(sys._getframe()) is not None and next(_begun) <= 2:
        gc.freeze()


def avoid_plan_delays() -> None:
    """Call it where Spark's process plans. Does nothing elsewhere."""
    avoid_socket_delays()
    if spark_main_frame(sys._getframe()) is not None:
        gc.set_threshold(COLLECT_AFTER_OBJECTS)


def avoid_socket_delays() -> None:
    """Acknowledge Spark's messages, and send messages to Spark without delay. Does nothing outside Spark's Python
    processes, or without TCP."""
    fd = spark_socket_fd(sys._getframe())
    if fd is None:
        return
    with suppress(OSError):  # not a socket
        connection = socket.socket(fileno=fd)
        try:
            if connection.family != socket.AF_UNIX:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if ACKNOWLEDGE_NOW is not None:
                    connection.setsockopt(socket.IPPROTO_TCP, ACKNOWLEDGE_NOW, 1)
        finally:
            connection.detach()  # Spark closes it


def spark_socket_fd(frame: FrameType | None) -> int | None:
    """The file descriptor of Spark's connection, from the arguments of Spark's `main`; None if there is none, also in a
    Spark release with other arguments: a task does not depend on it."""
    main = spark_main_frame(frame)
    if main is not None:
        with suppress(AttributeError, ValueError, OSError):
            return int(main.f_locals["infile"].fileno())
    return None


def spark_main_frame(frame: FrameType | None) -> FrameType | None:
    """The frame of `main` in Spark's Python processes; None elsewhere."""
    while frame is not None and not (frame.f_code.co_name == "main" and "infile" in frame.f_locals):
        frame = frame.f_back
    return frame
