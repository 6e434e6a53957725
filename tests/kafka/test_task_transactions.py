"""Tasks that write in transactions on a real cluster: what a failed or fenced task leaves behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pytest

from pyspark_kafka_meta.errors import InvalidRowError
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.protocol.error_codes import NOT_OPEN
from pyspark_kafka_meta.kafka.protocol.produce import ProducePartition, ProduceRequest, ProduceResponse
from pyspark_kafka_meta.model import TopicPartition, TransactionVersion
from pyspark_kafka_meta.options import SinkOptions
from pyspark_kafka_meta.write.input_columns import SinkColumns
from pyspark_kafka_meta.write.task_writer import TaskWriter
from pyspark_kafka_meta.write.transactional_producer import TransactionalProducer
from tests.consumer import consume_committed
from tests.kafka.cluster_tools import is_readable, poll_until
from tests.marks import thorough_after
from tests.unit.scene import RecordingPublisher
from tests.unit.write.batches import encoded_batch

pytestmark = [pytest.mark.kafka]

COLUMNS = SinkColumns(key=None, value=0, headers=None, topic=None, partition=1, timestamp=None)
TIMEOUT_MS = 60_000


class Task:
    """An attempt of a task, in a worker of its own."""

    def __init__(self, servers: str, topic: str, version: TransactionVersion, stack: ExitStack) -> None:
        given = {"kafka.bootstrap.servers": servers, "topic": topic, "kafka.buffer.memory": "1"}
        self._options = SinkOptions.parse(given)
        self.client = KafkaClient(self._options.client, RecordingPublisher([]))
        stack.callback(self.client.close)
        self.first = TopicPartition(topic, 0)
        self.transaction = TransactionalProducer(self.client, f"{topic}/0/0", TIMEOUT_MS, version)

    def writer(self) -> TaskWriter:
        return TaskWriter(self.client, self._options.producer, COLUMNS, self._options.topic, self.transaction)

    def commit(self) -> None:
        self.transaction.commit(self.client.api_deadline())

    def produce_late(self) -> int:
        """A Produce that was on its way when the task failed. Returns the error code."""
        opened, leader = self.transaction.opened({}), self.client.cache.leader(self.first)
        assert opened is not None
        assert leader is not None
        sequence = self.transaction.sequence(self.first).next_sequence
        records = encoded_batch(1).to_bytes(opened.producer, sequence, is_transactional=True)
        entry = ProducePartition(self.first, self.client.cache.snapshot.topic_id(self.first.topic), records)
        request = ProduceRequest((entry,), -1, 10_000, opened.transactional_id, self.transaction.version)
        self.client.network.produce.send(leader.broker, request, time.monotonic() + 30)
        response = self.client.network.produce.receive([leader.broker.node_id], time.monotonic() + 30)
        assert isinstance(response, ProduceResponse), response
        return response.partitions[0].error_code


def batch(*values: int, partition: int | None = None) -> pa.RecordBatch:
    """One row for each value, in two partitions in turn."""
    partitions = [value % 2 if partition is None else partition for value in values]
    columns = [pa.array([str(value).encode() for value in values], pa.binary()), pa.array(partitions, pa.int32())]
    return pa.record_batch(columns, names=["value", "partition"])


OpenTask = Callable[[], Task]


@pytest.fixture
def topic(make_topic: Callable[..., str]) -> str:
    return make_topic(partitions=2, config={"retention.ms": "-1"})  # encoded batches are of 1970


@pytest.fixture(params=thorough_after(1, reversed(TransactionVersion)))
def open_task(request: pytest.FixtureRequest, kafka: Any, topic: str) -> Iterator[OpenTask]:
    with ExitStack() as stack:
        yield lambda: Task(kafka.bootstrap_servers, topic, request.param, stack)


def visible(kafka: Any, topic: str) -> list[int]:
    return sorted(int(message.value() or b"") for message in consume_committed(kafka.bootstrap_servers, topic))


def test_failed_task_leaves_nothing_open_and_nothing_of_it_is_appended_later(
    kafka: Any, topic: str, open_task: OpenTask
) -> None:
    """A request that comes after the abort would become part of the next transaction of the id (KAFKA-14402), as on
    Kafka 2.8.2 after EndTxn."""
    task, successor = open_task(), open_task()
    with pytest.raises(InvalidRowError):
        task.writer().write([batch(1, 2, 3), batch(4, partition=-1)])

    poll_until(lambda: is_readable(kafka.bootstrap_servers, topic))
    late = task.produce_late()
    successor.writer().write([batch(5, 6)])
    successor.commit()

    assert late in NOT_OPEN
    assert visible(kafka, topic) == [5, 6]
