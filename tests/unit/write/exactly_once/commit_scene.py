"""A sink on a fake cluster: its committers, each in a process of its own, and the records of its decisions topic."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.protocol.produce import ProducePartition
from pyspark_kafka_meta.kafka.records.decoder import FetchedRecords
from pyspark_kafka_meta.model import (
    OpenTransaction,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionSpan,
    TransactionVersion,
)
from pyspark_kafka_meta.write.exactly_once.commit_protocol import Fence, ReadDecisions, WriteDecision, commit, recover
from pyspark_kafka_meta.write.exactly_once.decision import (
    STREAM,
    BatchId,
    Decision,
    Decisions,
    RecordKey,
    TransactionPlan,
)
from pyspark_kafka_meta.write.exactly_once.decisions_topic import DecisionsTopic
from pyspark_kafka_meta.write.exactly_once.step_runner import StepRunner
from pyspark_kafka_meta.write.exactly_once.transaction_reader import LogReader
from tests.unit.fake_cluster import StoredBatch
from tests.unit.scene import RecordingPublisher
from tests.unit.write.writer_scene import WriterScene, numbered

SINK = "orders"
DECISIONS = TopicPartition("kafkameta-decisions", 0)


def micro_batch(version: int) -> BatchId:
    return BatchId(STREAM, "query", version)


def transactions_of(tasks: int, partitions: int) -> list[OpenTransaction]:
    """What tasks report that wrote to each of these partitions. Their transactions do not exist."""
    return [
        OpenTransaction(
            f"{SINK}/{task}/0",
            ProducerIdAndEpoch(4_000_000 + task, 3),
            tuple(
                TransactionSpan("clicks-by-page", number, 7_000_000 + 1_000 * task, 7_000_900 + 1_000 * task, 300)
                for number in range(partitions)
            ),
        )
        for task in range(tasks)
    ]


class CommitScene(WriterScene):
    """Topic t with three partitions, and an empty decisions topic."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch)
        self.cluster.create_topic(DECISIONS.topic)

    def client(self, **options: str) -> KafkaClient:
        return KafkaClient(
            self.sink_options(**options).client,
            RecordingPublisher(self.events),
            network=self.network,
            clock=self.clock,
            sleep=self.clock.sleep,
            rng=random.Random(0),
        )

    def committer(self, version: TransactionVersion = TransactionVersion.V2) -> SinkCommitter:
        return SinkCommitter(self, version)

    def task(self, number: int, start: int) -> OpenTransaction:
        """The transaction of a task that wrote six rows, numbered from `start`."""
        producer = self.transaction(f"{SINK}/{number}/0", TransactionVersion.V2, 60_000)
        opened = producer.opened(self.write_in(producer, numbered(6, start=start)))
        assert opened is not None
        return opened

    def refuse(self, partition: TopicPartition, code: int) -> None:
        """Every Produce to this partition fails, until `monkeypatch` is undone."""
        error = self.cluster.produce_error

        def refused(node_id: int, request: ProducePartition) -> int:
            return int(code) if request.partition == partition else error(node_id, request)

        self.monkeypatch.setattr(self.cluster, "produce_error", refused)

    def rows(self) -> list[int]:
        """The numbers of all rows, also of aborted ones."""
        return sorted(number for numbers in self.numbers().values() for number in numbers)

    def read_slowly(self, seconds: float) -> None:
        """Drivers read each record batch of rows in so many seconds."""
        batches = LogReader.batches

        def slow(reader: LogReader, partition: TopicPartition, *arguments: Any) -> Iterator[FetchedRecords]:
            for fetched in batches(reader, partition, *arguments):
                self.clock.sleep(seconds if partition.topic == "t" else 0)
                yield fetched

        self.monkeypatch.setattr(LogReader, "batches", slow)

    def compact(self, until: int | None = None) -> None:
        """Remove the batches of decisions whose keys all have later records, as the log cleaner does with the records
        before the offset `until`. Each batch has one record here."""
        cleaned = [
            (at, key)
            for at, batch in enumerate(self.cluster.logs[DECISIONS])
            if until is None or batch.base_offset < until
            for key in self.keys(batch)
        ]
        last = {key: at for at, key in cleaned}
        removed = {at for at, key in cleaned if last[key] != at}
        self.cluster.logs[DECISIONS] = [
            batch for at, batch in enumerate(self.cluster.logs[DECISIONS]) if at not in removed
        ]

    def keys(self, batch: StoredBatch) -> list[RecordKey]:
        """Of the record of a batch; none of a marker."""
        whole, self.cluster.logs[DECISIONS] = self.cluster.logs[DECISIONS], [batch]
        try:
            is_control = self.batch_headers(DECISIONS)[0].is_control
            return [] if is_control else [key for each in self.log(DECISIONS, "key") if (key := RecordKey.parse(each))]
        finally:
            self.cluster.logs[DECISIONS] = whole


class SinkCommitter:
    """A committer that has read nothing yet."""

    def __init__(self, scene: CommitScene, version: TransactionVersion) -> None:
        self._client, self._options = scene.client(), scene.sink_options(**{"kafka.transactional.id": SINK})
        self._version = version
        self.decisions = DecisionsTopic(self._client, DECISIONS.topic, SINK)

    def runner(self) -> StepRunner:
        plan = TransactionPlan(SINK, 60_000, self._version)
        return StepRunner(self._client, self._options, plan, 900_000, self.decisions)

    def recover(self) -> Decisions:
        return self.runner().carry_out(recover())

    def commit(self, batch: BatchId, transactions: Sequence[OpenTransaction]) -> None:
        self.runner().carry_out(commit(batch, transactions, 1))

    def decide(self, batch: BatchId, transactions: Sequence[OpenTransaction]) -> bool:
        """Write a decision and stop. Returns whether it was written."""
        runner = self.runner()
        for step in (Fence(), ReadDecisions()):
            runner.run(step)
        return bool(runner.run(WriteDecision(Decision(batch, tuple(transactions), 1))))
