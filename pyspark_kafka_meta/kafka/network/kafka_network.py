"""`KafkaNetwork`: the `Network` seam over real connections: one per broker and kind of request in flight, or
several for the requests of transactions.

Metadata and offsets never wait for megabytes of records.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from pyspark_kafka_meta.errors import RequestTimeoutError
from pyspark_kafka_meta.kafka.network.connection import Connection, ConnectionSettings
from pyspark_kafka_meta.kafka.network.in_flight_queue import InFlightRequest
from pyspark_kafka_meta.kafka.network.in_flight_requests import IdleConnections, InFlightRequests, PlainRequests
from pyspark_kafka_meta.kafka.protocol import fetch, list_offsets
from pyspark_kafka_meta.kafka.protocol import metadata as translate_metadata
from pyspark_kafka_meta.kafka.protocol.fetch import FetchRequest, FetchResponse
from pyspark_kafka_meta.kafka.protocol.frame_codec import (
    FETCH,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FOR_LEADER_EPOCH,
    Api,
    Exchange,
)
from pyspark_kafka_meta.kafka.protocol.list_offsets import OffsetsRequest, OffsetsResponse
from pyspark_kafka_meta.kafka.protocol.requests import RequestFailure
from pyspark_kafka_meta.kafka.records.reusable_buffer import ReusableBuffer
from pyspark_kafka_meta.model import Address, Broker, MetadataResponse

if TYPE_CHECKING:
    from pyspark_kafka_meta.kafka.network.optional_requests import AdminRequests, ProduceRequests, TransactionRequests

Topics: TypeAlias = Collection[str] | None
Kind = TypeVar("Kind", bound=InFlightRequests[Any, Any])

SHRINK = 8
"""Divides the requested bytes after a response that did not arrive in time: over a slow link, as many bytes would be
late again. They double after each full response that took at most a quarter of its time."""
MIN_RESPONSE_BYTES = 64 * 1024


class MetadataRequests(InFlightRequests[Topics, tuple[Address, MetadataResponse]]):
    """The response comes with the address of its broker."""

    name = "Metadata"
    extends_deadline = False

    def _encode(self, connection: Connection, request: Topics) -> tuple[Api, Any]:
        return METADATA, translate_metadata.metadata_request(connection.version(METADATA), request)

    def _read(
        self, node_id: int, connection: Connection, in_flight: InFlightRequest[Topics]
    ) -> tuple[Address, MetadataResponse]:
        exchange = connection.receive(in_flight.read_deadline(), has_begun=True)
        return connection.address, translate_metadata.metadata_response(exchange, in_flight.request)


class OffsetsRequests(PlainRequests[OffsetsRequest, OffsetsResponse]):
    name = "ListOffsets"

    def _encode(self, connection: Connection, request: OffsetsRequest) -> tuple[Api, Any]:
        api = OFFSET_FOR_LEADER_EPOCH if request.by_epoch else LIST_OFFSETS
        return api, list_offsets.offsets_request(connection.version(api), request)

    def _decode(self, exchange: Exchange, request: OffsetsRequest, node_id: int) -> OffsetsResponse:
        return list_offsets.offsets_response(exchange, request, node_id)


class FetchRequests(InFlightRequests[FetchRequest, FetchResponse]):
    """Requests fewer bytes of a broker whose response was late."""

    name = "a Fetch"

    def __init__(self, settings: ConnectionSettings, idle: IdleConnections, interrupted_by: MetadataRequests) -> None:
        super().__init__(settings, idle, interrupted_by)
        self._max_bytes: dict[Address, int] = {}  # of brokers whose response was late
        self._memory = ReusableBuffer()

    def _requested_bytes(self, address: Address, request: FetchRequest) -> int:
        wanted = min(request.max_bytes, sum(entry.max_bytes for entry in request.partitions))
        return min(wanted, self._max_bytes.get(address, wanted))

    def _encode(self, connection: Connection, request: FetchRequest) -> tuple[Api, Any]:
        request = replace(request, max_bytes=self._requested_bytes(connection.address, request))
        by_name = any(entry.topic_id is None for entry in request.partitions)
        version = connection.version(FETCH, at_most=fetch.TOPIC_IDS_SINCE - 1 if by_name else None)
        return FETCH, fetch.fetch_request(version, request)

    def _read(self, node_id: int, connection: Connection, in_flight: InFlightRequest[FetchRequest]) -> FetchResponse:
        address, request = connection.address, in_flight.request
        max_bytes = self._requested_bytes(address, request)
        try:
            exchange = connection.receive(
                in_flight.read_deadline(), self._memory, has_begun=True, max_records_bytes=request.max_bytes
            )
        except RequestTimeoutError:
            self._max_bytes[address] = max(max_bytes // SHRINK, MIN_RESPONSE_BYTES)
            raise
        response = fetch.fetch_response(exchange, request, node_id)
        was_full = response.response_bytes * 2 > max_bytes
        was_quick = response.latency_ms * 4 < in_flight.timeout_s * 1000
        if address in self._max_bytes and was_full and was_quick:
            self._max_bytes[address] = max(self._max_bytes[address], max_bytes * 2)
        return response


class KafkaNetwork:
    """Implements `kafka.protocol.requests.Network`. Not thread-safe: used by one thread of one process."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._settings = settings
        self._idle = IdleConnections()
        self._metadata = MetadataRequests(settings, self._idle)
        self._kinds: list[InFlightRequests[Any, Any]] = [self._metadata]
        self.offsets = self._open(OffsetsRequests)
        self.fetch = self._open(FetchRequests)
        # Metadata goes to addresses, which get numbers here: bootstrap addresses have no node id.
        self._numbers: defaultdict[Address, int] = defaultdict(itertools.count().__next__)

    @cached_property
    def produce(self) -> ProduceRequests:
        from pyspark_kafka_meta.kafka.network.optional_requests import ProduceRequests  # readers start sooner without

        return self._open(ProduceRequests)

    @cached_property
    def transactions(self) -> TransactionRequests:
        from pyspark_kafka_meta.kafka.network.optional_requests import TransactionRequests  # as above

        return self._open(TransactionRequests)

    @cached_property
    def admin(self) -> AdminRequests:
        from pyspark_kafka_meta.kafka.network.optional_requests import AdminRequests  # as above

        return self._open(AdminRequests)

    def _open(self, kind: Callable[[ConnectionSettings, IdleConnections, MetadataRequests], Kind]) -> Kind:
        requests = kind(self._settings, self._idle, self._metadata)
        self._kinds.append(requests)
        return requests

    def metadata(self, address: Address, topics: Collection[str] | None, deadline: float) -> MetadataResponse:
        """Send a Metadata request and wait for its response."""
        self.send_metadata(address, topics, deadline)
        response = self.receive_metadata(math.inf)  # the request has its own deadline
        assert response is not None
        return response

    def send_metadata(self, address: Address, topics: Collection[str] | None, deadline: float) -> None:
        self._metadata.drop_all()
        self._metadata.send(Broker(self._numbers[address], address), topics, deadline)

    def receive_metadata(self, deadline: float) -> MetadataResponse | None:
        received = self._metadata.receive(self._metadata.node_ids(), deadline)
        if received is None:
            return None
        if isinstance(received, RequestFailure):
            raise received.error
        address, response = received
        if response.brokers:
            # Others are connections to addresses that no broker has any more.
            self._idle.close_except({address, *(broker.address for broker in response.brokers)})
        return response

    def close_idle(self) -> None:
        self._idle.close_except(())

    def close(self) -> None:
        for requests in self._kinds:
            requests.drop_all()
        self.close_idle()
