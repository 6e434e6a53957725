"""Shared by fault tests: a producer that writes all the time, a stream and a writing task without Spark.

The stream runs the code of Spark's planner and workers in batches of some milliseconds, so faults hit many batches. A
task writes in a thread until the test has done its harm, so faults hit many requests in flight.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
from confluent_kafka import Message, Producer

from pyspark_kafka_meta.errors import KafkaMetaError
from pyspark_kafka_meta.events.event import Event, Origin, Role
from pyspark_kafka_meta.events.publisher import EventPublisher, new_publisher
from pyspark_kafka_meta.events.sinks import BackgroundSink
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.network.connection import ConnectionSettings
from pyspark_kafka_meta.model import OffsetRange, TopicPartition
from pyspark_kafka_meta.options import ClientOptions, EventsOptions, SinkOptions, SourceOptions
from pyspark_kafka_meta.read.fetching.task_reader import TaskReader
from pyspark_kafka_meta.read.planning.checkpoint_offsets import BEGINNING, ranges
from pyspark_kafka_meta.read.planning.offset_planner import OffsetPlanner, stream_planner_options
from pyspark_kafka_meta.write.input_columns import SinkColumns
from pyspark_kafka_meta.write.partition_queue import UNKNOWN_OFFSET, TaskOutput
from pyspark_kafka_meta.write.task_writer import TaskWriter
from tests.checkpoints import parsed, text
from tests.consumer import records
from tests.kafka.checker import (
    EventRow,
    Log,
    Record,
    Row,
    anomalies,
    assert_all_read,
    assert_events_complete,
    missing_rows,
    written_rows,
)
from tests.kafka.cluster_tools import Cluster, poll_until
from tests.kafka.writing_network import TappedNetwork, TappedProduces
from tests.unit.scene import RecordingPublisher
from tests.unit.written_events import events_in

BATCH_PAUSE_S = 0.1
BATCH_DEADLINE_S = 25
"""Below the request timeout, 30 s by default, which a batch through a fault must not wait for."""
SETTLE_S = 60
PRODUCER_TIMEOUT_MS = 5_000
"""socket.timeout.ms: a batch in flight to a hung broker is retried after this time instead of after a minute."""
Task = tuple[OffsetRange, ...]

PARTITIONS = 6
"""Of a topic that a task writes to."""
ROWS_PER_BATCH = 60
PAUSE_S = 0.01
OPTIONS = {"kafka.batch.size": "1000", "kafka.buffer.memory": "50000"}
"""Batches of eight rows: every broker has five requests in flight most of the time."""
COLUMNS = SinkColumns(key=0, value=1, partition=2, headers=None, topic=None, timestamp=None)
SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("partition", pa.int32())])


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


def write_numbers(cluster: Cluster, topic: str, start: int, end: int) -> None:
    """Write the numbers from `start` to `end`, exclusive, to partition 0."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "log_level": 0})
    for number in range(start, end):
        producer.produce(topic, str(number), partition=0)
    assert producer.flush(60) == 0


# --- reading ----------------------------------------------------------------------------------------------------------


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

    def run_until(self, condition: Callable[[], object], timeout_s: float = 120) -> None:
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

    def events(self, role: str = "reader") -> list[EventRow]:
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
        publisher = new_publisher(EventsOptions(str(self._folder / role), None, ()), Origin(role=role))
        return KafkaClient(options, publisher)


@dataclass(frozen=True, slots=True)
class Scene:
    """A stream that reads the records of a producer while the producer writes."""

    stream: Stream
    producer: SteadyProducer
    wait_for: Callable[..., Any]

    def read_on(self, rows: int = 300, timeout_s: float = 120) -> None:
        """Wait for this many rows of batches that begin from now on, with at least one row of each partition."""
        batches, logs = len(self.stream.batch_seconds), self.producer.partitions
        before: int | None = None

        def has_read() -> bool:
            nonlocal before
            assert self.stream.error is None, self.stream.error
            if before is None and len(self.stream.batch_seconds) > batches:  # the batch that was under way has ended
                before = len(self.stream.rows)
            new = [] if before is None else self.stream.rows[before:]
            return len(new) >= rows and len({row.log for row in new}) >= logs

        self.wait_for(has_read, timeout_s=timeout_s)

    def assert_invariants(self, batch_deadline_s: float = BATCH_DEADLINE_S) -> None:
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

        self.wait_for(caught_up)

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


# --- writing ----------------------------------------------------------------------------------------------------------


