"""`InFlightRequests`: the in-flight requests of one kind, at most one per broker, and their connections.

Sending never waits for a broker. Receiving returns the first response of several brokers. Named after Kafka's
`org.apache.kafka.clients.InFlightRequests`.
"""

from __future__ import annotations

import selectors
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from pyspark_kafka_meta.errors import ConnectError, KafkaMetaError, RequestTimeoutError
from pyspark_kafka_meta.model import Address, Broker
from pyspark_kafka_meta.wire.connection import Connection, ConnectionSettings
from pyspark_kafka_meta.wire.messages import RequestFailure
from pyspark_kafka_meta.wire.opening_connection import OpeningConnection
from pyspark_kafka_meta.wire.sockets import Selector

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")

OPENING_GRACE_S = 0.1
"""The thread that opens a connection has the same deadline as the request, and reports its error a moment later."""


@dataclass(slots=True)
class InFlightRequest(Generic[RequestT]):
    """A request that was sent, or that will be sent once its connection is open.

    Attributes:
        deadline: for the connection and the begin of the response, in seconds of `time.monotonic`.
        extends_deadline: whether `deadline` is for the connection first, and moves on by `timeout_s` once the
            connection is open.
        timeout_s: from the creation of the request to `deadline`.
    """

    address: Address
    channel: Connection | OpeningConnection
    request: RequestT
    deadline: float
    extends_deadline: bool
    timeout_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.timeout_s = self.deadline - time.monotonic()

    def connection(self) -> Connection:
        """The connection that carries the response. Call it only once `first_readable` returned the request.

        Raises:
            KafkaMetaError: the connection failed, or the request could not be sent.
        """
        if isinstance(self.channel, OpeningConnection):
            self.channel = self.channel.connection()
            if self.extends_deadline:
                self.deadline = time.monotonic() + self.timeout_s
        return self.channel

    def read_deadline(self) -> float:
        """The deadline for the end of a response that has begun. It counts from now: a caller that was busy with the
        rows of another broker still gets what has arrived."""
        return time.monotonic() + self.timeout_s

    def time_out(self, name: str) -> KafkaMetaError:
        """Abandon the request; returns its error."""
        self.channel.close()
        if isinstance(self.channel, OpeningConnection):
            error = self.channel.error(OPENING_GRACE_S)
            unknown = ConnectError(f"cannot connect to {self.address}: no response in time")
            return error if isinstance(error, KafkaMetaError) else unknown
        return RequestTimeoutError(f"{self.address} did not answer {name} in time")


