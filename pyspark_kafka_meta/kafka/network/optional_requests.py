"""The kinds of requests that most readers do not send. A `KafkaNetwork` imports this module at their first use."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pyspark_kafka_meta.kafka.network.connection import Connection, ConnectionSettings
from pyspark_kafka_meta.kafka.network.in_flight_requests import IdleConnections, InFlightRequests, PlainRequests
from pyspark_kafka_meta.kafka.protocol import admin, produce, transactions
from pyspark_kafka_meta.kafka.protocol.admin import AdminRequest, AdminResponse
from pyspark_kafka_meta.kafka.protocol.frame_codec import PRODUCE, Api, Exchange
from pyspark_kafka_meta.kafka.protocol.produce import ProduceRequest, ProduceResponse
from pyspark_kafka_meta.kafka.protocol.transactions import TransactionRequest, TransactionResponse


class ProduceRequests(PlainRequests[ProduceRequest, ProduceResponse]):
    """A broker that waits for its followers reads no further requests: its full buffer is no reason to close a
    connection whose requests it may have handled."""

    name = "a Produce"
    pipelines = True

    def __init__(
        self, settings: ConnectionSettings, idle: IdleConnections, interrupted_by: InFlightRequests[Any, Any]
    ) -> None:
        super().__init__(replace(settings, limits_unacknowledged=False), idle, interrupted_by)

    def _encode(self, connection: Connection, request: ProduceRequest) -> tuple[Api, Any]:
        version = connection.version(produce.produce_api(request))
        return PRODUCE, produce.produce_request(version, request)

    def _decode(self, exchange: Exchange, request: ProduceRequest, node_id: int) -> ProduceResponse:
        return produce.produce_response(exchange, request, node_id)


class TransactionRequests(PlainRequests[TransactionRequest, TransactionResponse]):
    name = "a request of a transaction"

    def _encode(self, connection: Connection, request: TransactionRequest) -> tuple[Api, Any]:
        api = transactions.transaction_api(request)
        version = connection.version(api)
        return api, transactions.transaction_request(version, request)

    def _decode(self, exchange: Exchange, request: TransactionRequest, node_id: int) -> TransactionResponse:
        return transactions.transaction_response(exchange, request, node_id)


class AdminRequests(PlainRequests[AdminRequest, AdminResponse]):
    name = "a request of administration"

    def _encode(self, connection: Connection, request: AdminRequest) -> tuple[Api, Any]:
        api = admin.admin_api(request)
        return api, admin.admin_request(connection.version(api), request)

    def _decode(self, exchange: Exchange, request: AdminRequest, node_id: int) -> AdminResponse:
        return admin.admin_response(exchange, request, node_id)
