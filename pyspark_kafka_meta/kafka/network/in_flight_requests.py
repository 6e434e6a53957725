"""`InFlightRequests`: the in-flight requests of one kind and the connections that carry them, one to each broker.

Sending never waits for a broker: `receive` sends what the sockets did not take, and returns the first response of
several brokers. Named after Kafka's `org.apache.kafka.clients.InFlightRequests`.
"""

from __future__ import annotations

import selectors
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from pyspark_kafka_meta.errors import ConnectError, KafkaMetaError, RequestTimeoutError
from pyspark_kafka_meta.kafka.network.connection import Connection, ConnectionSettings
from pyspark_kafka_meta.kafka.network.in_flight_queue import (
    InFlightQueue,
    InFlightRequest,
    OpeningConnection,
    next_events,
)
from pyspark_kafka_meta.kafka.network.security.oauth_tokens import TokenRefusedError
from pyspark_kafka_meta.kafka.protocol.frame_codec import Api
from pyspark_kafka_meta.kafka.protocol.requests import RequestFailure
from pyspark_kafka_meta.model import Address, Broker

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


class IdleConnections:
    """Open connections without a request in flight, which the kinds of requests of a client share. Not thread-safe.

    Brokers limit the connections of a host (`max.connections.per.ip`): a client has as many to a broker as it has
    requests of different kinds in flight at a time, not one for each kind.
    """

    def __init__(self) -> None:
        self._by_address: dict[Address, list[Connection]] = {}

    def take(self, address: Address) -> Connection | None:
        """The connection that was used last, if its broker has not closed it."""
        idle = self._by_address.get(address, [])
        while idle:
            connection = idle.pop()
            if connection.is_usable():
                return connection
            connection.close()
        return None

    def put(self, connection: Connection) -> None:
        self._by_address.setdefault(connection.address, []).append(connection)

    def close_except(self, addresses: Collection[Address]) -> None:
        """Close the connections to all other addresses."""
        for address in self._by_address.keys() - set(addresses):
            for connection in self._by_address.pop(address):
                connection.close()


