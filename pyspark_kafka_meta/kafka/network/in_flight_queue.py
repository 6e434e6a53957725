"""`InFlightQueue`: the requests in flight to one broker, and the wait for the events of several brokers.

`in_flight_requests` sends and receives. This module has what it needs for that: the channel of each broker, what a
selector reports of it, and the deadlines of requests.

| channel | the selector reports | what follows |
|---|---|---|
| `OpeningConnection`: a thread opens it and sends the first of `sent` | the thread has ended | `open` |
| `Connection` with unsent bytes, because the socket's buffer is full | space in the buffer | `Connection.flush` |
| `Connection`, with or without unsent bytes | a response, or the end of the connection | `Connection.receive` |

A request has up to three deadlines, one after the other. Each leaves it its whole `timeout_s`:

1. The connection must be open by `deadline`. An idle connection is open, so 2 holds from the start.
2. The response must begin by `deadline`, which `open` moves on. Kinds that do not extend it have one deadline for both.
3. The response must end by `read_deadline`, which counts from the time when its first bytes are found.

Responses come in order, so the queue has the earliest deadline of its requests, and all of them fail together.

Races: what happens without a guard, and the guard.

1. Unsent bytes and a busy caller. (1) The socket's buffer is full; the rest of a request waits in its connection. (2)
   The caller computes for a minute, and nobody sends. (3) The request times out, though the broker never had all of it.
   Guard: `attend`, at the caller's next call, moves the deadlines on by the time since `attended_at`.
2. Two threads, one deadline. (1) The thread that opens a connection has the deadline of its request, and so has the
   caller. (2) The caller is first: it knows no reason. Guard: it waits for the thread's error for `OPENING_GRACE_S`.
3. A dropped request. (1) The caller drops a request while a thread connects. (2) The connection opens, and nobody ever
   closes it. Guard: `OpeningConnection.close` leaves the order to close it as soon as it is open.
4. A fork. (1) The process is forked while a thread connects; the child has a copy of the socket that the thread signals
   with. (2) The thread closes the socket, but the copy keeps it open: the selector reports nothing. Guard: `_signal`
   shuts the socket down, which holds for all copies.
5. Two responses in one record of TLS. (1) Both are decrypted when the first is read. (2) The selector looks at the
   socket, which has no bytes left: the second response is not seen. Guard: `next_events` asks `has_buffered_bytes`.
"""

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

    Connecting, TLS and login wait for the broker, up to their deadline. Only the thread waits, so that a broker that
    hangs, or that no packet reaches, does not delay the responses of other brokers.
    """

    def __init__(self, connect: Callable[[], Connection]) -> None:
        """Raises ConnectError: this process cannot open another file or start another thread.

        Args:
            connect: the work of the thread.
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
        """The open connection. Call it only once it is readable. Raises KafkaMetaError: the connection failed."""
        self._done.close()
        return self._outcome.result()

    def close(self) -> None:
        """Give the connection up. It is closed as soon as it is open (race 3)."""
        self._done.close()
        self._outcome.add_done_callback(_close)


def _signal(done_sender: socket.socket) -> None:
    with suppress(OSError):  # the other end may be closed
        done_sender.shutdown(socket.SHUT_RDWR)  # race 4
    done_sender.close()


def _close(outcome: Future[Connection]) -> None:
    if outcome.exception() is None:
        outcome.result().close()


@dataclass(slots=True)
class InFlightRequest(Generic[RequestT]):
    """A request without a response.

    Attributes:
        deadline: first of the connection, then of the beginning of the response, in seconds of `time.monotonic`.
        timeout_s: from the creation of the request to its first deadline.
    """

    request: RequestT
    deadline: float
    timeout_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.timeout_s = self.deadline - time.monotonic()

    def read_deadline(self) -> float:
        """The next deadline. It counts from now: a caller that was busy with the rows of another broker still gets the
        response that has arrived meanwhile."""
        return time.monotonic() + self.timeout_s


@dataclass(slots=True)
class InFlightQueue(Generic[RequestT]):
    """The requests in flight to one broker, oldest first, and the connection that carries them.

    Attributes:
        sent: at least one request. The thread of a connection that opens sends the first.
        held: later requests, which wait for the connection to open, or for the login that is due.
        attended_at: when the caller last sent or waited, in seconds of `time.monotonic`.
    """

    broker: Broker
    channel: Connection | OpeningConnection
    sent: deque[InFlightRequest[RequestT]]
    held: deque[InFlightRequest[RequestT]]
    attended_at: float = field(default_factory=time.monotonic)

    def deadline(self) -> float:
        """When the requests fail."""
        return min(request.deadline for request in (*self.sent, *self.held))

    def attend(self) -> None:
        """The caller is back. Time in which bytes were unsent and nobody sent them counts to no deadline (race 1)."""
        now = time.monotonic()
        if isinstance(self.channel, Connection) and self.channel.has_unsent_bytes():
            for request in (*self.sent, *self.held):
                request.deadline += now - self.attended_at
        self.attended_at = now

    def open(self, extends_deadline: bool) -> None:
        """Take the connection that a thread has opened. Raises KafkaMetaError: the connection failed, or the first
        request could not be sent.

        Args:
            extends_deadline: whether each request gets its `timeout_s` again, from now, for the response.
        """
        assert isinstance(self.channel, OpeningConnection)
        self.channel = self.channel.connection()
        for request in (*self.sent, *self.held) if extends_deadline else ():
            request.deadline = request.read_deadline()

    def time_out(self, name: str) -> KafkaMetaError:
        """Close the channel of requests that have passed their deadline; returns their error."""
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
    """The first events of these queues: `selectors.EVENT_READ`, `EVENT_WRITE` or both, by node id; by None for all of
    `interrupting`, the queues of another kind of request. Empty if nothing happens by `until`."""
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