class Worker:
    """A Python worker of Spark, whose tasks write to one topic.

    Args:
        servers: for clients without a login, which check the logs.

    Attributes:
        network: what the Produce requests of its client go through.
        attempts: in the order of their start.
    """

    def __init__(self, servers: str, topic: str, **options: str) -> None:
        self.servers, self.topic = servers, topic
        given = {"kafka.bootstrap.servers": servers, "topic": topic}
        self.options = SinkOptions.parse({**given, **OPTIONS, **options})
        network = TappedNetwork(ConnectionSettings.of(self.options.client))
        self.network: TappedProduces = network.tapped
        self._events: list[Event] = []
        self.client = KafkaClient(self.options.client, RecordingPublisher(self._events), network=network)
        self.attempts: list[Attempt] = []

    def attempt(
        self, partitions: int = PARTITIONS, max_rows: float = math.inf, delivery_timeout_ms: int = 60_000
    ) -> Attempt:
        """A new attempt. `partitions` get rows in turn."""
        options = replace(self.options.producer, delivery_timeout_ms=delivery_timeout_ms)
        writer = TaskWriter(self.client, options, COLUMNS, self.topic)
        self.attempts.append(Attempt(writer, len(self.attempts), partitions, max_rows))
        return self.attempts[-1]

    def retry(self) -> Attempt:
        """Write all rows of the last attempt again, as Spark does after an attempt that failed."""
        failed = self.attempts[-1]
        attempt = self.attempt(failed.partitions, failed.rows)
        attempt.write_all()
        return attempt

    def reasons(self) -> Counter[str]:
        """Of the refreshes of the cache."""
        return Counter(event.reason for event in self._events if event.reason is not None)

    def wait_for_failures(self, count: int) -> None:
        """Wait until so many connections more have failed."""
        before = self.network.failures
        poll_until(lambda: self.network.failures >= before + count)

    def logs(self) -> dict[TopicPartition, Log]:
        """All rows of the topic, as confluent_kafka reads them."""
        logs: dict[TopicPartition, list[Row]] = {}
        for message in records(self.servers, self.topic):
            record = acked_record(message)
            log = logs.setdefault(record.log, [])
            assert record.offset == len(log)
            log.append(Row.parse(record.value.encode()))
        return dict(logs)

    def assert_written(self) -> None:
        """The logs agree with every attempt, and hold all rows of the last."""
        logs = self.logs()
        for attempt in self.attempts:
            found = anomalies(logs, attempt.number, attempt.written())
            assert not found, f"{attempt}: {found}"
        last = self.attempts[-1]
        assert last.error is None, last
        missing = missing_rows(logs, last.number, last.rows)
        assert not missing, f"{last}: without {missing}"
        assert written_rows(last.written()) == last.rows
        events = [json.loads(event.to_json()) for event in self._events]
        assert_events_complete([event for event in events if event["kind"] != "born"], self.client.cache)


class Attempt(Background):
    """Writes rows in a thread inside `with`, then waits until all are acknowledged.

    Attributes:
        rows: how many the writer took.
        error: which ended the attempt.
        ended_at: of `time.monotonic`; None before.
    """

    def __init__(self, writer: TaskWriter, number: int, partitions: int, max_rows: float) -> None:
        self._writer = writer
        self.number, self.partitions = number, partitions
        self.rows = 0
        self.error: Exception | None = None
        self.ended_at: float | None = None
        self._max_rows = max_rows
        self._may_write, self._is_held = threading.Event(), threading.Event()
        self._may_write.set()
        super().__init__()

    def __exit__(self, *exception: object) -> None:
        self.release()
        super().__exit__(*exception)

    def __str__(self) -> str:
        return f"attempt {self.number}: {self.rows} rows, {written_rows(self.written())} acknowledged, {self.error!r}"

    def written(self) -> TaskOutput:
        """Offsets acknowledged up to now; after an error too."""
        return {partition: queue.written for partition, queue in list(self._writer._queues.items())}

    def write_on(self, timeout_s: float = 120) -> None:
        """Wait until each partition has acknowledged more rows."""
        before = self._acknowledged()

        def has_written() -> bool:
            assert self.error is None, self
            now = self._acknowledged()
            return len(now) >= self.partitions and all(now[part] > before.get(part, 0) + 50 for part in now)

        poll_until(has_written, timeout_s)

    def wait_for_error(self, kind: type[KafkaMetaError], timeout_s: float = 120) -> str:
        """The text of the error that ends the attempt."""
        poll_until(lambda: self.ended_at is not None, timeout_s)
        assert isinstance(self.error, kind), self
        return str(self.error)

    def seconds_since(self, time_s: float) -> float:
        """From this time of `time.monotonic` to the end of the attempt."""
        assert self.ended_at is not None
        return self.ended_at - time_s

    def hold(self) -> None:
        """Give the writer no further rows, as a slow stage before it. Waits until the writer asks for some."""
        self._may_write.clear()
        poll_until(lambda: self._is_held.is_set() or self.ended_at is not None)

    def release(self) -> None:
        self._is_held.clear()
        self._may_write.set()

    def write_all(self) -> None:
        """Write all rows without a pause, in this thread."""
        self._write(self._batches(lambda: False))

    def _run(self) -> None:
        self._write(self._batches(lambda: self._stopped.wait(PAUSE_S)))

    def _write(self, batches: Iterator[pa.RecordBatch]) -> None:
        try:
            self._writer.write(batches)
        except Exception as error:
            self.error = error
        self.ended_at = time.monotonic()

    def _batches(self, is_over: Callable[[], bool]) -> Iterator[pa.RecordBatch]:
        while self.rows < self._max_rows and not is_over():
            if not self._may_write.is_set():
                self._is_held.set()
                self._may_write.wait()
            numbers = range(self.rows, int(min(self.rows + ROWS_PER_BATCH, self._max_rows)))
            self.rows += len(numbers)
            yield self._batch(numbers)

    def _batch(self, numbers: range) -> pa.RecordBatch:
        partitions = [number % self.partitions for number in numbers]
        keys = [b"%d" % partition for partition in partitions]
        values = [Row(self.number, number).value() for number in numbers]
        return pa.record_batch([keys, values, partitions], schema=SCHEMA)

    def _acknowledged(self) -> dict[TopicPartition, int]:
        return {partition: offsets.records for partition, offsets in self.written().items()}


OpenWorker = Callable[..., Worker]
