"""`FakeRequests`: the requests in flight of one kind, oldest first, of a `FakeNetwork`; Produce, and requests of
transactions and of administration."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.errors import ConnectError, KafkaMetaError, RequestTimeoutError
from pyspark_kafka_meta.kafka.client.cluster_admin import MAX_TIMEOUT_CONFIG
from pyspark_kafka_meta.kafka.protocol.admin import TOPIC_RESOURCE, CreateTopicRequest, DescribeConfigsRequest
from pyspark_kafka_meta.kafka.protocol.apis import ApiResponse, BrokerRequest
from pyspark_kafka_meta.kafka.protocol.consumer_groups import OffsetCommitRequest, OffsetFetchRequest
from pyspark_kafka_meta.kafka.protocol.error_codes import NOT_LEADER_OR_FOLLOWER
from pyspark_kafka_meta.kafka.protocol.network_interface import MAX_NODE_IDS, RequestFailure
from pyspark_kafka_meta.kafka.protocol.produce import (
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
)
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
from pyspark_kafka_meta.model import NO_PRODUCER, Broker, ProducerIdAndEpoch
from tests.unit.fake_cluster import ProducerBatch
from tests.unit.fake_coordinators import ONGOING

if TYPE_CHECKING:
    from tests.unit.fake_network import FakeNetwork


class HasNodeId(Protocol):
    @property
    def node_id(self) -> int: ...


RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT", bound=HasNodeId)


class Sent(NamedTuple, Generic[RequestT]):
    request: RequestT
    sent_at: float
    deadline: float


def node_id_of(connection: int) -> int:
    """The broker of a `connection_id`."""
    return connection % MAX_NODE_IDS


class FakeRequests(ABC, Generic[RequestT, ResponseT]):
    """A `Requests` of `kafka.protocol.network_interface`.

    Attributes:
        in_flight: by connection, oldest first.
    """

    pipelines: ClassVar[bool] = False

    def __init__(self, network: FakeNetwork) -> None:
        self.network = network
        self.in_flight: dict[int, deque[Sent[RequestT]]] = {}
        self.not_sent: dict[int, KafkaMetaError] = {}

    @abstractmethod
    def _name(self, request: RequestT) -> str:
        """The API."""

    @abstractmethod
    def _ends_at(self, node_id: int) -> float:
        """When a healthy broker responds to the oldest request in flight, or a broker that is down fails."""

    @abstractmethod
    def respond(self, node_id: int, request: RequestT, sent_at: float) -> ResponseT | RequestFailure:
        """The response of a healthy broker."""

    def send(self, broker: Broker, request: RequestT, deadline: float) -> None:
        name = self._name(request)
        assert self.pipelines or broker.node_id not in self.in_flight, f"a second {name} to broker {broker.node_id}"
        self.network.requests.append((name, broker.address))
        if broker.node_id in self.not_sent:
            return  # this request shares the failure that was not received yet
        try:
            self.network.reach(broker.address)
        except KafkaMetaError as error:
            self.in_flight.pop(broker.node_id, None)
            self.not_sent[broker.node_id] = error
        else:
            self.in_flight.setdefault(broker.node_id, deque()).append(Sent(request, self.network.clock.now, deadline))

    def receive(self, node_ids: Collection[int], deadline: float) -> ResponseT | RequestFailure | None:
        """Brokers may change at each action of the clock."""
        while True:
            received = self._receive(node_ids, min(deadline, self.network.clock.next_action()))
            if received is not None:
                self.network.draw_latency(node_id_of(received.node_id))
            has_ended = self.network.clock.now >= min(deadline, self.network.metadata_ends_at())
            if received is not None or has_ended or not (self.in_flight.keys() | self.not_sent) & set(node_ids):
                return received

    def _receive(self, node_ids: Collection[int], deadline: float) -> ResponseT | RequestFailure | None:
        for node_id in self.not_sent.keys() & set(node_ids):
            return RequestFailure(node_id, self.not_sent.pop(node_id))
        ends = {node_id: self._end(node_id) for node_id in self.in_flight if node_id in node_ids}
        metadata_ends_at = self.network.metadata_ends_at()
        if not ends and metadata_ends_at == math.inf:
            return None
        until = min(deadline, metadata_ends_at)
        node_id, ends_at = min(ends.items(), key=lambda item: item[1], default=(-1, math.inf))
        self.network.clock.wait_until(min(until, ends_at))
        if ends_at > self.network.clock.now:
            return None
        if node_id in self.not_sent:  # the connection broke while the process was frozen
            return RequestFailure(node_id, self.not_sent.pop(node_id))
        return self._outcome(node_id)

    def lose(self, node_id: int) -> None:
        """Break the connections to a broker."""
        for connection in [each for each in self.in_flight if node_id_of(each) == node_id]:
            self._leave(connection)
            self.not_sent[connection] = ConnectError(f"broker {node_id} closed the connection")

    def _leave(self, connection: int) -> None:
        """Forget the requests in flight over a connection that is broken."""
        self.in_flight.pop(connection, None)

    def drop(self, node_id: int) -> None:
        self.in_flight.pop(node_id, None)
        self.not_sent.pop(node_id, None)

    def _end(self, node_id: int) -> float:
        """When the response, or failure, of the oldest request in flight comes."""
        broker = node_id_of(node_id)
        if broker in self.network.hung:
            return min(sent.deadline for sent in self.in_flight[node_id])
        if broker in self.network.down:
            return self.network.clock.now
        ends_at, now = self._ends_at(node_id), self.network.clock.now
        arrives_at = self.in_flight[node_id][0].sent_at + self.network.latency_s(broker)
        return max(ends_at if ends_at > now else 0.0, arrives_at)

    def _outcome(self, node_id: int) -> ResponseT | RequestFailure:
        request, sent_at, _ = self.in_flight[node_id].popleft()
        broker = node_id_of(node_id)
        if not self.in_flight[node_id] or broker in self.network.down | self.network.hung:
            del self.in_flight[node_id]
        if broker in self.network.down:
            return RequestFailure(node_id, ConnectError(f"broker {broker} closed the connection"))
        if broker in self.network.hung:
            error = RequestTimeoutError(f"broker {broker} did not answer {self._name(request)} in time")
            return RequestFailure(node_id, error)
        outcome: ResponseT | RequestFailure = self.network.handle(self, node_id, request, sent_at)
        return outcome


APPENDS = (ErrorCode.none, ErrorCode.request_timed_out, ErrorCode.not_enough_replicas_after_append)
"""Codes of a batch that is in the leader's log. With the errors, it may lack in the logs of followers."""


