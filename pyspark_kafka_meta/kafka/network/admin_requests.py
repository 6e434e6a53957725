"""The requests for the offsets of consumer groups, and for topics and their configuration."""

from __future__ import annotations

from typing import Any

from pyspark_kafka_meta.kafka.network.connection import Connection
from pyspark_kafka_meta.kafka.network.in_flight_queue import InFlightRequest
from pyspark_kafka_meta.kafka.network.in_flight_requests import InFlightRequests
from pyspark_kafka_meta.kafka.protocol import admin
from pyspark_kafka_meta.kafka.protocol.admin import AdminRequest, AdminResponse
from pyspark_kafka_meta.kafka.protocol.frame_codec import Api


class AdminRequests(InFlightRequests[AdminRequest, AdminResponse]):
    name = "a request of administration"

    def _encode(self, connection: Connection, request: AdminRequest) -> tuple[Api, Any]:
        api = admin.admin_api(request)
        return api, admin.admin_request(connection.version(api), request)

    def _read(self, node_id: int, connection: Connection, in_flight: InFlightRequest[AdminRequest]) -> AdminResponse:
        exchange = connection.receive(in_flight.read_deadline(), has_begun=True)
        return admin.admin_response(exchange, in_flight.request, node_id)
