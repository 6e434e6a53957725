"""`LateNetwork`: a `FakeNetwork` whose responses take time; `TickingClock`: its time passes while a client computes.

Brokers change while requests are in flight: an action of the clock occurs at its own time, wherever the client is then.
Each client has a network of its own, `LateNetwork.another`, with the same brokers and faults.
"""

from __future__ import annotations

import copy
import heapq
import itertools
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from pyspark_kafka_meta.errors import ConnectError
from pyspark_kafka_meta.kafka.protocol.fetch import FetchRequest, FetchResponse
from pyspark_kafka_meta.kafka.protocol.frame_codec import ApiResponse, BrokerRequest
from pyspark_kafka_meta.kafka.protocol.list_offsets import OffsetsRequest, OffsetsResponse
from pyspark_kafka_meta.kafka.protocol.produce import ProduceRequest, ProduceResponse
from pyspark_kafka_meta.kafka.protocol.requests import RequestFailure
from pyspark_kafka_meta.model import Address, Broker, MetadataResponse
from tests.unit.fake_admin import FakeAdmin
from tests.unit.fake_cluster import FakeCluster
from tests.unit.fake_network import FakeClock, FakeFetch, FakeNetwork, FakeOffsets
from tests.unit.fake_produce import FakeProduce
from tests.unit.fake_requests import FakeRequests, RequestT, node_id_of
from tests.unit.fake_transactions import FakeTransactions

TICK_S = 20e-6
"""Between two looks at the clock."""


class TickingClock(FakeClock):
    """Advances by waits and by `look`, the clock of clients. Brokers read the time without a tick.

    Attributes:
        pause_share: of looks, after a pause of the process: garbage collection, or a container's CPU limit.
    """

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.pause_share = rng.choice([0.0, 0.01, 0.03])
        self._rng = rng
        self._actions: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()

    def __call__(self) -> float:
        return self.now

    def look(self) -> float:
        pauses = self._rng.random() < self.pause_share
        self.sleep(self._rng.uniform(0.001, 0.1) if pauses else TICK_S)
        return self.now

    def sleep(self, seconds: float) -> None:
        self.wait_until(self.now + seconds)

    def at(self, seconds: float, action: Callable[[], object]) -> None:
        """Call `action` after this many seconds."""
        heapq.heappush(self._actions, (self.now + seconds, next(self._numbers), action))

    def next_action(self) -> float:
        return self._actions[0][0] if self._actions else float("inf")

    def wait_until(self, then: float) -> None:
        while self.next_action() <= then:
            at, _, action = heapq.heappop(self._actions)
            self.now = max(self.now, at)
            action()
        self.now = max(self.now, then)


class LateNetwork(FakeNetwork):
    """Each broker has a latency, which is drawn again after each of its responses.

    Attributes:
        by_name: whether brokers fetch by topic name (Kafka before 3.1).
        clients: all wires to the same brokers.
        metadata_sent: when this client sent Metadata requests, in seconds.
        empty_fetches: when it got Fetch responses without records and without errors.
        failed_fetches: when it got Fetch responses with an error and without records.
    """

    clock: TickingClock
    offsets: LateOffsets
    fetch: LateFetch
    produce: LateProduce
    transactions: LateTransactions

    def __init__(self, cluster: FakeCluster, clock: TickingClock, rng: random.Random) -> None:
        self._latencies: Sequence[float] = rng.choice([(0.002,), (0.002, 0.01, 0.05), (0.002, 0.05, 0.3)])
        self.by_name = False
        self._rng = rng
        self._latency_s: dict[int, float] = {}
        self.clients: list[LateNetwork] = []
        super().__init__(cluster, clock)
        self._open()

    def another(self) -> LateNetwork:
        """The network of another client."""
        made = copy.copy(self)
        made._open()
        return made

    def _open(self) -> None:
        self.offsets, self.fetch = LateOffsets(self), LateFetch(self)
        self.produce, self.transactions = LateProduce(self), LateTransactions(self)
        self.admin = FakeAdmin(self)
        self.metadata_sent: list[float] = []
        self.empty_fetches: list[float] = []
        self.failed_fetches: list[float] = []
        self._metadata = None
        self.clients.append(self)

    def set_latencies(self, seconds: Sequence[float]) -> None:
        """Draw from these from now on. All clients share them."""
        for client in self.clients:
            client._latencies = seconds
        self._latency_s.clear()

    def latency_s(self, node_id: int) -> float:
        if node_id not in self._latency_s:
            self._latency_s[node_id] = self._rng.choice(self._latencies)
        return self._latency_s[node_id]

    def draw_latency(self, node_id: int) -> None:
        self._latency_s.pop(node_id, None)

    def draw_late(self) -> int:
        """How many requests of a dropped connection the broker still handles."""
        return self._rng.randrange(6)

    def learn(self, node_id: int) -> None:
        """A broker that was cut off knows the cluster again."""
        self._cut_off.pop(node_id, None)

    def break_connections(self, node_id: int, handled: int = 0) -> None:
        """Break all connections to a broker, after it handled at most so many Produce requests of each."""
        for network in self.clients:
            network.produce.handle_oldest(node_id, handled)
            for requests in (network.offsets, network.fetch, network.produce, network.transactions):
                requests.lose(node_id)

    def send_metadata(self, address: Address, topics: Collection[str] | None, deadline: float) -> None:
        super().send_metadata(address, topics, deadline)
        self.metadata_sent.append(self.clock.now)

    def metadata_ends_at(self) -> float:
        ends_at = super().metadata_ends_at()
        if self._metadata is None or ends_at > self.clock.now:
            return ends_at
        node_id = self._node_id(self._metadata[0])
        is_up = node_id is not None and node_id not in self.down
        return self.metadata_sent[-1] + self.latency_s(node_id) if is_up and node_id is not None else ends_at

    def receive_metadata(self, deadline: float) -> MetadataResponse | None:
        while True:
            step = min(deadline, self.clock.next_action())
            received = super().receive_metadata(step)
            if received is not None or self.clock.now >= deadline:
                return received


