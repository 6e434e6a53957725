"""Shared by fault tests of the sink: a worker that runs the attempts of a task, as Spark does, without Spark.

An attempt writes in a thread until the test has done its harm, so faults hit many requests in flight.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from pyspark_kafka_meta.errors import KafkaMetaError
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.metadata.refresh_events import RefreshEvent
from pyspark_kafka_meta.kafka.network.connection import ConnectionSettings
from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.options import SinkOptions
from pyspark_kafka_meta.write.input_columns import SinkColumns
from pyspark_kafka_meta.write.partition_queue import AcknowledgedRange
from pyspark_kafka_meta.write.task_writer import TaskWriter
from tests.kafka.checker import assert_events_complete
from tests.kafka.cluster_tools import poll_until
from tests.kafka.harness import Background
from tests.kafka.writing_checker import Row, anomalies, missing_rows, read_logs, written_rows
from tests.kafka.writing_network import TappedNetwork, TappedProduces
from tests.unit.scene import RecordingPublisher

PARTITIONS = 6
ROWS_PER_BATCH = 60
PAUSE_S = 0.005
OPTIONS = {"kafka.batch.size": "1000", "kafka.buffer.memory": "50000"}
"""Batches of eight rows: every broker has five requests in flight most of the time."""
COLUMNS = SinkColumns(key=0, value=1, partition=2, headers=None, topic=None, timestamp=None)
SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("partition", pa.int32())])


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
        self._events: list[RefreshEvent] = []
        self.client = KafkaClient(self.options.client, RecordingPublisher(self._events), network=network)
        self.attempts: list[Attempt] = []

    def attempt(
        self,
        partitions: int | None = PARTITIONS,
        max_rows: float = math.inf,
        delivery_timeout_ms: int = 60_000,
        key_bytes: int = 1,
    ) -> Attempt:
        """A new attempt. `partitions` get rows in turn; None leaves the choice to the writer."""
        options = replace(self.options.producer, delivery_timeout_ms=delivery_timeout_ms)
        writer = TaskWriter(self.client, options, COLUMNS, self.topic)
        self.attempts.append(Attempt(writer, len(self.attempts), partitions, max_rows, key_bytes))
        return self.attempts[-1]

    def retry(self) -> Attempt:
        """Write all rows of the last attempt again, as Spark does after an attempt that failed."""
        failed = self.attempts[-1]
        attempt = self.attempt(failed.partitions, failed.rows)
        attempt.write_all()
        return attempt

    def reasons(self) -> set[str]:
        """Of the refreshes of the cache."""
        return {event.reason for event in self._events if event.reason is not None}

    def wait_for_failures(self, count: int) -> None:
        """Wait until so many connections more have failed."""
        before = self.network.failures
        poll_until(lambda: self.network.failures >= before + count)

    def assert_written(self) -> None:
        """The logs agree with every attempt, and hold all rows of the last."""
        logs = read_logs(self.servers, self.topic)
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

    def __init__(
        self, writer: TaskWriter, number: int, partitions: int | None, max_rows: float, key_bytes: int
    ) -> None:
        self._writer = writer
        self._key_bytes = key_bytes
        self.number, self.partitions = number, partitions
        self.rows = 0
        self.error: Exception | None = None
        self.ended_at: float | None = None
        self._max_rows = max_rows
        self._may_write = threading.Event()
        self._may_write.set()
        super().__init__()

    def __exit__(self, *exception: object) -> None:
        self.release()
        super().__exit__(*exception)

    def __str__(self) -> str:
        return f"attempt {self.number}: {self.rows} rows, {written_rows(self.written())} acknowledged, {self.error!r}"

    def written(self) -> Mapping[TopicPartition, Sequence[AcknowledgedRange]]:
        """Offsets acknowledged up to now; after an error too."""
        return {partition: list(queue.written) for partition, queue in list(self._writer._queues.items())}

    def write_on(self, timeout_s: float = 60) -> None:
        """Wait until each partition has acknowledged more rows."""
        before = self._acknowledged()

        def has_written() -> bool:
            assert self.error is None, self
            now = self._acknowledged()
            return len(now) >= (self.partitions or 1) and all(now[part] > before.get(part, 0) + 50 for part in now)

        poll_until(has_written, timeout_s)

    def wait_for_error(self, kind: type[KafkaMetaError], timeout_s: float = 30) -> str:
        """The text of the error that ends the attempt."""
        poll_until(lambda: self.ended_at is not None, timeout_s)
        assert isinstance(self.error, kind), self
        return str(self.error)

    def seconds_since(self, time_s: float) -> float:
        """From this time of `time.monotonic` to the end of the attempt."""
        assert self.ended_at is not None
        return self.ended_at - time_s

    def hold(self) -> None:
        """Give the writer no further rows, as a slow stage before it."""
        self._may_write.clear()

    def release(self) -> None:
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
            self._may_write.wait()
            numbers = range(self.rows, int(min(self.rows + ROWS_PER_BATCH, self._max_rows)))
            self.rows += len(numbers)
            yield self._batch(numbers)

    def _batch(self, numbers: range) -> pa.RecordBatch:
        partitions = [None if self.partitions is None else number % self.partitions for number in numbers]
        keys = [None if partition is None else (b"%d" % partition).zfill(self._key_bytes) for partition in partitions]
        values = [Row(self.number, number).value() for number in numbers]
        return pa.record_batch([keys, values, partitions], schema=SCHEMA)

    def _acknowledged(self) -> dict[TopicPartition, int]:
        return {partition: written_rows({partition: ranges}) for partition, ranges in self.written().items()}


OpenWorker = Callable[..., Worker]
