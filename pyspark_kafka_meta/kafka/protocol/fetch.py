"""Fetch: requests and responses in our own types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from pyspark_kafka_meta.kafka.protocol.apis import FETCH, Api, ApiRequest, Exchange
from pyspark_kafka_meta.kafka.protocol.frame_codec import milliseconds, request_schema
from pyspark_kafka_meta.kafka.protocol.response_checks import check, endpoints, grouped, leader_hint, ms, unique
from pyspark_kafka_meta.model import Broker, LeaderHint, TopicPartition

TOPIC_IDS_SINCE = 13
"""First version of Fetch that names topics by id (KIP-516)."""


@dataclass(frozen=True, slots=True)
class FetchPartition:
    """One partition of a Fetch request.

    Attributes:
        topic_id: as planned, even if the cache has another id now. None sends the whole request by name (Fetch v12).
        leader_epoch: the cached epoch of the leader. Without it, a former leader serves its old log with error 0.
        last_fetched_epoch: epoch of the record before `fetch_offset`, so that the leader detects a truncated log
            (KIP-320).
        max_bytes: soft limit: the first record batch is sent whole, however large (KIP-74).
    """

    partition: TopicPartition
    topic_id: UUID | None
    fetch_offset: int
    leader_epoch: int
    last_fetched_epoch: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class DivergingEpoch:
    """Where the log was truncated: the largest common epoch, and the offset (exclusive) up to which both logs agree."""

    epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """One partition of a Fetch response.

    Attributes:
        records: concatenated record batches as the broker stores them; the last may be cut off.
        aborted_transactions: (producer id, first offset) pairs, under read_committed only.
        high_watermark, last_stable_offset: -1 where the broker does not return it.
    """

    partition: TopicPartition
    error_code: int
    records: bytes | memoryview
    high_watermark: int
    last_stable_offset: int
    aborted_transactions: tuple[tuple[int, int], ...] = ()
    leader_hint: LeaderHint | None = None
    diverging_epoch: DivergingEpoch | None = None
    preferred_read_replica: int = -1


@dataclass(frozen=True, slots=True)
class FetchResponse:
    """One broker's response to a Fetch. It holds only requested partitions, each at most once.

    Attributes:
        error_code: top-level error. If it is not 0, `partitions` is empty.
        latency_ms: from the last byte sent to the last byte received, including the broker's wait for `min_bytes`.
        by_id: whether the request named topics by id (Kafka 3.1 and later): no recreated topic is mistaken for the
            requested topic.
    """

    node_id: int
    error_code: int
    partitions: tuple[FetchedPartition, ...]
    throttle_ms: int
    response_bytes: int
    latency_ms: float
    by_id: bool = True

    @property
    def has_records(self) -> bool:
        return any(fetched.records for fetched in self.partitions)


@dataclass(frozen=True, slots=True)
class FetchRequest(ApiRequest[FetchResponse]):
    """One Fetch request to one broker. `max_bytes` is a soft limit of the whole response. The broker may wait for up to
    `max_wait_ms` until it has `min_bytes`."""

    api = FETCH
    partitions: tuple[FetchPartition, ...]
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    read_committed: bool
    rack: str = ""

    def spoken(self) -> Api:
        by_name = any(entry.topic_id is None for entry in self.partitions)
        return FETCH._replace(max_version=TOPIC_IDS_SINCE - 1) if by_name else FETCH

    def encode(self, version: int) -> Any:
        schema = request_schema(FETCH, version)
        by_id = version >= TOPIC_IDS_SINCE
        groups = grouped(self.partitions, lambda entry: (entry.partition.topic, entry.topic_id))
        # v15 moved the replica id into a tagged field, whose default is a consumer's -1.
        replica = {"replica_id": -1} if version < 15 else {}
        return schema.FetchRequest(
            max_wait=milliseconds(self.max_wait_ms),
            min_bytes=self.min_bytes,
            max_bytes=self.max_bytes,
            isolation_level=int(self.read_committed),
            topics=tuple(
                schema.FetchTopic(
                    **({"topic_id": topic_id} if by_id else {"topic": topic}),
                    partitions=tuple(
                        schema.FetchPartition(
                            partition=entry.partition.partition,
                            current_leader_epoch=entry.leader_epoch,
                            fetch_offset=entry.fetch_offset,
                            last_fetched_epoch=entry.last_fetched_epoch,
                            partition_max_bytes=entry.max_bytes,
                        )
                        for entry in members
                    ),
                )
                for (topic, topic_id), members in groups
            ),
            forgotten_topics_data=(),
            rack_id=self.rack,
            **replica,
        )

    def decode(self, exchange: Exchange, node_id: int) -> FetchResponse:
        message = exchange.message
        requested = {entry.partition for entry in self.partitions}
        names: dict[UUID | None, str] = {entry.topic_id: entry.partition.topic for entry in self.partitions}
        brokers = endpoints(message)
        partitions = []
        records = iter(exchange.records)
        for topic in () if message.error_code else message.responses:
            name = names.get(topic.topic_id, "") if exchange.api_version >= TOPIC_IDS_SINCE else str(topic.topic)
            for entry in topic.partitions:
                partition = TopicPartition(name, int(entry.partition_index))
                check(partition in requested, "unrequested %s", partition)
                partitions.append(_fetched(partition, entry, next(records), brokers))
        return FetchResponse(
            node_id=node_id,
            error_code=int(message.error_code),
            partitions=unique(partitions, lambda fetched: fetched.partition, "partition"),
            throttle_ms=ms(message.throttle_time),
            response_bytes=exchange.response_bytes,
            latency_ms=exchange.latency_ms,
            by_id=exchange.api_version >= TOPIC_IDS_SINCE,
        )


def _fetched(
    partition: TopicPartition, entry: Any, records: memoryview, brokers: dict[int, Broker]
) -> FetchedPartition:
    aborted = entry.aborted_transactions or ()
    # -1 comes with an error.
    check(min(entry.high_watermark, entry.last_stable_offset) >= -1, "a negative offset for %s", partition)
    check(
        all(transaction.first_offset >= 0 for transaction in aborted),
        "a transaction at a negative offset for %s",
        partition,
    )
    return FetchedPartition(
        partition=partition,
        error_code=int(entry.error_code),
        records=records,
        high_watermark=int(entry.high_watermark),
        last_stable_offset=int(entry.last_stable_offset),
        aborted_transactions=tuple(
            (int(transaction.producer_id), int(transaction.first_offset)) for transaction in aborted
        ),
        leader_hint=leader_hint(entry.current_leader, brokers),
        diverging_epoch=_diverging_epoch(entry.diverging_epoch),
        preferred_read_replica=int(entry.preferred_read_replica),
    )


def _diverging_epoch(diverging: Any) -> DivergingEpoch | None:
    if diverging.end_offset < 0:
        return None
    check(diverging.epoch >= -1, "a diverging epoch of %d", diverging.epoch)
    return DivergingEpoch(int(diverging.epoch), int(diverging.end_offset))
