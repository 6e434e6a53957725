"""`FakeNetwork`: a `Network` without a network, over a `FakeCluster`; `FakeClock`, which waits and looks advance.

Brokers die, hang, lag behind or return errors as a test demands.
"""

from __future__ import annotations

import copy
import heapq
import itertools
import math
import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.errors import ConnectError, KafkaMetaError, RequestTimeoutError
from pyspark_kafka_meta.kafka.protocol.apis import ApiResponse, BrokerRequest
from pyspark_kafka_meta.kafka.protocol.error_codes import (
    FENCED_LEADER_EPOCH,
    INVALID_TOPIC_EXCEPTION,
    NOT_LEADER_OR_FOLLOWER,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from pyspark_kafka_meta.kafka.protocol.fetch import FetchedPartition, FetchPartition, FetchRequest, FetchResponse
from pyspark_kafka_meta.kafka.protocol.list_offsets import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    OffsetQuery,
    OffsetsRequest,
    OffsetsResponse,
    PartitionOffset,
)
from pyspark_kafka_meta.kafka.protocol.produce import ProduceRequest
from pyspark_kafka_meta.model import NO_EPOCH, Address, Broker, MetadataResponse, TopicMetadata, TopicPartition
from pyspark_kafka_meta.value_checks import is_topic_name
from tests.unit.fake_cluster import FakeCluster
from tests.unit.fake_requests import FakeAdmin, FakeProduce, FakeRequests, FakeTransactions

LATENCIES_S = ((0.002,), (0.002, 0.01, 0.05), (0.002, 0.05, 0.3))
TICK_S = 1e-6
"""Too short for any assertion about waits, and enough to tell two looks apart."""


def about_s(seconds: float) -> Any:
    """Equal to `seconds` but for ticks of the clock."""
    return pytest.approx(seconds, abs=1e-3)


def about_ms(milliseconds: float) -> Any:
    """Equal to `milliseconds` but for ticks of the clock."""
    return pytest.approx(milliseconds, abs=1)


class FakeClock:
    """Advances by waits, and at each look: code that looks twice for one decision sees two times. Actions are called at
    their own times, wherever the code is then.

    Attributes:
        now: the time, read without a tick.
        tick_s: added at each look. Larger values stand for a process that pauses.
        pause_share: of looks, after a pause of the process: garbage collection, or a container's CPU limit.
    """

    def __init__(self, now: float = 1_000.0, tick_s: float = TICK_S, rng: random.Random | None = None) -> None:
        """
        Args:
            rng: draws pauses; without it there are none.
        """
        self.now = now
        self.tick_s = tick_s
        self.pause_share = 0.0 if rng is None else rng.choice([0.0, 0.01, 0.03])
        self._rng = rng
        self._actions: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()

    def __call__(self) -> float:
        pauses = self._rng is not None and self._rng.random() < self.pause_share
        self.wait_until(self.now + (self._rng.uniform(0.001, 0.1) if self._rng and pauses else self.tick_s))
        return self.now

    def sleep(self, seconds: float) -> None:
        self.wait_until(self.now + seconds)

    def at(self, seconds: float, action: Callable[[], object]) -> None:
        """Call `action` after this many seconds."""
        heapq.heappush(self._actions, (self.now + seconds, next(self._numbers), action))

    def next_action(self) -> float:
        return self._actions[0][0] if self._actions else math.inf

    def wait_until(self, then: float) -> None:
        while self.next_action() <= then:
            at, _, action = heapq.heappop(self._actions)
            self.now = max(self.now, at)
            action()
        self.now = max(self.now, then)


