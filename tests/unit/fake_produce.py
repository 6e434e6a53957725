"""Produce of a `FakeNetwork`."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.errors import ConnectError
from pyspark_kafka_meta.kafka.protocol.error_codes import NOT_LEADER_OR_FOLLOWER
from pyspark_kafka_meta.kafka.protocol.produce import (
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
)
from pyspark_kafka_meta.kafka.protocol.requests import RequestFailure
from pyspark_kafka_meta.model import Broker, ProducerIdAndEpoch
from tests.unit.fake_cluster import ProducerBatch
from tests.unit.fake_requests import FakeRequests

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
