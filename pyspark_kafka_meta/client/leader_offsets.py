"""`LeaderOffsets`: a question to the leaders of partitions, one request to each, all under way at the same time.

A leader that keeps silent costs the others' answers nothing, and is left as soon as it does not lead them all any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from pyspark_kafka_meta.client.throttling import Throttles
from pyspark_kafka_meta.kafka_errors import (
    UNKNOWN_LEADER_EPOCH,
    UNKNOWN_SERVER_ERROR,
    Action,
    broker_error,
    describe,
    read_action,
    refresh_reason,
)
from pyspark_kafka_meta.metadata.cache import RETRIABLE_ERRORS, MetadataCache
from pyspark_kafka_meta.metadata.refresh_policy import attempt_timeout_ms
from pyspark_kafka_meta.model import Broker, RefreshReason, TopicPartition
from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.wire.messages import (
    OffsetQuery,
    OffsetsRequest,
    OffsetsResponse,
    PartitionOffset,
    RequestFailure,
    Wire,
)

OVERDUE_MS = 2_000
"""A leader whose answer is this late is suspected to hang: another broker is asked who leads now."""


class _Asked(NamedTuple):
    """A request that has no answer yet. `overdue_at` is in seconds of the caller's clock."""

    broker: Broker
    partitions: list[TopicPartition]
    overdue_at: float


class LeaderOffsets:
    """What one caller wants to know, by its deadline. What goes wrong is reported to the cache.

    Attributes:
        troubles: why a partition has no answer yet.
    """

    def __init__(
        self,
        wire: Wire,
        cache: MetadataCache,
        options: ClientOptions,
        unanswered: Counter[int],
        throttles: Throttles,
        kind: OffsetsRequest,
        deadline: float,
        clock: Callable[[], float],
    ) -> None:
        """
        Args:
            kind: a request without queries, as it is sent to each leader with the queries for its partitions.
            unanswered: how often in a row a broker did not answer, by node id, this caller or others of the client.
            throttles: brokers that hear nothing for a while, whoever of the client asks.
        """
        self.troubles: dict[TopicPartition, str] = {}
        self._wire = wire
        self._cache = cache
        self._options = options
        self._unanswered = unanswered
        self._throttles = throttles
        self._kind = kind
        self._deadline = deadline
        self._clock = clock
        self._asked: dict[int, _Asked] = {}  # by node id

    def ask(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, PartitionOffset]:
        """The good answers to one request to each leader.

        Args:
            wanted: of each partition, as in `OffsetQuery`.

        Raises:
            BrokerError: a broker refused for good.
        """
        generation = self._cache.snapshot.generation
        good: dict[TopicPartition, PartitionOffset] = {}
        try:
            self._send(wanted)
            while self._asked:
                received = self._wire.receive_offsets(self._asked, min(self._next_look(), self._deadline))
                if received is not None:
                    good |= self._absorb(received, self._asked.pop(received.node_id).partitions, generation)
                elif self._clock() < self._deadline:
                    self._leave_who_leads_no_more()
                else:
                    break
        finally:
            for node_id in list(self._asked):
                self._leave(node_id, "did not report offsets in time")
        return good

    def _send(self, wanted: Mapping[TopicPartition, int]) -> None:
        groups: dict[Broker, list[OffsetQuery]] = {}
        for partition in sorted(wanted):
            leader = self._cache.leader(partition)
            if leader is None:
                self.troubles[partition] = "it has no leader"
                self._cache.request_update(
                    RefreshReason.NO_LEADER, self._cache.snapshot.generation, partition=partition
                )
                continue
            query = OffsetQuery(partition, wanted[partition], leader.leader_epoch)
            groups.setdefault(leader.broker, []).append(query)
        now = self._clock()
        for broker, queries in groups.items():
            unanswered = self._unanswered[broker.node_id]
            timeout_ms = attempt_timeout_ms(unanswered, self._options.request_timeout_ms)
            request = replace(self._kind, queries=tuple(queries))
            # One that throttles may answer that much later. But its leadership is checked as soon: it may hang as well.
            heard_at = max(now, self._throttles.until(broker.node_id))
            self._wire.send_offsets(broker, request, min(self._deadline, heard_at + timeout_ms / 1000))
            # A broker that was silent before is suspected sooner.
            overdue_ms = max(OVERDUE_MS / 2**unanswered, self._options.retry_backoff_ms)
            partitions = [one.partition for one in queries]
            self._asked[broker.node_id] = _Asked(broker, partitions, now + overdue_ms / 1000)

    def _next_look(self) -> float:
        """When the next broker is overdue; if one is already, when the cache may make the requested refresh."""
        now = self._clock()
        overdue_at = min(one.overdue_at for one in self._asked.values())
        return overdue_at if overdue_at > now else now + self._cache.time_to_next_update_ms() / 1000

    def _leave_who_leads_no_more(self) -> None:
        self._cache.refresh_if_due(self._deadline, until=self._clock())
        now, snapshot = self._clock(), self._cache.snapshot
        for node_id in [node_id for node_id, one in self._asked.items() if now >= one.overdue_at]:
            broker, partitions, _ = self._asked[node_id]
            leaders = [snapshot.leader(partition) for partition in partitions]
            if all(leader is not None and leader.broker == broker for leader in leaders):
                self._cache.request_update(RefreshReason.REQUEST_TIMEOUT, snapshot.generation, node_id=node_id)
            else:
                self._leave(node_id, "did not report offsets, and lost partitions")

    def _leave(self, node_id: int, why: str) -> None:
        self._wire.drop_offsets(node_id)
        broker, partitions, _ = self._asked.pop(node_id)
        self.troubles.update(dict.fromkeys(partitions, f"{broker.address} {why}"))

    def _absorb(
        self, received: OffsetsResponse | RequestFailure, partitions: list[TopicPartition], generation: int
    ) -> dict[TopicPartition, PartitionOffset]:
        node_id = received.node_id
        if isinstance(received, RequestFailure):
            if not isinstance(received.error, RETRIABLE_ERRORS):
                raise received.error
            self._unanswered[node_id] += 1
            self._cache.report_failure(received.error, generation, node_id)
            self.troubles.update(dict.fromkeys(partitions, str(received.error)))
            return {}
        del self._unanswered[node_id]
        if received.throttle_ms > 0:
            self._throttles.throttle(node_id, received.throttle_ms, self._clock())
        good: dict[TopicPartition, PartitionOffset] = {}
        for partition in partitions:
            answer = received.offsets.get(partition)
            if answer is not None and answer.error_code == 0:
                good[partition] = answer
            else:
                code = UNKNOWN_SERVER_ERROR if answer is None else answer.error_code
                self.troubles[partition] = describe(code)
                self._report_error(partition, code, generation, node_id)
        return good

    def _report_error(self, partition: TopicPartition, code: int, generation: int, node_id: int) -> None:
        action = read_action(code)
        if action is Action.FAIL:
            raise broker_error(f"the offsets of {partition} were refused", code, partition.topic, "DESCRIBE")
        self._cache.count_retry()
        if action is Action.REFRESH or code == UNKNOWN_LEADER_EPOCH:
            self._cache.request_update(
                refresh_reason(code), generation, partition=partition, error_code=code, node_id=node_id
            )
