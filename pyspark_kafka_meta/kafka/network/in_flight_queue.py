"""`InFlightQueue`: the requests in flight to one broker, and the wait for the events of several brokers."""

from __future__ import annotations

import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pyspark_kafka_meta.errors import ConnectError, KafkaMetaError, RequestTimeoutError
from pyspark_kafka_meta.kafka.network.connection import Connection
from pyspark_kafka_meta.kafka.network.sockets import Selector, in_thread
from pyspark_kafka_meta.model import Broker

RequestT = TypeVar("RequestT")

OPENING_GRACE_S = 0.1
"""The thread that opens a connection has the same deadline as the request, and reports its error a moment later."""


class OpeningConnection:
    """A connection that a thread opens. A selector finds it readable once the connection is open or has failed.

    Connecting, TLS and login take as long as the peer likes, up to their deadline. A thread waits for the peer, so that
    a broker that hangs, or that no packet reaches, does not delay the responses of other brokers.
    """

    def __init__(self, connect: Callable[[], Connection]) -> None:
        """
        Raises:
            ConnectError: this process cannot open another file or start another thread.
        """
        with ExitStack() as opened:
            try:
                self._done, done_sender = map(opened.enter_context, socket.socketpair())
            except OSError as error:
                raise ConnectError(
                    f"cannot open a socket, raise the limit of open files of this user: {error}"
                ) from error
            self._outcome = in_thread(connect)
            opened.pop_all()
        self._outcome.add_done_callback(lambda _: _signal(done_sender))

    def fileno(self) -> int:
        return self._done.fileno()

    def error(self, timeout_s: float) -> BaseException | None:
        """Why the connection failed, if the thread reports it within `timeout_s`."""
        with suppress(TimeoutError):
            return self._outcome.exception(timeout_s)
        return None

    def connection(self) -> Connection:
        """The open connection. Call it only once it is readable.

        Raises:
            KafkaMetaError: the connection failed.
        """
        self._done.close()
        return self._outcome.result()

    def close(self) -> None:
        """Close the connection as soon as it is open."""
        self._done.close()
        self._outcome.add_done_callback(_close)


def _signal(done_sender: socket.socket) -> None:
    with suppress(OSError):  # the other end may be closed
        done_sender.shutdown(socket.SHUT_RDWR)  # a process that was forked meanwhile holds a copy of the socket
    done_sender.close()


def _close(outcome: Future[Connection]) -> None:
    if outcome.exception() is None:
        outcome.result().close()


@dataclass(slots=True)
class InFlightRequest(Generic[RequestT]):
    """A request without a response.

    Attributes:
        deadline: for the connection and the begin of the response, in seconds of `time.monotonic`.
        timeout_s: from the creation of the request to `deadline`.
    """

    request: RequestT
    deadline: float
    timeout_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.timeout_s = self.deadline - time.monotonic()

    def read_deadline(self) -> float:
        """The deadline for the end of a response that has begun. It counts from now: a caller that was busy with the
        rows of another broker still gets what has arrived."""
        return time.monotonic() + self.timeout_s


@dataclass(slots=True)
class InFlightQueue(Generic[RequestT]):
    """The requests in flight to one broker, oldest first, and the connection that carries them.

    Attributes:
        sent: at least one request. The thread of a connection that opens sends the first.
        held: later requests, sent once the connection is open. Those after a session that is about to end wait until
            nothing is in flight, because a login must not come between requests and responses.
        attended_at: when the caller last sent or waited, in seconds of `time.monotonic`.
    """

    broker: Broker
    channel: Connection | OpeningConnection
    sent: deque[InFlightRequest[RequestT]]
    held: deque[InFlightRequest[RequestT]]
    attended_at: float = field(default_factory=time.monotonic)

    def deadline(self) -> float:
        return min(request.deadline for request in (*self.sent, *self.held))

    def attend(self) -> None:
        """The caller is back. If it was away with bytes unsent, the broker could not respond: that time counts to no
        deadline."""
        now = time.monotonic()
        if isinstance(self.channel, Connection) and self.channel.has_unsent_bytes():
            for request in (*self.sent, *self.held):
                request.deadline += now - self.attended_at
        self.attended_at = now

    def connection(self) -> Connection:
        """The connection, which is open: `open` has returned."""
        assert isinstance(self.channel, Connection)
        return self.channel

    def open(self, extends_deadline: bool) -> None:
        """Take the connection that a thread has opened.

        Args:
            extends_deadline: whether each deadline was for the connection first, and moves on by `timeout_s`.

        Raises:
            KafkaMetaError: the connection failed, or the first request could not be sent.
        """
        assert isinstance(self.channel, OpeningConnection)
        self.channel = self.channel.connection()
        for request in (*self.sent, *self.held) if extends_deadline else ():
            request.deadline = request.read_deadline()

    def time_out(self, name: str) -> KafkaMetaError:
        """Abandon the requests; returns their error."""
        if isinstance(self.channel, OpeningConnection):
            self.channel.close()
            error = self.channel.error(OPENING_GRACE_S)
            unknown = ConnectError(f"cannot connect to {self.broker.address}: no response in time")
            return error if isinstance(error, KafkaMetaError) else unknown
        self.channel.abandon()
        return RequestTimeoutError(f"{self.broker.address} did not answer {name} in time")


def next_events(
    waiting: Mapping[int, InFlightQueue[Any]], interrupting: Collection[InFlightQueue[Any]], until: float
) -> dict[int | None, int]:
    """What the brokers are ready for, by node id and as `selectors.EVENT_READ` and `EVENT_WRITE`. None stands for
    `interrupting`. Empty if nothing happens by `until`."""
    buffered: dict[int | None, int] = {
        node_id: selectors.EVENT_READ
        for node_id, queue in waiting.items()
        if isinstance(queue.channel, Connection) and queue.channel.has_buffered_bytes()
    }
    if buffered:
        return buffered
    with Selector() as selector:
        for node_id, queue in waiting.items():
            selector.register(queue.channel, _awaited(queue.channel), node_id)
        for queue in interrupting:
            selector.register(queue.channel, _awaited(queue.channel), None)
        return {key.data: events for key, events in selector.select(max(until - time.monotonic(), 0))}


def _awaited(channel: Connection | OpeningConnection) -> int:
    sends = isinstance(channel, Connection) and channel.has_unsent_bytes()
    return selectors.EVENT_READ | (selectors.EVENT_WRITE if sends else 0)
