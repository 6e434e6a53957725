"""`KafkaWire`: the `Wire` seam over real connections, one to each broker for each kind of request.

So no question about the cluster waits behind megabytes of records. Connections open when they are first used and close
for good at the first error.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from typing import TypeAlias, TypeVar

from pyspark_kafka_meta.errors import KafkaMetaError, RequestTimeoutError
from pyspark_kafka_meta.model import Address, Broker, MetadataResponse
from pyspark_kafka_meta.reused_memory import ReusedMemory
from pyspark_kafka_meta.wire import translate_fetch, translate_metadata
from pyspark_kafka_meta.wire.codec import FETCH, LIST_OFFSETS, METADATA, OFFSET_FOR_LEADER_EPOCH
from pyspark_kafka_meta.wire.connection import Connection, ConnectionSettings
from pyspark_kafka_meta.wire.in_flight import InFlightRequest
from pyspark_kafka_meta.wire.in_flight_requests import Requests
from pyspark_kafka_meta.wire.messages import (
    FetchRequest,
    FetchResponse,
    OffsetsRequest,
    OffsetsResponse,
    RequestFailure,
)

ResponseT = TypeVar("ResponseT")
Topics: TypeAlias = Collection[str] | None

SHRINK = 8
"""Divides what is asked of a broker whose answer did not come whole in time: over a slow link, as much would be late
again. Twice as much is asked for after each full answer that came in a quarter of the time."""
MIN_ANSWER_BYTES = 64 * 1024


class KafkaWire:
    """Implements `pyspark_kafka_meta.wire.messages.Wire`. Not thread-safe: used by one thread of one process."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._metadata: Requests[Address, Topics, MetadataResponse] = Requests(
            "Metadata", settings, _write_metadata, _read_metadata, moves_deadline=False
        )
        self._offsets: Requests[int, OffsetsRequest, OffsetsResponse] = Requests(
            "ListOffsets", settings, _write_offsets, _read_offsets
        )
        self._fetches: Requests[int, FetchRequest, FetchResponse] = Requests(
            "a Fetch", settings, _write_fetch, self._read_fetch
        )
        self._max_bytes: dict[int, int] = {}  # of a Fetch answer, for brokers that one was late from, by node id
        self._memory = ReusedMemory()

    def metadata(self, address: Address, topics: Collection[str] | None, deadline: float) -> MetadataResponse:
        """For callers that ask for nothing else meanwhile: the answer, or the error that there is instead."""
        self.send_metadata(address, topics, deadline)
        answer = self.receive_metadata(math.inf)  # the request has its own end
        assert answer is not None
        return answer

    def send_metadata(self, address: Address, topics: Collection[str] | None, deadline: float) -> None:
        self._metadata.drop_all()
        self._metadata.send(address, address, topics, deadline)

    def receive_metadata(self, deadline: float) -> MetadataResponse | None:
        received = self._metadata.receive(self._metadata.asked(), deadline)
        if received is None:
            return None
        address, answer = received
        if isinstance(answer, KafkaMetaError):
            raise answer
        if answer.brokers:
            self._close_all_but({address, *(broker.address for broker in answer.brokers)})
        return answer

    def send_offsets(self, broker: Broker, request: OffsetsRequest, deadline: float) -> None:
        self._offsets.send(broker.node_id, broker.address, request, deadline)

    def receive_offsets(self, node_ids: Collection[int], deadline: float) -> OffsetsResponse | RequestFailure | None:
        return _of_node(self._offsets.receive(node_ids, deadline, self._metadata.under_way()))

    def drop_offsets(self, node_id: int) -> None:
        self._offsets.drop(node_id)

    def send_fetch(self, broker: Broker, request: FetchRequest, deadline: float) -> None:
        wanted = min(request.max_bytes, sum(entry.max_bytes for entry in request.partitions))
        asked = replace(request, max_bytes=min(wanted, self._max_bytes.get(broker.node_id, wanted)))
        self._fetches.send(broker.node_id, broker.address, asked, deadline)

    def receive_fetch(self, node_ids: Collection[int], deadline: float) -> FetchResponse | RequestFailure | None:
        return _of_node(self._fetches.receive(node_ids, deadline, self._metadata.under_way()))

    def drop_fetch(self, node_id: int) -> None:
        self._fetches.drop(node_id)

    def close(self) -> None:
        self._metadata.close()
        self._offsets.close()
        self._fetches.close()

    def _close_all_but(self, addresses: Collection[Address]) -> None:
        """Close connections to where no broker is any more, but for those that something is under way on."""
        self._metadata.close_all_but(addresses)
        self._offsets.close_all_but(addresses)
        self._fetches.close_all_but(addresses)

    def _read_fetch(
        self, node_id: int, connection: Connection, under_way: InFlightRequest[FetchRequest]
    ) -> FetchResponse:
        max_bytes = under_way.request.max_bytes
        try:
            exchange = connection.receive(under_way.read_deadline(), self._memory, has_begun=True)
        except RequestTimeoutError:
            self._max_bytes[node_id] = max(max_bytes // SHRINK, MIN_ANSWER_BYTES)
            raise
        answer = translate_fetch.fetch_response(exchange, under_way.request, node_id)
        was_full = answer.response_bytes * 2 > max_bytes
        was_quick = answer.latency_ms * 4 < under_way.timeout_s * 1000
        if node_id in self._max_bytes and was_full and was_quick:
            self._max_bytes[node_id] = max(self._max_bytes[node_id], max_bytes * 2)
        return answer


def _write_fetch(connection: Connection, request: FetchRequest, deadline: float) -> None:
    by_name = any(entry.topic_id is None for entry in request.partitions)
    version = connection.version(FETCH, at_most=translate_fetch.TOPIC_IDS_SINCE - 1 if by_name else None)
    connection.send(FETCH, translate_fetch.fetch_request(version, request), deadline)


def _write_offsets(connection: Connection, request: OffsetsRequest, deadline: float) -> None:
    api = OFFSET_FOR_LEADER_EPOCH if request.by_epoch else LIST_OFFSETS
    connection.send(api, translate_metadata.offsets_request(connection.version(api), request), deadline)


def _read_offsets(node_id: int, connection: Connection, under_way: InFlightRequest[OffsetsRequest]) -> OffsetsResponse:
    exchange = connection.receive(under_way.read_deadline(), has_begun=True)
    return translate_metadata.offsets_response(exchange, under_way.request, node_id)


def _write_metadata(connection: Connection, topics: Topics, deadline: float) -> None:
    connection.send(METADATA, translate_metadata.metadata_request(connection.version(METADATA), topics), deadline)


def _read_metadata(_: Address, connection: Connection, under_way: InFlightRequest[Topics]) -> MetadataResponse:
    exchange = connection.receive(under_way.read_deadline(), has_begun=True)
    return translate_metadata.metadata_response(exchange, under_way.request)


def _of_node(received: tuple[int, ResponseT | KafkaMetaError] | None) -> ResponseT | RequestFailure | None:
    if received is None:
        return None
    node_id, answer = received
    return RequestFailure(node_id, answer) if isinstance(answer, KafkaMetaError) else answer