class InFlightRequests(ABC, Generic[RequestT, ResponseT]):
    """Implements `pyspark_kafka_meta.wire.messages.Requests`. Not thread-safe.

    A connection opens at its first use and closes for good at its first error.
    """

    name: ClassVar[str]
    """The kind of request in errors."""
    extends_deadline: ClassVar[bool] = True
    """Whether a response gets as much time as its connection, or both share the deadline."""

    def __init__(self, settings: ConnectionSettings, interrupted_by: InFlightRequests[Any, Any] | None = None) -> None:
        """
        Args:
            interrupted_by: requests that end a `receive` here once they have a response, an error or a timeout.
        """
        self._settings = settings
        self._interrupted_by = interrupted_by
        self._idle: dict[int, Connection] = {}
        self._in_flight: dict[int, InFlightRequest[RequestT]] = {}
        self._not_sent: dict[int, KafkaMetaError] = {}

    @abstractmethod
    def _write(self, connection: Connection, request: RequestT, deadline: float) -> None:
        """Send the request by `deadline`."""

    @abstractmethod
    def _read(self, node_id: int, connection: Connection, in_flight: InFlightRequest[RequestT]) -> ResponseT:
        """Receive the response, which has begun to arrive."""

    def node_ids(self) -> Collection[int]:
        """Brokers whose response, or failure, was not received."""
        return [*self._in_flight, *self._not_sent]

    def send(self, broker: Broker, request: RequestT, deadline: float) -> None:
        self.drop(broker.node_id)  # its response must not be taken for the response to the new request
        try:
            channel = self._sent(broker, request, deadline)
        except KafkaMetaError as error:
            self._not_sent[broker.node_id] = error
        else:
            self._in_flight[broker.node_id] = InFlightRequest(
                broker.address, channel, request, deadline, self.extends_deadline
            )

    def receive(self, node_ids: Collection[int], deadline: float) -> ResponseT | RequestFailure | None:
        for node_id in self._not_sent.keys() & set(node_ids):
            return RequestFailure(node_id, self._not_sent.pop(node_id))
        waiting = {node_id: self._in_flight[node_id] for node_id in node_ids if node_id in self._in_flight}
        interrupting = () if self._interrupted_by is None else self._interrupted_by._in_flight.values()
        until = min([deadline, *(in_flight.deadline for in_flight in interrupting)])
        while waiting or interrupting:
            due = min(waiting, key=lambda node_id: waiting[node_id].deadline, default=None)
            ready = first_readable(waiting, until if due is None else min(until, waiting[due].deadline), interrupting)
            if ready is not None:
                return self._response(ready)
            now = time.monotonic()
            if due is not None and now >= waiting[due].deadline:  # a connection that opened meanwhile moved it
                return RequestFailure(due, self._in_flight.pop(due).time_out(self.name))
            if interrupting or now >= deadline:
                break
        return None

    def drop(self, node_id: int) -> None:
        self._not_sent.pop(node_id, None)
        in_flight = self._in_flight.pop(node_id, None)
        if in_flight is not None:
            in_flight.channel.close()

    def drop_all(self) -> None:
        for node_id in self.node_ids():
            self.drop(node_id)

    def close(self) -> None:
        self.drop_all()
        self.close_idle_except(())

    def close_idle_except(self, addresses: Collection[Address]) -> None:
        """Close the idle connections to all other addresses."""
        for node_id in [node_id for node_id, idle in self._idle.items() if idle.address not in addresses]:
            self._idle.pop(node_id).close()

    def _sent(self, broker: Broker, request: RequestT, deadline: float) -> Connection | OpeningConnection:
        """Send over the idle connection. If there is none, or it breaks, a thread opens a new connection and sends. A
        thread sends also where the session has to be renewed first."""

        def send_over(connection: Connection) -> Connection:
            with _closed_by_errors(connection):
                self._write(connection, request, deadline)
            return connection

        idle = _usable(self._idle.pop(broker.node_id, None), broker.address)
        if idle is not None and idle.login_is_due():
            return OpeningConnection(lambda: send_over(idle))
        if idle is not None:
            with suppress(ConnectError, RequestTimeoutError):
                return send_over(idle)
        return OpeningConnection(lambda: send_over(Connection(broker.address, self._settings, deadline)))

    def _response(self, node_id: int) -> ResponseT | RequestFailure:
        in_flight = self._in_flight.pop(node_id)
        try:
            connection = in_flight.connection()
            with _closed_by_errors(connection):
                response = self._read(node_id, connection, in_flight)
        except KafkaMetaError as error:
            return RequestFailure(node_id, error)
        self._idle[node_id] = connection
        return response


def first_readable(
    waiting: Mapping[int, InFlightRequest[Any]], until: float, interrupting: Collection[InFlightRequest[Any]] = ()
) -> int | None:
    """Node id of the first request whose response has begun or whose connection has failed. None if there is none by
    `until`, or once an interrupting request is readable."""
    while (node_id := _select(waiting, until, interrupting)) is not None:
        channel = waiting[node_id].channel
        if isinstance(channel, Connection) or channel.has_failed():
            return node_id
        waiting[node_id].connection()
    return None


def _select(
    waiting: Mapping[int, InFlightRequest[Any]], until: float, interrupting: Collection[InFlightRequest[Any]]
) -> int | None:
    with Selector() as selector:
        for node_id, in_flight in waiting.items():
            selector.register(in_flight.channel, selectors.EVENT_READ, node_id)
        for in_flight in interrupting:
            selector.register(in_flight.channel, selectors.EVENT_READ, None)
        readable = [key.data for key, _ in selector.select(max(until - time.monotonic(), 0))]
    return next((node_id for node_id in readable if node_id is not None), None)


def _usable(idle: Connection | None, address: Address) -> Connection | None:
    if idle is not None and (idle.address != address or not idle.is_usable()):
        idle.close()
        return None
    return idle


@contextmanager
def _closed_by_errors(connection: Connection) -> Iterator[None]:
    """Close the connection on any error, including protocol errors and cancellation."""
    try:
        yield
    except BaseException:
        connection.close()
        raise
