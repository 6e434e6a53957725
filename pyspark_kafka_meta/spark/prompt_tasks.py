"""Two delays that Spark's Python processes add to each task, and how to avoid them.

Small messages wait 40 ms. Spark sets TCP_NODELAY on neither end of its socket: what is sent after a small message waits
until that is acknowledged (Nagle's algorithm), which Linux puts off for 40 ms where it has nothing to send. Each task
begins with two small messages, the reader and then its partition. Unix sockets, which Spark has as an option since
4.1, know no such wait.

Garbage is collected after each task, by `pyspark.daemon`: 10 to 50 ms for a look at all that was imported, modules that
stay for good, while the next task waits for the process.
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
"""Linux alone has it. It holds for what has come so far, not for good."""


_begun = count(1)
"""Numbers the tasks of this process."""


class PromptReader:
    """A mixin for readers: unpickled between a task's two messages, it acknowledges the first, so that the second
    comes.

    At a process's second task it has collections pass over all there is: what the first one needed is imported by then,
    and Spark has just collected. Once, so that what other code makes and drops later is collected as ever.
    """

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        be_prompt()
        if next(_begun) == 2:
            gc.freeze()


def be_prompt() -> None:
    """Acknowledge what Spark has sent, and let nothing wait that is sent to it. Does nothing but in a Python process
    that Spark talks to over TCP."""
    number = file_number(sys._getframe())
    if number is None:
        return
    with suppress(OSError):  # it is no socket
        connection = socket.socket(fileno=number)
        try:
            if connection.family != socket.AF_UNIX:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if ACKNOWLEDGE_NOW is not None:
                    connection.setsockopt(socket.IPPROTO_TCP, ACKNOWLEDGE_NOW, 1)
        finally:
            connection.detach()  # it is Spark's


def file_number(frame: FrameType | None) -> int | None:
    """Found where alone it is kept: in the arguments of Spark's `main`. None elsewhere, and where a release of Spark
    keeps something else there: a task is read without it, too."""
    main = sparks_main(frame)
    if main is not None:
        with suppress(AttributeError, ValueError, OSError):
            return int(main.f_locals["infile"].fileno())
    return None


def sparks_main(frame: FrameType | None) -> FrameType | None:
    """The frame of the `main` that all of Spark's Python processes run; None elsewhere."""
    while frame is not None and not (frame.f_code.co_name == "main" and "infile" in frame.f_locals):
        frame = frame.f_back
    return frame
