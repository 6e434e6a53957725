"""Reads topics with confluent-kafka, to compare with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from tests.kafka.cluster_tools import is_readable, poll_until

TIMEOUT_S = 60


def consume(bootstrap_servers: str, topic: str, isolation_level: str = "read_uncommitted") -> list[Message]:
    """All records of the topic, from the start to the end of each partition, as confluent-kafka reads them."""
    return list(records(bootstrap_servers, topic, isolation_level))


def consume_committed(bootstrap_servers: str, topic: str) -> list[Message]:
    """What a read_committed consumer reads, once no transaction holds it back."""
    poll_until(lambda: is_readable(bootstrap_servers, topic))
    return consume(bootstrap_servers, topic, "read_committed")


def records(bootstrap_servers: str, topic: str, isolation_level: str = "read_uncommitted") -> Iterator[Message]:
    """As `consume`, one after the other: those of a partition are in order."""
    ended = set[int | None]()
    settings = {
        "bootstrap.servers": bootstrap_servers,
        "group.id": "tests",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "isolation.level": isolation_level,
        "log_level": 0,
    }
    with closing(Consumer(settings)) as consumer:
        partitions = consumer.list_topics(topic, TIMEOUT_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        while len(ended) < len(partitions):
            message = consumer.poll(TIMEOUT_S)
            assert message is not None, "the consumer did not reach the end of every partition in time"
            error = message.error()
            if error is None:
                yield message
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
