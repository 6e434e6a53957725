"""`InFlightRequests`: the requests of one kind (such as Fetch) to all brokers, and the connections that carry them.

A client has one thread, and a slow broker must not delay the others. So `send` never waits: the kernel takes what fits
into the socket's buffer, and a thread opens a missing connection. All waiting is in `receive`. It waits for several
brokers at a time, sends what the sockets did not take, and returns the first response or failure. Deadlines are checked
there alone. Only a response that has begun is read to its end while other brokers wait, which is why it may not pause
for long (`connection.SILENCE_S`).

A broker handles the requests of one connection in order, and responds in order. So a connection needs no bookkeeping
but a queue (`in_flight_queue`), and a connection that has failed is closed: nobody knows which response comes next.
Each kind has at most one connection to a broker, with one request in flight, or several if it `pipelines` (Produce).
For further connections a caller sends to the same address under other node ids (`requests.connection_id`).

| state of a broker | where | ends with |
|---|---|---|
| idle | a connection may be in `IdleConnections`, for all kinds | `send` |
| opening | a queue with an `OpeningConnection`: a thread connects, logs in, sends one request | in flight; failed |
| in flight | a queue with a `Connection`: requests wait for their responses | the last response; failed |
| login due | the same; new requests are `held`, as the session ends soon (KIP-368) | the last response, then opening |
| failed | the error is in `_failed`, the connection is closed | `receive`, which returns the failure |

An error and a missed deadline lead to "failed". One failure is of all requests to the broker. `drop` leads to "idle"
from any state, and closes the connection.

Races: what happens without a guard, and the guard. A and B are requests to the same broker, in this order.

1. A late response. (1) A gets no response in time, or is replaced by B. (2) B is sent over the same connection. (3) The
   response to A arrives, and is taken for the response to B. Guards: a timeout, `drop`, and a `send` that does not
   pipeline close the connection of A. An idle connection on which bytes have arrived is not used
   (`Connection.is_usable`). A response must carry the correlation id of the oldest request.
2. A failure that was not received yet. (1) A fails, but `receive` returns the response of another broker first. (2) B
   goes out over a new connection. (3) `receive` returns the failure of all requests to the broker: the caller counts B
   among them, though the broker handles B. Guard: until then, `send` of a kind that pipelines sends nothing.
3. A busy caller. (1) The response to A arrives in time. (2) The caller computes until A's deadline has passed. (3) By
   the clock, A has failed. Guard: `receive` looks at the sockets before the clock, and gives a response that has begun
   as much time again to its end.
4. The login in between. (1) A is in flight when the session is about to end. (2) A login is sent after A. (3) The
   response to A is taken for that of the login. Guard: later requests are `held` until nothing is in flight; then a
   thread logs in and sends the first of them.
5. An idle connection breaks. (1) The broker closes it, as it does after some minutes. (2) A is sent over it, and fails
   although the broker is healthy. Guard: `IdleConnections.take` looks at the socket, and if A cannot be sent, `_start`
   sends A over a new connection.
6. Metadata arrives. (1) The caller waits for the response of a broker that hangs. (2) Metadata arrives, by which the
   broker has lost its partitions. (3) The caller waits until the deadline nevertheless. Guard: an event at the socket
   of `interrupted_by`, or its deadline, ends the wait.
7. A cancelled caller. (1) An exception such as KeyboardInterrupt ends `send` in the middle of A. (2) B is sent over the
   same connection: it begins within A. Guard: `_failing` and `_closed_by_errors` close the connection at any exception.

Named after Kafka's `org.apache.kafka.clients.InFlightRequests`.
"""

from __future__ import annotations

import selectors
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Generic, TypeVar

from pyspark_kafka_meta.errors import ConnectError, KafkaMetaError, RequestTimeoutError
from pyspark_kafka_meta.kafka.network.connection import Connection, ConnectionSettings
from pyspark_kafka_meta.kafka.network.in_flight_queue import (
    InFlightQueue,
    InFlightRequest,
    OpeningConnection,
    next_events,
)
from pyspark_kafka_meta.kafka.network.security.oauth_tokens import TokenRefusedError
from pyspark_kafka_meta.kafka.protocol.apis import Api, ApiRequest
from pyspark_kafka_meta.kafka.protocol.network_interface import RequestFailure
from pyspark_kafka_meta.model import Address, Broker

RequestT = TypeVar("RequestT", bound=ApiRequest[Any])
ResponseT = TypeVar("ResponseT")