class InFlightRequests(ABC, Generic[RequestT, ResponseT]):
    """Implements `Requests` and `PipelinedRequests` of `kafka.protocol.requests`. Not thread-safe.

    A connection opens at its first use and closes for good at its first error.
    """

    name: ClassVar[str]
    """The kind of request in errors."""
    pipelines: ClassVar[bool] = False
    """Whether a broker may have several requests in flight."""
    extends_deadline: ClassVar[bool] = True
    """Whether a response gets as much time as its connection, or both share the deadline."""

    def __init__(
        self,
        settings: ConnectionSettings,
        idle: IdleConnections,
        interrupted_by: InFlightRequests[Any, Any] | None = None,
    ) -> None:
        """
        Args:
            idle: shared with the other kinds of requests of the client.
            interrupted_by: requests that end a `receive` here once they have a response, an error or a timeout.
        """
        self._settings = settings
        self._interrupted_by = interrupted_by
        self._idle = idle
        self._in_flight: dict[int, InFlightQueue[RequestT]] = {}
        self._failed: dict[int, KafkaMetaError] = {}  # not received yet

    @abstractmethod
    def _encode(self, connection: Connection, request: RequestT) -> tuple[Api, Any]:
        """The message of the request, in the newest version that the broker of this connection supports."""

    @abstractmethod
    def _read(self, node_id: int, connection: Connection, in_flight: InFlightRequest[RequestT]) -> ResponseT:
        """Receive the response, which has begun to arrive."""

    def node_ids(self) -> Collection[int]:
        """Brokers whose response, or failure, was not received."""
        return [*self._in_flight, *self._failed]

    def send(self, broker: Broker, request: RequestT, deadline: float) -> None:
        if not self.pipelines:
            self.drop(broker.node_id)  # its response must not be taken for the response to the new request
        if broker.node_id in self._failed:
            return  # the failure, which was not received yet, is of this request too
        queue = self._in_flight.get(broker.node_id)
        if queue is None:
            self._start(broker, deque([InFlightRequest(request, deadline)]))
        elif queue.broker.address == broker.address:
            queue.attend()
            queue.held.append(InFlightRequest(request, deadline))
            self._send_held(queue)
        else:
            self._fail(
                broker.node_id,
                ConnectError(f"broker {broker.node_id} moved from {queue.broker.address} to {broker.address}"),
            )

    def receive(self, node_ids: Collection[int], deadline: float) -> ResponseT | RequestFailure | None:
        interrupting = () if self._interrupted_by is None else tuple(self._interrupted_by._in_flight.values())
        until = min([deadline, *(queue.deadline() for queue in interrupting)])
        for node_id in self._in_flight.keys() & set(node_ids):
            self._in_flight[node_id].attend()
        while (failed := next(iter(self._failed.keys() & set(node_ids)), None)) is None:
            waiting = {node_id: self._in_flight[node_id] for node_id in node_ids if node_id in self._in_flight}
            due = min(waiting, key=lambda node_id: waiting[node_id].deadline(), default=None)
            if due is None and not interrupting:
                return None
            events = next_events(waiting, interrupting, until if due is None else min(until, waiting[due].deadline()))
            for queue in waiting.values():
                queue.attended_at = time.monotonic()
            ready = self._advance({node_id: event for node_id, event in events.items() if node_id is not None})
            if ready is not None:
                return self._response(ready)
            now = time.monotonic()
            if due is not None and due in self._in_flight and now >= waiting[due].deadline():
                self._fail(due, waiting[due].time_out(self.name))
            elif None in events or now >= until:
                return None
        return RequestFailure(failed, self._failed.pop(failed))

    def drop(self, node_id: int) -> None:
        self._failed.pop(node_id, None)
        queue = self._in_flight.pop(node_id, None)
        if queue is not None:
            queue.channel.close()

    def drop_all(self) -> None:
        for node_id in self.node_ids():
            self.drop(node_id)

    def _start(self, broker: Broker, requests: deque[InFlightRequest[RequestT]]) -> None:
        """Send the first request, to which no other is in flight, then the others: over an idle connection, or, if
        there is none, it breaks or its session has to be renewed first, in a thread."""
        first, idle = requests.popleft(), self._idle.take(broker.address)
        channel: Connection | OpeningConnection | None = None
        if idle is not None:
            idle.limit_unacknowledged(self._settings.limits_unacknowledged)
        try:
            if idle is not None and not idle.login_is_due():
                with suppress(ConnectError, RequestTimeoutError), _closed_by_errors(idle):
                    idle.send(*self._encode(idle, first.request), first.deadline)
                    channel = idle
                idle = None
            channel = channel or OpeningConnection(partial(self._open, broker, first.request, first.deadline, idle))
        except KafkaMetaError as error:
            self._fail(broker.node_id, error)
        else:
            queue = self._in_flight[broker.node_id] = InFlightQueue(broker, channel, deque([first]), requests)
            self._send_held(queue)

    def _open(self, broker: Broker, request: RequestT, deadline: float, idle: Connection | None) -> Connection:
        """Send over an idle connection whose login is due, or over a new connection. In a thread. A refused token is
        replaced once, over a new connection: it may have been revoked."""

        def send_over(connection: Connection) -> Connection:
            with _closed_by_errors(connection):
                connection.send(*self._encode(connection, request), deadline)
            return connection

        try:
            return send_over(idle or Connection(broker.address, self._settings, deadline))
        except TokenRefusedError:
            return send_over(Connection(broker.address, self._settings, deadline))

    def _send_held(self, queue: InFlightQueue[RequestT]) -> None:
        with self._failing(queue):
            while queue.held and isinstance(queue.channel, Connection) and not queue.channel.login_is_due():
                queue.sent.append(queue.held.popleft())
                message = self._encode(queue.channel, queue.sent[-1].request)
                queue.channel.send(*message, queue.sent[-1].deadline)

    def _advance(self, events: Mapping[int, int]) -> int | None:
        """Open connections and send. Returns the first broker whose response has begun, or whose connection is lost."""
        for node_id, event in events.items():
            queue = self._in_flight[node_id]
            with self._failing(queue):
                if isinstance(queue.channel, OpeningConnection):
                    queue.open(self.extends_deadline)
                    self._send_held(queue)
                elif event & selectors.EVENT_READ:
                    return node_id
                else:
                    queue.channel.flush()
        return None

    def _response(self, node_id: int) -> ResponseT | RequestFailure:
        queue = self._in_flight.pop(node_id)
        connection = queue.connection()
        try:
            with _closed_by_errors(connection):
                response = self._read(node_id, connection, queue.sent.popleft())
        except KafkaMetaError as error:
            return RequestFailure(node_id, error)
        if queue.sent:
            self._in_flight[node_id] = queue
            return response
        self._idle.put(connection)
        if queue.held:
            self._start(queue.broker, queue.held)
        return response

    def _fail(self, node_id: int, error: KafkaMetaError) -> None:
        """Drop the requests to a broker; the next `receive` returns their error."""
        self.drop(node_id)
        self._failed[node_id] = error

    @contextmanager
    def _failing(self, queue: InFlightQueue[RequestT]) -> Iterator[None]:
        """Any error, including cancellation, ends all requests of the queue."""
        try:
            yield
        except KafkaMetaError as error:
            self._fail(queue.broker.node_id, error)
        except BaseException:
            self.drop(queue.broker.node_id)
            raise


@contextmanager
def _closed_by_errors(connection: Connection) -> Iterator[None]:
    """Close the connection on any error, including protocol errors and cancellation."""
    try:
        yield
    except BaseException:
        connection.close()
        raise
