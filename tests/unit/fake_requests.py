"""`FakeRequests`: the requests in flight of one kind, oldest first, of a `FakeNetwork`."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection
from typing import TYPE_CHECKING, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from pyspark_kafka_meta.errors import ConnectError, KafkaMetaError, RequestTimeoutError
from pyspark_kafka_meta.kafka.protocol.requests import MAX_NODE_IDS, RequestFailure
from pyspark_kafka_meta.model import Broker

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
    """A `Requests` of `kafka.protocol.requests`.

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
