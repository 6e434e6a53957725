"""`InFlightQueue`: the requests in flight to one broker, and the wait for the events of several brokers."""

from __future__ import annotations

import selectors
import time
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pyspark_kafka_meta.errors import ConnectError, KafkaMetaError, RequestTimeoutError
from pyspark_kafka_meta.kafka.network.connection import Connection
from pyspark_kafka_meta.kafka.network.opening_connection import OpeningConnection
from pyspark_kafka_meta.kafka.network.sockets import Selector
from pyspark_kafka_meta.model import Broker

RequestT = TypeVar("RequestT")

OPENING_GRACE_S = 0.1
"""The thread that opens a connection has the same deadline as the request, and reports its error a moment later."""


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
        held: later requests, sent once the connection is open. Those behind a session that is about to end wait until
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
