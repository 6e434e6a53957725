"""Produce: requests and responses in our own types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from pyspark_kafka_meta.kafka.protocol.apis import PRODUCE, Api, ApiRequest, Exchange
from pyspark_kafka_meta.kafka.protocol.frame_codec import milliseconds, request_schema
from pyspark_kafka_meta.kafka.protocol.response_checks import (
    check,
    endpoints,
    grouped,
    leader_hint,
    ms,
    printable,
    unique,
)
from pyspark_kafka_meta.model import Broker, LeaderHint, TopicPartition, TransactionVersion

TOPIC_IDS_SINCE = 13
"""First version of Produce that names topics by id (KIP-516)."""
ADDS_PARTITIONS_SINCE = 12
"""First version of Produce that adds its partitions to the transaction: `TransactionVersion.V2` (KIP-890)."""
LEADER_HINTS_SINCE = 10
"""First version of Produce with the new leader of a partition (KIP-951)."""
MAX_RECORD_ERRORS = 100
"""Further records of a refused batch are not reported."""


@dataclass(frozen=True, slots=True)
class ProducePartition:
    """One partition of a Produce request.

    Attributes:
        topic_id: of the topic that the records are for. None sends the whole request by name (before Produce v13).
        records: one record batch (v2) with a base offset of 0.
    """

    partition: TopicPartition
    topic_id: UUID | None
    records: bytes | memoryview


@dataclass(frozen=True, slots=True)
class ProducedPartition:
    """One partition of a Produce response.

    Attributes:
        base_offset: of the first record of the batch, -1 with an error. Also -1 after DUPLICATE_SEQUENCE_NUMBER.
        error_message: the broker's own words on a refused batch (KIP-467).
        record_errors: index in the batch, and the broker's message, of each record that made it refuse the batch.
    """

    partition: TopicPartition
    error_code: int
    base_offset: int
    error_message: str | None = None
    record_errors: tuple[tuple[int, str | None], ...] = ()
    leader_hint: LeaderHint | None = None


@dataclass(frozen=True, slots=True)
class ProduceResponse:
    """One broker's response to a Produce. It holds only requested partitions, each at most once; it may lack some.

    Attributes:
        throttle_ms: how long the broker accepts no further requests (KIP-219).
        latency_ms: from the last byte sent to the last byte received.
    """

    node_id: int
    partitions: tuple[ProducedPartition, ...]
    throttle_ms: int
    request_bytes: int
    latency_ms: float


@dataclass(frozen=True, slots=True)
class ProduceRequest(ApiRequest[ProduceResponse]):
    """One Produce request to one broker, with each partition at most once.

    Attributes:
        acks: -1 if all in-sync replicas acknowledge the records, 1 if only the leader does.
        timeout_ms: how long the broker may wait for the other replicas.
        transactional_id: of the transaction that the records belong to, or None.
        transaction_version: of that transaction. V1 sends by name (Produce v11).
    """

    api = PRODUCE
    partitions: tuple[ProducePartition, ...]
    acks: int
    timeout_ms: int
    transactional_id: str | None = None
    transaction_version: TransactionVersion = TransactionVersion.V2

    def spoken(self) -> Api:
        api = PRODUCE
        if any(entry.topic_id is None for entry in self.partitions):
            api = api._replace(max_version=TOPIC_IDS_SINCE - 1)
        if self.transactional_id is None:
            return api
        if self.transaction_version is TransactionVersion.V1:
            return api._replace(max_version=ADDS_PARTITIONS_SINCE - 1)
        return api._replace(min_version=ADDS_PARTITIONS_SINCE, since="4.0")

    def encode(self, version: int) -> Any:
        schema = request_schema(PRODUCE, version)
        by_id = version >= TOPIC_IDS_SINCE
        groups = grouped(self.partitions, lambda entry: (entry.partition.topic, entry.topic_id))
        return schema.ProduceRequest(
            transactional_id=self.transactional_id,
            acks=self.acks,
            timeout=milliseconds(self.timeout_ms),
            topic_data=tuple(
                schema.TopicProduceData(
                    **({"topic_id": topic_id} if by_id else {"name": topic}),
                    partition_data=tuple(
                        schema.PartitionProduceData(index=entry.partition.partition, records=entry.records)
                        for entry in members
                    ),
                )
                for (topic, topic_id), members in groups
            ),
        )

    def decode(self, exchange: Exchange, node_id: int) -> ProduceResponse:
        message = exchange.message
        requested = {entry.partition for entry in self.partitions}
        names: dict[UUID | None, str] = {entry.topic_id: entry.partition.topic for entry in self.partitions}
        brokers = endpoints(message)
        partitions = []
        for topic in message.responses:
            name = names.get(topic.topic_id, "") if exchange.api_version >= TOPIC_IDS_SINCE else str(topic.name)
            for entry in topic.partition_responses:
                partition = TopicPartition(name, int(entry.index))
                check(partition in requested, "unrequested %s", partition)
                partitions.append(_produced(partition, entry, brokers, exchange.api_version))
        return ProduceResponse(
            node_id=node_id,
            partitions=unique(partitions, lambda produced: produced.partition, "partition"),
            throttle_ms=ms(message.throttle_time),
            request_bytes=exchange.request_bytes,
            latency_ms=exchange.latency_ms,
        )


def _produced(partition: TopicPartition, entry: Any, brokers: dict[int, Broker], version: int) -> ProducedPartition:
    check(entry.base_offset >= -1, "a negative offset for %s", partition)  # -1 comes with an error
    refused = entry.record_errors[:MAX_RECORD_ERRORS]
    check(all(record.batch_index >= 0 for record in refused), "a negative record index for %s", partition)
    return ProducedPartition(
        partition=partition,
        error_code=int(entry.error_code),
        base_offset=int(entry.base_offset),
        error_message=_text(entry.error_message),
        record_errors=tuple((int(record.batch_index), _text(record.batch_index_error_message)) for record in refused),
        leader_hint=leader_hint(entry.current_leader, brokers) if version >= LEADER_HINTS_SINCE else None,
    )


def _text(of_broker: str | None) -> str | None:
    return None if of_broker is None else printable(of_broker)
