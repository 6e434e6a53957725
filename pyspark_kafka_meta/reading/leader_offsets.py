"""`LeaderOffsets`: ListOffsets to the leaders of partitions, one to each, all under way at the same time.

A leader that keeps silent costs the others' answers nothing, and is left as soon as it does not lead them all any more.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from pyspark_kafka_meta.metadata.cache import RETRIABLE_ERRORS, MetadataCache
from pyspark_kafka_meta.metadata.events import RefreshReason
from pyspark_kafka_meta.metadata.model import Broker, TopicPartition
from pyspark_kafka_meta.metadata.policy import OVERDUE_MS, attempt_timeout_ms
from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.wire.codes import (
    UNKNOWN_LEADER_EPOCH,
    UNKNOWN_SERVER_ERROR,
    Action,
    action_for,
    describe,
    refresh_reason,
    refusal,
)
from pyspark_kafka_meta.wire.messages import (
    OffsetAnswer,
    OffsetQuery,
    OffsetsAnswer,
    OffsetsRequest,
    RequestFailure,
    Wire,
)


class _Asked(NamedTuple):
    """A ListOffsets that has no answer yet. `overdue_at` is in seconds of `time.monotonic`."""

    broker: Broker
    partitions: list[TopicPartition]
    overdue_at: float


class LeaderOffsets:
    """Of one client. What goes wrong is reported to its cache."""

    def __init__(self, wire: Wire, cache: MetadataCache, options: ClientOptions) -> None:
        self._wire = wire
        self._cache = cache
        self._options = options
        self._unanswered: Counter[int] = Counter()  # in a row, by node id

    def ask(
        self,
        timestamps: Mapping[TopicPartition, int],
        read_committed: bool,
        deadline: float,
        troubles: dict[TopicPartition, str],
    ) -> dict[TopicPartition, OffsetAnswer]:
        """The good answers to one question to each leader; why the others have none is added to `troubles`.

        Raises:
            BrokerError: a broker refused for good.
        """
        generation = self._cache.snapshot.generation
        asked = self._send(timestamps, read_committed, deadline, troubles)
        good: dict[TopicPartition, OffsetAnswer] = {}
        try:
            while asked:
                received = self._wire.receive_offsets(asked, min(self._next_look_at(asked), deadline))
                if received is not None:
                    partitions = asked.pop(received.node_id).partitions
                    good |= self._absorb(received, partitions, generation, troubles)
                elif time.monotonic() < deadline:
                    self._leave_who_leads_no_more(asked, deadline, troubles)
                else:
                    break
        finally:
            for node_id, (broker, partitions, _) in asked.items():
                self._wire.drop_offsets(node_id)
                troubles.update(dict.fromkeys(partitions, f"{broker.address} did not answer ListOffsets in time"))
        return good

    def _send(
        self,
        timestamps: Mapping[TopicPartition, int],
        read_committed: bool,
        deadline: float,
        troubles: dict[TopicPartition, str],
    ) -> dict[int, _Asked]:
        """What is under way then, by node id."""
        groups: dict[Broker, list[OffsetQuery]] = {}
        for partition in sorted(timestamps):
            leader = self._cache.leader(partition)
            if leader is None:
                troubles[partition] = "it has no leader"
                self._cache.request_update(
                    RefreshReason.NO_LEADER, self._cache.snapshot.generation, partition=partition
                )
                continue
            query = OffsetQuery(partition, timestamps[partition], leader.leader_epoch)
            groups.setdefault(leader.broker, []).append(query)
        now, asked = time.monotonic(), {}
        for broker, queries in groups.items():
            unanswered = self._unanswered[broker.node_id]
            timeout_ms = attempt_timeout_ms(unanswered + 1, self._options.request_timeout_ms)
            request = OffsetsRequest(tuple(queries), read_committed)
            self._wire.send_offsets(broker, request, min(deadline, now + timeout_ms / 1000))
            # Who kept silent before is suspected the sooner.
            overdue_ms = max(OVERDUE_MS / 2**unanswered, self._options.retry_backoff_ms)
            asked[broker.node_id] = _Asked(broker, [one.partition for one in queries], now + overdue_ms / 1000)
        return asked

    def _next_look_at(self, asked: Mapping[int, _Asked]) -> float:
        """When somebody will be overdue; when the cache, which was asked to, may be refreshed, if somebody is."""
        now = time.monotonic()
        overdue_at = min(one.overdue_at for one in asked.values())
        return overdue_at if overdue_at > now else now + self._cache.time_to_next_update_ms() / 1000

    def _leave_who_leads_no_more(
        self, asked: dict[int, _Asked], deadline: float, troubles: dict[TopicPartition, str]
    ) -> None:
        self._cache.refresh_if_due(deadline)
        now, snapshot = time.monotonic(), self._cache.snapshot
        for node_id in [node_id for node_id, one in asked.items() if now >= one.overdue_at]:
            broker, partitions, _ = asked[node_id]
            leaders = [snapshot.leader(partition) for partition in partitions]
            if all(leader is not None and leader.broker == broker for leader in leaders):
                self._cache.request_update(RefreshReason.REQUEST_TIMEOUT, snapshot.generation, node_id=node_id)
                continue
            self._wire.drop_offsets(node_id)
            del asked[node_id]
            silent = f"{broker.address} did not answer ListOffsets, and lost partitions"
            troubles.update(dict.fromkeys(partitions, silent))

    def _absorb(
        self,
        received: OffsetsAnswer | RequestFailure,
        partitions: list[TopicPartition],
        generation: int,
        troubles: dict[TopicPartition, str],
    ) -> dict[TopicPartition, OffsetAnswer]:
        node_id = received.node_id
        if isinstance(received, RequestFailure):
            if not isinstance(received.error, RETRIABLE_ERRORS):
                raise received.error
            self._unanswered[node_id] += 1
            self._cache.report_failure(received.error, generation, node_id)
            troubles.update(dict.fromkeys(partitions, str(received.error)))
            return {}
        del self._unanswered[node_id]
        good: dict[TopicPartition, OffsetAnswer] = {}
        for partition in partitions:
            answer = received.offsets.get(partition)
            if answer is not None and answer.error_code == 0:
                good[partition] = answer
            else:
                code = UNKNOWN_SERVER_ERROR if answer is None else answer.error_code
                troubles[partition] = describe(code)
                self._report_error(partition, code, generation, node_id)
        return good

    def _report_error(self, partition: TopicPartition, code: int, generation: int, node_id: int) -> None:
        action = action_for(code)
        if action is Action.FAIL:
            raise refusal(f"the offsets of {partition} were refused", code, partition.topic, "DESCRIBE")
        self._cache.count_retry()
        if action is Action.REFRESH or code == UNKNOWN_LEADER_EPOCH:
            self._cache.request_update(
                refresh_reason(code), generation, partition=partition, error_code=code, node_id=node_id
            )
