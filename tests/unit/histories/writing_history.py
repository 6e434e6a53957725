"""`WritingHistory`: tasks that write to a cluster with faults, all drawn from one seed.

The tasks of a worker write one after the other, as in Spark, and share its client and producer id. Rows come at their
own pace, and faults strike at any time: between requests, while requests are in flight, and while a task waits for
rows. Then all brokers are healthy, and the last task ends.

| drawn | from |
|---|---|
| cluster | brokers, partitions, latencies |
| sink | acks, idempotence, sizes of batches and memory, requests in flight |
| rows | pace, rows at a time, with partitions, with keys or with neither |
| faults | a few kinds of `Faults`, from 50 a second to one in 2 s, for up to 20 s |

| invariant | meaning |
|---|---|
| exactly once | an idempotent writer's logs hold each row once, in order |
| at least once | another writer's logs hold each row, in the order of first occurrences |
| placed | each row is in its partition, rows with the same key are in the same |
| alive | no task raises an error, and the last ends within seconds once all brokers are healthy |
| no false alarm | no request_timeout for a healthy broker |
| bounded | rows that are in no log fit into kafka.buffer.memory and one chunk |
| modest | few Metadata requests |
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from unittest.mock import patch

import pyarrow as pa
from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.errors import KafkaMetaError
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.options import SinkOptions
from pyspark_kafka_meta.write import task_writer
from pyspark_kafka_meta.write.input_columns import SinkColumns
from pyspark_kafka_meta.write.task_writer import TaskWriter
from tests.unit.fake_cluster import FakeCluster
from tests.unit.fake_network import FakeClock, FakeNetwork
from tests.unit.histories.faults import Faults
from tests.unit.histories.history import TICK_S, History
from tests.unit.write.writer_scene import rows as rows_of

FAULTS_S = (2.0, 5.0, 5.0, 20.0)
ENDS_WITHIN_S = 8.0
"""A Metadata request of 3 s that hung, pauses, and throttled brokers."""
COLUMNS = SinkColumns(key=0, value=1, headers=None, topic=None, partition=2, timestamp=None)
CODES = (
    ErrorCode.corrupt_message,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.leader_not_available,
    ErrorCode.not_leader_or_follower,
    ErrorCode.request_timed_out,
    ErrorCode.not_enough_replicas,
    ErrorCode.not_enough_replicas_after_append,
    ErrorCode.kafka_storage_error,
)


class WrittenRow(NamedTuple):
    value: bytes
    key: bytes | None
    partition: int | None


class WritingHistory(History):
    """One history.

    Attributes:
        rows: that the tasks took, in order.
        violations: of "alive", "no false alarm" and "bounded"; `test_writing_histories` has the others.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.clock = FakeClock(tick_s=TICK_S, rng=self._rng())
        self.cluster = FakeCluster(self.rng.choice([1, 2, 3, 3, 3, 5]))
        self.cluster.create_topic("t", self.rng.choice([1, 3, 9]))
        self.network = FakeNetwork(self.cluster, self.clock, self._rng())
        self.given = self._draw_options()
        self.options = SinkOptions.parse(self.given)
        self.chunk_bytes = self.rng.choice([1, 400, 2000])
        self.placement = self.rng.choice(["partition", "partition", "key", "any"])
        self.paces_s = self.rng.choice([(0.0, 0.1), (0.1, 0.3), (0.0, 0.5), (0.5, 3.0, 6.0)])
        self.faults = Faults(self.network, self._rng(), CODES)
        self.rows: list[WrittenRow] = []
        self.violations = self.faults.violations
        pair = self.rng.choice([(), ("disconnect", "elect"), ("hang", "elect")])
        kinds = [*pair, *self.rng.sample(list(self.faults.kinds), self.rng.randint(1, 4) - bool(pair))]
        self.faults.start(kinds, self.rng.choice([0.02, 0.1, 0.5, 2.0]), self.rng.choice(FAULTS_S))

    def _draw_options(self) -> dict[str, str]:
        one_in_flight, one_ack = {"kafka.max.in.flight.requests.per.connection": "1"}, {"kafka.acks": "1"}
        given = self.rng.choice([{}, {}, one_in_flight, one_ack, {"kafka.enable.idempotence": "false"}])
        return {
            "kafka.bootstrap.servers": "broker-1:9092",
            "topic": "t",
            "kafka.batch.size": self.rng.choice(["100", "200", "1000"]),
            "kafka.buffer.memory": self.rng.choice(["500", "3000", "20000"]),
            **given,
        }

    @property
    def is_idempotent(self) -> bool:
        return self.options.producer.idempotent

    def run(self) -> WritingHistory:
        client = self._new_client(self.options.client, self.network)
        self.faults.judge(client.cache)
        with patch.object(task_writer, "CHUNK_BYTES", self.chunk_bytes):
            try:
                while self.clock.now < self.faults.healed_at:
                    self._write(client)
            except KafkaMetaError as error:
                self.violations.append(f"{self.clock.now:.3f}: {type(error).__name__}: {error}")
        late_s = self.clock.now - self.faults.healed_at
        if late_s > ENDS_WITHIN_S:
            self.violations.append(f"the last task ended {late_s:.1f} s after all brokers were healthy")
        return self

    def _write(self, client: KafkaClient) -> None:
        began = len(self.rows)
        writer = TaskWriter(client, self.options.producer, COLUMNS, self.options.topic, rng=self._rng())
        written = writer.write(self._batches())
        counted = sum(offsets.records for offsets in written.values())
        self.faults.note(f"a task has written {counted} rows")
        if counted != len(self.rows) - began:
            self.violations.append(f"a task of {len(self.rows) - began} rows says that it wrote {counted}")

    def _batches(self) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        for _ in range(self.rng.choice([3, 30, 100])):
            if self.clock.now >= self.faults.healed_at:
                return
            taken = [self._row(len(self.rows) + index) for index in range(self.rng.randint(1, 12))]
            self.rows += taken
            yield rows_of(
                key=[row.key for row in taken],
                value=[row.value for row in taken],
                partition=[row.partition for row in taken],
            )
            self._check_memory(len(taken))
            self.clock.sleep(self.rng.choice(self.paces_s))

    def _row(self, number: int) -> WrittenRow:
        partition = number % len(self.cluster.topics["t"].partitions) if self.placement == "partition" else None
        key = b"%d" % (number % 7) if self.placement == "key" else None
        return WrittenRow(b"%06d" % number, key, partition)

    def _check_memory(self, batch_rows: int) -> None:
        stored = sum(self.cluster.bounds(partition)[1] for partition in self.cluster.logs)
        row_bytes = 6 + 7  # the value, and what each record adds
        held = (len(self.rows) - batch_rows - stored) * row_bytes
        if held > self.options.producer.buffer_bytes + self.chunk_bytes:
            self.violations.append(f"{self.clock.now:.3f}: at least {held} bytes are held")

    def __str__(self) -> str:
        return self._told(f"{self.placement}, chunks of {self.chunk_bytes} bytes, pauses {self.paces_s}", 100)
