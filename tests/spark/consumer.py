"""Reads topics with confluent-kafka, to compare with."""

from __future__ import annotations

from confluent_kafka import Consumer, Message, TopicPartition


def consume(bootstrap_servers: str, topic: str, isolation_level: str = "read_uncommitted") -> list[Message]:
    """All records of the topic, from the start to the end of each partition, as confluent-kafka reads them."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "conformance",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": isolation_level,
        }
    )
    partitions = list(consumer.list_topics(topic, 30).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    messages, ended = [], set[int | None]()
    while len(ended) < len(partitions):
        message = consumer.poll(30)
        assert message is not None, "the consumer did not reach the end of every partition in time"
        if message.error():
            ended.add(message.partition())
        else:
            messages.append(message)
    consumer.close()
    return messages
