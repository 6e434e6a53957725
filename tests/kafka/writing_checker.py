"""Checks the attempts of a task that writes against what the logs hold: nothing acknowledged is lost, and an attempt
writes its rows once and in order within each partition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from confluent_kafka import Consumer, TopicPartition

from pyspark_kafka_meta import model
from pyspark_kafka_meta.write.partition_queue import UNKNOWN_OFFSET, AcknowledgedRange

VALUE_BYTES = 100
READ_TIMEOUT_S = 20


class Row(NamedTuple):
    """A row by the number of its attempt, and its number in the attempt."""

    attempt: int
    number: int

    def value(self) -> bytes:
        return f"{self.attempt}:{self.number}:".encode().ljust(VALUE_BYTES, b"x")

    @classmethod
    def parse(cls, value: bytes) -> Row:
        attempt, number, _ = value.split(b":")
        return cls(int(attempt), int(number))


Log = Sequence[Row]
"""The rows of a partition; a row's index is its offset, for the topics of these tests keep all records."""
TaskOutput = Mapping[model.TopicPartition, Sequence[AcknowledgedRange]]


def read_logs(servers: str, topic: str) -> dict[model.TopicPartition, Log]:
    """All rows of a topic, as confluent_kafka reads them."""
    with _consumer(servers) as consumer:
        ends = _log_ends(consumer, topic)
        return {model.TopicPartition(topic, number): _read_log(consumer, topic, number, end) for number, end in ends}


def row_count(servers: str, topic: str) -> int:
    """The rows that all in-sync replicas have."""
    with _consumer(servers) as consumer:
        return sum(end for _, end in _log_ends(consumer, topic))


@contextmanager
def _consumer(servers: str) -> Iterator[Consumer]:
    settings: dict[str, Any] = {"bootstrap.servers": servers, "group.id": "checker", "log_level": 0}
    consumer = Consumer({**settings, "isolation.level": "read_uncommitted", "enable.auto.commit": False})
    try:
        yield consumer
    finally:
        consumer.close()


def _log_ends(consumer: Consumer, topic: str) -> list[tuple[int, int]]:
    """The end offset of each partition."""
    numbers = consumer.list_topics(topic, timeout=READ_TIMEOUT_S).topics[topic].partitions
    offsets = {
        number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=READ_TIMEOUT_S)
        for number in numbers
    }
    assert {start for start, _ in offsets.values()} == {0}
    return [(number, end) for number, (_, end) in offsets.items()]


def _read_log(consumer: Consumer, topic: str, number: int, end: int) -> Log:
    consumer.assign([TopicPartition(topic, number, 0)])
    log: list[Row] = []
    while len(log) < end:
        messages = consumer.consume(min(end - len(log), 10_000), READ_TIMEOUT_S)
        assert messages, f"{topic}-{number} has {end} records, of which {len(log)} were read"
        for message in messages:
            assert (message.error(), message.offset()) == (None, len(log))
            log.append(Row.parse(message.value() or b""))
    return log


def written_rows(written: TaskOutput) -> int:
    return sum(acknowledged.records for ranges in written.values() for acknowledged in ranges)


def anomalies(logs: Mapping[model.TopicPartition, Log], attempt: int, written: TaskOutput) -> list[str]:
    """What contradicts that this attempt wrote its rows once and in order, to the offsets that it reported."""
    found = []
    for partition, log in logs.items():
        rows = [row for row in log if row.attempt == attempt]
        if rows != sorted(set(rows)):
            found.append(f"{partition} repeats or reorders rows")
        acknowledged = 0
        for from_offset, until_offset, records in written.get(partition, ()):
            expected = rows[acknowledged : acknowledged + records]
            acknowledged += records
            if len(expected) < records:
                found.append(f"{partition} has {len(rows)} rows, and acknowledged {acknowledged}")
            elif from_offset != UNKNOWN_OFFSET and list(log[from_offset:until_offset]) != expected:
                found.append(f"{partition} has other rows at offsets {from_offset} to {until_offset - 1}")
    return found


def missing_rows(logs: Mapping[model.TopicPartition, Log], attempt: int, count: int) -> list[int]:
    """The rows of an attempt with `count` rows that are in no log."""
    held = {row.number for log in logs.values() for row in log if row.attempt == attempt}
    return sorted(set(range(count)) - held)
