"""`FakeWire`: a `Wire` without a network over a `FakeCluster`, and a clock that waiting advances.

For tests of `Wire`'s callers: brokers stop, hang, lag behind and respond with errors on demand.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import replace

from pyspark_kafka_meta.errors import ConnectError, KafkaMetaError, RequestTimeoutError
from pyspark_kafka_meta.kafka_errors import FENCED_LEADER_EPOCH, NOT_LEADER_OR_FOLLOWER, UNKNOWN_TOPIC_OR_PARTITION
from pyspark_kafka_meta.model import (
    NO_EPOCH,
    NO_LEADER,
    Address,
    Broker,
    LeaderHint,
    MetadataResponse,
    TopicMetadata,
    TopicPartition,
)
from pyspark_kafka_meta.wire.messages import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    OffsetQuery,
    OffsetsRequest,
    OffsetsResponse,
    PartitionOffset,
    RequestFailure,
)
from tests.unit.fake_cluster import FakeCluster


class FakeClock:
    """A clock that only `sleep` and `wait_until` advance."""

    def __init__(self, now: float = 1_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def wait_until(self, then: float) -> None:
        self.now = max(self.now, then)


class FakeWire:
    """A `Wire` over a `FakeCluster`. Not thread-safe. ListOffsets by timestamp returns the first offset of a batch.

    Attributes:
        aliases: node ids by address that no broker advertises, such as a load balancer.
        down: ids of brokers that refuse connections and close open ones.
        hung: ids of brokers that accept requests and never respond: the clock advances to the deadline.
        hung_metadata: ids of brokers that never respond to Metadata.
        failures: errors of the next requests to a broker, by node id.
        error_codes: codes in the next Fetch or ListOffsets responses, by partition.
        metadata_errors: code in Metadata responses, by topic.
        metadata_refusals: top-level codes of the next Metadata responses, by node id.
        replica_errors: code in Fetch responses of a broker, by node id and partition.
        open_transactions: first offset of an open transaction by partition: the last stable offset, which limits
            read_committed.
        replica_ends: exclusive end of the log of a broker that lags behind, by node id and partition.
        preferred_replicas: broker that leaders name in responses to a Fetch with a rack (KIP-392), by partition.
        throttles: throttle times in ms of the next Fetch responses by node id. As in Kafka
            (`FetchContext.getThrottledResponse`), these responses have no partitions.
        fetches: node id and request of each Fetch that reached a broker.
        requests: API name and address of each request, also without a response.
    """

    def __init__(self, cluster: FakeCluster | None = None, clock: FakeClock | None = None) -> None:
        self.cluster = cluster or FakeCluster()
        self.clock = clock or FakeClock()
        self.aliases: dict[Address, int] = {}
        self.down: set[int] = set()
        self.hung: set[int] = set()
        self.hung_metadata: set[int] = set()
        self.failures: dict[int, deque[KafkaMetaError]] = {}
        self.error_codes: dict[TopicPartition, deque[int]] = {}
        self.metadata_errors: dict[str, int] = {}
        self.metadata_refusals: dict[int, deque[int]] = {}
        self.replica_errors: dict[tuple[int, TopicPartition], int] = {}
        self.open_transactions: dict[TopicPartition, int] = {}
        self.replica_ends: dict[tuple[int, TopicPartition], int] = {}
        self.preferred_replicas: dict[TopicPartition, int] = {}
        self.throttles: dict[int, deque[int]] = {}
        self.fetches: list[tuple[int, FetchRequest]] = []
        self.requests: list[tuple[str, Address]] = []
        self._cut_off: dict[int, tuple[dict[int, Broker], dict[str, TopicMetadata]]] = {}
        self._fetches_in_flight: dict[int, tuple[FetchRequest, float, float]] = {}
        self._failed_fetches: dict[int, KafkaMetaError] = {}
        self._offsets_in_flight: dict[int, tuple[OffsetsRequest, float]] = {}  # with the deadline
        self._failed_offsets: dict[int, KafkaMetaError] = {}
        self._metadata_in_flight: tuple[Address, Collection[str] | None, float] | None = None  # with the deadline

    def cut_off(self, node_id: int) -> None:
        """Metadata responses of this broker stay as they are now."""
        self._cut_off[node_id] = (dict(self.cluster.brokers), dict(self.cluster.topics))

    def catch_up(self) -> None:
        """Metadata responses of all brokers are current again."""
        self._cut_off.clear()

    def send_metadata(self, address: Address, topics: Collection[str] | None, deadline: float) -> None:
        self._metadata_in_flight = (address, topics, deadline)
        self.requests.append(("Metadata", address))

    def receive_metadata(self, deadline: float) -> MetadataResponse | None:
        assert self._metadata_in_flight is not None, "no Metadata request is in flight"
        address, topics, due = self._metadata_in_flight
        ends_at = self._metadata_ends_at()
        self.clock.wait_until(min(deadline, ends_at))
        if ends_at > deadline:
            return None
        self._metadata_in_flight = None
        return self.metadata(address, topics, due)

    def metadata(self, address: Address, topics: Collection[str] | None, deadline: float) -> MetadataResponse:
        """The response of the broker at `address`: overridden by tests."""
        node_id = self._reach(address)
        if node_id in self.hung | self.hung_metadata:
            raise RequestTimeoutError(f"broker {node_id} did not answer in time")
        brokers, known = self._cut_off.get(node_id, (self.cluster.brokers, self.cluster.topics))
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

    def send_offsets(self, broker: Broker, request: OffsetsRequest, deadline: float) -> None:
        assert broker.node_id not in self._offsets_in_flight, f"a second ListOffsets to broker {broker.node_id}"
        try:
            api = "OffsetForLeaderEpoch" if request.by_epoch else "ListOffsets"
            self.requests.append((api, broker.address))
            self._offsets_in_flight[self._reach(broker.address)] = (request, deadline)
        except KafkaMetaError as error:
            self._failed_offsets[broker.node_id] = error

    def receive_offsets(self, node_ids: Collection[int], deadline: float) -> OffsetsResponse | RequestFailure | None:
        for node_id in self._failed_offsets.keys() & set(node_ids):
            return RequestFailure(node_id, self._failed_offsets.pop(node_id))
        # Brokers that hang only time out: the others go first.
        waiting = sorted(
            self._offsets_in_flight.keys() & set(node_ids),
            key=lambda node_id: (node_id in self.hung, self._offsets_in_flight[node_id][1]),
        )
        if not waiting:
            return None
        node_id = waiting[0]
        request, due = self._offsets_in_flight[node_id]
        if node_id in self.hung:
            until = min(deadline, self._metadata_ends_at())
            self.clock.wait_until(min(until, due))
            if due > until:
                return None
        del self._offsets_in_flight[node_id]
        if node_id in self.down:
            return RequestFailure(node_id, ConnectError(f"broker {node_id} closed the connection"))
        if node_id in self.hung:
            return RequestFailure(node_id, RequestTimeoutError(f"broker {node_id} did not answer in time"))
        answers = {query.partition: self._offset(node_id, query, request) for query in request.queries}
        return OffsetsResponse(node_id, answers)

    def drop_offsets(self, node_id: int) -> None:
        self._offsets_in_flight.pop(node_id, None)
        self._failed_offsets.pop(node_id, None)

    def send_fetch(self, broker: Broker, request: FetchRequest, deadline: float) -> None:
        assert broker.node_id not in self._fetches_in_flight, f"a second Fetch to broker {broker.node_id}"
        try:
            self.requests.append(("Fetch", broker.address))
            node_id = self._reach(broker.address)
        except KafkaMetaError as error:
            self._failed_fetches[broker.node_id] = error
            return
        self.fetches.append((node_id, request))
        self._fetches_in_flight[node_id] = (request, self.clock(), deadline)

    def receive_fetch(self, node_ids: Collection[int], deadline: float) -> FetchResponse | RequestFailure | None:
        for node_id in self._failed_fetches.keys() & set(node_ids):
            return RequestFailure(node_id, self._failed_fetches.pop(node_id))
        ends = {node_id: self._ends_at(node_id) for node_id in self._fetches_in_flight if node_id in node_ids}
        if not ends and self._metadata_in_flight is None:
            return None
        until = min(deadline, self._metadata_ends_at())
        first = min(ends, key=lambda node_id: ends[node_id], default=None)
        self.clock.wait_until(until if first is None else min(until, ends[first]))
        if first is None or ends[first] > until:
            return None
        node_id = first
        request, sent_at, _ = self._fetches_in_flight.pop(node_id)
        if node_id in self.down:
            return RequestFailure(node_id, ConnectError(f"broker {node_id} closed the connection"))
        if node_id in self.hung:
            return RequestFailure(node_id, RequestTimeoutError(f"broker {node_id} did not answer a Fetch in time"))
        if self.throttles.get(node_id):
            latency_ms = (self.clock() - sent_at) * 1000
            return FetchResponse(node_id, 0, (), self.throttles[node_id].popleft(), 0, latency_ms)
        partitions, size = [], 0
        for entry in request.partitions:
            fetched = self._fetched(node_id, entry, request)
            if size > 0 and size + len(fetched.records) > request.max_bytes:
                fetched = replace(fetched, records=b"")
            partitions.append(fetched)
            size += len(fetched.records)
        return FetchResponse(node_id, 0, tuple(partitions), 0, size, (self.clock() - sent_at) * 1000)

    def drop_fetch(self, node_id: int) -> None:
        self._fetches_in_flight.pop(node_id, None)
        self._failed_fetches.pop(node_id, None)

    def close(self) -> None:
        self._metadata_in_flight = None
        for requests in (self._fetches_in_flight, self._failed_fetches, self._offsets_in_flight, self._failed_offsets):
            requests.clear()

    def _node_id(self, address: Address) -> int | None:
        by_address = {broker.address: broker.node_id for broker in self.cluster.brokers.values()}
        return by_address.get(address, self.aliases.get(address))

    def _metadata_ends_at(self) -> float:
        """When the Metadata request in flight ends; never if there is none."""
        if self._metadata_in_flight is None:
            return math.inf
        address, _, due = self._metadata_in_flight
        return due if self._node_id(address) in (self.hung | self.hung_metadata) - self.down else self.clock()

    def _reach(self, address: Address) -> int:
        node_id = self._node_id(address)
        if node_id is None or node_id in self.down:
            raise ConnectError(f"cannot connect to {address}: Connection refused")
        if self.failures.get(node_id):
            raise self.failures[node_id].popleft()
        return node_id

    def _topic(self, known: Mapping[str, TopicMetadata], name: str) -> TopicMetadata:
        code = self.metadata_errors.get(name, 0 if name in known else UNKNOWN_TOPIC_OR_PARTITION)
        return known[name] if code == 0 else TopicMetadata(name, None, (), code)

    def _offset(self, node_id: int, query: OffsetQuery, request: OffsetsRequest) -> PartitionOffset:
        code = self._take_error(node_id, query)
        if code != 0:
            return PartitionOffset(query.partition, code, -1, NO_EPOCH)
        end = self._readable_end(node_id, query.partition, request.read_committed)
        if request.by_epoch:
            common = self.cluster.epoch_end(query.partition, query.wanted)
            return PartitionOffset(query.partition, 0, common.end_offset, common.epoch)
        if query.wanted >= 0:
            found = self.cluster.offset_at(query.partition, query.wanted)
            return PartitionOffset(query.partition, 0, found if found < end else -1, 0)
        is_start = query.wanted in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP)
        offset = self.cluster.bounds(query.partition)[0] if is_start else end
        return PartitionOffset(query.partition, 0, offset, self.cluster.partition(query.partition).leader_epoch)

    def _ends_at(self, node_id: int) -> float:
        """When the broker responds to the Fetch in flight: now if it has data or an error, else after max_wait_ms."""
        request, sent_at, deadline = self._fetches_in_flight[node_id]
        if node_id in self.hung:
            return deadline
        ready = bool(node_id in self.down or self.throttles.get(node_id)) or any(
            self.error_codes.get(entry.partition)
            or self.replica_errors.get((node_id, entry.partition))
            or self.cluster.error_of(node_id, entry)
            or self.cluster.diverging_epoch(entry)
            or self._redirects_to(node_id, entry.partition, request.rack) is not None
            or self._records(node_id, entry, request.read_committed)
            for entry in request.partitions
        )
        return self.clock() if ready else sent_at + request.max_wait_ms / 1000

    def _fetched(self, node_id: int, entry: FetchPartition, request: FetchRequest) -> FetchedPartition:
        code = self._take_error(node_id, entry)
        if code != 0:
            hint = self._hint(entry.partition) if code in (NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH) else None
            return FetchedPartition(entry.partition, code, b"", -1, -1, leader_hint=hint)
        _, end = self.cluster.bounds(entry.partition)
        replica = self._redirects_to(node_id, entry.partition, request.rack)
        if replica is not None:
            return FetchedPartition(entry.partition, 0, b"", end, end, preferred_read_replica=replica)
        diverging = self.cluster.diverging_epoch(entry)
        if diverging is not None:
            return FetchedPartition(entry.partition, 0, b"", end, end, diverging_epoch=diverging)
        high_watermark, last_stable = (
            self._readable_end(node_id, entry.partition, read_committed) for read_committed in (False, True)
        )
        records = self._records(node_id, entry, request.read_committed)
        return FetchedPartition(entry.partition, 0, records, high_watermark, last_stable)

    def _records(self, node_id: int, entry: FetchPartition, read_committed: bool) -> bytes:
        end = self._readable_end(node_id, entry.partition, read_committed)
        return self.cluster.records(entry.partition, entry.fetch_offset, end, entry.max_bytes)

    def _readable_end(self, node_id: int, partition: TopicPartition, read_committed: bool) -> int:
        end = self.replica_ends.get((node_id, partition), self.cluster.bounds(partition)[1])
        return min(self.open_transactions.get(partition, end), end) if read_committed else end

    def _redirects_to(self, node_id: int, partition: TopicPartition, rack: str) -> int | None:
        is_leader = self.cluster.partition(partition).leader_id == node_id
        return self.preferred_replicas.get(partition) if rack and is_leader else None

    def _take_error(self, node_id: int, request: OffsetQuery | FetchPartition) -> int:
        scripted = self.error_codes.get(request.partition)
        if scripted:
            return scripted.popleft()
        is_fetch = isinstance(request, FetchPartition)
        replica_error = self.replica_errors.get((node_id, request.partition), 0) if is_fetch else 0
        return replica_error or int(self.cluster.error_of(node_id, request))

    def _hint(self, partition: TopicPartition) -> LeaderHint | None:
        known = self.cluster.partition(partition)
        if known.leader_id == NO_LEADER:
            return None
        return LeaderHint(known.leader_id, known.leader_epoch, self.cluster.brokers[known.leader_id])
