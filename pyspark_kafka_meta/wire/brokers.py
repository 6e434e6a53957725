"""`KafkaWire`: the `Wire` seam over real connections, two for each broker at most.

Metadata and ListOffsets go over a control connection, Fetch over one of its own, so that no question about the cluster
waits behind megabytes of records. Connections open when they are first used and close for good at the first error.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from pyspark_kafka_meta.errors import KafkaMetaError, ProtocolError, RequestTimeoutError
from pyspark_kafka_meta.memory import ReusedMemory
from pyspark_kafka_meta.metadata.model import Address, Broker, MetadataAnswer
from pyspark_kafka_meta.wire import translate, translate_fetch
from pyspark_kafka_meta.wire.codec import FETCH, LIST_OFFSETS, METADATA, Exchange
from pyspark_kafka_meta.wire.connection import Connection, ConnectionSettings
from pyspark_kafka_meta.wire.messages import (
    FetchAnswer,
    FetchFailure,
    FetchRequest,
    OffsetAnswers,
    OffsetsRequest,
)

LATE_READ_S = 1.0
"""For ListOffsets answers that came in time, while that of another broker was waited for."""
SHRINK = 8
"""So many times less is asked of a broker whose answer did not come whole in time: over a slow link, as much would be
late again. Twice as much is asked for after each full answer that came in a quarter of the time."""
MIN_ANSWER_BYTES = 64 * 1024

K = TypeVar("K")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _UnderWay(Generic[T]):
    """A request that was sent. Its answer must begin by the deadline, and has the time-out then to come whole."""

    connection: Connection
    request: T
    deadline: float
    read_timeout_s: float


class KafkaWire:
    """Implements `pyspark_kafka_meta.wire.messages.Wire`. Not thread-safe: used by one thread of one process."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._settings = settings
        self._control: dict[Address, Connection] = {}
        # By node id, as fetches under way are: a broker may have taken the place of another at its address.
        self._fetch: dict[int, Connection] = {}
        self._under_way: dict[int, _UnderWay[FetchRequest]] = {}
        self._max_bytes: dict[int, int] = {}  # of a Fetch answer, for brokers that one was late from, by node id
        self._memory = ReusedMemory()

    def metadata(self, address: Address, topics: Collection[str] | None, deadline: float) -> MetadataAnswer:
        connection = self._connection(self._control, address, address, deadline)
        request = translate.metadata_request(connection.version(METADATA), topics)
        exchange = connection.call(METADATA, request, deadline)
        answer = self._checked(connection, translate.metadata_answer, exchange, topics)
        if answer.brokers:
            self._close_all_but({address, *(broker.address for broker in answer.brokers)})
        return answer

    def list_offsets(
        self, requests: Sequence[OffsetsRequest], read_committed: bool, deadline: float
    ) -> Mapping[int, OffsetAnswers | KafkaMetaError]:
        outcomes: dict[int, OffsetAnswers | KafkaMetaError] = {}
        waiting: dict[int, _UnderWay[OffsetsRequest]] = {}
        for request in requests:
            try:
                _check_address(request.broker, waiting.values())
                waiting[request.broker.node_id] = self._send_list_offsets(request, read_committed, deadline)
            except KafkaMetaError as error:
                outcomes[request.broker.node_id] = error
        while waiting:
            first_due = _first_due(waiting)
            ready = _first_readable(waiting, waiting[first_due].deadline)
            node_id = first_due if ready is None else ready
            outcomes[node_id] = self._receive_list_offsets(waiting.pop(node_id), has_come=ready is not None)
        return outcomes

    def send_fetch(self, broker: Broker, request: FetchRequest, deadline: float) -> None:
        self.drop_fetch(broker.node_id)  # of a task that ended early: its answer must not be taken for the new one's
        connection = self._connection(self._fetch, broker.node_id, broker.address, deadline)
        by_name = any(entry.topic_id is None for entry in request.partitions)
        version = connection.version(FETCH, at_most=translate_fetch.TOPIC_IDS_SINCE - 1 if by_name else None)
        wanted = min(request.max_bytes, sum(entry.max_bytes for entry in request.partitions))
        request = replace(request, max_bytes=min(wanted, self._max_bytes.get(broker.node_id, wanted)))
        connection.send(FETCH, translate_fetch.fetch_request(version, request), deadline)
        self._under_way[broker.node_id] = _UnderWay(connection, request, deadline, deadline - time.monotonic())

    def receive_fetch(self, node_ids: Collection[int], deadline: float) -> FetchAnswer | FetchFailure | None:
        waiting = {node_id: self._under_way[node_id] for node_id in node_ids if node_id in self._under_way}
        if not waiting:
            return None
        first_due = _first_due(waiting)
        ready = _first_readable(waiting, min(deadline, waiting[first_due].deadline))
        if ready is not None:
            return self._receive(ready)
        if waiting[first_due].deadline > time.monotonic():
            return None
        self.drop_fetch(first_due)
        address = waiting[first_due].connection.address
        return FetchFailure(first_due, RequestTimeoutError(f"{address} did not answer a Fetch in time"))

    def drop_fetch(self, node_id: int) -> None:
        under_way = self._under_way.pop(node_id, None)
        if under_way is not None:
            under_way.connection.close()

    def close(self) -> None:
        for connection in (*self._control.values(), *self._fetch.values()):
            connection.close()
        self._control.clear()
        self._fetch.clear()
        self._under_way.clear()

    def _receive(self, node_id: int) -> FetchAnswer | FetchFailure:
        under_way = self._under_way.pop(node_id)
        # The caller may come late, busy with the rows of the answer before: what has arrived by then is still good.
        read_deadline = time.monotonic() + under_way.read_timeout_s
        try:
            exchange = under_way.connection.receive(read_deadline, self._memory)
            answer = self._checked(
                under_way.connection, translate_fetch.fetch_answer, exchange, under_way.request, node_id
            )
        except KafkaMetaError as error:
            if isinstance(error, RequestTimeoutError):
                self._max_bytes[node_id] = max(under_way.request.max_bytes // SHRINK, MIN_ANSWER_BYTES)
            return FetchFailure(node_id, error)
        was_full = answer.response_bytes * 2 > under_way.request.max_bytes
        was_quick = answer.latency_ms * 4 < under_way.read_timeout_s * 1000
        if node_id in self._max_bytes and was_full and was_quick:
            self._max_bytes[node_id] = max(self._max_bytes[node_id], under_way.request.max_bytes * 2)
        return answer

    def _send_list_offsets(
        self, request: OffsetsRequest, read_committed: bool, deadline: float
    ) -> _UnderWay[OffsetsRequest]:
        timeout_s, address = request.timeout_ms / 1000, request.broker.address
        connection = self._connection(self._control, address, address, min(deadline, time.monotonic() + timeout_s))
        message = translate.list_offsets_request(connection.version(LIST_OFFSETS), request.queries, read_committed)
        due = min(deadline, time.monotonic() + timeout_s)
        connection.send(LIST_OFFSETS, message, due)
        return _UnderWay(connection, request, due, LATE_READ_S)

    def _receive_list_offsets(
        self, under_way: _UnderWay[OffsetsRequest], has_come: bool
    ) -> OffsetAnswers | KafkaMetaError:
        connection = under_way.connection
        if not has_come:
            connection.close()
            return RequestTimeoutError(f"{connection.address} did not answer ListOffsets in time")
        try:
            exchange = connection.receive(max(under_way.deadline, time.monotonic() + under_way.read_timeout_s))
            return self._checked(connection, translate.list_offsets_answer, exchange, under_way.request.queries)
        except KafkaMetaError as error:
            return error

    def _close_all_but(self, addresses: Collection[Address]) -> None:
        """Close connections to where no broker is any more, but for those that a Fetch is under way on."""
        kept = [under_way.connection for under_way in self._under_way.values()]
        self._control = _close_others(self._control, addresses, kept)
        self._fetch = _close_others(self._fetch, addresses, kept)

    def _connection(self, pool: dict[K, Connection], key: K, address: Address, deadline: float) -> Connection:
        connection = pool.get(key)
        if connection is None or connection.address != address or not connection.is_usable():
            if connection is not None:
                connection.close()
            connection = pool[key] = Connection(address, self._settings, deadline)
        return connection

    @staticmethod
    def _checked(connection: Connection, read: Callable[..., T], exchange: Exchange, *context: Any) -> T:
        """What `read` makes of the answer. A peer that sends impossible answers loses its connection."""
        try:
            return read(exchange, *context)
        except KafkaMetaError:
            connection.close()
            raise


def _close_others(
    pool: Mapping[K, Connection], addresses: Collection[Address], kept: Collection[Connection]
) -> dict[K, Connection]:
    """The rest of the pool."""
    left = {key: one for key, one in pool.items() if one.address in addresses or one in kept}
    for key in pool.keys() - left.keys():
        pool[key].close()
    return left


def _check_address(broker: Broker, waiting: Iterable[_UnderWay[OffsetsRequest]]) -> None:
    """That no other broker is asked there: a connection has one question under way at a time."""
    for one in waiting:
        if one.request.broker.address == broker.address:
            other = one.request.broker.node_id
            raise ProtocolError(f"brokers {other} and {broker.node_id} are said to be both at {broker.address}")


def _first_due(waiting: Mapping[int, _UnderWay[Any]]) -> int:
    return min(waiting, key=lambda node_id: waiting[node_id].deadline)


def _first_readable(waiting: Mapping[int, _UnderWay[Any]], until: float) -> int | None:
    with selectors.DefaultSelector() as selector:
        for node_id, under_way in waiting.items():
            selector.register(under_way.connection, selectors.EVENT_READ, node_id)
        events = selector.select(max(until - time.monotonic(), 0))
    return int(events[0][0].data) if events else None
