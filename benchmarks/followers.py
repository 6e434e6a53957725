"""A feed of numbered records, and readers that record the arrival time of each record.

The two readers with plain loops run in their own processes, so that no reader waits for another's interpreter lock.
"""

from __future__ import annotations

import json
import multiprocessing
import threading
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

import numpy as np
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.delays import Arrivals, Written
from pyspark_kafka_meta.events.event import Origin, Role
from pyspark_kafka_meta.events.publisher import new_publisher
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.model import OffsetRange
from pyspark_kafka_meta.options import EventsOptions, SourceOptions
from pyspark_kafka_meta.read.fetching import task_reader
from pyspark_kafka_meta.read.fetching.lost_records import LostRecords
from pyspark_kafka_meta.read.fetching.partition_cursor import EmptyResponses, Instruction, OutOfRange, PartitionCursor
from pyspark_kafka_meta.read.fetching.task_reader import TaskReader

RECORDS_PER_TICK, TICK_S = 4, 0.02
"""For each partition."""
ENDLESS = 1 << 40
"""End of a range that a reader never reaches: it follows the partition like a consumer."""
CLOSE_TIMEOUT_S = 60.0


class Feed:
    """Writes about a thousand records per second, evenly to all partitions, until the end of `with`."""

    def __init__(self, bootstrap_servers: str, topic: str, partitions: int) -> None:
        self._bootstrap_servers, self._topic, self._partitions = bootstrap_servers, topic, partitions
        self._lock = threading.Lock()  # guards the next two
        self._partition: list[int] = []
        self._sent: list[float] = []
        self._acked: dict[int, float] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join()

    def number_record(self, partition: int) -> int:
        """A number for the next record; its send time is now."""
        with self._lock:
            self._partition.append(partition)
            self._sent.append(time.time())
            return len(self._sent) - 1

    def acknowledge(self, number: int, at: float) -> None:
        """Record the time at which the leader acknowledged the record."""
        self._acked[number] = at

    def written(self) -> Written:
        """All records; call it after the end of `with`."""
        acked = np.array([self._acked.get(number, np.inf) for number in range(len(self._sent))])
        return Written(np.array(self._partition), np.array(self._sent), acked)

    def _run(self) -> None:
        settings = {"acks": "all", "enable.idempotence": True, "linger.ms": 0, "retry.backoff.ms": 1, "log_level": 0}
        producer = Producer({"bootstrap.servers": self._bootstrap_servers, **settings})
        while not self._closed.wait(TICK_S):
            for partition in range(self._partitions):
                for _ in range(RECORDS_PER_TICK):
                    number = self.number_record(partition)
                    acked = partial(self._on_delivery, number)
                    producer.produce(self._topic, b"%d" % number, partition=partition, on_delivery=acked)
            producer.poll(0)
        producer.flush(CLOSE_TIMEOUT_S)

    def _on_delivery(self, number: int, error: Any, message: Message) -> None:
        latency_s = message.latency()  # measured at the response, not at this call
        if error is None and latency_s is not None:
            self.acknowledge(number, self._sent[number] + latency_s)


class FollowedRanges(LostRecords):
    """A range of a Spark task lies within the log, so that reaching the log's end is a doubt that asks brokers; the end
    of a range without end always lies after the log, and is no doubt."""

    def confirm(self, cursor: PartitionCursor, suspicion: OutOfRange | EmptyResponses, now: float) -> Instruction:
        return None if isinstance(suspicion, EmptyResponses) else super().confirm(cursor, suspicion, now)


class LoopFollower:
    """A reader in its own process. `loop` gets `arguments` and a connection: it reads from the start of the topic until
    the connection has data, then sends its `Arrivals`."""

    def __init__(self, loop: Callable[..., None], *arguments: str) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._connection, child = spawn.Pipe()
        self._process = spawn.Process(target=loop, args=(*arguments, child), daemon=True)
        self._process.start()
        child.close()

    def close(self) -> Arrivals:
        """Call it while records arrive: loops check the connection only then."""
        self._connection.send("stop")
        if not self._connection.poll(CLOSE_TIMEOUT_S):
            self._process.kill()
            raise TimeoutError("a reader did not stop")
        arrivals: Arrivals = self._connection.recv()
        self._process.join()
        return arrivals


def follow_by_kafkameta(bootstrap_servers: str, topic: str, events_path: str, parent: Connection) -> None:
    """What a task of this source does, over ranges without end."""
    given = {"kafka.bootstrap.servers": bootstrap_servers, "subscribe": topic}
    options = SourceOptions.parse(given).for_stream()
    task_reader.LostRecords = FollowedRanges  # type: ignore[attr-defined]  # in this process
    publisher = new_publisher(EventsOptions(events_path, None, ()), Origin(role=Role.READER))
    client = KafkaClient(options.client, publisher)
    partitions = client.partitions([topic], client.api_deadline())
    topic_id = client.cache.snapshot.topic_id(topic)
    ranges = [OffsetRange(partition, topic_id, 0, ENDLESS) for partition in partitions]
    numbers, times = [], []
    for batch in TaskReader(client, options, ["value"]).read(ranges):
        now = time.time()
        values = batch.column(0).to_pylist()
        numbers += list(map(int, values))
        times += [now] * len(values)
        if parent.poll():
            break
    client.close()
    parent.send(Arrivals(np.array(numbers), np.array(times)))


def follow_by_librdkafka(bootstrap_servers: str, topic: str, partitions: str, parent: Connection) -> None:
    """Reads with a confluent-kafka consumer with default settings."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": topic, "log_level": 0})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(int(partitions))])
    numbers, times = [], []
    while not parent.poll():
        message = consumer.poll(0.1)
        value = message.value() if message is not None and message.error() is None else None
        if value is not None:
            numbers.append(int(value))
            times.append(time.time())
    consumer.close()
    parent.send(Arrivals(np.array(numbers), np.array(times)))


class StreamFollower:
    """A streaming query from the start of the topic. A record arrives with the collection of its micro-batch."""

    def __init__(self, spark: SparkSession, source: str, options: dict[str, str]) -> None:
        self._numbers: list[int] = []
        self._times: list[float] = []
        rows = spark.readStream.format(source).options(**options).option("startingOffsets", "earliest").load()
        numbers = rows.selectExpr("CAST(CAST(value AS STRING) AS BIGINT) AS number")
        self._query: StreamingQuery = numbers.writeStream.foreachBatch(self._arrive).start()

    def close(self) -> Arrivals:
        self._query.stop()
        return Arrivals(np.array(self._numbers, dtype=np.int64), np.array(self._times))

    def failure(self) -> str | None:
        """The error of the query, or None."""
        error = self._query.exception()
        return None if error is None else str(error).partition("\n")[0]

    def _arrive(self, batch: DataFrame, _: int) -> None:
        numbers = [row.number for row in batch.collect()]
        self._numbers += numbers
        self._times += [time.time()] * len(numbers)


def events(folder: Path) -> list[dict[str, Any]]:
    """The refresh events in an eventsPath, by cache and sequence."""
    lines = [line for file in folder.glob("*.jsonl") for line in file.read_text().splitlines()]
    return sorted(map(json.loads, lines), key=lambda event: (event["cache_id"], event["sequence"]))