class IdleConnections:
    """Open connections without a request in flight, shared by all kinds of requests of a client. Not thread-safe.

    Brokers limit the connections of a host (`max.connections.per.ip`). With shared connections, a client needs only as
    many to a broker as kinds of requests are in flight to it at the same time.
    """

    def __init__(self) -> None:
        self._by_address: dict[Address, list[Connection]] = {}

    def take(self, address: Address) -> Connection | None:
        """The connection to this address that was used last and that its broker has not closed; None without any."""
        idle = self._by_address.get(address, [])
        while idle:
            connection = idle.pop()
            if connection.is_usable():
                return connection
            connection.close()
        return None

    def put(self, connection: Connection) -> None:
        """Keep a connection whose last response was received."""
        self._by_address.setdefault(connection.address, []).append(connection)

    def close_except(self, addresses: Collection[Address]) -> None:
        for address in self._by_address.keys() - set(addresses):
            for connection in self._by_address.pop(address):
                connection.close()


class InFlightRequests(Generic[RequestT, ResponseT]):
    """Implements `Requests` of `kafka.protocol.network_interface`. Not thread-safe."""

    def __init__(
        self,
        name: str,
        settings: ConnectionSettings,
        idle: IdleConnections,
        interrupted_by: InFlightRequests[Any, Any] | None = None,
        *,
        pipelines: bool = False,
        extends_deadline: bool = True,
    ) -> None:
        """
        Args:
            name: the kind of request in errors.
            idle: shared with the other kinds of requests of the client.
            interrupted_by: requests of another kind that end a `receive` here (race 6).
            pipelines: whether a broker may have several requests in flight.
            extends_deadline: whether requests get their whole timeout again once a new connection is open.
        """
        self._name = name
        self._pipelines = pipelines
        self._extends_deadline = extends_deadline
        self._settings = settings
        self._interrupted_by = interrupted_by
        self._idle = idle
        self._in_flight: dict[int, InFlightQueue[RequestT]] = {}
        self._failed: dict[int, KafkaMetaError] = {}  # not received yet

    def _encode(self, connection: Connection, request: RequestT) -> tuple[Api, Any]:
        """The message of the request, in the newest version that the broker of this connection supports."""
        api = request.spoken()
        return api, request.encode(connection.version(api))

    def _read(self, node_id: int, connection: Connection, in_flight: InFlightRequest[RequestT]) -> ResponseT:
        """Receive the response, which has begun to arrive."""
        response: ResponseT = in_flight.request.decode(
            connection.receive(in_flight.read_deadline(), has_begun=True), node_id
        )
        return response

    def node_ids(self) -> Collection[int]:
        """Brokers whose response, or failure, was not received."""
        return [*self._in_flight, *self._failed]

    def send(self, broker: Broker, request: RequestT, deadline: float) -> None:
        if not self._pipelines:
            self.drop(broker.node_id)  # race 1
        if broker.node_id in self._failed:
            return  # race 2: the failure is of this request too
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
                self._fail(due, waiting[due].time_out(self._name))
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
        """Send requests to a broker that has none in flight, over an idle connection. If there is none, or it breaks,
        or its login is due, a thread sends the first request, and the others are held."""
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
        """The work of the thread: log in again over an idle connection, or open a new connection, and send. A refused
        token is replaced once, over a new connection: it may have been revoked."""

        def send_over(connection: Connection) -> Connection:
            with _closed_by_errors(connection):
                connection.send(*self._encode(connection, request), deadline)
            return connection

        try:
            return send_over(idle or Connection(broker.address, self._settings, deadline))
        except TokenRefusedError:
            return send_over(Connection(broker.address, self._settings, deadline))

    def _send_held(self, queue: InFlightQueue[RequestT]) -> None:
        """Send the held requests, unless the connection is not open yet or a login is due."""
        with self._failing(queue):
            while queue.held and isinstance(queue.channel, Connection) and not queue.channel.login_is_due():
                queue.sent.append(queue.held.popleft())
                message = self._encode(queue.channel, queue.sent[-1].request)
                queue.channel.send(*message, queue.sent[-1].deadline)

    def _advance(self, events: Mapping[int, int]) -> int | None:
        """Take opened connections, and send unsent bytes. Returns the first broker with something to read: a response,
        or the end of its connection."""
        for node_id, event in events.items():
            queue = self._in_flight[node_id]
            with self._failing(queue):
                if isinstance(queue.channel, OpeningConnection):
                    queue.open(self._extends_deadline)
                    self._send_held(queue)
                elif event & selectors.EVENT_READ:
                    return node_id
                else:
                    queue.channel.flush()
        return None

    def _response(self, node_id: int) -> ResponseT | RequestFailure:
        """Read the response to the oldest request. After the last response the connection is idle again."""
        queue = self._in_flight.pop(node_id)
        connection = queue.channel
        assert isinstance(connection, Connection)
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
        """A KafkaMetaError is the failure of all requests of the queue. Any other exception drops them (race 7)."""
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
