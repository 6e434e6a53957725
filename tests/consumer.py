"""Reads topics with confluent-kafka, to compare with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

TIMEOUT_S = 30


def consume(bootstrap_servers: str, topic: str, isolation_level: str = "read_uncommitted") -> list[Message]:
    """All records of the topic, from the start to the end of each partition, as confluent-kafka reads them."""
    return list(records(bootstrap_servers, topic, isolation_level))


def records(bootstrap_servers: str, topic: str, isolation_level: str = "read_uncommitted") -> Iterator[Message]:
    """As `consume`, one after the other: those of a partition are in order."""
    ended = set[int | None]()
    with _consumer(bootstrap_servers, isolation_level) as consumer:
        partitions = _partitions(consumer, topic)
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        while len(ended) < len(partitions):
            message = consumer.poll(TIMEOUT_S)
            assert message is not None, "the consumer did not reach the end of every partition in time"
            error = message.error()
            if error is None:
                yield message
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())


def log_ends(bootstrap_servers: str, topic: str) -> dict[int, int]:
    """The end of each partition, up to which all in-sync replicas have the records."""
    with _consumer(bootstrap_servers) as consumer:
        return {
            partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), TIMEOUT_S)[1]
            for partition in _partitions(consumer, topic)
        }


def _partitions(consumer: Consumer, topic: str) -> list[int]:
    return list(consumer.list_topics(topic, TIMEOUT_S).topics[topic].partitions)


@contextmanager
def _consumer(bootstrap_servers: str, isolation_level: str = "read_uncommitted") -> Iterator[Consumer]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "tests",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": isolation_level,
            "log_level": 0,
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()
