"""Keys that a transactional producer writes, deletes and aborts while a topic is compacted; and what each key is then.

    python -m tests.kafka.changing_keys 1000000

reads the latest record of each key of so many records again and again meanwhile, and prints what was compared.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from confluent_kafka import Message, Producer

from pyspark_kafka_meta.events.event import Origin, Role
from pyspark_kafka_meta.events.publisher import client_without_events
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.model import OffsetRange
from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.read.fetching.latest_by_key import LatestReader, MayEndLater
from pyspark_kafka_meta.read.fetching.task_reader import TaskReader
from pyspark_kafka_meta.read.planning.checkpoint_offsets import BEGINNING, SourceOffset, ranges
from pyspark_kafka_meta.read.planning.offset_planner import OffsetPlanner
from pyspark_kafka_meta.testing import LocalKafka

BROKER_CONFIG = {"log.cleaner.backoff.ms": "50", "log.cleaner.threads": "2"}
"""Cleaners that look for work all the time."""
TOPIC_CONFIG = {
    "cleanup.policy": "compact",
    "segment.ms": "500",
    "segment.bytes": "1048576",
    "min.cleanable.dirty.ratio": "0.001",
}
PARTITIONS = 2
TRANSACTION = 500
COLUMNS = ("key", "value", "partition", "offset")
KEYS = 5_000
"""Of which a hundred get half of the writes."""

PartitionKey = tuple[int, bytes]
Found = dict[PartitionKey, tuple[int, bytes]]


@dataclass
class ChangingKeys(threading.Thread):
    """Writes `records` records in transactions, of which each fifth is aborted.

    Attributes:
        history: (offset, value) of the committed records of each key, in order.
    """

    servers: str
    topic: str
    records: int
    history: dict[PartitionKey, list[tuple[int, bytes | None]]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self._rng = random.Random(7)
        self._written: list[tuple[PartitionKey, int, bytes | None]] = []

    __hash__ = threading.Thread.__hash__

    def run(self) -> None:
        producer = Producer(
            {"bootstrap.servers": self.servers, "transactional.id": self.topic, "linger.ms": 5, "log_level": 0}
        )
        producer.init_transactions(60)
        for first in range(0, self.records, TRANSACTION):
            producer.begin_transaction()
            for number in range(first, first + TRANSACTION):
                self._write(producer, number)
            producer.flush(60)
            if first // TRANSACTION % 5 == 4:
                producer.abort_transaction(60)
            else:
                producer.commit_transaction(60)
                for key, offset, value in sorted(self._written, key=lambda each: each[1]):
                    self.history[key].append((offset, value))
            self._written.clear()

    def _write(self, producer: Producer, number: int) -> None:
        key = b"%d" % self._rng.randrange(100 if number % 2 else KEYS)
        value = None if self._rng.random() < 0.1 else b"%d" % number + bytes(50)

        partition = int(key) % PARTITIONS

        def on_delivery(error: object, message: Message) -> None:
            offset = message.offset()
            assert error is None and offset is not None, error
            self._written.append(((partition, key), offset, value))

        producer.produce(self.topic, key=key, value=value, partition=partition, on_delivery=on_delivery)
        producer.poll(0)

    def latest(self) -> Found:
        """What a log that nobody writes any more has."""
        last = {key: records[-1] for key, records in self.history.items()}
        return {key: (offset, value) for key, (offset, value) in last.items() if value is not None}


class Reading:
    """Reads a topic as Spark's planner and tasks do, under read_committed."""

    def __init__(self, servers: str, topic: str) -> None:
        given = {
            "kafka.bootstrap.servers": servers,
            "subscribe": topic,
            "startingOffsets": "latestByKey",
            "kafka.isolation.level": "read_committed",
        }
        self.options = SourceOptions.parse(given).for_stream()
        self.batch = SourceOptions.parse({**given, "startingOffsets": "earliest"}).for_batch(latest_by_key=True)

    def client(self) -> KafkaClient:
        return client_without_events(self.options.client, Origin(role=Role.READER))

    def table(self) -> tuple[dict[int, int], Found]:
        """The planned ends, and the rows of table latest."""
        with closing(self.client()) as client:
            planned = OffsetPlanner(client, self.batch).batch_ranges()
            ends = {each.partition.partition: each.until_offset for each in planned}
            found: Found = {}
            for each in planned:
                for key, offset, value in self.rows(client, each, MayEndLater.ANY_KEY):
                    assert key not in found, f"{key} has two rows"
                    assert value is not None
                    found[key] = offset, value
            return ends, found

    def rows(
        self, client: KafkaClient, planned: OffsetRange, may_end_later: MayEndLater
    ) -> Iterator[tuple[PartitionKey, int, bytes | None]]:
        batches = (
            LatestReader(client, self.options, COLUMNS, may_end_later).read(planned)
            if planned.latest_by_key
            else TaskReader(client, self.options, COLUMNS).read([planned])
        )
        for batch in batches:
            for key, value, partition, offset in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                yield (partition, key), offset, value

    def stream(self, until: threading.Event) -> Iterator[Sequence[tuple[PartitionKey, int, bytes | None]]]:
        """The rows of each micro-batch, until nothing is left."""
        with closing(self.client()) as client:
            planner, start = OffsetPlanner(client, self.options), BEGINNING
            while True:
                is_last = until.is_set()
                end = SourceOffset.parse(planner.next_offset(start, None, limited=True).as_dict())
                if end == start and is_last:
                    return
                yield [row for planned in ranges(start, end) for row in self.rows(client, planned, MayEndLater.NO_KEY)]
                start = end


