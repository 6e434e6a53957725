"""A scene with a task that writes to topic t, and what its partitions hold afterwards."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.records.batches import read_batch_headers
from pyspark_kafka_meta.kafka.records.decoder import FetchedRecords, decode
from pyspark_kafka_meta.model import TopicPartition, TransactionVersion
from pyspark_kafka_meta.options import SinkOptions
from pyspark_kafka_meta.write.input_columns import SinkColumns
from pyspark_kafka_meta.write.partition_queue import TaskOutput
from pyspark_kafka_meta.write.task_writer import TaskWriter
from pyspark_kafka_meta.write.transactional_producer import TransactionalProducer
from tests.unit.scene import RecordingPublisher, Scene

NAMES = ("key", "value", "headers", "topic", "partition", "timestamp")
TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    "topic": pa.string(),
    "partition": pa.int32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
SMALL_BATCHES = {"kafka.batch.size": "200"}


def rows(**columns: Sequence[object]) -> pa.RecordBatch:
    """Rows with the columns of these names."""
    return pa.record_batch({name: pa.array(values, TYPES[name]) for name, values in columns.items()})


def numbered(count: int, partitions: int = 3, start: int = 0) -> pa.RecordBatch:
    """Rows with their number as value, for each partition in turn."""
    numbers = range(start, start + count)
    return rows(value=[str(n).encode() for n in numbers], partition=[n % partitions for n in numbers])


class WriterScene(Scene):
    """Three brokers, topic t with three partitions, and a worker's client that tasks share."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch)
        self._worker: KafkaClient | None = None

    def sink_options(self, **options: str) -> SinkOptions:
        given = {"kafka.bootstrap.servers": "broker-1:9092", "topic": "t", **options}
        return SinkOptions.parse({name: value for name, value in given.items() if value})

    def worker(self, options: SinkOptions) -> KafkaClient:
        if self._worker is None:
            self._worker = KafkaClient(
                options.client,
                RecordingPublisher(self.events),
                network=self.network,
                clock=self.clock,
                sleep=self.clock.sleep,
                rng=random.Random(0),
            )
        return self._worker

    def transaction(self, transactional_id: str, version: TransactionVersion, timeout_ms: int) -> TransactionalProducer:
        return TransactionalProducer(self.worker(self.sink_options()), transactional_id, timeout_ms, version)

    def write_task(self, *batches: pa.RecordBatch, **options: str) -> TaskOutput:
        """Write as one task with these options; `topic=""` is without the option."""
        return self.write_from(iter(batches), batches[0].schema.names, **options)

    def write_in(self, transaction: TransactionalProducer, /, *batches: pa.RecordBatch, **options: str) -> TaskOutput:
        """As `write_task`, in a transaction."""
        return self.write_from(iter(batches), batches[0].schema.names, transaction, **options)

    def write_from(
        self,
        batches: Iterator[pa.RecordBatch],
        names: Sequence[str],
        transaction: TransactionalProducer | None = None,
        /,
        **options: str,
    ) -> TaskOutput:
        """As `write_task`, from an iterator of rows with these columns."""
        return self.task_writer(names, transaction, **options).write(batches)

    def task_writer(
        self, names: Sequence[str], transaction: TransactionalProducer | None = None, /, **options: str
    ) -> TaskWriter:
        """A task that gets rows with these columns."""
        sink = self.sink_options(**options)
        positions: dict[str, Any] = {name: list(names).index(name) if name in names else None for name in NAMES}
        if sink.topic is not None:
            positions["topic"] = None
        return TaskWriter(
            self.worker(sink),
            sink.producer,
            SinkColumns(**positions),
            sink.topic,
            transaction,
            wall_clock=lambda: 1_700_000_000.0,
            rng=random.Random(0),
        )

    def log(self, partition: TopicPartition, *columns: str) -> list[Any]:
        """The rows of a log; of one column, its values."""
        data = b"".join(batch.data for batch in self.cluster.logs[partition])
        headers = read_batch_headers(data)
        part = FetchedRecords(partition, data, headers, 0, 2**62)
        names = columns or ("value",)
        read = [row for batch in decode([part], names) for row in batch.to_pylist()]
        return [row[names[0]] for row in read] if len(names) == 1 else read

    def batch_headers(self, partition: TopicPartition) -> list[Any]:
        return [header for batch in self.cluster.logs[partition] for header in read_batch_headers(batch.data)]

    def numbers(self) -> dict[TopicPartition, list[int]]:
        """The numbers of `numbered` in each partition of t, in the order of the log."""
        partitions = [partition for partition in self.cluster.logs if partition.topic == "t"]
        return {partition: [int(value) for value in self.log(partition)] for partition in partitions}


def in_turn(count: int, partitions: int = 3, start: int = 0) -> dict[TopicPartition, list[int]]:
    """What the logs hold after `numbered` was written once, in order."""
    return {
        TopicPartition("t", partition): [n for n in range(start, start + count) if n % partitions == partition]
        for partition in range(partitions)
    }
