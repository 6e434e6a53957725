"""The socket between Spark's JVM and a Python process of its, on which small messages wait 40 ms unless told otherwise.

Spark sets TCP_NODELAY on neither end: what is sent after a small message waits until that is acknowledged (Nagle's
algorithm), which Linux puts off for 40 ms where it has nothing to send. Each task begins with two small messages, the
reader and then its partition. Unix sockets, which Spark has as an option since 4.1, know no such wait.
"""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from types import FrameType
from typing import Any

ACKNOWLEDGE_NOW = getattr(socket, "TCP_QUICKACK", None)
"""Of Linux alone. It holds for what has come so far, not for good."""


class PromptReader:
    """A mixin for readers: unpickled between a task's two messages, it acknowledges the first, so that the second
    comes."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        be_prompt()


def be_prompt() -> None:
    """Acknowledge what Spark has sent, and let nothing wait that is sent to it. Does nothing but in a Python process
    that Spark talks to over TCP."""
    with suppress(OSError), socket.socket(fileno=os.dup(file_number(sys._getframe()))) as connection:
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if ACKNOWLEDGE_NOW is not None:
                connection.setsockopt(socket.IPPROTO_TCP, ACKNOWLEDGE_NOW, 1)


def file_number(frame: FrameType | None) -> int:
    """Of the socket, which is kept nowhere but in the arguments of the `main` that all of Spark's Python processes run.

    Raises:
        OSError: this is none of them.
    """
    while frame is not None:
        if frame.f_code.co_name == "main" and "infile" in frame.f_locals:
            return int(frame.f_locals["infile"].fileno())
        frame = frame.f_back
    raise ProcessLookupError
