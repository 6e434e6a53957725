"""A scripted cluster with topic t, a client whose clock passes by being waited on, and what both of them saw."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

import pytest

from pyspark_kafka_meta.client.kafka_client import KafkaClient
from pyspark_kafka_meta.errors import KafkaMetaError
from pyspark_kafka_meta.fetching.task_reader import TaskReader
from pyspark_kafka_meta.metadata.refresh_events import EventKind, Origin, RefreshEvent, Role
from pyspark_kafka_meta.model import NO_EPOCH, OffsetRange, RefreshReason, TopicPartition
from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.planning.offset_planner import OffsetPlanner
from pyspark_kafka_meta.telemetry.event_publisher import EventPublisher
from pyspark_kafka_meta.wire.messages import FetchResponse, RequestFailure
from tests.partitions import T0, T1, T2
from tests.unit.fake_wire import FakeClock, FakeWire
from tests.unit.logs import WRITTEN, batch

COLUMNS = ("partition", "offset", "value")
Row = tuple[TopicPartition, int, str]


class EventfulClock(FakeClock):
    """Time passes by being waited on, and things happen while it does."""

    def __init__(self) -> None:
        super().__init__()
        self._to_come: list[tuple[float, Callable[[], object]]] = []

    def at(self, seconds: float, happen: Callable[[], object]) -> None:
        """Call `happen` that many seconds from now."""
        self._to_come.append((self.now + seconds, happen))

    def sleep(self, seconds: float) -> None:
        self.wait_until(self.now + seconds)

    def wait_until(self, then: float) -> None:
        super().wait_until(then)
        due = [happen for when, happen in self._to_come if when <= self.now]
        self._to_come = [one for one in self._to_come if one[0] > self.now]
        for happen in due:
            happen()


class ScriptedWire(FakeWire):
    """Lets a test change each Fetch answer on its way.

    Attributes:
        change: applied to every Fetch answer.
    """

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock=clock)
        self.change: Callable[[FetchResponse], FetchResponse] = lambda answer: answer

    def receive_fetch(self, node_ids: Any, deadline: float) -> FetchResponse | RequestFailure | None:
        answer = super().receive_fetch(node_ids, deadline)
        return self.change(answer) if isinstance(answer, FetchResponse) else answer


class NotingPublisher(EventPublisher):
    """Notes each event before it is published."""

    def __init__(self, events: list[RefreshEvent]) -> None:
        super().__init__((), Origin(role=Role.READER))
        self._events = events

    def publish(self, event: RefreshEvent) -> None:
        self._events.append(event)
        super().publish(event)


HELD_BACK = {"kafka_isolation_level": "read_committed"}

Fault = Sequence[Callable[["Scene"], object]]
"""What happens to a scene, one step after the other."""


class Scene:
    """Three brokers and topic t with up to three partitions, led by brokers 1, 2 and 3; nothing is known of them yet.

    Attributes:
        events: what the client's cache published.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, partitions: int = 3) -> None:
        self.clock = EventfulClock()
        self.wire = ScriptedWire(self.clock)
        self.cluster = self.wire.cluster
        self.cluster.create_topic("t", partitions)
        self.events: list[RefreshEvent] = []
        self.monkeypatch = monkeypatch

    def options(self, **options: str) -> SourceOptions:
        """Of a batch that reads t; names of options with underscores for dots."""
        given = {name.replace("_", "."): value for name, value in options.items()}
        reads = {} if {"assign", "subscribePattern"} & given.keys() else {"subscribe": "t"}
        return SourceOptions.parse({"kafka.bootstrap.servers": "broker-1:9092", **reads, **given})

    def client(self, **options: str) -> KafkaClient:
        query = self.options(**options)
        return KafkaClient(
            query.client,
            NotingPublisher(self.events),
            query.topic_pattern,
            wire=self.wire,
            clock=self.clock,
            sleep=self.clock.sleep,
            rng=random.Random(0),
        )

    def warm_client(self, **options: str) -> KafkaClient:
        """One that knows t and has asked for nothing in the last ten seconds."""
        made = self.client(**options)
        made.partitions(["t"], self.clock() + 1)
        self.clock.sleep(10)
        self.events.clear()
        self.wire.requests.clear()
        return made

    def planner(self, **options: str) -> OffsetPlanner:
        return OffsetPlanner(self.client(**options), self.options(**options).for_stream())

    def reader(self, client: KafkaClient | None = None, /, **options: str) -> TaskReader:
        made = self.warm_client(**options) if client is None else client
        return TaskReader(made, self.options(**options), COLUMNS)

    def undergo(self, fault: Fault) -> None:
        """Let it happen now."""
        for step in fault:
            step(self)

    def script(self, partition: TopicPartition, *codes: int) -> None:
        """The next answers about this partition are these error codes."""
        self.wire.error_codes[partition] = deque(codes)

    def fail(self, node_id: int, *errors: KafkaMetaError) -> None:
        """The next requests to this broker end with these errors."""
        self.wire.failures[node_id] = deque(errors)

    def write(self, partition: TopicPartition, *values: str, written: datetime = WRITTEN) -> None:
        """One record batch."""
        self.cluster.append(partition, batch(values, written=written))

    def hold_back(self, partition: TopicPartition, *values: str, written: datetime = WRITTEN) -> None:
        """One record batch of a transaction that stays open: `HELD_BACK` readers wait for it."""
        self.wire.open_transactions.setdefault(partition, self.cluster.bounds(partition)[1])
        self.write(partition, *values, written=written)

    def fill(self, batches: int = 4, size: int = 3) -> None:
        """Some batches in each partition of t, every value once."""
        for number in range(batches):
            for partition in (T0, T1, T2):
                self.write(partition, *(f"{partition}:{number}:{index}" for index in range(size)))

    def range(self, partition: TopicPartition, start: int | None = None, end: int | None = None) -> OffsetRange:
        """Of the log as it is, or from `start`, or to before `end`."""
        first, last = self.cluster.bounds(partition)
        topic_id = self.cluster.topics[partition.topic].topic_id
        return OffsetRange(
            partition, topic_id, first if start is None else start, last if end is None else end, NO_EPOCH
        )

    def ranges(self) -> list[OffsetRange]:
        return [self.range(partition) for partition in (T0, T1, T2)]

    def reasons(self) -> list[RefreshReason]:
        """Of the events, but for the one of the cache's birth."""
        return [event.reason for event in self.events if event.kind is not EventKind.BORN]

    def sent(self, api: str) -> list[int]:
        """Ids of the brokers that were sent a request of this name, in order."""
        ids = {broker.address: broker.node_id for broker in self.cluster.brokers.values()}
        return [ids[address] for name, address in self.wire.requests if name == api]


def rows(batches: Iterator[Any]) -> list[Row]:
    return [
        (TopicPartition("t", row["partition"]), row["offset"], row["value"].decode())
        for one in batches
        for row in one.to_pylist()
    ]


def by_partition(read: list[Row]) -> dict[TopicPartition, list[tuple[int, str]]]:
    """In the order read, so that what was lost, repeated or out of order shows."""
    found: dict[TopicPartition, list[tuple[int, str]]] = {}
    for partition, offset, value in read:
        found.setdefault(partition, []).append((offset, value))
    return found


def written(batches: int = 4, size: int = 3) -> dict[TopicPartition, list[tuple[int, str]]]:
    """What `Scene.fill` wrote, as `by_partition` gives it."""
    return {
        partition: [
            (number * size + index, f"{partition}:{number}:{index}")
            for number in range(batches)
            for index in range(size)
        ]
        for partition in (T0, T1, T2)
    }
