"""`InFlightFetches`: the Fetches of a task that have no response yet, at most one to each broker.

A Fetch is for all partitions that are read from its broker. Follows Kafka's `AbstractFetch`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.client.leader_offsets import OVERDUE_MS
from pyspark_kafka_meta.kafka.client.next_request import LEADER, ReadSource
from pyspark_kafka_meta.kafka.protocol.error_codes import LEADER_NOT_AVAILABLE, UNKNOWN_TOPIC_OR_PARTITION
from pyspark_kafka_meta.kafka.protocol.fetch import FetchRequest, FetchResponse
from pyspark_kafka_meta.kafka.protocol.requests import RequestFailure
from pyspark_kafka_meta.model import Broker, LeaderAndEpoch, RefreshReason
from pyspark_kafka_meta.options import FetchOptions
from pyspark_kafka_meta.read.fetching.partition_cursor import Fail, PartitionCursor, Refresh

THROTTLED_CHECK_S = 1.0
"""A broker may throttle for a minute. Meanwhile the leaders of its partitions are looked up this often."""


class InFlightFetch(NamedTuple):
    """A Fetch that was sent.

    Attributes:
        generation: of the snapshot that named the broker.
        cursors: of the requested partitions, without those that moved away from a hung broker.
        sent_at, overdue_at: seconds of the client's clock.
    """

    broker: Broker
    generation: int
    cursors: list[PartitionCursor]
    sent_at: float
    overdue_at: float


class InFlightFetches:
    """The Fetches of one task."""

    def __init__(self, client: KafkaClient, options: FetchOptions) -> None:
        self._client = client
        self._options = options
        self._replicas = client.replicas[options.client_rack]
        self._fetches: dict[int, InFlightFetch] = {}  # by node id

    def cursors(self, not_overdue_at: float = -math.inf) -> set[PartitionCursor]:
        """Cursors in a Fetch that is not overdue at this time."""
        fetches = [fetch for fetch in self._fetches.values() if fetch.overdue_at > not_overdue_at]
        return {cursor for fetch in fetches for cursor in fetch.cursors}

    def leader(self, cursor: PartitionCursor) -> LeaderAndEpoch | None:
        """The cached leader; if None, a metadata refresh was requested, and the cursor waits for it.

        Raises:
            BrokerError: the partition may not be read.
        """
        cache, partition = self._client.cache, cursor.range.partition
        leader = cache.leader(partition)
        if leader is not None:
            return leader
        snapshot = cache.snapshot
        is_known = partition in snapshot.partitions(partition.topic)
        code = LEADER_NOT_AVAILABLE if is_known else UNKNOWN_TOPIC_OR_PARTITION
        instruction = cursor.on_no_leader(snapshot.topic_errors.get(partition.topic) or code)
        if isinstance(instruction, Fail):
            raise instruction.error
        reason = instruction.reason if isinstance(instruction, Refresh) else RefreshReason.NO_LEADER
        request_update = partial(cache.request_update, reason, partition=partition, error_code=cursor.last_error)
        cursor.wait_for_metadata_after(snapshot.generation, request_update)
        return None

    def send(self, leaders: Mapping[PartitionCursor, LeaderAndEpoch], generation: int, now: float) -> None:
        """Fetch from each broker without an in-flight Fetch; the cursors of other brokers wait for the response."""
        brokers = self._client.cache.snapshot.brokers
        groups: dict[Broker, list[tuple[PartitionCursor, ReadSource]]] = {}
        for cursor, leader in leaders.items():
            source = self._replicas.source(cursor.range.partition, leader, brokers, now)
            cursor.wait_until(min(self._client.throttles.until(source.broker.node_id), now + THROTTLED_CHECK_S))
            if cursor.not_before <= now and source.broker.node_id not in self._fetches:
                groups.setdefault(source.broker, []).append((cursor, source))
        for broker, members in groups.items():
            self._send(broker, members, generation, now)

    def _send(
        self, broker: Broker, members: Sequence[tuple[PartitionCursor, ReadSource]], generation: int, now: float
    ) -> None:
        options = self._options
        request = FetchRequest(
            partitions=tuple(
                cursor.request(cursor.range.topic_id, source.leader_epoch, source.is_follower)
                for cursor, source in members
            ),
            max_wait_ms=options.fetch_max_wait_ms,
            min_bytes=options.fetch_min_bytes,
            max_bytes=options.fetch_max_bytes,
            read_committed=options.read_committed,
            rack=options.client_rack if all(source.sends_rack for _, source in members) else "",
        )
        self._client.wire.fetch.send(
            broker, request, now + (options.fetch_max_wait_ms + self._client.options.request_timeout_ms) / 1000
        )
        overdue_at = now + (options.fetch_max_wait_ms + OVERDUE_MS) / 1000
        cursors = [cursor for cursor, _ in members]
        self._fetches[broker.node_id] = InFlightFetch(broker, generation, cursors, now, overdue_at)

    def receive(self, deadline: float) -> tuple[InFlightFetch, FetchResponse | RequestFailure] | None:
        """The first response or failure, with its Fetch; None if there is none by `deadline`, or before it if metadata
        has arrived. Without any request in flight, this sleeps."""
        if not self._fetches and not self._client.cache.has_request_in_flight:
            self._client.sleep(max(deadline - self._client.clock(), 0))
        return self._receive(self._fetches.keys(), deadline)

    def receive_overdue(self, now: float) -> tuple[InFlightFetch, FetchResponse | RequestFailure] | None:
        """The response or failure of an overdue Fetch if it has arrived. If not, brokers that lost their partitions are
        abandoned. Each overdue broker is checked by itself: brokers that always have responses would hide a hung
        broker."""
        for node_id in [node_id for node_id, fetch in self._fetches.items() if now >= fetch.overdue_at]:
            received = self._receive([node_id], now)
            if received is not None:
                return received
            self._abandon_moved(node_id, now)
        return None

    def _receive(
        self, node_ids: Collection[int], deadline: float
    ) -> tuple[InFlightFetch, FetchResponse | RequestFailure] | None:
        response = self._client.wire.fetch.receive(node_ids, deadline)
        return None if response is None else (self._fetches.pop(response.node_id), response)

    def overdue_at(self) -> float:
        """When the first Fetch is overdue; infinite without a Fetch."""
        return min((fetch.overdue_at for fetch in self._fetches.values()), default=math.inf)

    def forget(self, cursor: PartitionCursor) -> None:
        """Ignore the response for this cursor: its Fetch requests the wrong offset."""
        for fetch in self._fetches.values():
            fetch.cursors[:] = [member for member in fetch.cursors if member is not cursor]

    def _abandon_moved(self, node_id: int, now: float) -> None:
        """Take the partitions that have another leader by now from an overdue Fetch; request metadata for the rest."""
        cache, fetch = self._client.cache, self._fetches[node_id]
        leaders = [(cursor, cache.snapshot.leader(cursor.range.partition)) for cursor in fetch.cursors]
        for cursor in fetch.cursors:
            if cursor.asked_follower:
                self._replicas.choose(cursor.range.partition, LEADER, now)
        fetch.cursors[:] = [cursor for cursor, leader in leaders if leader is None or leader.broker == fetch.broker]
        if fetch.cursors:
            cache.request_update(RefreshReason.REQUEST_TIMEOUT, cache.snapshot.generation, node_id=node_id)
        else:
            self._client.wire.fetch.drop(node_id)
            del self._fetches[node_id]

    def drop(self) -> None:
        """Abandon all Fetches."""
        for node_id in self._fetches:
            self._client.wire.fetch.drop(node_id)
        self._fetches.clear()
