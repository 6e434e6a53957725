"""What tests of faults share: a producer that never rests, and a stream as Spark runs it.

What runs here is what Spark's planner and workers run, without Spark: batches of some milliseconds, so that faults come
in the middle of many.
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

from pyspark_kafka_meta.client.kafka_client import KafkaClient
from pyspark_kafka_meta.fetching.task_reader import TaskReader
from pyspark_kafka_meta.metadata.refresh_events import Origin, Role
from pyspark_kafka_meta.model import OffsetRange, TopicPartition
from pyspark_kafka_meta.options import ClientOptions, MetricsOptions, SourceOptions
from pyspark_kafka_meta.planning.checkpoint_offsets import BEGINNING, ranges
from pyspark_kafka_meta.planning.offset_planner import OffsetPlanner, stream_planner_options
from pyspark_kafka_meta.telemetry.background_sink import BackgroundSink
from pyspark_kafka_meta.telemetry.publisher_factory import new_publisher
from pyspark_kafka_meta.testing import LocalKafka
from tests.checkpoints import parsed, text
from tests.kafka.checker import UNKNOWN_OFFSET, Event, Record, assert_all_read, assert_tells_all
from tests.unit.written_events import events_in

BATCH_PAUSE_S = 0.05
SETTLE_S = 30
PRODUCER_PATIENCE_MS = 5_000
"""What a hung broker owes an answer to is sent to nobody else for so long, which would be a minute."""
Task = tuple[OffsetRange, ...]


class Background:
    """Runs in a thread of its own until the end of `with`."""

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
    """Writes numbered records to a topic, round robin over `partitions`, until the end of `with`.

    Attributes:
        acked: what the brokers took, in each partition in order.
    """

    def __init__(self, bootstrap_servers: str, topic: str, partitions: int) -> None:
        self.acked: list[Record] = []
        self.topic, self.partitions = topic, partitions
        self._last: dict[TopicPartition, int] = {}  # offset told
        settings = {
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 5,
            "log_level": 0,
            "socket.timeout.ms": PRODUCER_PATIENCE_MS,
        }
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, **settings})
        super().__init__()

    def grow(self, partitions: int) -> None:
        """Write to so many partitions from now on, which the brokers must have."""
        known = self._producer.list_topics(self.topic, timeout=30).topics[self.topic]
        assert len(known.partitions) == partitions
        self.partitions = partitions

    def ends(self) -> dict[TopicPartition, int]:
        """Of each partition, the offset after the last that was acknowledged."""
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
        # Where the broker tells no offset librdkafka counts up from -1: the batch seems to lie at the log's start.
        if record.offset > self._last.get(record.log, UNKNOWN_OFFSET):
            self._last[record.log] = record.offset
        else:
            record = record._replace(offset=UNKNOWN_OFFSET)
        self.acked.append(record)


def acked_record(message: Message) -> Record:
    topic, partition, offset, value = message.topic(), message.partition(), message.offset(), message.value()
    assert topic is not None and partition is not None and isinstance(value, bytes)
    return Record(TopicPartition(topic, partition), UNKNOWN_OFFSET if offset is None else offset, value.decode())


def write_numbers(cluster: LocalKafka, topic: str, start: int, end: int) -> None:
    """Write the numbers from `start` to before `end` to partition 0."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "log_level": 0})
    for number in range(start, end):
        producer.produce(topic, str(number), partition=0)
    assert producer.flush(60) == 0


