"""Responses of scripted brokers."""

from __future__ import annotations

import socket
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.schema.fetch.v16 import response as fetch
from kio.schema.metadata.v12 import response as metadata

from pyspark_kafka_meta.kafka.protocol.frame_codec import milliseconds
from tests.unit.kafka.records import handmade
from tests.wire.scripted_broker import frame, read_request, send_versions

TOPIC_ID = UUID(int=7)
ROW = handmade.batch([handmade.Row(0)])


def fetch_frame(
    correlation_id: int,
    *partitions: int,
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
    topic = fetch.FetchableTopicResponse(topic_id=TOPIC_ID, partitions=entries)
    message = fetch.FetchResponse(
        throttle_time=milliseconds(0),
        error_code=ErrorCode.none,
        session_id=0,
        responses=(topic,),
    )
    return frame(message, correlation_id)


def metadata_frame(correlation_id: int, **fields: object) -> bytes:
    """Without brokers and topics, but for these fields."""
    values = {"brokers": (), "topics": (), "throttle_time": milliseconds(0)} | fields
    return frame(metadata.MetadataResponse(**values), correlation_id)


def leader_frame(correlation_id: int, peer: socket.socket) -> bytes:
    """Metadata of topic t with one partition, whose leader is the responding broker."""
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
        error_code=ErrorCode.none, name="t", topic_id=TOPIC_ID, partitions=(partition,)
    )
    broker = metadata.MetadataResponseBroker(node_id=1, host=host, port=port)
    return metadata_frame(correlation_id, brokers=(broker,), topics=(topic,))


def send_metadata(peer: socket.socket, **fields: object) -> None:
    """Respond to the next request."""
    _, _, correlation_id = read_request(peer)
    peer.sendall(metadata_frame(correlation_id, **fields))


def serve_metadata(peer: socket.socket, **fields: object) -> None:
    send_versions(peer, metadata=12)
    send_metadata(peer, **fields)