class FakeProduce(FakeRequests[ProduceRequest, ProduceResponse]):
    """A broker handles a request at the moment in which its response, or the loss of it, is received."""

    pipelines = True

    def _name(self, request: ProduceRequest) -> str:
        return "Produce"

    def send(self, broker: Broker, request: ProduceRequest, deadline: float) -> None:
        super().send(broker, request, deadline)
        if broker.node_id in self.in_flight:
            self.network.produces.append((broker.node_id, request))

    def drop(self, node_id: int) -> None:
        """The broker may handle later what it has received."""
        late = [sent.request for sent in self.in_flight.get(node_id, ())][: self.network.draw_late()]
        self.network.clock.at(
            self.network.latency_s(node_id), lambda: [self._handle(node_id, request) for request in late]
        )
        super().drop(node_id)

    def handle_oldest(self, node_id: int, count: int) -> None:
        """Append the oldest requests in flight."""
        for sent in list(self.in_flight.get(node_id, ()))[:count]:
            self._handle(node_id, sent.request)

    def _ends_at(self, node_id: int) -> float:
        return self.network.clock.now

    def respond(self, node_id: int, request: ProduceRequest, sent_at: float) -> ProduceResponse | RequestFailure:
        lost = self.network.lost_responses.pop(node_id, 0)
        if lost > 0:
            return self._lose(node_id, request, lost)
        throttle_ms = self.network.throttles[node_id].popleft() if self.network.throttles.get(node_id) else 0
        latency_ms = (self.network.clock.now - sent_at) * 1000
        return ProduceResponse(node_id, self._handle(node_id, request), throttle_ms, 0, latency_ms)

    def _lose(self, node_id: int, oldest: ProduceRequest, lost: int) -> RequestFailure:
        """Handle at most `lost` requests in flight, then break the connection."""
        requests = [oldest, *(sent.request for sent in self.in_flight.pop(node_id, ()))]
        for request in requests[:lost]:
            self._handle(node_id, request)
        if lost > len(requests):
            self.network.lost_responses[node_id] = lost - len(requests)
        return RequestFailure(node_id, ConnectError(f"broker {node_id} closed the connection"))

    def _handle(self, node_id: int, request: ProduceRequest) -> tuple[ProducedPartition, ...]:
        return tuple(self._produced(node_id, entry, request) for entry in request.partitions)

    def _produced(self, node_id: int, entry: ProducePartition, request: ProduceRequest) -> ProducedPartition:
        cluster, scripted = self.network.cluster, self.network.error_codes.get(entry.partition)
        own = cluster.produce_error(node_id, entry) or self._transaction_error(entry, request)
        code, base_offset = (scripted.popleft() if scripted else 0) or own, -1
        if own == 0 and code in APPENDS:
            base_offset = cluster.produce(entry.partition, bytes(entry.records))
        hint = cluster.leader_hint(entry.partition) if code == NOT_LEADER_OR_FOLLOWER else None
        return ProducedPartition(entry.partition, code, base_offset if code == 0 else -1, leader_hint=hint)

    def _transaction_error(self, entry: ProducePartition, request: ProduceRequest) -> int:
        sent = ProducerBatch.of(bytes(entry.records))
        assert sent.is_transactional is (request.transactional_id is not None), "the batch denies its transaction"
        if request.transactional_id is None:
            return 0
        producer = ProducerIdAndEpoch(sent.producer_id, sent.epoch)
        return self.network.cluster.coordinators.append(
            request.transactional_id, producer, entry.partition, request.transaction_version, self.network.clock.now
        )


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


