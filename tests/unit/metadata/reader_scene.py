"""A scripted cluster, and the reader of one Spark task over it, on a clock that passes by being waited on."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from io import BytesIO

import pyarrow as pa
import pytest
from kio.records.schema import NewRecordBatch, Record
from kio.records.writers import write_new_batch
from kio.static.primitive import TZAwareMicros, i8, i16, i32, i64

from pyspark_kafka_meta.metadata.cache import MetadataCache
from pyspark_kafka_meta.metadata.events import EventKind, Origin, RefreshEvent, RefreshReason
from pyspark_kafka_meta.metadata.model import TopicPartition
from pyspark_kafka_meta.metadata.policy import PolicySettings
from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.reading import client, executor, fetches
from pyspark_kafka_meta.reading.client import KafkaClient
from pyspark_kafka_meta.reading.executor import TaskReader
from pyspark_kafka_meta.reading.offsets import OffsetRange
from pyspark_kafka_meta.telemetry.publisher import EventPublisher
from pyspark_kafka_meta.testing.fake_wire import FakeClock, FakeWire

MAX_AGE_S = 300


class ScriptedClock(FakeClock):
    """Does what was put off when its time has come."""

    def __init__(self) -> None:
        super().__init__()
        self._put_off: list[tuple[float, Callable[[], object]]] = []

    def later(self, seconds: float, action: Callable[[], object]) -> None:
        self._put_off.append((self.now + seconds, action))

    def sleep(self, seconds: float) -> None:
        self.wait_until(self.now + seconds)

    def wait_until(self, then: float) -> None:
        super().wait_until(then)
        due = [action for when, action in self._put_off if when <= self.now]
        self._put_off = [(when, action) for when, action in self._put_off if when > self.now]
        for action in due:
            action()


class ClockModule:
    """Stands in for the module `time`."""

    def __init__(self, clock: FakeClock) -> None:
        self.monotonic, self.sleep = clock, clock.sleep


class ReaderScene:
    """Three brokers, topic t with two partitions led by brokers 1 and 2, and a worker's client.

    Attributes:
        events: of the client's cache, the birth left out.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: str) -> None:
        self.clock = ScriptedClock()
        for module in (client, executor, fetches):
            monkeypatch.setattr(module, "time", ClockModule(self.clock))
        self.wire = FakeWire(clock=self.clock)
        self.cluster = self.wire.cluster
        self.cluster.create_topic("t", partitions=2)
        what = {} if "assign" in options else {"subscribe": "t"}
        where = {"kafka.bootstrap.servers": "broker-1:9092", "kafka.client.rack": "here"}
        self.options = SourceOptions.parse({**what, **where, **options})
        self.client = KafkaClient(self.options.client, EventPublisher((), Origin(role="reader")), MAX_AGE_S * 1000)
        self.events: list[RefreshEvent] = []
        self.client.wire = self.wire
        self.client.cache = MetadataCache(
            self.wire,
            self.options.client.bootstrap_servers,
            PolicySettings(metadata_max_age_ms=MAX_AGE_S * 1000),
            request_timeout_ms=self.options.client.request_timeout_ms,
            publish=self._publish,
            clock=self.clock,
            sleep=self.clock.sleep,
            rng=random.Random(1),
        )

    def _publish(self, event: RefreshEvent) -> None:
        if event.kind is not EventKind.BORN:
            self.events.append(event)

    def append(self, partition: TopicPartition, count: int = 5) -> None:
        """Store so many more records, each with its offset as value."""
        end = self.cluster.bounds(partition)[1]
        self.cluster.append(partition, record_batch(range(end, end + count)))

    def set_leader(self, partition: TopicPartition, leader_id: int, epoch: int) -> None:
        """Whatever they were before."""
        topic = self.cluster.topics[partition.topic]
        members = [
            replace(one, leader_id=leader_id, leader_epoch=epoch) if one.partition == partition.partition else one
            for one in topic.partitions
        ]
        self.cluster.topics[partition.topic] = replace(topic, partitions=tuple(members))

    def leader_id(self, partition: TopicPartition) -> int | None:
        """As the cache knows it."""
        leader = self.client.cache.leader(partition)
        return None if leader is None else leader.broker.node_id

    def report(self, partition: TopicPartition, reason: RefreshReason = RefreshReason.NOT_LEADER) -> None:
        self.client.cache.request_update(reason, self.client.cache.snapshot.generation, partition, 6)

    def refresh_when_due(self) -> RefreshEvent:
        self.clock.sleep(self.client.cache.time_to_next_update_ms() / 1000)
        self.client.cache.refresh_if_due(self.clock() + 60)
        return self.events[-1]

    def read(self, *partitions: TopicPartition, start: int = 0) -> list[int]:
        """Read from `start` to the end of each log; the offsets in the order in which they came."""
        return self.read_ranges(self.ranges(*partitions, start=start))

    def ranges(self, *partitions: TopicPartition, start: int = 0) -> list[OffsetRange]:
        topic_id = self.cluster.topics["t"].topic_id
        return [OffsetRange(one, topic_id, start, self.cluster.bounds(one)[1]) for one in partitions]

    def read_ranges(self, ranges: Sequence[OffsetRange]) -> list[int]:
        batches = TaskReader(self.client, self.options, ["offset"]).read(ranges)
        return [offset for batch in batches for offset in offsets_in(batch)]

    def fetched_from(self) -> list[int]:
        """Node ids of the Fetches that got to a broker since this was last asked."""
        node_ids = [node_id for node_id, _ in self.wire.fetches]
        self.wire.fetches.clear()
        return node_ids


def offsets_in(batch: pa.RecordBatch) -> list[int]:
    offsets: list[int] = batch.column("offset").to_pylist()
    return offsets


def record_batch(values: Sequence[int]) -> bytes:
    records = tuple(
        Record(
            attributes=i8(0),
            timestamp=TZAwareMicros.parse(datetime(2024, 1, 1, tzinfo=UTC)),
            offset=i64(number),
            key=None,
            value=str(value).encode(),
            headers=(),
        )
        for number, value in enumerate(values)
    )
    new = NewRecordBatch(
        producer_id=i64(-1), producer_epoch=i16(-1), base_sequence=i32(-1), records=records, attributes=i16(0)
    )
    buffer = BytesIO()
    write_new_batch(buffer, new)
    return buffer.getvalue()
