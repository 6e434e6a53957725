"""`Fetches`: which Fetch of a task is under way to which broker. There is at most one to each broker, for all
partitions that are read from it. Follows Kafka's `AbstractFetch`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from pyspark_kafka_meta.client.kafka_client import KafkaClient
from pyspark_kafka_meta.client.leader_offsets import OVERDUE_MS
from pyspark_kafka_meta.client.read_replicas import LEADER, ReadSource
from pyspark_kafka_meta.fetching.partition_cursor import PartitionCursor
from pyspark_kafka_meta.model import Broker, LeaderAndEpoch, RefreshReason
from pyspark_kafka_meta.wire.messages import FetchRequest, FetchResponse, RequestFailure

THROTTLED_LOOK_S = 1.0
"""A broker may throttle for a minute. Meanwhile the leaders of its partitions are looked up this often."""


class Fetch(NamedTuple):
    """One Fetch that was sent.

    Attributes:
        generation: of the snapshot that named the broker.
        cursors: of the partitions it asks for; those that were taken from a hung broker are not among them any more.
        sent_at, overdue_at: seconds of the client's clock.
    """

    broker: Broker
    generation: int
    cursors: list[PartitionCursor]
    sent_at: float
    overdue_at: float


class Fetches:
    """Those of one task that have no answer yet."""

    def __init__(self, client: KafkaClient) -> None:
        self._client = client
        self._options = client.options
        self._under_way: dict[int, Fetch] = {}  # by node id

    def __len__(self) -> int:
        return len(self._under_way)

    def cursors(self, not_overdue_at: float = -math.inf) -> set[PartitionCursor]:
        """Those that wait for an answer which is not overdue at this time."""
        fetches = [fetch for fetch in self._under_way.values() if fetch.overdue_at > not_overdue_at]
        return {cursor for fetch in fetches for cursor in fetch.cursors}

    def send(self, leaders: Mapping[PartitionCursor, LeaderAndEpoch], generation: int) -> None:
        """Fetch for the cursors whose broker has nothing under way; the others wait until it has answered."""
        now, brokers = self._client.clock(), self._client.cache.snapshot.brokers
        groups: dict[Broker, list[tuple[PartitionCursor, ReadSource]]] = {}
        for cursor, leader in leaders.items():
            source = self._client.replicas.source(cursor.range.partition, leader, brokers, now)
            cursor.not_before = min(self._client.throttles.until(source.broker.node_id), now + THROTTLED_LOOK_S)
            if cursor.not_before <= now and source.broker.node_id not in self._under_way:
                groups.setdefault(source.broker, []).append((cursor, source))
        for broker, members in groups.items():
            self._send(broker, members, generation)

    def _send(self, broker: Broker, members: Sequence[tuple[PartitionCursor, ReadSource]], generation: int) -> None:
        options, now = self._options, self._client.clock()
        request = FetchRequest(
            partitions=tuple(
                cursor.request(cursor.range.topic_id, source.leader_epoch, source.is_follower)
                for cursor, source in members
            ),
            max_wait_ms=options.fetch_max_wait_ms,
            min_bytes=options.fetch_min_bytes,
            max_bytes=options.fetch_max_bytes,
            read_committed=options.read_committed,
            rack=options.client_rack if all(source.tells_rack for _, source in members) else "",
        )
        self._client.wire.send_fetch(
            broker, request, now + (options.fetch_max_wait_ms + options.request_timeout_ms) / 1000
        )
        overdue_at = now + (options.fetch_max_wait_ms + OVERDUE_MS) / 1000
        cursors = [cursor for cursor, _ in members]
        self._under_way[broker.node_id] = Fetch(broker, generation, cursors, now, overdue_at)

    def receive(self, deadline: float) -> tuple[Fetch, FetchResponse | RequestFailure] | None:
        """The first answer, or failure, and what it is about; None if there is none by `deadline`."""
        return self._receive(self._under_way.keys(), deadline)

    def receive_overdue(self) -> tuple[Fetch, FetchResponse | RequestFailure] | None:
        """The answer, or failure, of one that is overdue, if it has come by now; else brokers may be left. They are
        looked at one by one, as others that always have answers ready would hide one that hangs."""
        now = self._client.clock()
        for node_id in [node_id for node_id, fetch in self._under_way.items() if now >= fetch.overdue_at]:
            received = self._receive([node_id], now)
            if received is not None:
                return received
            self._leave_if_moved(node_id, now)
        return None

    def _receive(
        self, node_ids: Collection[int], deadline: float
    ) -> tuple[Fetch, FetchResponse | RequestFailure] | None:
        answer = self._client.wire.receive_fetch(node_ids, deadline)
        return None if answer is None else (self._under_way.pop(answer.node_id), answer)

    def overdue_at(self) -> float:
        """When the first of them is overdue."""
        return min((fetch.overdue_at for fetch in self._under_way.values()), default=math.inf)

    def forget(self, cursor: PartitionCursor) -> None:
        """Do without the answer for one of them: it asks for the wrong offset."""
        for fetch in self._under_way.values():
            fetch.cursors[:] = [one for one in fetch.cursors if one is not cursor]

    def _leave_if_moved(self, node_id: int, now: float) -> None:
        """Ask who leads now, and take from its Fetch the partitions that others lead by now."""
        cache, fetch = self._client.cache, self._under_way[node_id]
        leaders = [(cursor, cache.snapshot.leader(cursor.range.partition)) for cursor in fetch.cursors]
        for cursor in fetch.cursors:
            if cursor.asked_follower:
                self._client.replicas.choose(cursor.range.partition, LEADER, now)
        fetch.cursors[:] = [cursor for cursor, one in leaders if one is None or one.broker == fetch.broker]
        if fetch.cursors:
            cache.request_update(RefreshReason.REQUEST_TIMEOUT, cache.snapshot.generation, node_id=node_id)
        else:
            self._client.wire.drop_fetch(node_id)
            del self._under_way[node_id]

    def drop(self) -> None:
        """Forget them all: their answers are not waited for."""
        for node_id in self._under_way:
            self._client.wire.drop_fetch(node_id)
        self._under_way.clear()
