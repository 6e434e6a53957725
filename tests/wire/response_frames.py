"""Responses of a scripted broker that leads partition 0 of topic t, which has one record."""

from __future__ import annotations

import socket
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.schema.fetch.v16 import response as fetch
from kio.schema.metadata.v12 import response as metadata

from pyspark_kafka_meta.kafka.protocol.frame_codec import milliseconds
from tests.unit.kafka.records import handmade
from tests.wire.scripted_broker import frame

TOPIC_ID = UUID(int=7)
ROW = handmade.batch([handmade.Row(0)])


def fetch_frame(
    correlation_id: int,
    *partitions: int,
    topic_id: UUID = TOPIC_ID,
    records: bytes = ROW,
    code: ErrorCode = ErrorCode.none,
) -> bytes:
    entries = tuple(
        fetch.PartitionData(
            partition_index=partition,
            error_code=code,
            high_watermark=1,
            aborted_transactions=None,
            records=records,
        )
        for partition in partitions
    )
    topic = fetch.FetchableTopicResponse(topic_id=topic_id, partitions=entries)
    message = fetch.FetchResponse(
        throttle_time=milliseconds(0),
        error_code=ErrorCode.none,
        session_id=0,
        responses=(topic,),
    )
    return frame(message, correlation_id)


def metadata_frame(correlation_id: int, peer: socket.socket) -> bytes:
    """Topic t with one partition, whose leader is the responding broker."""
    host, port = peer.getsockname()
    partition = metadata.MetadataResponsePartition(
        error_code=ErrorCode.none,
        partition_index=0,
        leader_id=1,
        leader_epoch=0,
        replica_nodes=(1,),
        isr_nodes=(1,),
        offline_replicas=(),
    )
    topic = metadata.MetadataResponseTopic(
        error_code=ErrorCode.none,
        name="t",
        topic_id=TOPIC_ID,
        partitions=(partition,),
    )
    broker = metadata.MetadataResponseBroker(node_id=1, host=host, port=port)
    message = metadata.MetadataResponse(throttle_time=milliseconds(0), brokers=(broker,), topics=(topic,))
    return frame(message, correlation_id)
