"""Requests under way: which of several brokers answers first, and connections that are opened meanwhile.

Connecting, TLS and login take as long as the peer likes, up to their deadline. A thread waits for that, so that a
broker which hangs, or which no packet reaches, holds up no other's answers.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pyspark_kafka_meta.errors import ConnectError, KafkaMetaError, RequestTimeoutError
from pyspark_kafka_meta.model import Address
from pyspark_kafka_meta.wire.connection import Connection
from pyspark_kafka_meta.wire.sockets import Selector, in_thread

T = TypeVar("T")
KeyT = TypeVar("KeyT")

OPENING_GRACE_S = 0.1
"""The thread that opens a connection has the deadline of its request: a moment later it can say why there is none."""


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

    def error(self, timeout_s: float) -> BaseException | None:
        """Why there is no connection, if that is known within this time."""
        with suppress(TimeoutError):
            return self._outcome.exception(timeout_s)
        return None

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
class InFlightRequest(Generic[T]):
    """A request that was sent, or is as soon as there is a connection.

    Attributes:
        deadline: for the connection and for the answer to begin, in seconds of `time.monotonic`.
        moves_deadline: whether `deadline` is for the connection first; once that is there, it is moved on by
            `timeout_s`, for the answer to begin.
        timeout_s: from when it was made to `deadline`.
    """

    address: Address
    channel: Connection | Opening
    request: T
    deadline: float
    moves_deadline: bool
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
            if self.moves_deadline:
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
            error = self.channel.error(OPENING_GRACE_S)
            unknown = ConnectError(f"cannot connect to {self.address}: no answer in time")
            return error if isinstance(error, KafkaMetaError) else unknown
        return RequestTimeoutError(f"{self.address} did not answer {what} in time")


def first_begun(
    waiting: Mapping[KeyT, InFlightRequest[Any]], until: float, others: Collection[InFlightRequest[Any]] = ()
) -> KeyT | None:
    """The key of the first request that is being answered, or cannot be; None if there is none by `until`, or once
    something has come for one of the others."""
    while (key := _first_readable(waiting, until, others)) is not None:
        channel = waiting[key].channel
        if isinstance(channel, Connection) or channel.has_failed():
            return key
        waiting[key].connection()
    return None


def _first_readable(
    waiting: Mapping[KeyT, InFlightRequest[Any]], until: float, others: Collection[InFlightRequest[Any]]
) -> KeyT | None:
    with Selector() as selector:
        for key, under_way in waiting.items():
            selector.register(under_way.channel, selectors.EVENT_READ, key)
        for under_way in others:
            selector.register(under_way.channel, selectors.EVENT_READ, None)
        readable = [key.data for key, _ in selector.select(max(until - time.monotonic(), 0))]
    return next((key for key in readable if key is not None), None)


def _wake(wakes: socket.socket) -> None:
    with suppress(OSError):  # perhaps no longer waited for
        wakes.shutdown(socket.SHUT_RDWR)  # a process that was forked meanwhile holds a copy, too
    wakes.close()


def _close(outcome: Future[Connection]) -> None:
    if outcome.exception() is None:
        outcome.result().close()
