"""Shared by fault tests: a producer that writes all the time, and a stream without Spark.

The stream runs the code of Spark's planner and workers in batches of some milliseconds, so faults hit many batches.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any, Self

from confluent_kafka import Message, Producer

from pyspark_kafka_meta.events.publisher import EventPublisher, new_publisher
from pyspark_kafka_meta.events.sinks import BackgroundSink
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.metadata.refresh_events import Origin, Role
from pyspark_kafka_meta.model import OffsetRange, TopicPartition
from pyspark_kafka_meta.options import ClientOptions, MetricsOptions, SourceOptions
from pyspark_kafka_meta.read.fetching.task_reader import TaskReader
from pyspark_kafka_meta.read.planning.checkpoint_offsets import BEGINNING, ranges
from pyspark_kafka_meta.read.planning.offset_planner import OffsetPlanner, stream_planner_options
from pyspark_kafka_meta.testing import LocalKafka
from tests.checkpoints import parsed, text
from tests.kafka.checker import UNKNOWN_OFFSET, Event, Record, assert_all_read, assert_events_complete
from tests.unit.written_events import events_in

BATCH_PAUSE_S = 0.05
SETTLE_S = 30
PRODUCER_TIMEOUT_MS = 5_000
"""socket.timeout.ms: a batch in flight to a hung broker is retried after this time instead of after a minute."""
Task = tuple[OffsetRange, ...]


class Background:
    """Runs in a thread inside `with`."""

    def __init__(self) -> None:
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(120)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        raise NotImplementedError


class SteadyProducer(Background):
    """Writes numbered records to a topic inside `with`, round robin over `partitions`.

    Attributes:
        acked: acknowledged records; those of a partition are in order.
    """

    def __init__(self, bootstrap_servers: str, topic: str, partitions: int) -> None:
        self.acked: list[Record] = []
        self.topic, self.partitions = topic, partitions
        self._last_offsets: dict[TopicPartition, int] = {}
        settings = {
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 5,
            "log_level": 0,
            "socket.timeout.ms": PRODUCER_TIMEOUT_MS,
        }
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, **settings})
        super().__init__()

    def grow(self, partitions: int) -> None:
        """Write to this many existing partitions from now on."""
        known = self._producer.list_topics(self.topic, timeout=30).topics[self.topic]
        assert len(known.partitions) == partitions
        self.partitions = partitions

    def ends(self) -> dict[TopicPartition, int]:
        """The offset after the last acknowledged record of each partition."""
        ends: dict[TopicPartition, int] = {}
        for record in list(self.acked):
            ends[record.log] = max(ends.get(record.log, 0), record.offset) + 1
        return ends

    def _run(self) -> None:
        number = 0
        while not self._stopped.wait(0.01):
            for _ in range(5):
                self._producer.produce(
                    self.topic, str(number), partition=number % self.partitions, on_delivery=self._on_delivery
                )
                number += 1
            self._producer.poll(0)
        assert self._producer.flush(90) == 0

    def _on_delivery(self, error: Any, message: Message) -> None:
        if error is not None:
            return
        record = acked_record(message)
        # Without an offset in the response librdkafka counts up from -1, as if the batch were at the log start.
        if record.offset > self._last_offsets.get(record.log, UNKNOWN_OFFSET):
            self._last_offsets[record.log] = record.offset
        else:
            record = record._replace(offset=UNKNOWN_OFFSET)
        self.acked.append(record)


def acked_record(message: Message) -> Record:
    topic, partition, offset, value = message.topic(), message.partition(), message.offset(), message.value()
    assert topic is not None and partition is not None and isinstance(value, bytes)
    return Record(TopicPartition(topic, partition), UNKNOWN_OFFSET if offset is None else offset, value.decode())


def write_numbers(cluster: LocalKafka, topic: str, start: int, end: int) -> None:
    """Write the numbers from `start` to `end`, exclusive, to partition 0."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "log_level": 0})
    for number in range(start, end):
        producer.produce(topic, str(number), partition=0)
    assert producer.flush(60) == 0


