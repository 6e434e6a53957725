"""`FakeWire`: the `Wire` seam without a network, over a `FakeCluster`; and a clock that passes by being waited on.

For tests of what sits above the seam: brokers die, hang, lag behind and lie when they are told to.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import replace

from pyspark_kafka_meta.errors import ConnectError, KafkaMetaError, RequestTimeoutError
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
    """Seconds that pass only during a wait: call it for the time, give its `sleep` to whoever sleeps."""

    def __init__(self, now: float = 1_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def wait_until(self, then: float) -> None:
        self.now = max(self.now, then)


class FakeWire:
    """A `Wire` over a `FakeCluster`. Not thread-safe. ListOffsets knows times by the batch: the first of a batch that
    holds one as late.

    Attributes:
        aliases: node ids by address that no broker advertises, such as a load balancer's.
        down: ids of brokers that refuse connections and lose those they have.
        hung: ids of brokers that accept requests and never answer: the clock goes on to the deadline.
        hung_metadata: ids of brokers that answer all but Metadata.
        failures: errors that the next requests to a broker end with, by node id.
        error_codes: codes that the next Fetch or ListOffsets gets, by partition.
        metadata_errors: code that Metadata answers state, by topic.
        metadata_refusals: code that the next whole Metadata answers state, by node id.
        replica_errors: code that a Fetch of a partition gets from one broker, by node id and partition, until removed.
        open_transactions: offset at which a transaction is open, by partition: the last stable offset, behind which
            read_committed gets neither records nor the end.
        replica_ends: where the copy of a broker ends that lags behind, exclusive, by node id and partition.
        preferred_replicas: broker that leaders name to a Fetch that states a rack (KIP-392), by partition.
        throttles: milliseconds that the next Fetch answers of a broker state, by node id; they name no partitions, as
            Kafka's (`FetchContext.getThrottledResponse`).
        fetches: node id and request of each Fetch that a broker got.
        requests: API name and address of each request so far, those that nobody answered too.
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
        self._under_way: dict[int, tuple[FetchRequest, float, float]] = {}
        self._not_sent: dict[int, KafkaMetaError] = {}
        self._asked: dict[int, tuple[OffsetsRequest, float]] = {}  # ListOffsets under way, and by when they must end
        self._not_asked: dict[int, KafkaMetaError] = {}
        self._question: tuple[Address, Collection[str] | None, float] | None = None  # Metadata under way, by when

    def cut_off(self, node_id: int) -> None:
        """From now on this broker answers Metadata with what it knows at this moment."""
        self._cut_off[node_id] = (dict(self.cluster.brokers), dict(self.cluster.topics))

    def catch_up(self) -> None:
        """All brokers know the cluster as it is again."""
        self._cut_off.clear()

    def send_metadata(self, address: Address, topics: Collection[str] | None, deadline: float) -> None:
        self._question = (address, topics, deadline)
        self.requests.append(("Metadata", address))

    def receive_metadata(self, deadline: float) -> MetadataResponse | None:
        assert self._question is not None, "no Metadata request is under way"
        address, topics, due = self._question
        ends_at = self._metadata_ends_at()
        self.clock.wait_until(min(deadline, ends_at))
        if ends_at > deadline:
            return None
        self._question = None
        return self.metadata(address, topics, due)

    def metadata(self, address: Address, topics: Collection[str] | None, deadline: float) -> MetadataResponse:
        """What the broker at `address` answers by `deadline`: overridden by tests."""
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
        assert broker.node_id not in self._asked, f"a second ListOffsets to broker {broker.node_id}"
        try:
            api = "OffsetForLeaderEpoch" if request.by_epoch else "ListOffsets"
            self.requests.append((api, broker.address))
            self._asked[self._reach(broker.address)] = (request, deadline)
        except KafkaMetaError as error:
            self._not_asked[broker.node_id] = error

    def receive_offsets(self, node_ids: Collection[int], deadline: float) -> OffsetsResponse | RequestFailure | None:
        for node_id in self._not_asked.keys() & set(node_ids):
            return RequestFailure(node_id, self._not_asked.pop(node_id))
        # Of brokers that hang nothing comes but the end of the time: the others go first.
        waiting = sorted(self._asked.keys() & set(node_ids), key=lambda one: (one in self.hung, self._asked[one][1]))
        if not waiting:
            return None
        node_id = waiting[0]
        request, due = self._asked[node_id]
        if node_id in self.hung:
            until = min(deadline, self._metadata_ends_at())
            self.clock.wait_until(min(until, due))
            if due > until:
                return None
        del self._asked[node_id]
        if node_id in self.down:
            return RequestFailure(node_id, ConnectError(f"broker {node_id} closed the connection"))
        if node_id in self.hung:
            return RequestFailure(node_id, RequestTimeoutError(f"broker {node_id} did not answer in time"))
        answers = {query.partition: self._offset(node_id, query, request) for query in request.queries}
        return OffsetsResponse(node_id, answers)

    def drop_offsets(self, node_id: int) -> None:
        self._asked.pop(node_id, None)
        self._not_asked.pop(node_id, None)

    def send_fetch(self, broker: Broker, request: FetchRequest, deadline: float) -> None:
        assert broker.node_id not in self._under_way, f"a second Fetch to broker {broker.node_id}"
        try:
            self.requests.append(("Fetch", broker.address))
            node_id = self._reach(broker.address)
        except KafkaMetaError as error:
            self._not_sent[broker.node_id] = error
            return
        self.fetches.append((node_id, request))
        self._under_way[node_id] = (request, self.clock(), deadline)

    def receive_fetch(self, node_ids: Collection[int], deadline: float) -> FetchResponse | RequestFailure | None:
        for node_id in self._not_sent.keys() & set(node_ids):
            return RequestFailure(node_id, self._not_sent.pop(node_id))
        ends = {node_id: self._ends_at(node_id) for node_id in self._under_way if node_id in node_ids}
        if not ends and self._question is None:
            return None
        until = min(deadline, self._metadata_ends_at())
        first = min(ends, key=lambda one: ends[one], default=None)
        self.clock.wait_until(until if first is None else min(until, ends[first]))
        if first is None or ends[first] > until:
            return None
        node_id = first
        request, sent_at, _ = self._under_way.pop(node_id)
        if node_id in self.down:
            return RequestFailure(node_id, ConnectError(f"broker {node_id} closed the connection"))
        if node_id in self.hung:
            return RequestFailure(node_id, RequestTimeoutError(f"broker {node_id} did not answer a Fetch in time"))
        if self.throttles.get(node_id):
            latency_ms = (self.clock() - sent_at) * 1000
            return FetchResponse(node_id, 0, (), self.throttles[node_id].popleft(), 0, latency_ms)
        partitions, size = [], 0
        for entry in request.partitions:
            one = self._fetched(node_id, entry, request)
            if size > 0 and size + len(one.records) > request.max_bytes:
                one = replace(one, records=b"")
            partitions.append(one)
            size += len(one.records)
        return FetchResponse(node_id, 0, tuple(partitions), 0, size, (self.clock() - sent_at) * 1000)

    def drop_fetch(self, node_id: int) -> None:
        self._under_way.pop(node_id, None)
        self._not_sent.pop(node_id, None)

    def close(self) -> None:
        self._question = None
        for requests in (self._under_way, self._not_sent, self._asked, self._not_asked):
            requests.clear()

    def _node_id(self, address: Address) -> int | None:
        by_address = {broker.address: broker.node_id for broker in self.cluster.brokers.values()}
        return by_address.get(address, self.aliases.get(address))

    def _metadata_ends_at(self) -> float:
        """When the Metadata request under way is answered, or fails; never if there is none."""
        if self._question is None:
            return math.inf
        address, _, due = self._question
        return due if self._node_id(address) in (self.hung | self.hung_metadata) - self.down else self.clock()

    def _reach(self, address: Address) -> int:
        node_id = self._node_id(address)
        if node_id is None or node_id in self.down:
            raise ConnectError(f"cannot connect to {address}: Connection refused")
        if self.failures.get(node_id):
            raise self.failures[node_id].popleft()
        return node_id

    def _topic(self, known: Mapping[str, TopicMetadata], name: str) -> TopicMetadata:
        code = self.metadata_errors.get(name, 0 if name in known else 3)
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
        """When the Fetch under way is answered: now if it has something to return, else at the end of its wait."""
        request, sent_at, deadline = self._under_way[node_id]
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
            hint = self._hint(entry.partition) if code in (6, 74) else None
            return FetchedPartition(entry.partition, code, b"", -1, -1, leader_hint=hint)
        _, end = self.cluster.bounds(entry.partition)
        replica = self._redirects_to(node_id, entry.partition, request.rack)
        if replica is not None:
            return FetchedPartition(entry.partition, 0, b"", end, end, preferred_read_replica=replica)
        diverging = self.cluster.diverging_epoch(entry)
        if diverging is not None:
            return FetchedPartition(entry.partition, 0, b"", end, end, diverging_epoch=diverging)
        high_watermark, last_stable = (self._readable_end(node_id, entry.partition, one) for one in (False, True))
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

    def _take_error(self, node_id: int, asked: OffsetQuery | FetchPartition) -> int:
        scripted = self.error_codes.get(asked.partition)
        if scripted:
            return scripted.popleft()
        of_replica = self.replica_errors.get((node_id, asked.partition), 0) if isinstance(asked, FetchPartition) else 0
        return of_replica or self.cluster.error_of(node_id, asked)

    def _hint(self, partition: TopicPartition) -> LeaderHint | None:
        known = self.cluster.partition(partition)
        if known.leader_id == NO_LEADER:
            return None
        return LeaderHint(known.leader_id, known.leader_epoch, self.cluster.brokers[known.leader_id])
