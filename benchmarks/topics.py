"""Creates and deletes topics, counts their records, fills them at once, or feeds them at a low rate from another
process."""

from __future__ import annotations

import multiprocessing
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

BATCH_BYTES = 131_072
MAX_RECORD_BYTES = 16 << 20
MAX_PARTITIONS_AT_ONCE = 4_000
"""A controller accepts 10,000 changes in one request, and each partition is two changes."""
MAX_TOPICS_AT_ONCE = 1_000
ADMIN_TIMEOUT_S = 120
TICK_S = 0.05
STOP_TIMEOUT_S = 30.0


def new_topic(
    bootstrap_servers: str, purpose: str, partitions: int, replicas: int = 3, config: Mapping[str, str] | None = None
) -> str:
    """Create a topic; returns its name, which starts with `purpose`."""
    topic = f"{purpose}-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    first = min(partitions, MAX_PARTITIONS_AT_ONCE)
    admin.create_topics([NewTopic(topic, first, replicas, config=dict(config or {}))])[topic].result(ADMIN_TIMEOUT_S)
    for count in range(first, partitions, MAX_PARTITIONS_AT_ONCE):
        more = NewPartitions(topic, min(partitions, count + MAX_PARTITIONS_AT_ONCE))
        admin.create_partitions([more])[topic].result(ADMIN_TIMEOUT_S)
    return topic


def new_topics(bootstrap_servers: str, purpose: str, count: int) -> list[str]:
    """Create topics with one partition and one replica each; returns their names, which start with `purpose`."""
    prefix = f"{purpose}-{uuid.uuid4().hex[:8]}"
    topics = [f"{prefix}-{number}" for number in range(count)]
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    for start in range(0, count, MAX_TOPICS_AT_ONCE):
        some = [NewTopic(topic, 1, 1) for topic in topics[start : start + MAX_TOPICS_AT_ONCE]]
        for created in admin.create_topics(some).values():
            created.result(ADMIN_TIMEOUT_S)
    return topics


def delete(bootstrap_servers: str, *topics: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    for start in range(0, len(topics), MAX_TOPICS_AT_ONCE):
        for deleted in admin.delete_topics(list(topics[start : start + MAX_TOPICS_AT_ONCE])).values():
            deleted.result(ADMIN_TIMEOUT_S)


def record_count(bootstrap_servers: str, *topics: str) -> int:
    """The records of topics that were written without transactions, retention and compaction."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    known = admin.list_topics(timeout=ADMIN_TIMEOUT_S).topics
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    ends = admin.list_offsets(
        {TopicPartition(topic, number): latest for topic in topics for number in known[topic].partitions}
    )
    return sum(end.result(ADMIN_TIMEOUT_S).offset for end in ends.values())


def fill(
    bootstrap_servers: str,
    topic: str,
    partitions: int,
    records: int,
    value_bytes: int,
    codec: str = "none",
    headers: Mapping[str, bytes] | None = None,
    batch_bytes: int = BATCH_BYTES,
) -> None:
    """Produce `records` values of `value_bytes`, as `fill_with` does."""
    stock = [_value(value_bytes) for _ in range(min(1000, max(1, (64 << 20) // value_bytes)))]
    fill_with(stock, bootstrap_servers, topic, partitions, records, codec, headers, batch_bytes)


def fill_with(
    stock: Sequence[bytes | None],
    bootstrap_servers: str,
    topic: str,
    partitions: int,
    records: int,
    codec: str = "none",
    headers: Mapping[str, bytes] | None = None,
    batch_bytes: int = BATCH_BYTES,
    keys: Sequence[bytes] = (),
) -> None:
    """Produce `records` values, those of `stock` over and over, evenly over the partitions.

    Args:
        keys: are used over and over too. By default each record has a key of its own.

    Raises:
        RuntimeError: they were not taken in time.
    """
    settings = {"compression.type": codec, "linger.ms": 50, "batch.size": batch_bytes, "acks": "1", "log_level": 0}
    bounds = {"queue.buffering.max.messages": 500_000, "message.max.bytes": MAX_RECORD_BYTES}
    producer = Producer({"bootstrap.servers": bootstrap_servers, **settings, **bounds})
    header_list: list[tuple[str, str | bytes | None]] = list((headers or {}).items())
    for number in range(records):
        value, partition = stock[number % len(stock)], number % partitions
        key = keys[number % len(keys)] if keys else b"%d" % number
        while True:
            try:
                producer.produce(topic, value, key, partition=partition, headers=header_list)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 10_000 == 0:
            producer.poll(0)
    if producer.flush(300):
        raise RuntimeError(f"{topic} was not filled in time")


def _value(size: int) -> bytes:
    """About half random text, which costs a codec time, and half compressible text."""
    text = uuid.uuid4().hex.encode()
    return (text + b"x" * 32) * (size // 64) + text[: size % 64 // 2] + b"x" * (size % 64 - size % 64 // 2)


@contextmanager
def trickle(bootstrap_servers: str, topic: str, partitions: int, records_per_s: float) -> Iterator[None]:
    """Inside `with`, records arrive evenly over time and partitions; a value is the send time as text."""
    parent, child = multiprocessing.get_context("spawn").Pipe()
    arguments = (bootstrap_servers, topic, partitions, records_per_s, child)
    process = multiprocessing.get_context("spawn").Process(target=_feed, args=arguments, daemon=True)
    process.start()
    try:
        yield
    finally:
        parent.send("stop")
        process.join(STOP_TIMEOUT_S)
        process.kill()


def _feed(bootstrap_servers: str, topic: str, partitions: int, records_per_s: float, parent: Connection) -> None:
    producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 0, "acks": "1", "log_level": 0})
    start, sent = time.monotonic(), 0
    while not parent.poll(TICK_S):
        due = int((time.monotonic() - start) * records_per_s)
        for number in range(sent, due):
            producer.produce(topic, b"%.6f" % time.time(), partition=number % partitions)
        sent = due
        producer.poll(0)
    producer.flush(STOP_TIMEOUT_S)