class FakeNetwork:
    """A `Network` over a `FakeCluster`. ListOffsets by timestamp returns the first offset of a batch.

    Each broker has a latency, which is drawn again after each of its responses.

    Attributes:
        by_name: whether brokers fetch by topic name (Kafka before 3.1).
        clients: the networks of all clients of the same brokers.
        metadata_sent: when this client sent Metadata requests, in seconds.
        empty_fetches: when it got Fetch responses without records and without errors.
        failed_fetches: when it got Fetch responses with an error and without records.
        aliases: node ids by address that no broker advertises, such as a load balancer's.
        down: ids of brokers that refuse connections and lose those they have.
        hung: ids of brokers that accept requests and never respond: the clock advances to the deadline.
        hung_metadata: ids of brokers that respond to all requests but Metadata.
        fenced: what brokers serve that are cut off from the cluster, but not from clients, by node id: Metadata,
            ListOffsets and Fetch, as `FakeCluster.fence` left them.
        failures: errors of the next requests to a broker, by node id.
        error_codes: codes in the next Fetch, ListOffsets or Produce responses, by partition.
        transaction_errors: codes of the next responses to requests of transactions, by API.
        lost_transactions: number of next requests of transactions that a broker handles before it breaks the connection
            instead of responding, by API.
        lost_responses: number of next Produce requests that a broker handles before it breaks the connection instead
            of responding, by node id.
        metadata_errors: code in Metadata responses, by topic.
        metadata_refusals: top-level codes of the next Metadata responses, by node id.
        replica_errors: code in a broker's Fetch responses, by node id and partition, until removed.
        open_transactions: last stable offset, by partition: read_committed sees neither records nor the end after it.
        replica_ends: end offset (exclusive) of a replica that lags behind, by node id and partition. Once elected, it
            has all records, and gives out none from this offset on.
        preferred_replicas: broker that leaders return to a Fetch with a rack (KIP-392), by partition.
        throttles: throttle_ms of the next Fetch or Produce responses, by node id. Such a response to a Fetch has no
            partitions, as Kafka's (`FetchContext.getThrottledResponse`).
        admin_errors: codes of the next responses to requests of administration, by API.
        configs: by topic. Topics without one are described as if this user had no right.
        groups: committed offsets by consumer group.
        groups_with_members: groups that refuse commits of others than their members.
        group_coordinator: node id of the coordinator of all groups; 0 for the first broker.
        fetches, produces, transactions_sent: node id and request of each Fetch, Produce and request of a transaction
            that reached a broker.
        requests: API name and address of each request, including failed requests.
        change: applied to every Fetch response.
    """

    def __init__(
        self, cluster: FakeCluster | None = None, clock: FakeClock | None = None, rng: random.Random | None = None
    ) -> None:
        """
        Args:
            rng: draws latencies, and how many requests a broker handles late; without it, responses come at once.
        """
        self._rng = rng or random.Random(0)
        self._latencies: Sequence[float] = (0.0,) if rng is None else rng.choice(LATENCIES_S)
        self._latency_s: dict[int, float] = {}
        self.by_name = False
        self.clients: list[FakeNetwork] = []
        self.cluster = cluster or FakeCluster()
        self.clock = clock or FakeClock()
        self.aliases: dict[Address, int] = {}
        self.down: set[int] = set()
        self.hung: set[int] = set()
        self.hung_metadata: set[int] = set()
        self.fenced: dict[int, FakeCluster] = {}
        self.failures: dict[int, deque[KafkaMetaError]] = {}
        self.error_codes: dict[TopicPartition, deque[int]] = {}
        self.transaction_errors: defaultdict[str, deque[int]] = defaultdict(deque)
        self.lost_transactions: Counter[str] = Counter()
        self.lost_responses: dict[int, int] = {}
        self.metadata_errors: dict[str, int] = {}
        self.metadata_refusals: dict[int, deque[int]] = {}
        self.replica_errors: dict[tuple[int, TopicPartition], int] = {}
        self.open_transactions: dict[TopicPartition, int] = {}
        self.replica_ends: dict[tuple[int, TopicPartition], int] = {}
        self.preferred_replicas: dict[TopicPartition, int] = {}
        self.throttles: dict[int, deque[int]] = {}
        self.admin_errors: defaultdict[str, deque[int]] = defaultdict(deque)
        self.configs: dict[str, Mapping[str, str]] = {}
        self.groups: dict[str, dict[TopicPartition, int]] = {}
        self.groups_with_members: set[str] = set()
        self.group_coordinator = 0
        self.fetches: list[tuple[int, FetchRequest]] = []
        self.produces: list[tuple[int, ProduceRequest]] = []
        self.transactions_sent: list[tuple[int, BrokerRequest[Any]]] = []
        self.requests: list[tuple[str, Address]] = []
        self.change: Callable[[FetchResponse], FetchResponse] = lambda response: response
        self._cut_off: dict[int, tuple[dict[int, Broker], dict[str, TopicMetadata]]] = {}
        self._open()

    def another(self) -> Self:
        """The network of another client, with the same brokers and faults."""
        made = copy.copy(self)
        made._open()
        return made

    def _open(self) -> None:
        self.offsets, self.fetch, self.admin = FakeOffsets(self), FakeFetch(self), FakeAdmin(self)
        self.produce: FakeProduce = FakeProduce(self)
        self.transactions: FakeTransactions = FakeTransactions(self)
        self.metadata_sent: list[float] = []
        self.empty_fetches: list[float] = []
        self.failed_fetches: list[float] = []
        self._metadata: tuple[Address, Collection[str] | None, float] | None = None  # in flight, with its deadline
        self.clients.append(self)

    def set_latencies(self, seconds: Sequence[float]) -> None:
        """Draw from these from now on. All clients share them."""
        for client in self.clients:
            client._latencies = seconds
        self._latency_s.clear()

    def latency_s(self, node_id: int) -> float:
        """Of the next response of a broker."""
        if node_id not in self._latency_s:
            self._latency_s[node_id] = self._rng.choice(self._latencies)
        return self._latency_s[node_id]

    def draw_latency(self, node_id: int) -> None:
        self._latency_s.pop(node_id, None)

    def draw_late(self) -> int:
        """How many requests of a dropped connection the broker still handles."""
        return self._rng.randrange(6) if any(self._latencies) else 0

    def learn(self, node_id: int) -> None:
        """A broker that was cut off knows the cluster again."""
        self._cut_off.pop(node_id, None)

    def break_connections(self, node_id: int, handled: int = 0) -> None:
        """Break all connections to a broker, after it handled at most so many Produce requests of each."""
        for network in self.clients:
            network.produce.handle_oldest(node_id, handled)
            requests: FakeRequests[Any, Any]
            for requests in (network.offsets, network.fetch, network.produce, network.transactions):
                requests.lose(node_id)

    def cut_off(self, node_id: int) -> None:
        """This broker stops learning changes of the cluster."""
        self._cut_off[node_id] = (dict(self.cluster.brokers), dict(self.cluster.topics))

    def served_by(self, node_id: int) -> FakeCluster:
        """The cluster as this broker knows it."""
        return self.fenced.get(node_id, self.cluster)

    def catch_up(self) -> None:
        """All brokers know the current cluster again."""
        self._cut_off.clear()

    def send_metadata(self, address: Address, topics: Collection[str] | None, deadline: float) -> None:
        self._metadata = (address, topics, deadline)
        self.metadata_sent.append(self.clock.now)
        self.requests.append(("Metadata", address))

    def receive_metadata(self, deadline: float) -> MetadataResponse | None:
        while True:
            received = self._receive_metadata(min(deadline, self.clock.next_action()))
            if received is not None or self.clock.now >= deadline:
                return received

    def _receive_metadata(self, deadline: float) -> MetadataResponse | None:
        assert self._metadata is not None, "no Metadata request is in flight"
        address, topics, due = self._metadata
        ends_at = self.metadata_ends_at()
        self.clock.wait_until(min(deadline, ends_at))
        if ends_at > self.clock.now:
            return None
        self._metadata = None
        return self.metadata(address, topics, due)

    def metadata(self, address: Address, topics: Collection[str] | None, deadline: float) -> MetadataResponse:
        """The response of the broker at `address`. Tests override it."""
        node_id = self.reach(address)
        if node_id in self.hung | self.hung_metadata:
            raise RequestTimeoutError(f"broker {node_id} did not answer in time")
        served = self.served_by(node_id)
        brokers, known = self._cut_off.get(node_id) or (served.brokers, served.topics)
        code = self.metadata_refusals[node_id].popleft() if self.metadata_refusals.get(node_id) else 0
        if code != 0:
            brokers, topics = {}, ()
        return MetadataResponse(
            cluster_id="fake-cluster",
            controller_id=1,
            brokers=tuple(brokers.values()),
            topics=tuple(self._topic(known, name) for name in (known if topics is None else topics)),
            api_version=12,
            correlation_id=len(self.requests),
            request_bytes=40,
            response_bytes=400,
            error_code=code,
        )

    def handle(self, requests: FakeRequests[Any, Any], node_id: int, request: Any, sent_at: float) -> Any:
        """A healthy broker handles a request. Tests override it."""
        return requests.respond(node_id, request, sent_at)

    def close_idle(self) -> None:
        """A fake broker has no connections."""

    def close(self) -> None:
        self._metadata = None
        kinds: tuple[FakeRequests[Any, Any], ...] = (
            self.offsets,
            self.fetch,
            self.produce,
            self.transactions,
            self.admin,
        )
        for requests in kinds:
            requests.in_flight.clear()
            requests.not_sent.clear()

    def _node_id(self, address: Address) -> int | None:
        fenced = [served.brokers[node_id] for node_id, served in self.fenced.items()]
        by_address = {broker.address: broker.node_id for broker in (*self.cluster.brokers.values(), *fenced)}
        return by_address.get(address, self.aliases.get(address))

    def metadata_ends_at(self) -> float:
        """When the Metadata request in flight ends; infinity if there is none."""
        if self._metadata is None:
            return math.inf
        address, _, due = self._metadata
        node_id = self._node_id(address)
        if node_id is None or node_id in self.down:
            return self.clock.now
        return due if node_id in self.hung | self.hung_metadata else self.metadata_sent[-1] + self.latency_s(node_id)

    def reach(self, address: Address) -> int:
        node_id = self._node_id(address)
        if node_id is None or node_id in self.down:
            raise ConnectError(f"cannot connect to {address}: Connection refused")
        if self.failures.get(node_id):
            raise self.failures[node_id].popleft()
        return node_id

    def _topic(self, known: Mapping[str, TopicMetadata], name: str) -> TopicMetadata:
        missing = UNKNOWN_TOPIC_OR_PARTITION if is_topic_name(name) else INVALID_TOPIC_EXCEPTION
        code = self.metadata_errors.get(name, 0 if name in known else missing)
        return known[name] if code == 0 else TopicMetadata(name, None, (), code)

    def readable_end(self, node_id: int, partition: TopicPartition, read_committed: bool) -> int:
        served = self.served_by(node_id)
        end = served.high_watermark(partition)
        end = min(self.replica_ends.get((node_id, partition), end), end)
        if not read_committed:
            return end
        return min(self.open_transactions.get(partition, end), served.last_stable_offset(partition), end)

    def knows_end(self, node_id: int, partition: TopicPartition) -> bool:
        """Whether the high watermark of this leader has reached the start of its epoch. Until then it reports no end
        (Kafka `Partition.fetchOffsetForTimestamp`, KIP-207)."""
        served = self.served_by(node_id)
        before = served.partition(partition).leader_epoch - 1
        return self.readable_end(node_id, partition, False) >= served.epoch_end(partition, before).end_offset

    def take_error(self, node_id: int, entry: OffsetQuery | FetchPartition) -> int:
        scripted = self.error_codes.get(entry.partition)
        if scripted and node_id not in self.fenced:
            return scripted.popleft()
        of_replica = self.replica_errors.get((node_id, entry.partition), 0) if isinstance(entry, FetchPartition) else 0
        return of_replica or self.served_by(node_id).error_of(node_id, entry)