class Stream(Background):
    """Micro-batches over topics, one after the other: plan, read, and commit the end as JSON.

    Without topics, `options` say which. Call `run_batch`, or `plan` and `read` to do something in between; inside
    `with`, batches run by themselves.

    Attributes:
        committed: the JSON of the offset up to which `rows` hold everything.
        rows: in the order of reading; of a batch that failed, none.
        batch_seconds: how long each batch took, those that failed too.
        error: what ended the batches that run by themselves.
    """

    def __init__(self, bootstrap_servers: str, topics: Sequence[str], folder: Path, **options: str) -> None:
        given = {
            "kafka.bootstrap.servers": bootstrap_servers,
            **({"subscribe": ",".join(topics)} if topics else {}),
            "startingOffsets": "earliest",
            **options,
        }
        self._options = SourceOptions.parse(given).for_stream()
        self._folder = folder
        self.planner_client = self._client(Role.PLANNER, stream_planner_options(self._options.client))
        self.reader_client = self._client(Role.READER, self._options.client)
        self._planner = OffsetPlanner(self.planner_client, self._options)
        try:
            begun = self._planner.next_offset(BEGINNING, None, limited=False)
            self.committed = text(replace(begun, positions=begun.start, start={}))
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
        """Run batches until the condition holds after one; raises what a batch raises."""
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
        return {partition: one.offset for partition, one in parsed(self.committed).positions.items()}

    def settle(self) -> None:
        """Wait until all events so far are written, or lost: a folder has a thread of its own, which a flush leaves
        behind where the machine is slow."""
        for client in (self.planner_client, self.reader_client):
            for sink in client.publisher._sinks:
                if isinstance(sink, BackgroundSink):
                    assert sink._last.wait(SETTLE_S), "events still wait for their folder"

    def events(self, role: str = "reader") -> list[Event]:
        """The events of the reader's or the planner's cache after its birth, as they were written."""
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
                for topic, partition, offset, value in zip(*(one.to_pylist() for one in batch.columns), strict=True):
                    yield Record(TopicPartition(topic, partition), offset, value.decode())
        finally:
            self.reader_client.publisher.flush()

    def _client(self, role: Role, options: ClientOptions) -> KafkaClient:
        publisher = new_publisher(MetricsOptions(str(self._folder / role), None, ()), Origin(role=role))
        return KafkaClient(options, publisher)


@dataclass(frozen=True, slots=True)
class Scene:
    """A stream that reads what a producer writes, both at work."""

    stream: Stream
    producer: SteadyProducer
    wait_for: Callable[..., Any]

    def read_on(self, rows: int = 300, timeout_s: float = 30) -> None:
        """Wait until so many more rows have come, of every partition that is written at least one."""
        before, logs = len(self.stream.rows), self.producer.partitions

        def came() -> bool:
            assert self.stream.error is None, self.stream.error
            new = self.stream.rows[before:]
            return len(new) >= rows and len({row.log for row in new}) >= logs

        self.wait_for(came, timeout_s=timeout_s)

    def assert_invariants(self, batch_deadline_s: float) -> None:
        """Nothing acknowledged is lost, repeated or out of order; no batch was late; caches told all and asked
        little."""
        assert_all_read(self.producer.acked, self.stream.rows)
        assert max(self.stream.batch_seconds) < batch_deadline_s
        assert_tells_all(self.stream.events("planner"), self.stream.planner_client.cache)
        assert_tells_all(self.stream.events("reader"), self.stream.reader_client.cache)

    def catch_up(self) -> None:
        """Wait until the stream has come to the end of what was acknowledged."""
        ends = self.producer.ends()

        def caught_up() -> bool:
            assert self.stream.error is None, self.stream.error
            at = self.stream.positions()
            return all(at.get(log, 0) >= end for log, end in ends.items())

        self.wait_for(caught_up, timeout_s=60)

    def progress(self) -> str:
        """Whether the producer or the stream has come to a halt, and in which partition."""
        at = self.stream.positions()
        return "\n".join(
            [
                *(f"{log}: acknowledged to {end}, read to {at.get(log)}" for log, end in self.producer.ends().items()),
                f"seconds of the last batches that ended: {self.stream.batch_seconds[-5:]}",
                *(f"{event}" for event in self.stream.events()[-5:]),
            ]
        )


@contextmanager
def running(stream: Stream, producer: SteadyProducer, wait_for: Callable[..., Any]) -> Iterator[Scene]:
    """`stream` reads and `producer` writes from some rows before the body to the last acknowledged one after it."""
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
