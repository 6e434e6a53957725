"""Translate Fetch requests and responses between our types and the protocol library's messages."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from pyspark_kafka_meta.kafka.protocol import frame_codec
from pyspark_kafka_meta.kafka.protocol.frame_codec import FETCH, Exchange
from pyspark_kafka_meta.kafka.protocol.messages import DivergingEpoch, FetchedPartition, FetchRequest, FetchResponse
from pyspark_kafka_meta.kafka.protocol.response_checks import check, endpoints, grouped, leader_hint, ms, unique
from pyspark_kafka_meta.model import Broker, TopicPartition

TOPIC_IDS_SINCE = 13
"""First version of Fetch that names topics by id (KIP-516)."""


def fetch_request(version: int, request: FetchRequest) -> Any:
    schema = frame_codec.request_schema(FETCH, version)
    by_id = version >= TOPIC_IDS_SINCE
    groups = grouped(request.partitions, lambda entry: (entry.partition.topic, entry.topic_id))
    # v15 moved the replica id into a tagged field, whose default is a consumer's -1.
    replica = {"replica_id": -1} if version < 15 else {}
    return schema.FetchRequest(
        max_wait=frame_codec.milliseconds(request.max_wait_ms),
        min_bytes=request.min_bytes,
        max_bytes=request.max_bytes,
        isolation_level=int(request.read_committed),
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
        rack_id=request.rack,
        **replica,
    )


def fetch_response(exchange: Exchange, request: FetchRequest, node_id: int) -> FetchResponse:
    message = exchange.message
    requested = {entry.partition for entry in request.partitions}
    names: dict[UUID | None, str] = {entry.topic_id: entry.partition.topic for entry in request.partitions}
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