class Stream(Background):
    """Micro-batches over topics: plan, read, and commit the end offset as JSON.

    Without `topics`, `options` choose the topics. Call `run_batch`, or `plan` and `read` to act in between. Inside
    `with`, batches run in a thread.

    Attributes:
        committed: JSON of the offset up to which `rows` are complete.
        rows: in the order of reading, without those of failed batches.
        batch_seconds: duration of each batch, also of failed batches.
        error: the error that ended the thread.
    """

    def __init__(self, bootstrap_servers: str, topics: Sequence[str], folder: Path, **options: str) -> None:
        texts = {
            "kafka.bootstrap.servers": bootstrap_servers,
            **({"subscribe": ",".join(topics)} if topics else {}),
            "startingOffsets": "earliest",
            **options,
        }
        self._options = SourceOptions.parse(texts).for_stream()
        self._folder = folder
        self.planner_client = self._client(Role.PLANNER, stream_planner_options(self._options.client))
        self.reader_client = self._client(Role.READER, self._options.client)
        self._planner = OffsetPlanner(self.planner_client, self._options)
        try:
            first = self._planner.next_offset(BEGINNING, None, limited=False)
            self.committed = text(replace(first, positions=first.start, start={}))
        except Exception:
            self.close()
            raise
        self.rows: list[Record] = []
        self.batch_seconds: list[float] = []
        self.error: Exception | None = None
        super().__init__()

    def close(self) -> None:
        self.planner_client.close()
        self.reader_client.close()

    def run_batch(self) -> None:
        began = time.monotonic()
        try:
            end, tasks = self.plan()
            self.rows += self.read(tasks)
            self.committed = end
        finally:
            self.batch_seconds.append(time.monotonic() - began)

    def run_until(self, condition: Callable[[], object], timeout_s: float = 30) -> None:
        """Run batches until the condition holds after a batch. Raises the errors of batches."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"not within {timeout_s} s; at {self.positions()}"
            self.run_batch()

    def plan(self) -> tuple[str, list[Task]]:
        start = parsed(self.committed)
        try:
            end = text(self._planner.next_offset(start, None, limited=False))
            return end, self._planner.tasks(ranges(start, parsed(end)))
        finally:
            self.planner_client.publisher.flush()  # routine events too

    def read(self, tasks: Iterable[Task]) -> list[Record]:
        return [record for task in tasks for record in self._read(task)]

    def positions(self) -> dict[TopicPartition, int]:
        positions = parsed(self.committed).positions
        return {partition: position.offset for partition, position in positions.items()}

    def settle(self) -> None:
        """Wait until the event folder's thread has written or lost all events. On a slow machine a flush does not wait
        for the thread."""
        for client in (self.planner_client, self.reader_client):
            assert isinstance(client.publisher, EventPublisher)
            for sink in client.publisher._sinks:
                if isinstance(sink, BackgroundSink):
                    assert sink._last_written.wait(SETTLE_S), "events still wait for their folder"

    def events(self, role: str = "reader") -> list[Event]:
        """The written events of the reader's or the planner's cache, without the birth event."""
        self.settle()
        events = sorted(events_in(self._folder / role), key=itemgetter("sequence"))
        return [event for event in events if event["kind"] != "born"]

    def _run(self) -> None:
        try:
            while not self._stopped.wait(BATCH_PAUSE_S):
                self.run_batch()
        except Exception as error:
            self.error = error

    def _read(self, task: Task) -> Iterator[Record]:
        columns = ("topic", "partition", "offset", "value")
        try:
            for batch in TaskReader(self.reader_client, self._options, columns).read(task):
                for topic, partition, offset, value in zip(
                    *(column.to_pylist() for column in batch.columns), strict=True
                ):
                    yield Record(TopicPartition(topic, partition), offset, value.decode())
        finally:
            self.reader_client.publisher.flush()

    def _client(self, role: Role, options: ClientOptions) -> KafkaClient:
        publisher = new_publisher(MetricsOptions(str(self._folder / role), None, ()), Origin(role=role))
        return KafkaClient(options, publisher)


@dataclass(frozen=True, slots=True)
class Scene:
    """A stream that reads the records of a producer while the producer writes."""

    stream: Stream
    producer: SteadyProducer
    wait_for: Callable[..., Any]

    def read_on(self, rows: int = 300, timeout_s: float = 30) -> None:
        """Wait for this many new rows, with at least one row of each partition."""
        before, logs = len(self.stream.rows), self.producer.partitions

        def has_read() -> bool:
            assert self.stream.error is None, self.stream.error
            new = self.stream.rows[before:]
            return len(new) >= rows and len({row.log for row in new}) >= logs

        self.wait_for(has_read, timeout_s=timeout_s)

    def assert_invariants(self, batch_deadline_s: float) -> None:
        """No acknowledged record is lost, repeated or out of order, no batch exceeded its deadline, and the caches
        reported every refresh and sent few requests."""
        assert_all_read(self.producer.acked, self.stream.rows)
        assert max(self.stream.batch_seconds) < batch_deadline_s
        assert_events_complete(self.stream.events("planner"), self.stream.planner_client.cache)
        assert_events_complete(self.stream.events("reader"), self.stream.reader_client.cache)

    def catch_up(self) -> None:
        """Wait until the stream has read all acknowledged records."""
        ends = self.producer.ends()

        def caught_up() -> bool:
            assert self.stream.error is None, self.stream.error
            positions = self.stream.positions()
            return all(positions.get(log, 0) >= end for log, end in ends.items())

        self.wait_for(caught_up, timeout_s=60)

    def progress(self) -> str:
        """Positions of the producer and the stream, to find the one that stopped and its partition."""
        read = self.stream.positions()
        return "\n".join(
            [
                *(
                    f"{log}: acknowledged to {end}, read to {read.get(log)}"
                    for log, end in self.producer.ends().items()
                ),
                f"seconds of the last batches: {self.stream.batch_seconds[-5:]}",
                *(f"{event}" for event in self.stream.events()[-5:]),
            ]
        )


@contextmanager
def running(stream: Stream, producer: SteadyProducer, wait_for: Callable[..., Any]) -> Iterator[Scene]:
    """Run `producer` and `stream`: the body starts after some rows, and all acknowledged rows are read after it."""
    scene = Scene(stream, producer, wait_for)
    try:
        with stream:
            with producer:
                scene.read_on()
                yield scene
            scene.catch_up()
    except AssertionError as error:
        error.add_note(scene.progress())
        raise
    finally:
        stream.close()


Stage = Callable[..., AbstractContextManager[Scene]]