class FakeAdmin(FakeRequests[BrokerRequest[Any], ApiResponse[Any]]):
    """Behaves as Apache Kafka (`tests/kafka/test_admin_requests.py`)."""

    def _name(self, request: BrokerRequest[Any]) -> str:
        return request.api.title

    def _ends_at(self, node_id: int) -> float:
        return self.network.clock.now

    def respond(self, node_id: int, request: BrokerRequest[Any], sent_at: float) -> ApiResponse[Any]:
        network, cluster = self.network, self.network.cluster
        scripted = network.admin_errors.get(self._name(request))
        code = scripted.popleft() if scripted else 0
        match request:
            case FindCoordinatorRequest(groups):
                found = Coordinator(code, None if code else cluster.brokers[self._coordinator()])
                return ApiResponse(node_id, 0, dict.fromkeys(groups, found))
            case OffsetFetchRequest(group, partitions):
                code = code or self._group_error(node_id, has_members=False)
                known = network.groups.get(group, {})
                offsets = {part: known[part] for part in partitions if part in known}
                return ApiResponse(node_id, code, {} if code else offsets)
            case OffsetCommitRequest(group, committed):
                code = code or self._group_error(node_id, group in network.groups_with_members)
                missing = frozenset(part.topic for part in committed if part.topic not in cluster.topics)
                if code == 0:
                    kept = {part: offset for part, offset in committed.items() if part.topic not in missing}
                    network.groups.setdefault(group, {}).update(kept)
                return ApiResponse(node_id, code, missing)
            case CreateTopicRequest(topic, partitions):
                code = code or (ErrorCode.topic_already_exists if topic in cluster.topics else 0)
                if code == 0:
                    cluster.create_topic(topic, partitions)
                return ApiResponse(node_id, int(code), "")
            case DescribeConfigsRequest(kind, topic) if kind == TOPIC_RESOURCE:
                return ApiResponse(node_id, code, {} if code else network.configs.get(topic, {}))
            case DescribeConfigsRequest():
                limit = cluster.coordinators.max_timeout_ms
                config = {} if code else {MAX_TIMEOUT_CONFIG: str(limit)}
                return ApiResponse(node_id, code, config)
        raise AssertionError(request)

    def _coordinator(self) -> int:
        return self.network.group_coordinator or min(self.network.cluster.brokers)

    def _group_error(self, node_id: int, has_members: bool) -> int:
        if node_id != self._coordinator():
            return int(ErrorCode.not_coordinator)
        return int(ErrorCode.unknown_member_id) if has_members else 0