def check_table(writer: ChangingKeys, ends: dict[int, int], found: Found) -> int:
    """Each row is of its key, and none is older than the planned end or missing. Returns how many are newer.

    Call it when the transactions that the rows are of have been noted.
    """
    newer = 0
    for key, records in list(writer.history.items()):
        at_end = [record for record in list(records) if record[0] < ends[key[0]]]
        if key in found:
            assert found[key] in records, f"{key} never had {found[key]}"
            assert not at_end or found[key][0] >= at_end[-1][0], f"{key} is older than the end: {found[key]}"
            newer += not at_end or found[key][0] > at_end[-1][0]
        elif at_end and at_end[-1][1] is not None:
            assert any(value is None for _, value in records[len(at_end) :]), f"{key} is missing"
    return newer


def check_stream(batches: Iterator[Sequence[tuple[PartitionKey, int, bytes | None]]]) -> Found:
    """No record twice, each later than the one before in its partition. Returns what each key is at the end."""
    found, last = {}, dict.fromkeys(range(PARTITIONS), -1)
    for rows in batches:
        for key, offset, value in rows:
            assert offset > last[key[0]], f"{key} at {offset} comes after {last[key[0]]}"
            last[key[0]] = offset
            found[key] = offset, value
    return {key: (offset, value) for key, (offset, value) in found.items() if value is not None}


def read_while_written(cluster: LocalKafka, records: int) -> str:
    """Compare all that is read with what was written. Returns figures."""
    topic = cluster.create_topic(partitions=PARTITIONS, config=TOPIC_CONFIG)
    writer, written = ChangingKeys(cluster.bootstrap_servers, topic, records), threading.Event()
    reading = Reading(cluster.bootstrap_servers, topic)
    streamed: list[Found] = []
    stream = threading.Thread(target=lambda: streamed.append(check_stream(reading.stream(written))), daemon=True)
    writer.start()
    tables = []
    started = time.monotonic()
    while not writer.history:
        assert time.monotonic() < started + 60
        time.sleep(0.01)
    stream.start()
    while writer.is_alive():
        tables.append(reading.table())
    writer.join()
    written.set()
    stream.join(300)
    newer = [check_table(writer, ends, found) for ends, found in tables]
    _, last = reading.table()
    expected = writer.latest()
    assert last == expected
    assert streamed == [expected]
    left = log_records(reading)
    return (
        f"{records} records, of which {left} are left; {len(expected)} live keys; {len(tables)} tables read meanwhile, "
        f"{sum(map(bool, newer))} of them with rows newer than their end; {time.monotonic() - started:.0f} s"
    )


def log_records(reading: Reading) -> int:
    """The committed records that compaction has left."""
    with closing(reading.client()) as client:
        planned = OffsetPlanner(client, reading.batch).batch_ranges()
        batches = TaskReader(client, reading.options, ["offset"]).read(planned)
        return sum(len(batch) for batch in batches)


if __name__ == "__main__":
    with LocalKafka(1, config=BROKER_CONFIG) as started_cluster:
        sys.stdout.write(f"{read_while_written(started_cluster, int(sys.argv[1]))}\n")