class FakeOffsets(FakeRequests[OffsetsRequest, OffsetsResponse]):
    def _name(self, request: OffsetsRequest) -> str:
        return "OffsetForLeaderEpoch" if request.by_epoch else "ListOffsets"

    def _ends_at(self, node_id: int) -> float:
        return self.network.clock.now

    def respond(self, node_id: int, request: OffsetsRequest, sent_at: float) -> OffsetsResponse:
        return ApiResponse(
            node_id, 0, {query.partition: self._offset(node_id, query, request) for query in request.queries}
        )

    def _offset(self, node_id: int, query: OffsetQuery, request: OffsetsRequest) -> PartitionOffset:
        cluster = self.network.served_by(node_id)
        code = self.network.take_error(node_id, query)
        if code != 0:
            return PartitionOffset(query.partition, code, -1, NO_EPOCH)
        end = self.network.readable_end(node_id, query.partition, request.read_committed)
        if request.by_epoch:
            common = cluster.epoch_end(query.partition, query.wanted)
            return PartitionOffset(query.partition, 0, common.end_offset, common.epoch)
        epoch = cluster.partition(query.partition).leader_epoch
        if query.wanted in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP):
            return PartitionOffset(query.partition, 0, cluster.bounds(query.partition)[0], epoch)
        found = cluster.offset_at(query.partition, query.wanted) if query.wanted >= 0 else end
        if not 0 <= found < end and not self.network.knows_end(node_id, query.partition):
            return PartitionOffset(query.partition, int(ErrorCode.offset_not_available), -1, NO_EPOCH)
        if query.wanted >= 0:
            return PartitionOffset(query.partition, 0, found if found < end else -1, 0)
        return PartitionOffset(query.partition, 0, end, epoch)


