"""`KafkaWire`: the `Wire` seam over real connections, two for each broker at most.

Metadata and ListOffsets go over a control connection, Fetch over one of its own, so that no question about the cluster
waits behind megabytes of records. Connections open when they are first used and close for good at the first error.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TypeVar

from pyspark_kafka_meta.errors import ConnectError, KafkaMetaError, ProtocolError, RequestTimeoutError
from pyspark_kafka_meta.memory import ReusedMemory
from pyspark_kafka_meta.metadata.model import Address, Broker, MetadataAnswer
from pyspark_kafka_meta.wire import translate, translate_fetch
from pyspark_kafka_meta.wire.codec import FETCH, LIST_OFFSETS, METADATA
from pyspark_kafka_meta.wire.connection import Connection, ConnectionSettings
from pyspark_kafka_meta.wire.messages import (
    FetchAnswer,
    FetchFailure,
    FetchRequest,
    OffsetAnswers,
    OffsetsRequest,
)
from pyspark_kafka_meta.wire.under_way import Opening, UnderWay, first_begun, first_due

LATE_READ_S = 1.0
"""For ListOffsets answers that came in time, while that of another broker was waited for."""
SHRINK = 8
"""So many times less is asked of a broker whose answer did not come whole in time: over a slow link, as much would be
late again. Twice as much is asked for after each full answer that came in a quarter of the time."""
MIN_ANSWER_BYTES = 64 * 1024

K = TypeVar("K")


class KafkaWire:
    """Implements `pyspark_kafka_meta.wire.messages.Wire`. Not thread-safe: used by one thread of one process."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._settings = settings
        self._control: dict[Address, Connection] = {}
        # By node id, as fetches under way are: a broker may have taken the place of another at its address.
        self._fetch: dict[int, Connection] = {}
        self._under_way: dict[int, UnderWay[FetchRequest]] = {}
        self._max_bytes: dict[int, int] = {}  # of a Fetch answer, for brokers that one was late from, by node id
        self._memory = ReusedMemory()

    def metadata(self, address: Address, topics: Collection[str] | None, deadline: float) -> MetadataAnswer:
        connection = self._control_connection(address, deadline)
        with _closed_by_errors(connection):
            request = translate.metadata_request(connection.version(METADATA), topics)
            answer = translate.metadata_answer(connection.call(METADATA, request, deadline), topics)
        self._control[address] = connection
        if answer.brokers:
            self._close_all_but({address, *(broker.address for broker in answer.brokers)})
        return answer

    def list_offsets(
        self, requests: Sequence[OffsetsRequest], read_committed: bool, deadline: float
    ) -> Mapping[int, OffsetAnswers | KafkaMetaError]:
        outcomes: dict[int, OffsetAnswers | KafkaMetaError] = {}
        waiting: dict[int, UnderWay[OffsetsRequest]] = {}
        try:
            for request in requests:
                try:
                    _check_address(request.broker, waiting.values())
                    waiting[request.broker.node_id] = self._ask_offsets(request, read_committed, deadline)
                except KafkaMetaError as error:
                    outcomes[request.broker.node_id] = error
            while waiting:
                due = first_due(waiting)
                ready = first_begun(waiting, waiting[due].deadline)
                node_id = due if ready is None else ready
                outcomes[node_id] = self._receive_offsets(waiting.pop(node_id), has_come=ready is not None)
        finally:
            for one in waiting.values():
                one.channel.close()
        return outcomes

    def send_fetch(self, broker: Broker, request: FetchRequest, deadline: float) -> None:
        self.drop_fetch(broker.node_id)  # of a task that ended early: its answer must not be taken for the new one's
        wanted = min(request.max_bytes, sum(entry.max_bytes for entry in request.partitions))
        asked = replace(request, max_bytes=min(wanted, self._max_bytes.get(broker.node_id, wanted)))
        channel = self._send_fetch(broker, asked, deadline)
        self._under_way[broker.node_id] = UnderWay(broker.address, channel, asked, deadline)

    def receive_fetch(self, node_ids: Collection[int], deadline: float) -> FetchAnswer | FetchFailure | None:
        waiting = {node_id: self._under_way[node_id] for node_id in node_ids if node_id in self._under_way}
        if not waiting:
            return None
        due = first_due(waiting)
        ready = first_begun(waiting, min(deadline, waiting[due].deadline))
        if ready is not None:
            return self._receive(ready)
        if waiting[due].deadline > time.monotonic():
            return None
        return FetchFailure(due, self._under_way.pop(due).time_out("a Fetch"))

    def drop_fetch(self, node_id: int) -> None:
        under_way = self._under_way.pop(node_id, None)
        if under_way is not None:
            under_way.channel.close()

    def close(self) -> None:
        for node_id in list(self._under_way):
            self.drop_fetch(node_id)
        for connection in (*self._control.values(), *self._fetch.values()):
            connection.close()
        self._control.clear()
        self._fetch.clear()

    def _send_fetch(self, broker: Broker, request: FetchRequest, deadline: float) -> Connection | Opening:
        """What it is sent over: the connection kept, which leaves the pool. Where there is none, or it breaks, a thread
        opens another, and sends it then; so it does over one that has to log in again first."""
        kept = self._take(self._fetch, broker.node_id, broker.address)
        if kept is not None and kept.login_is_due():
            return Opening(lambda: _fetch_sent(kept, request, deadline))
        if kept is not None:
            with suppress(ConnectError, RequestTimeoutError):
                return _fetch_sent(kept, request, deadline)
        return Opening(lambda: _fetch_sent(Connection(broker.address, self._settings, deadline), request, deadline))

    def _receive(self, node_id: int) -> FetchAnswer | FetchFailure:
        under_way = self._under_way.pop(node_id)
        timeout_s = under_way.deadline - under_way.asked_at
        try:
            connection = under_way.connection()
            with _closed_by_errors(connection):
                # The caller may come late, busy with the rows of the answer before: what came by then is still good.
                exchange = connection.receive(time.monotonic() + timeout_s, self._memory)
                answer = translate_fetch.fetch_answer(exchange, under_way.request, node_id)
        except KafkaMetaError as error:
            if isinstance(error, RequestTimeoutError):
                self._max_bytes[node_id] = max(under_way.request.max_bytes // SHRINK, MIN_ANSWER_BYTES)
            return FetchFailure(node_id, error)
        self._fetch[node_id] = connection
        was_full = answer.response_bytes * 2 > under_way.request.max_bytes
        was_quick = answer.latency_ms * 4 < timeout_s * 1000
        if node_id in self._max_bytes and was_full and was_quick:
            self._max_bytes[node_id] = max(self._max_bytes[node_id], under_way.request.max_bytes * 2)
        return answer

    def _ask_offsets(self, request: OffsetsRequest, read_committed: bool, deadline: float) -> UnderWay[OffsetsRequest]:
        timeout_s, address = request.timeout_ms / 1000, request.broker.address
        # One after the other: all connections of a planner at the same time would keep each from being made in time.
        connection = self._control_connection(address, min(deadline, time.monotonic() + timeout_s))
        due = min(deadline, time.monotonic() + timeout_s)
        with _closed_by_errors(connection):
            message = translate.list_offsets_request(connection.version(LIST_OFFSETS), request.queries, read_committed)
            connection.send(LIST_OFFSETS, message, due)
        return UnderWay(address, connection, request, due)

    def _receive_offsets(self, under_way: UnderWay[OffsetsRequest], has_come: bool) -> OffsetAnswers | KafkaMetaError:
        if not has_come:
            return under_way.time_out("ListOffsets")
        try:
            connection = under_way.connection()
            with _closed_by_errors(connection):
                exchange = connection.receive(max(under_way.deadline, time.monotonic() + LATE_READ_S))
                answers = translate.list_offsets_answer(exchange, under_way.request.queries)
        except KafkaMetaError as error:
            return error
        self._control[under_way.address] = connection
        return answers

    def _control_connection(self, address: Address, deadline: float) -> Connection:
        """It is back in the pool once its question is answered."""
        return self._take(self._control, address, address) or Connection(address, self._settings, deadline)

    def _close_all_but(self, addresses: Collection[Address]) -> None:
        """Close connections to where no broker is any more, but for those that a Fetch is under way on."""
        self._control = _close_others(self._control, addresses)
        self._fetch = _close_others(self._fetch, addresses)

    @staticmethod
    def _take(pool: dict[K, Connection], key: K, address: Address) -> Connection | None:
        """The connection kept for that, out of the pool; None if it is of no use any more."""
        kept = pool.pop(key, None)
        if kept is not None and (kept.address != address or not kept.is_usable()):
            kept.close()
            return None
        return kept


def _close_others(pool: Mapping[K, Connection], addresses: Collection[Address]) -> dict[K, Connection]:
    """The rest of the pool."""
    left = {key: one for key, one in pool.items() if one.address in addresses}
    for key in pool.keys() - left.keys():
        pool[key].close()
    return left


def _fetch_sent(connection: Connection, request: FetchRequest, deadline: float) -> Connection:
    with _closed_by_errors(connection):
        by_name = any(entry.topic_id is None for entry in request.partitions)
        version = connection.version(FETCH, at_most=translate_fetch.TOPIC_IDS_SINCE - 1 if by_name else None)
        connection.send(FETCH, translate_fetch.fetch_request(version, request), deadline)
    return connection


@contextmanager
def _closed_by_errors(connection: Connection) -> Iterator[None]:
    """Of a peer that sends impossible answers, too, and of whoever waits no more."""
    try:
        yield
    except BaseException:
        connection.close()
        raise


def _check_address(broker: Broker, waiting: Iterable[UnderWay[OffsetsRequest]]) -> None:
    """That no other broker is asked there: a connection has one question under way at a time."""
    for one in waiting:
        if one.request.broker.address == broker.address:
            other = one.request.broker.node_id
            raise ProtocolError(f"brokers {other} and {broker.node_id} are said to be both at {broker.address}")
