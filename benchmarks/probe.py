"""Sends Metadata requests to brokers and Produce requests to leaders, to find out when the cluster itself is ready.

Without the cache, backoff and batching of a client: one request is one attempt.
"""

from __future__ import annotations

import io
import time
from collections.abc import Collection
from datetime import UTC, datetime

from kio.records.schema import NewRecordBatch, Record
from kio.records.writers import write_new_batch
from kio.schema.produce.v9 import request as produce
from kio.schema.types import TopicName
from kio.static.primitive import Records, TZAwareMicros, i8, i16, i32, i64

from pyspark_kafka_meta.kafka.network.connection import Connection, ConnectionSettings
from pyspark_kafka_meta.kafka.network.kafka_network import KafkaNetwork
from pyspark_kafka_meta.kafka.protocol.apis import Api
from pyspark_kafka_meta.kafka.protocol.frame_codec import milliseconds
from pyspark_kafka_meta.model import NO_LEADER
from pyspark_kafka_meta.testing import LocalKafka

PRODUCE = Api("produce", 0, 9, 9)
TIMEOUT_S = 20.0
REPLICATION_TIMEOUT_MS = 5_000


class Probe:
    """Follows one topic. Every method raises KafkaMetaError if a broker does not respond."""

    def __init__(self, kafka: LocalKafka, topic: str) -> None:
        self._kafka, self._topic = kafka, topic
        self._settings = ConnectionSettings("recovery-probe", connect_timeout_ms=1000, max_frame_bytes=1 << 20)
        self._network = KafkaNetwork(self._settings)

    def leaders(self, brokers: Collection[int], but: int = NO_LEADER) -> dict[int, int]:
        """A leader of each partition, other than `but`, from the metadata of `brokers`."""
        leaders = {}
        for broker_id in brokers:
            address = self._kafka.address(broker_id)
            topics = self._network.metadata(address, [self._topic], time.monotonic() + TIMEOUT_S).topics
            for partition in (partition for topic in topics for partition in topic.partitions):
                if partition.leader_id not in (NO_LEADER, but):
                    leaders[partition.partition] = partition.leader_id
        return leaders

    def write(self, leader: int, partition: int, value: bytes) -> bool:
        """Whether the broker wrote a record as the partition's leader, and all in-sync replicas have the record."""
        deadline = time.monotonic() + TIMEOUT_S
        data = produce.PartitionProduceData(index=i32(partition), records=_record_batch(value))
        request = produce.ProduceRequest(
            acks=i16(-1),
            timeout=milliseconds(REPLICATION_TIMEOUT_MS),
            topic_data=(produce.TopicProduceData(name=TopicName(self._topic), partition_data=(data,)),),
        )
        connection = Connection(self._kafka.address(leader), self._settings, deadline)
        try:
            response = connection.call(PRODUCE, request, deadline).message
        finally:
            connection.close()
        return all(partition.error_code == 0 for topic in response.responses for partition in topic.partition_responses)


def _record_batch(value: bytes) -> Records:
    timestamp = TZAwareMicros.parse(datetime.now(UTC))
    record = Record(attributes=i8(0), timestamp=timestamp, offset=i64(0), key=None, value=value, headers=())
    batch = NewRecordBatch(
        producer_id=i64(-1), producer_epoch=i16(-1), base_sequence=i32(-1), records=(record,), attributes=i16(0)
    )
    buffer = io.BytesIO()
    write_new_batch(buffer, batch)
    return Records(buffer.getvalue())
