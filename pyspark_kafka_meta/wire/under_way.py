"""Requests under way: which of several brokers answers first, and connections that are opened meanwhile.

Connecting, TLS and login take as long as the peer likes, up to their deadline. A thread waits for that, so that a
broker which hangs, or which no packet reaches, holds up no other's answers.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pyspark_kafka_meta.errors import ConnectError, KafkaMetaError, RequestTimeoutError
from pyspark_kafka_meta.metadata.model import Broker
from pyspark_kafka_meta.wire.connection import Connection
from pyspark_kafka_meta.wire.sockets import Selector, in_thread

T = TypeVar("T")


class Opening:
    """A connection that a thread opens. A selector finds it readable once it is there, or cannot be."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        """
        Raises:
            ConnectError: this process may open no more files or threads.
        """
        with ExitStack() as opened:
            try:
                self._wakes, wakes = map(opened.enter_context, socket.socketpair())
            except OSError as error:
                raise ConnectError(
                    f"no file is left to connect with, raise the limits of this user: {error}"
                ) from error
            self._outcome = in_thread(connect)
            opened.pop_all()
        self._outcome.add_done_callback(lambda _: _wake(wakes))

    def fileno(self) -> int:
        return self._wakes.fileno()

    def has_failed(self) -> bool:
        """Only once it is readable."""
        return self._outcome.exception() is not None

    def connection(self) -> Connection:
        """The connection, once it is readable.

        Raises:
            KafkaMetaError: why there is none.
        """
        self._wakes.close()
        return self._outcome.result()

    def close(self) -> None:
        """Do without it: it is closed as soon as it is there."""
        self._wakes.close()
        self._outcome.add_done_callback(_close)


@dataclass(slots=True)
class UnderWay(Generic[T]):
    """A request that was sent, or is as soon as there is a connection.

    Attributes:
        deadline: for the connection first; once that is there, moved on by `timeout_s`, for the answer to begin. In
            seconds of `time.monotonic`.
        timeout_s: from when it was made to `deadline`.
    """

    broker: Broker
    channel: Connection | Opening
    request: T
    deadline: float
    timeout_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.timeout_s = self.deadline - time.monotonic()

    def connection(self) -> Connection:
        """What it is answered over, once something has come by `first_begun`.

        Raises:
            KafkaMetaError: there is none, or the request could not be sent.
        """
        if isinstance(self.channel, Opening):
            self.channel = self.channel.connection()
            self.deadline = time.monotonic() + self.timeout_s
        return self.channel

    def read_deadline(self) -> float:
        """By when an answer that has begun must be complete. Counted from now: a caller that comes late, busy with rows
        of another broker, still gets what has arrived."""
        return time.monotonic() + self.timeout_s

    def time_out(self, what: str) -> KafkaMetaError:
        """Do without an answer. Returns what is to be said of that."""
        self.channel.close()
        if isinstance(self.channel, Opening):
            return ConnectError(f"cannot connect to {self.broker.address}: no answer in time")
        return RequestTimeoutError(f"{self.broker.address} did not answer {what} in time")


def first_begun(waiting: Mapping[int, UnderWay[Any]], until: float) -> int | None:
    """The first that is being answered, or cannot be; None if there is none by `until`."""
    while (node_id := _first_readable(waiting, until)) is not None:
        channel = waiting[node_id].channel
        if isinstance(channel, Connection) or channel.has_failed():
            return node_id
        waiting[node_id].connection()
    return None


def _first_readable(waiting: Mapping[int, UnderWay[Any]], until: float) -> int | None:
    with Selector() as selector:
        for node_id, under_way in waiting.items():
            selector.register(under_way.channel, selectors.EVENT_READ, node_id)
        events = selector.select(max(until - time.monotonic(), 0))
    return int(events[0][0].data) if events else None


def _wake(wakes: socket.socket) -> None:
    with suppress(OSError):  # perhaps no longer waited for
        wakes.shutdown(socket.SHUT_RDWR)  # a process that was forked meanwhile holds a copy, too
    wakes.close()


def _close(outcome: Future[Connection]) -> None:
    if outcome.exception() is None:
        outcome.result().close()