class FakeFetch(FakeRequests[FetchRequest, FetchResponse]):
    def _name(self, request: FetchRequest) -> str:
        return "Fetch"

    def send(self, broker: Broker, request: FetchRequest, deadline: float) -> None:
        if self.network.by_name:
            request = replace(request, partitions=tuple(replace(part, topic_id=None) for part in request.partitions))
        super().send(broker, request, deadline)
        if broker.node_id in self.in_flight:
            self.network.fetches.append((broker.node_id, request))

    def _ends_at(self, node_id: int) -> float:
        """Now if the broker has something to return, else at the end of its wait."""
        network = self.network
        request, sent_at, _ = self.in_flight[node_id][0]
        ready = bool(node_id in network.down or network.throttles.get(node_id)) or any(
            network.error_codes.get(entry.partition)
            or network.replica_errors.get((node_id, entry.partition))
            or network.served_by(node_id).error_of(node_id, entry)
            or network.served_by(node_id).diverging_epoch(entry)
            or self._redirects_to(node_id, entry.partition, request.rack) is not None
            or self._records(node_id, entry, request.read_committed)
            for entry in request.partitions
        )
        return network.clock.now if ready else sent_at + request.max_wait_ms / 1000

    def respond(self, node_id: int, request: FetchRequest, sent_at: float) -> FetchResponse:
        response = replace(self._respond(node_id, request, sent_at), by_id=not self.network.by_name)
        if not response.has_records:
            failed = any(partition.error_code for partition in response.partitions)
            (self.network.failed_fetches if failed else self.network.empty_fetches).append(self.network.clock.now)
        return self.network.change(response)

    def _respond(self, node_id: int, request: FetchRequest, sent_at: float) -> FetchResponse:
        latency_ms = (self.network.clock.now - sent_at) * 1000
        if self.network.throttles.get(node_id):
            return FetchResponse(node_id, 0, (), self.network.throttles[node_id].popleft(), 0, latency_ms)
        partitions, size = [], 0
        for entry in request.partitions:
            fetched = self._fetched(node_id, entry, request)
            if size > 0 and len(fetched.records) > min(entry.max_bytes, request.max_bytes - size):
                fetched = replace(fetched, records=b"")  # only the first record batch is whole, whatever its size
            partitions.append(fetched)
            size += len(fetched.records)
        return FetchResponse(node_id, 0, tuple(partitions), 0, size, latency_ms)

    def _fetched(self, node_id: int, entry: FetchPartition, request: FetchRequest) -> FetchedPartition:
        network, served = self.network, self.network.served_by(node_id)
        code = network.take_error(node_id, entry)
        if code != 0:
            is_replaced = code in (NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH)
            hint = served.leader_hint(entry.partition) if is_replaced else None
            return FetchedPartition(entry.partition, code, b"", -1, -1, leader_hint=hint)
        _, end = served.bounds(entry.partition)
        replica = self._redirects_to(node_id, entry.partition, request.rack)
        if replica is not None:
            return FetchedPartition(entry.partition, 0, b"", end, end, preferred_read_replica=replica)
        diverging = served.diverging_epoch(entry)
        if diverging is not None:
            return FetchedPartition(entry.partition, 0, b"", end, end, diverging_epoch=diverging)
        high_watermark = network.readable_end(node_id, entry.partition, read_committed=False)
        last_stable = network.readable_end(node_id, entry.partition, read_committed=True)
        records = self._records(node_id, entry, request.read_committed)
        aborted = served.aborted(entry.partition, entry.fetch_offset, last_stable)
        return FetchedPartition(
            entry.partition, 0, records, high_watermark, last_stable, aborted if request.read_committed else ()
        )

    def _records(self, node_id: int, entry: FetchPartition, read_committed: bool) -> bytes:
        end = self.network.readable_end(node_id, entry.partition, read_committed)
        return self.network.served_by(node_id).records(entry.partition, entry.fetch_offset, end, entry.max_bytes)

    def _redirects_to(self, node_id: int, partition: TopicPartition, rack: str) -> int | None:
        is_leader = self.network.served_by(node_id).partition(partition).leader_id == node_id
        return self.network.preferred_replicas.get(partition) if rack and is_leader else None
