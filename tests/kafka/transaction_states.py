"""States of transactional ids, written to the log that their coordinator loads: to reach epoch 32,767 by InitProducerId
takes minutes."""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping

from confluent_kafka import Message, Producer

from pyspark_kafka_meta.model import ProducerIdAndEpoch
from pyspark_kafka_meta.testing import LocalKafka

LOG = "__transaction_state"
INTERNAL_CLIENT = "__admin_client"
"""Brokers let clients with this id write to internal topics (Kafka `AdminUtils.ADMIN_CLIENT_ID`)."""
PARTITIONS = 3
TIMEOUT_MS = 60_000
EMPTY = 0


def set_producers(cluster: LocalKafka, producers: Mapping[str, ProducerIdAndEpoch]) -> None:
    """Give transactional ids these producers, without a transaction, and restart the only broker, which loads them."""
    writer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "client.id": INTERNAL_CLIENT, "log_level": 0})
    for transactional_id, producer in producers.items():
        partition = abs(_java_hash(transactional_id)) % PARTITIONS
        key, value = _key(transactional_id), _value(producer)
        writer.produce(LOG, key=key, value=value, partition=partition, on_delivery=_delivered)
    assert writer.flush(60) == 0
    (broker_id,) = cluster.broker_ids
    port = cluster.address(broker_id).port
    cluster.stop(broker_id)
    cluster.start(broker_id, port)
    cluster.wait_until_up()


def _key(transactional_id: str) -> bytes:
    """Kafka `TransactionLogKey`, version 0."""
    name = transactional_id.encode()
    return struct.pack(">hh", 0, len(name)) + name


def _value(producer: ProducerIdAndEpoch) -> bytes:
    """Kafka `TransactionLogValue`, version 0: no partitions, and no start."""
    return struct.pack(">hqhibiqq", 0, *producer, TIMEOUT_MS, EMPTY, 0, int(time.time() * 1000), -1)


def _java_hash(text: str) -> int:
    """`String.hashCode` of ASCII text."""
    found = 0
    for byte in text.encode():
        found = (31 * found + byte) & 0xFFFFFFFF
    return found - (1 << 32) if found >> 31 else found


def _delivered(error: object, _: Message) -> None:
    assert error is None, error
