"""The requests of transactions of a `FakeNetwork`."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.errors import ConnectError
from pyspark_kafka_meta.kafka.protocol.apis import ApiResponse, BrokerRequest
from pyspark_kafka_meta.kafka.protocol.requests import RequestFailure
from pyspark_kafka_meta.kafka.protocol.transactions import (
    AddPartitionsRequest,
    Coordinator,
    DescribedTransaction,
    DescribeTransactionsRequest,
    EndTransactionRequest,
    FindCoordinatorRequest,
    ListTransactionsRequest,
    ProducerIdRequest,
    TransactionVersionRequest,
)
from pyspark_kafka_meta.model import NO_PRODUCER, ProducerIdAndEpoch
from tests.unit.fake_coordinators import ONGOING
from tests.unit.fake_requests import FakeRequests, node_id_of


class FakeTransactions(FakeRequests[BrokerRequest[Any], ApiResponse[Any]]):
    """A broker handles a request at the moment in which its response, or the loss of it, is received."""

    def _name(self, request: BrokerRequest[Any]) -> str:
        return request.api.title

    def _ends_at(self, node_id: int) -> float:
        return self.network.clock.now

    def respond(self, node_id: int, request: BrokerRequest[Any], sent_at: float) -> ApiResponse[Any] | RequestFailure:
        name, broker = self._name(request), node_id_of(node_id)
        self.network.transactions_sent.append((broker, request))
        scripted = self.network.transaction_errors.get(name)
        code = scripted.popleft() if scripted else 0
        if code == 0 and self._coordinator(request) not in (None, broker):
            code = ErrorCode.not_coordinator
        response = self._handle(node_id, request, int(code))
        lost = self.network.lost_transactions.get(name, 0)
        if lost > 0:
            self.network.lost_transactions[name] = lost - 1
            return RequestFailure(node_id, ConnectError(f"broker {broker} closed the connection"))
        return response

    def _coordinator(self, request: BrokerRequest[Any]) -> int | None:
        """The broker that handles the request; None if any does."""
        transactional_id = getattr(request, "transactional_id", None)
        return None if transactional_id is None else self.network.cluster.coordinators.node_id(transactional_id)

    def _handle(self, node_id: int, request: BrokerRequest[Any], code: int) -> ApiResponse[Any]:
        """The response of a broker, with `code` as its error unless it is 0."""
        coordinators = self.network.cluster.coordinators
        match request:
            case FindCoordinatorRequest(transactional_ids):
                return ApiResponse(node_id, 0, {each: self._found(each, code) for each in transactional_ids})
            case ProducerIdRequest(transactional_id, timeout_ms):
                return self._initialised(node_id, transactional_id, timeout_ms, code)
            case AddPartitionsRequest(transactional_id, producer, partitions):
                code = code or coordinators.add(transactional_id, producer, set(partitions), self.network.clock.now)
                return ApiResponse(node_id, code, dict.fromkeys(partitions, code) if code else {})
            case EndTransactionRequest(transactional_id, producer, committed, version):
                ended = code or coordinators.end(transactional_id, producer, committed, version)
                if isinstance(ended, int):
                    return ApiResponse(node_id, int(ended), NO_PRODUCER)
                return ApiResponse(node_id, 0, ended if version > 1 else NO_PRODUCER)
            case ListTransactionsRequest():
                return ApiResponse(node_id, code, () if code else self._listed(node_id))
            case DescribeTransactionsRequest(transactional_id):
                return self._described(node_id, transactional_id, code)
            case TransactionVersionRequest():
                return ApiResponse(node_id, code, coordinators.version)
        raise AssertionError(request)

    def _found(self, transactional_id: str, code: int) -> Coordinator:
        broker = self.network.cluster.brokers[self.network.cluster.coordinators.node_id(transactional_id)]
        return Coordinator(code, None if code else broker)

    def _initialised(
        self, node_id: int, transactional_id: str | None, timeout_ms: int, code: int
    ) -> ApiResponse[ProducerIdAndEpoch]:
        cluster = self.network.cluster
        result: int | ProducerIdAndEpoch = code
        if code == 0 and transactional_id is None:
            result = ProducerIdAndEpoch(next(cluster.producer_ids), 0)
        elif code == 0 and transactional_id is not None:
            result = cluster.coordinators.init(transactional_id, timeout_ms)
        if isinstance(result, int):
            return ApiResponse(node_id, int(result), NO_PRODUCER)
        return ApiResponse(node_id, 0, result)

    def _listed(self, node_id: int) -> tuple[str, ...]:
        coordinators = self.network.cluster.coordinators
        return tuple(
            each
            for each, transaction in coordinators.transactions.items()
            if transaction.state == ONGOING and coordinators.node_id(each) == node_id
        )

    def _described(self, node_id: int, transactional_id: str, code: int) -> ApiResponse[DescribedTransaction | None]:
        known = self.network.cluster.coordinators.transactions.get(transactional_id)
        code = code or (ErrorCode.transactional_id_not_found if known is None else 0)
        if known is None or code != 0:
            return ApiResponse(node_id, int(code), None)
        described = DescribedTransaction(
            transactional_id,
            known.state,
            known.producer,
            known.timeout_ms,
            known.started_ms or None,
            tuple(sorted(known.partitions)),
        )
        return ApiResponse(node_id, 0, described)
