"""`LeaderOffsets`: ListOffsets or OffsetForLeaderEpoch to the leaders of partitions, all in flight at the same time.

A leader that does not respond does not delay the others. Its request is abandoned once it lost one of its partitions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from pyspark_kafka_meta.kafka.client.client_state import ClientState
from pyspark_kafka_meta.kafka.client.leader_requests import OVERDUE_MS, LeaderRequests, SentRequest
from pyspark_kafka_meta.kafka.metadata.cache_state import RETRIABLE_ERRORS
from pyspark_kafka_meta.kafka.metadata.refresh_policy import attempt_timeout_ms
from pyspark_kafka_meta.kafka.protocol.error_codes import (
    UNKNOWN_LEADER_EPOCH,
    UNKNOWN_SERVER_ERROR,
    Action,
    broker_error,
    describe,
    read_action,
    refresh_reason,
)
from pyspark_kafka_meta.kafka.protocol.list_offsets import OffsetQuery, OffsetsRequest, OffsetsResponse, PartitionOffset
from pyspark_kafka_meta.kafka.protocol.requests import RequestFailure
from pyspark_kafka_meta.model import Broker, RefreshReason, TopicPartition


class LeaderOffsets:
    """The offsets for one caller, by its deadline. Errors are reported to the cache.

    Attributes:
        errors: why a partition has no offset yet.
    """

    def __init__(self, client: ClientState, template: OffsetsRequest, deadline: float) -> None:
        """
        Args:
            template: a request without queries; each leader gets it with the queries for its partitions.
        """
        self.errors: dict[TopicPartition, str] = {}
        self._client = client
        self._cache = client.cache
        self._template = template
        self._deadline = deadline
        # In a row, by node id. A later caller begins anew: a broker that failed long ago is not suspected sooner.
        self._failures: Counter[int] = Counter()
        self._requests: LeaderRequests[TopicPartition, OffsetsResponse] = LeaderRequests(client, client.network.offsets)

    def ask(self, queries: Mapping[TopicPartition, int]) -> dict[TopicPartition, PartitionOffset]:
        """The offsets from one request to each leader, without partitions that failed.

        Args:
            queries: `OffsetQuery.wanted` of each partition.

        Raises:
            BrokerError: an error that is not retriable.
        """
        offsets: dict[TopicPartition, PartitionOffset] = {}
        try:
            self._send(queries)
            while self._requests:
                wake_up_at = self._requests.wake_up_at((), self._client.clock())
                received = self._requests.receive(min(wake_up_at, self._deadline))
                if received is not None:
                    offsets |= self._on_response(received.response, *received.sent)
                elif self._client.clock() < self._deadline:
                    self._abandon_moved()
                else:
                    break
        finally:
            for sent in list(self._requests):
                self._abandon(sent.broker.node_id, "did not report offsets in time")
        return offsets

    def _send(self, queries: Mapping[TopicPartition, int]) -> None:
        generation = self._cache.snapshot.generation
        groups: dict[int, tuple[Broker, list[OffsetQuery]]] = {}  # by node id, which has a faster hash than a broker
        for partition in sorted(queries):
            leader = self._cache.leader(partition)
            if leader is None:
                replaced = self._cache.snapshot.replaced_leader(partition)
                self.errors[partition] = replaced or "it has no leader"
                reason = RefreshReason.REPLACED_LEADER if replaced else RefreshReason.NO_LEADER
                self._cache.request_update(reason, generation, partition)
                continue
            broker, leader_epoch = leader
            if broker.node_id not in groups:
                groups[broker.node_id] = (broker, [])
            groups[broker.node_id][1].append(OffsetQuery(partition, queries[partition], leader_epoch))
        now = self._client.clock()
        for broker, members in groups.values():
            failures = self._failures[broker.node_id]
            timeout_ms = attempt_timeout_ms(failures, self._client.options.request_timeout_ms)
            request = replace(self._template, queries=tuple(members))
            # A throttling broker may respond later. Its leadership is checked no later: it may hang as well.
            sent_at = max(now, self._client.throttles.until(broker.node_id))
            self._client.network.offsets.send(broker, request, min(self._deadline, sent_at + timeout_ms / 1000))
            # A broker that failed to respond before is suspected sooner.
            overdue_ms = max(OVERDUE_MS / 2**failures, self._client.options.retry_backoff_ms)
            partitions = [query.partition for query in members]
            self._requests.add(broker, partitions, generation, now, overdue_ms)

    def _abandon_moved(self) -> None:
        self._cache.refresh_if_due(self._deadline, until=self._client.clock())
        now, snapshot = self._client.clock(), self._cache.snapshot
        for node_id in self._requests.overdue(now):
            (sent,) = self._requests.of(node_id)
            leaders = map(snapshot.leader, sent.members)
            if all(leader is not None and leader.broker == sent.broker for leader in leaders):
                self._requests.suspect(node_id)
            else:
                self._abandon(node_id, "did not report offsets, and lost partitions")

    def _abandon(self, node_id: int, why: str) -> None:
        for sent in self._requests.abandon(node_id):
            self.errors.update(dict.fromkeys(sent.members, f"{sent.broker.address} {why}"))

    def _on_response(
        self, received: OffsetsResponse | RequestFailure, sent: SentRequest[TopicPartition]
    ) -> dict[TopicPartition, PartitionOffset]:
        node_id = received.node_id
        if isinstance(received, RequestFailure):
            if not isinstance(received.error, RETRIABLE_ERRORS):
                raise received.error
            self._failures[node_id] += 1
            self._client.report_failure(received.error, sent.generation, node_id)
            self.errors.update(dict.fromkeys(sent.members, str(received.error)))
            return {}
        del self._failures[node_id]
        self._client.take_throttle(node_id, received.throttle_ms)
        offsets: dict[TopicPartition, PartitionOffset] = {}
        for partition in sent.members:
            result = received.offsets.get(partition)
            if result is not None and result.error_code == 0:
                offsets[partition] = result
            else:
                code = UNKNOWN_SERVER_ERROR if result is None else result.error_code
                self.errors[partition] = describe(code)
                self._report_error(partition, code, sent.generation, node_id)
        return offsets

    def _report_error(self, partition: TopicPartition, code: int, generation: int, node_id: int) -> None:
        action = read_action(code)
        if action is Action.FAIL:
            raise broker_error(f"the offsets of {partition} were refused", code, partition.topic, "DESCRIBE")
        self._client.traffic.retries += 1
        if action is Action.REFRESH or code == UNKNOWN_LEADER_EPOCH:
            self._cache.request_update(
                refresh_reason(code), generation, partition=partition, error_code=code, node_id=node_id
            )
