"""`KafkaNetwork`: the `Network` seam over real connections: one per broker and kind of request in flight, or
several for the requests of transactions.

Metadata and offsets never wait for megabytes of records.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace
from typing import Any, TypeAlias

from pyspark_kafka_meta.errors import RequestTimeoutError
from pyspark_kafka_meta.kafka.network.connection import Connection, ConnectionSettings
from pyspark_kafka_meta.kafka.network.in_flight_queue import InFlightRequest
from pyspark_kafka_meta.kafka.network.in_flight_requests import IdleConnections, InFlightRequests
from pyspark_kafka_meta.kafka.protocol.apis import Api, ApiResponse, BrokerRequest
from pyspark_kafka_meta.kafka.protocol.fetch import FetchRequest, FetchResponse
from pyspark_kafka_meta.kafka.protocol.list_offsets import OffsetsRequest, OffsetsResponse
from pyspark_kafka_meta.kafka.protocol.metadata import MetadataRequest
from pyspark_kafka_meta.kafka.protocol.network_interface import RequestFailure
from pyspark_kafka_meta.kafka.records.reusable_buffer import ReusableBuffer
from pyspark_kafka_meta.model import Address, Broker, MetadataResponse

Offsets: TypeAlias = InFlightRequests[OffsetsRequest, OffsetsResponse]
Rare: TypeAlias = InFlightRequests[BrokerRequest[Any], ApiResponse[Any]]

SHRINK = 8
"""Divides the requested bytes after a response that did not arrive in time: over a slow link, as many bytes would be
late again. They double after each full response that took at most a quarter of its time."""
MIN_RESPONSE_BYTES = 64 * 1024


MetadataRequests: TypeAlias = InFlightRequests[MetadataRequest, MetadataResponse]


class FetchRequests(InFlightRequests[FetchRequest, FetchResponse]):
    """Requests fewer bytes of a broker whose response was late."""

    def __init__(self, settings: ConnectionSettings, idle: IdleConnections, interrupted_by: MetadataRequests) -> None:
        super().__init__("a Fetch", settings, idle, interrupted_by)
        self._max_bytes: dict[Address, int] = {}  # of brokers whose response was late
        self._memory = ReusableBuffer()

    def _requested_bytes(self, address: Address, request: FetchRequest) -> int:
        wanted = min(request.max_bytes, sum(entry.max_bytes for entry in request.partitions))
        return min(wanted, self._max_bytes.get(address, wanted))

    def _encode(self, connection: Connection, request: FetchRequest) -> tuple[Api, Any]:
        max_bytes = self._requested_bytes(connection.address, request)
        return super()._encode(connection, replace(request, max_bytes=max_bytes))

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
        response = request.decode(exchange, node_id)
        was_full = response.response_bytes * 2 > max_bytes
        was_quick = response.latency_ms * 4 < in_flight.timeout_s * 1000
        if address in self._max_bytes and was_full and was_quick:
            self._max_bytes[address] = max(self._max_bytes[address], max_bytes * 2)
        return response


class ProduceRequests(InFlightRequests[Any, Any]):  # readers start sooner without the module of its types
    """A broker that waits for its followers reads no further requests: its full buffer is no reason to close a
    connection whose requests it may have handled."""

    def __init__(self, settings: ConnectionSettings, idle: IdleConnections, interrupted_by: MetadataRequests) -> None:
        super().__init__(
            "a Produce", replace(settings, limits_unacknowledged=False), idle, interrupted_by, pipelines=True
        )


class KafkaNetwork:
    """Implements `kafka.protocol.network_interface.Network`. Not thread-safe: used by one thread of one process."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._idle = idle = IdleConnections()
        self._metadata: MetadataRequests = InFlightRequests("Metadata", settings, idle, extends_deadline=False)
        metadata = self._metadata
        self.offsets: Offsets = InFlightRequests("ListOffsets", settings, idle, metadata)
        self.fetch = FetchRequests(settings, idle, metadata)
        self.produce = ProduceRequests(settings, idle, metadata)
        self.transactions: Rare = InFlightRequests("a request of a transaction", settings, idle, metadata)
        self.admin: Rare = InFlightRequests("a request of administration", settings, idle, metadata)
        # Metadata goes to addresses, which get numbers here: bootstrap addresses have no node id.
        self._numbers: defaultdict[Address, int] = defaultdict(itertools.count().__next__)
        self._asked: Address  # by the request in flight

    def metadata(self, address: Address, topics: Collection[str] | None, deadline: float) -> MetadataResponse:
        """Send a Metadata request and wait for its response."""
        self.send_metadata(address, topics, deadline)
        response = self.receive_metadata(math.inf)  # the request has its own deadline
        assert response is not None
        return response

    def send_metadata(self, address: Address, topics: Collection[str] | None, deadline: float) -> None:
        self._metadata.drop_all()
        self._asked = address
        self._metadata.send(Broker(self._numbers[address], address), MetadataRequest(topics), deadline)

    def receive_metadata(self, deadline: float) -> MetadataResponse | None:
        response = self._metadata.receive(self._metadata.node_ids(), deadline)
        if isinstance(response, RequestFailure):
            raise response.error
        if response is not None and response.brokers:
            # Others are connections to addresses that no broker has any more.
            self._idle.close_except({self._asked, *(broker.address for broker in response.brokers)})
        return response

    def close_idle(self) -> None:
        self._idle.close_except(())

    def close(self) -> None:
        for requests in (self._metadata, self.offsets, self.fetch, self.produce, self.transactions, self.admin):
            requests.drop_all()
        self.close_idle()