class HasNodeId(Protocol):
    @property
    def node_id(self) -> int: ...


LateT = TypeVar("LateT", bound=HasNodeId)


class Late(FakeRequests[RequestT, LateT]):
    """Requests whose responses take the broker's latency."""

    network: LateNetwork

    def lose(self, node_id: int) -> None:
        """Break the connections to a broker."""
        for connection in [each for each in self.in_flight if node_id_of(each) == node_id]:
            self._leave(connection)
            self.not_sent[connection] = ConnectError(f"broker {node_id} closed the connection")

    def _leave(self, connection: int) -> None:
        """Forget the requests in flight over a connection that is broken."""
        self.in_flight.pop(connection, None)

    def receive(self, node_ids: Collection[int], deadline: float) -> LateT | RequestFailure | None:
        while True:
            received = super().receive(node_ids, min(deadline, self.network.clock.next_action()))
            if received is not None:
                self.network.draw_latency(node_id_of(received.node_id))
            has_ended = self.network.clock.now >= min(deadline, self.network.metadata_ends_at())
            if received is not None or has_ended or not (self.in_flight.keys() | self.not_sent) & set(node_ids):
                return received

    def _outcome(self, node_id: int) -> LateT | RequestFailure:
        if node_id in self.not_sent:  # the connection broke while the process was frozen
            return RequestFailure(node_id, self.not_sent.pop(node_id))
        return super()._outcome(node_id)

    def _end(self, node_id: int) -> float:
        ends_at = super()._end(node_id)
        broker = node_id_of(node_id)
        if broker in self.network.down:
            return self.network.clock.now
        if broker in self.network.hung:
            return ends_at
        arrives_at = self.in_flight[node_id][0].sent_at + self.network.latency_s(broker)
        return max(ends_at if ends_at > self.network.clock.now else 0.0, arrives_at)


class LateOffsets(Late[OffsetsRequest, OffsetsResponse], FakeOffsets):
    pass


class LateFetch(Late[FetchRequest, FetchResponse], FakeFetch):
    def send(self, broker: Broker, request: FetchRequest, deadline: float) -> None:
        if self.network.by_name:
            request = replace(request, partitions=tuple(replace(part, topic_id=None) for part in request.partitions))
        super().send(broker, request, deadline)

    def _response(self, node_id: int, request: FetchRequest, sent_at: float) -> FetchResponse:
        response = replace(super()._response(node_id, request, sent_at), by_id=not self.network.by_name)
        if not response.has_records:
            failed = any(partition.error_code for partition in response.partitions)
            (self.network.failed_fetches if failed else self.network.empty_fetches).append(self.network.clock.now)
        return response


class LateProduce(Late[ProduceRequest, ProduceResponse], FakeProduce):
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


class LateTransactions(Late[BrokerRequest[Any], ApiResponse[Any]], FakeTransactions):
    pass
