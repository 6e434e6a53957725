"""A fake cluster with topic t, a client whose clock waiting advances, and their requests and events."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

import pytest

from pyspark_kafka_meta.errors import KafkaMetaError
from pyspark_kafka_meta.events.event import Event, EventKind, Origin, Role
from pyspark_kafka_meta.events.publisher import EventPublisher
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.model import NO_EPOCH, OffsetRange, RefreshReason, TopicPartition
from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.read.fetching.task_reader import TaskReader
from pyspark_kafka_meta.read.planning.offset_planner import OffsetPlanner
from tests.partitions import T0, T1, T2
from tests.unit.fake_network import FakeNetwork
from tests.unit.logs import WRITTEN, batch

COLUMNS = ("partition", "offset", "value")
Row = tuple[TopicPartition, int, str]


class RecordingPublisher(EventPublisher):
    """Records each event before it is published."""

    def __init__(self, events: list[Event]) -> None:
        super().__init__((), Origin(role=Role.READER))
        self._events = events

    def publish(self, event: Event) -> None:
        self._events.append(event)
        super().publish(event)


HELD_BACK = {"kafka_isolation_level": "read_committed"}

Fault = Sequence[Callable[["Scene"], object]]
"""Consecutive steps of a fault."""


class Scene:
    """Three brokers and topic t with up to three partitions, led by brokers 1, 2 and 3. Caches start empty.

    Attributes:
        events: events of the client's cache.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, partitions: int = 3) -> None:
        self.network = FakeNetwork()
        self.clock = self.network.clock
        self.cluster = self.network.cluster
        self.cluster.create_topic("t", partitions)
        self.events: list[Any] = []  # Event, with the details of its kind
        self.monkeypatch = monkeypatch

    def options(self, **options: str) -> SourceOptions:
        """Options of a batch that reads t; names have underscores instead of dots."""
        given = {name.replace("_", "."): value for name, value in options.items()}
        reads = {} if {"assign", "subscribePattern"} & given.keys() else {"subscribe": "t"}
        return SourceOptions.parse({"kafka.bootstrap.servers": "broker-1:9092", **reads, **given})

    def client(self, **options: str) -> KafkaClient:
        query = self.options(**options)
        return KafkaClient(
            query.client,
            RecordingPublisher(self.events),
            query.topic_filter,
            network=self.network,
            clock=self.clock,
            sleep=self.clock.sleep,
            rng=random.Random(0),
        )

    def warm_client(self, **options: str) -> KafkaClient:
        """A client with metadata of t, ten seconds after its last request."""
        made = self.client(**options)
        made.partitions(["t"], self.clock() + 1)
        self.clock.sleep(10)
        self.events.clear()
        self.network.requests.clear()
        return made

    def planner(self, **options: str) -> OffsetPlanner:
        return OffsetPlanner(self.client(**options), self.options(**options).for_stream())

    def reader(self, client: KafkaClient | None = None, /, **options: str) -> TaskReader:
        made = self.warm_client(**options) if client is None else client
        return TaskReader(made, self.options(**options), COLUMNS)

    def undergo(self, fault: Fault) -> None:
        for step in fault:
            step(self)

    def script(self, partition: TopicPartition, *codes: int) -> None:
        """The next responses for this partition have these error codes."""
        self.network.error_codes[partition] = deque(codes)

    def fail(self, node_id: int, *errors: KafkaMetaError) -> None:
        """The next requests to this broker fail with these errors."""
        self.network.failures[node_id] = deque(errors)

    def write(self, partition: TopicPartition, *values: str, written: datetime = WRITTEN) -> None:
        """One record batch."""
        self.cluster.append(partition, batch(values, written=written))

    def hold_back(self, partition: TopicPartition, *values: str, written: datetime = WRITTEN) -> None:
        """One record batch of an open transaction: `HELD_BACK` readers wait for it."""
        self.network.open_transactions.setdefault(partition, self.cluster.bounds(partition)[1])
        self.write(partition, *values, written=written)

    def fill(self, batches: int = 4, size: int = 3) -> None:
        """Append batches to each partition of t, with unique values."""
        for number in range(batches):
            for partition in (T0, T1, T2):
                self.write(partition, *(f"{partition}:{number}:{index}" for index in range(size)))

    def empty(self) -> None:
        """Remove all records."""
        for log in self.cluster.logs.values():
            log.clear()

    def range(self, partition: TopicPartition, start: int | None = None, end: int | None = None) -> OffsetRange:
        """The offset range of the log, by default from its start to its end."""
        first, last = self.cluster.bounds(partition)
        topic_id = self.cluster.topics[partition.topic].topic_id
        return OffsetRange(
            partition, topic_id, first if start is None else start, last if end is None else end, NO_EPOCH
        )

    def ranges(self) -> list[OffsetRange]:
        return [self.range(partition) for partition in (T0, T1, T2)]

    def reasons(self) -> list[RefreshReason]:
        """The reasons of the events after the first one."""
        return [event.reason for event in self.events if event.kind is not EventKind.BORN]

    def losses(self) -> list[tuple[TopicPartition, int | None, int | None]]:
        """Of each event of lost records: the partition, the first lost offset, and the end of what is lost."""
        return [
            (
                TopicPartition(event.cause_topic, event.cause_partition),
                event.details.lost_from_offset,
                event.details.lost_until_offset,
            )
            for event in self.events
            if event.kind is EventKind.DATA_LOSS
        ]

    def sent(self, api: str) -> list[int]:
        """Ids of the brokers that received requests of this API, in order."""
        ids = {broker.address: broker.node_id for broker in self.cluster.brokers.values()}
        return [ids[address] for name, address in self.network.requests if name == api]


def rows(batches: Iterator[Any]) -> list[Row]:
    return [
        (TopicPartition("t", row["partition"]), row["offset"], row["value"].decode())
        for batch in batches
        for row in batch.to_pylist()
    ]


def by_partition(read: list[Row]) -> dict[TopicPartition, list[tuple[int, str]]]:
    """Offsets and values in the order of reading, which shows lost, duplicate and unordered records."""
    found: dict[TopicPartition, list[tuple[int, str]]] = {}
    for partition, offset, value in read:
        found.setdefault(partition, []).append((offset, value))
    return found


def written(batches: int = 4, size: int = 3) -> dict[TopicPartition, list[tuple[int, str]]]:
    """The records of `Scene.fill`, as in `by_partition`."""
    return {
        partition: [
            (number * size + index, f"{partition}:{number}:{index}")
            for number in range(batches)
            for index in range(size)
        ]
        for partition in (T0, T1, T2)
    }
