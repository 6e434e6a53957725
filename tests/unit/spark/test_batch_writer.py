"""What the driver requires before tasks write, and what it commits of their messages."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from pyspark_kafka_meta.errors import AuthorizationError, ChangedBatchError, KafkaMetaError, UnknownTopicError
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.model import OpenTransaction, ProducerIdAndEpoch, RowDigest, TransactionSpan, TransactionVersion
from pyspark_kafka_meta.options import SinkOptions
from pyspark_kafka_meta.source import KafkaMetaDataSource
from pyspark_kafka_meta.spark import batch_writer
from pyspark_kafka_meta.spark.batch_writer import TaskCommit, log_abort, log_commit
from pyspark_kafka_meta.spark.client_pool import worker_clients
from pyspark_kafka_meta.write.exactly_once.decision import BATCH, STREAM, BatchId, Decision, TransactionPlan
from pyspark_kafka_meta.write.input_columns import SinkColumns
from tests.unit.scene import Scene

OPTIONS = SinkOptions.parse(
    {"kafka.bootstrap.servers": "broker:9092", "topic": "t", "kafka.transactional.id": "orders"}
)
TRANSACTION = OpenTransaction("orders/0/0", ProducerIdAndEpoch(7, 1), (TransactionSpan("t", 0, 5, 8, 3),))


class Committer:
    def __init__(self) -> None:
        self.committed: list[tuple[BatchId, Sequence[OpenTransaction]]] = []
        self.rows: list[RowDigest | None] = []
        self.error: Exception | None = None
        self.aborted: list[tuple[int, Sequence[OpenTransaction], bool]] = []
        owners = [BatchId(STREAM, "query", 4), *(BatchId.of_app(f"app-{number}", 1) for number in range(50))]
        self.decided = {batch.series: Decision(batch, (), 0, True) for batch in owners}

    def plan(self, series: str) -> TransactionPlan:
        return TransactionPlan("orders", 60_000, TransactionVersion.V2, self.decided)

    def commit(
        self, batch: BatchId, transactions: Sequence[OpenTransaction], now_ms: int, rows: RowDigest | None = None
    ) -> None:
        self.committed.append((batch, transactions))
        self.rows.append(rows)
        if self.error is not None:
            raise self.error

    def abort(self, tasks: int, transactions: Sequence[OpenTransaction], *, all_ended: bool) -> None:
        self.aborted.append((tasks, transactions, all_ended))


@pytest.fixture
def committer(monkeypatch: pytest.MonkeyPatch) -> Committer:
    made = Committer()

    @contextmanager
    def of_this_process(options: SinkOptions, batch: BatchId | None = None) -> Iterator[Committer]:
        yield made

    monkeypatch.setattr(batch_writer, "batch_committer", of_this_process)
    return made


def micro_batch(version: int) -> BatchId:
    return BatchId(STREAM, "query", version)


def test_transactions_of_all_tasks_with_rows_are_committed(committer: Committer) -> None:
    batch = micro_batch(4)
    messages = [TaskCommit(3, TRANSACTION, batch, RowDigest(3, 7)), TaskCommit(0, None, batch)]
    batch_writer.commit_transactions(OPTIONS, messages)
    assert committer.committed == [(batch, [TRANSACTION])]


def test_first_micro_batch_takes_over_the_sink_although_it_has_no_rows(committer: Committer) -> None:
    """A later micro-batch may not: its query would count as one that another has replaced."""
    batch_writer.commit_transactions(OPTIONS, [TaskCommit(0, None, micro_batch(0))])
    assert committer.committed == [(micro_batch(0), [])]


@pytest.mark.parametrize("batch", [micro_batch(1), BatchId(BATCH, "random", 0)], ids=["micro-batch", "batch"])
def test_another_batch_without_rows_commits_nothing(committer: Committer, batch: BatchId) -> None:
    batch_writer.commit_transactions(OPTIONS, [TaskCommit(0, None, batch)])
    assert committer.committed == []


def test_a_batch_without_transactions_needs_no_commit(committer: Committer) -> None:
    options = SinkOptions.parse({"kafka.bootstrap.servers": "broker:9092", "topic": "t"})
    for batch in (None, BatchId(BATCH, "random", 0), micro_batch(0)):
        batch_writer.commit_transactions(options, [TaskCommit(3, None, batch)])
    assert committer.committed == []


def skipped(*rows: int) -> list[TaskCommit]:
    """The messages of the tasks of a decided batch, which have read so many rows."""
    return [TaskCommit(0, None, micro_batch(4), RowDigest(number, 2**63 * number)) for number in rows]


def test_rows_that_tasks_did_not_write_are_compared_with_those_of_the_decision(committer: Committer) -> None:
    batch_writer.commit_transactions(OPTIONS, skipped(3, 0, 4))
    assert (committer.committed, committer.rows) == ([(micro_batch(4), [])], [RowDigest(7, 2**63)])
    batch_writer.commit_transactions(OPTIONS, skipped(0, 0))
    assert len(committer.committed) == 1, "no row could be lost"


def test_changed_batch_fails_or_is_skipped_and_told(committer: Committer, caplog: pytest.LogCaptureFixture) -> None:
    committer.error = ChangedBatchError("3 rows, not 2")
    with pytest.raises(ChangedBatchError):
        batch_writer.commit_transactions(OPTIONS, skipped(3))
    assert not caplog.messages
    skips = replace(OPTIONS.transaction, skip_changed_batches=True)
    batch_writer.commit_transactions(replace(OPTIONS, transaction=skips), skipped(3))
    assert caplog.messages == ["3 rows, not 2; continuing because onChangedBatch is skip"]


def test_task_of_a_decided_batch_reports_unwritten_rows(committer: Committer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_kafka_meta.events.origin.task_origin", lambda role: None)
    columns = SinkColumns(key=None, value=0, headers=None, topic=None, partition=None, timestamp=None)
    rows = [pa.record_batch({"value": [b"1"] * number}) for number in (3, 4)]
    commit = batch_writer.write_task(OPTIONS, columns, iter(rows), committer.plan(STREAM), micro_batch(4))
    assert (commit.records, commit.transaction, commit.batch) == (0, None, micro_batch(4))
    assert commit.rows.rows == 7
    one_batch = iter([pa.record_batch({"value": [b"1"] * 7})])
    assert batch_writer.write_task(OPTIONS, columns, one_batch, committer.plan(STREAM), micro_batch(4)) == commit


@pytest.mark.parametrize(("others", "all_ended"), [([None], False), ([TaskCommit(0)], True)])
def test_driver_that_aborts_a_batch_is_told_the_transactions_that_spark_knows(
    others: list[TaskCommit | None], all_ended: bool, committer: Committer
) -> None:
    batch_writer.abort_batch(OPTIONS, [TaskCommit(3, TRANSACTION, micro_batch(4)), *others], "a batch")
    assert committer.aborted == [(2, [TRANSACTION], all_ended)]


@pytest.mark.parametrize("series", [STREAM, BATCH, "app app-7"])
def test_tasks_carry_the_last_decision_of_their_series_only(series: str, committer: Committer) -> None:
    """A sink has as many series as applications have written with its id."""
    plan = batch_writer.plan_transactions(OPTIONS, series)
    assert plan is not None
    assert plan.decisions == {name: decision for name, decision in committer.decided.items() if name == series}


def test_task_without_a_plan_writes_nothing_rather_than_at_least_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_kafka_meta.events.origin.task_origin", lambda role: None)
    columns = SinkColumns(key=None, value=0, headers=None, topic=None, partition=None, timestamp=None)
    with pytest.raises(KafkaMetaError, match="has no transaction"):
        batch_writer.write_task(OPTIONS, columns, iter(()))


TOPIC_AUTHORIZATION_FAILED = 29
VALUES = StructType().add("value", "string")
WRITES = pytest.mark.parametrize("write", ["writer", "streamWriter"])


@pytest.fixture
def client(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> KafkaClient:
    """In place of the clients of this process."""
    made = scene.client()

    @contextmanager
    def kept(*_: Any) -> Iterator[KafkaClient]:
        yield made

    monkeypatch.setattr(worker_clients, "client", kept)
    return made


def sink(topic: str) -> KafkaMetaDataSource:
    return KafkaMetaDataSource({"kafka.bootstrap.servers": "broker-1:9092", "topic": topic})


@WRITES
def test_missing_topic_fails_before_a_task_starts(scene: Scene, client: KafkaClient, write: str) -> None:
    with pytest.raises(UnknownTopicError, match=r"^topic tt does not exist .* \(there is t\)"):
        getattr(sink("tt"), write)(VALUES, False)


@WRITES
def test_topic_that_may_not_be_written_fails_too(scene: Scene, client: KafkaClient, write: str) -> None:
    scene.network.metadata_errors["t"] = TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(AuthorizationError, match=r"topic t cannot be written.*WRITE"):
        getattr(sink("t"), write)(VALUES, False)


@WRITES
def test_existing_topic_is_asked_for_once(scene: Scene, client: KafkaClient, write: str) -> None:
    for _ in range(3):
        getattr(sink("t"), write)(VALUES, False)
    assert scene.sent("Metadata") == [1]


def test_process_that_commits_asks_no_broker(scene: Scene, client: KafkaClient) -> None:
    source = sink("tt")
    source.__setstate__({})
    source.streamWriter(VALUES, False)
    assert scene.sent("Metadata") == []


def test_log_line_counts_the_records_of_all_tasks(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        log_commit([TaskCommit(3), None, TaskCommit(9), TaskCommit(0)], "micro-batch 4")
    assert caplog.messages == ["micro-batch 4: 3 tasks wrote 12 records"]


def test_records_of_a_failed_batch_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    log_abort([TaskCommit(15), None], "a batch")
    assert "its tasks had written 15 records" in caplog.text
