"""Errors on exactly once: a user who does what the text says loses no row, and repeats none without being told so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

from pyspark_kafka_meta.errors import (
    BrokerError,
    ChangedBatchError,
    DataLossError,
    FencedError,
    KafkaMetaError,
    RecordTooLargeError,
    TransactionTimeoutError,
    UnknownTopicError,
)
from pyspark_kafka_meta.kafka.client.cluster_admin import ClusterAdmin
from pyspark_kafka_meta.model import OpenTransaction, RowDigest, TransactionVersion
from pyspark_kafka_meta.options import SinkOptions
from pyspark_kafka_meta.write import task_writer
from pyspark_kafka_meta.write.exactly_once.batch_committer import BatchCommitter
from pyspark_kafka_meta.write.exactly_once.commit_protocol import Step, WriteDecision, commit, require_owner
from pyspark_kafka_meta.write.exactly_once.decision import MESSAGE_BYTES, STREAM, BatchId, TransactionPlan, is_written
from pyspark_kafka_meta.write.exactly_once.decisions_topic import MAX_MESSAGE_BYTES
from pyspark_kafka_meta.write.transactional_producer import TransactionalProducer
from tests.partitions import T0, T1, T2
from tests.unit.histories.commit_checks import visible
from tests.unit.write.exactly_once.commit_scene import CommitScene
from tests.unit.write.writer_scene import numbered, rows

ID, OTHER_ID = "orders", "orders-2"
OTHER_TOPIC = "other-decisions"
ROWS = 6
"""Of a batch."""
WRITTEN_AGAIN = "a batch that was under way is written again, also its rows that are visible"


class Query:
    """A streaming query and its checkpoint.

    Attributes:
        options: which the user may change between two starts.
        committed: batches in Spark's commit log. Batch n has `ROWS` rows, numbered from `first_row` + 100 n.
        rows_of_task: how many each task writes.
        seconds_of_row: how long a task waits for each of its rows.
    """

    def __init__(self, scene: CommitScene, name: str = "query", first_row: int = 0) -> None:
        self.options = {"kafka.transactional.id": ID}
        self.committed = 0
        self.rows_of_task, self.seconds_of_row = ROWS // 2, 0.0
        self.name, self.first_row = name, first_row
        self._scene = scene

    def start(self, batches: int = 1) -> None:
        """Write the next batches."""
        for _ in range(batches):
            self._write(lambda committer, *arguments: committer.commit(*arguments))
            self.committed += 1

    def stop_when_decided(self) -> None:
        """The driver dies as soon as the next batch is decided."""

        def commit_until_decided(committer: BatchCommitter, *arguments: object) -> None:
            runner, protocol, result = committer.step_runner(), commit(*arguments), None  # type: ignore[arg-type]
            step: Step | None = None
            while not isinstance(step, WriteDecision):
                step = protocol.send(result)
                result = runner.run(step)
            assert result is True

        self._write(commit_until_decided)

    def _write(self, commit: Callable[..., None]) -> None:
        batch = BatchId(STREAM, self.name, self.committed)
        committer = self.committer()
        plan = committer.plan()
        if not is_written(plan.decisions, batch):
            require_owner(plan.decisions, batch)
            commit(committer, batch, [self._task(plan, task) for task in range(ROWS // self.rows_of_task)], 1)

    def _task(self, plan: TransactionPlan, task: int) -> OpenTransaction:
        scene = self._scene
        producer = TransactionalProducer(scene.client(), plan.task_id(task, 0), plan.timeout_ms, plan.version)
        first = self.first_row + 100 * self.committed + self.rows_of_task * task
        opened = producer.opened(scene.write_from(self._batches(first), ["value", "partition"], producer))
        assert opened is not None
        return opened

    def _batches(self, first: int) -> Iterator[pa.RecordBatch]:
        for row in range(first, first + self.rows_of_task):
            yield numbered(1, start=row)
            self._scene.clock.sleep(self.seconds_of_row)

    def committer(self) -> BatchCommitter:
        """Of a new process."""
        return BatchCommitter(self._scene.client(), self.sink_options())

    def sink_options(self) -> SinkOptions:
        return self._scene.sink_options(**self.options)

    def rows(self, *batches: int) -> Counter[int]:
        return Counter(self.first_row + 100 * batch + row for batch in batches for row in range(ROWS))


class ForeachBatch(Query):
    """A query in whose foreachBatch each batch is a version of a txnAppId."""

    def _write(self, commit: Callable[..., None]) -> None:
        batch, committer = BatchId.of_app(self.name, self.committed), self.committer()
        plan = committer.plan(batch.series)
        tasks = [] if is_written(plan.decisions, batch) else range(ROWS // self.rows_of_task)
        commit(committer, batch, [self._task(plan, task) for task in tasks], 1, RowDigest(ROWS, self.first_row))


@pytest.fixture
def query(scene: CommitScene) -> Query:
    return Query(scene)


@pytest.fixture
def other(scene: CommitScene) -> Query:
    """Another query, with the same id."""
    return Query(scene, "other", first_row=50)


def found(scene: CommitScene) -> Counter[int]:
    """How often read_committed readers see each row."""
    return Counter(row for partition in (T0, T1, T2) for row in visible(scene.cluster, partition))


def assert_fails(query: Query, error: type[KafkaMetaError], *texts: str) -> None:
    with pytest.raises(error) as raised:
        query.start()
    for text in texts:
        assert text in str(raised.value)


# --- two queries ------------------------------------------------------------------------------------------------------


def test_fenced_query_leaves_the_other_exact_once_it_is_stopped_and_goes_on_under_an_id_of_its_own(
    scene: CommitScene, query: Query, other: Query
) -> None:
    query.start(2)
    other.start(2)
    assert_fails(query, FencedError, "stop this query", "give it an id of its own")

    other.start(2)
    assert found(scene) == query.rows(0, 1) + other.rows(0, 1, 2, 3)
    query.options["kafka.transactional.id"] = OTHER_ID
    query.start(2)
    other.start()
    assert found(scene) == query.rows(0, 1, 2, 3) + other.rows(0, 1, 2, 3, 4)


def test_fenced_decided_batch_is_repeated_under_another_id(scene: CommitScene, query: Query, other: Query) -> None:
    """The decision of the other query has replaced that of this batch."""
    query.start(2)
    query.stop_when_decided()
    other.start()
    assert_fails(query, FencedError, "if its rows are visible already, it repeats them")

    query.options["kafka.transactional.id"] = OTHER_ID
    query.start(2)
    assert found(scene) == query.rows(0, 1, 2, 2, 3) + other.rows(0)


def test_drivers_that_took_over_ten_times_leave_a_batch_that_is_written_once(
    scene: CommitScene, query: Query, other: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    query.start()
    with monkeypatch.context() as patched:
        patched.setattr(TransactionalProducer, "commit", lambda *_: (_ for _ in ()).throw(FencedError("other")))
        assert_fails(query, FencedError, "stop the other query", "Then start this query again: it goes on from there")

    query.start(2)
    assert found(scene) == query.rows(0, 1, 2)


def test_timeout_of_the_drivers_own_transactions_is_that_of_the_brokers(scene: CommitScene, query: Query) -> None:
    """Why no text says that `kafka.transaction.timeout.ms` gives them more time."""
    query.options["kafka.transaction.timeout.ms"] = "60000"
    query.start()
    transactions = scene.cluster.coordinators.transactions
    assert (transactions[ID].timeout_ms, transactions[f"{ID}/0/0"].timeout_ms) == (900_000, 60_000)


# --- checkpoints ------------------------------------------------------------------------------------------------------


def test_newest_checkpoint_goes_on_where_the_older_one_was_refused(scene: CommitScene, query: Query) -> None:
    query.start(3)
    query.committed = 1
    assert_fails(query, FencedError, "Start with the newest checkpoint")

    query.committed = 3
    query.start()
    assert found(scene) == query.rows(0, 1, 2, 3)


def test_new_checkpoint_with_a_new_id_writes_what_it_reads_again(scene: CommitScene, query: Query) -> None:
    query.start(3)
    query.committed = 1
    assert_fails(query, FencedError, "new kafka.transactional.id, which writes all rows that it reads again")

    query.committed, query.name = 0, "query of the new checkpoint"
    query.options["kafka.transactional.id"] = OTHER_ID
    query.start(4)
    assert found(scene) == query.rows(0, 0, 1, 1, 2, 2, 3)


@pytest.mark.parametrize("version", [0, 2, 3])
def test_foreach_batch_goes_on_with_the_newest_checkpoint_after_a_refusal(version: int, scene: CommitScene) -> None:
    query = ForeachBatch(scene)
    query.start(4)
    query.committed, query.first_row = version, 50  # planned anew
    assert_fails(query, ChangedBatchError, "Start with the newest checkpoint")

    query.committed, query.first_row = 4, 0
    query.start()
    assert found(scene) == query.rows(0, 1, 2, 3, 4)


def test_foreach_batch_with_a_new_id_writes_the_batches_of_the_older_checkpoint(scene: CommitScene) -> None:
    query = ForeachBatch(scene)
    query.start(4)
    visible_before = query.rows(0, 1, 2, 3)
    query.committed, query.first_row = 2, 50
    advice = "use a new kafka.transactional.id, and the batch is written, also its rows that are visible"
    assert_fails(query, ChangedBatchError, advice)

    query.options["kafka.transactional.id"] = OTHER_ID
    query.start(2)
    assert found(scene) == visible_before + query.rows(2, 3)


# --- the decisions topic ----------------------------------------------------------------------------------------------


def test_decision_that_was_refused_is_written_after_the_limit_is_raised(scene: CommitScene, query: Query) -> None:
    query.start()
    scene.cluster.max_message_bytes["kafkameta-decisions"] = 100
    assert_fails(query, RecordTooLargeError, f"raise max.message.bytes of the topic to {MAX_MESSAGE_BYTES}")

    scene.cluster.max_message_bytes["kafkameta-decisions"] = MAX_MESSAGE_BYTES
    query.start(2)
    assert found(scene) == query.rows(0, 1, 2)


CHANGES = {
    "cleanup.policy": ("delete", "compact"),
    "unclean.leader.election.enable": ("true", "false"),
    "max.message.bytes": ("900000", str(MESSAGE_BYTES)),
}
"""Configurations of the decisions topic that lose or refuse decisions, and what the text says."""


@pytest.mark.parametrize("name", CHANGES)
def test_batch_is_written_once_after_its_decisions_topic_is_mended(name: str, scene: CommitScene, query: Query) -> None:
    query.start()
    query.stop_when_decided()
    wrong, right = CHANGES[name]
    scene.network.configs["kafkameta-decisions"] = {name: wrong}
    assert_fails(query, KafkaMetaError, f"to {right}")

    scene.network.configs["kafkameta-decisions"] = {name: right}
    query.start(2)
    assert found(scene) == query.rows(0, 1, 2)


def configure_badly(scene: CommitScene) -> None:
    scene.network.configs["kafkameta-decisions"] = {"cleanup.policy": "delete"}


def refuse_large_decisions(scene: CommitScene) -> None:
    scene.network.configs["kafkameta-decisions"] = {"max.message.bytes": "900000"}


def add_partition(scene: CommitScene) -> None:
    topic = scene.cluster.topics["kafkameta-decisions"]
    second = replace(topic.partitions[0], partition=1)
    scene.cluster.topics[topic.name] = replace(topic, partitions=(*topic.partitions, second))


@pytest.mark.parametrize("spoil", [configure_badly, refuse_large_decisions, add_partition])
def test_another_decisions_topic_repeats_the_last_batch_at_most_as_the_text_says(
    spoil: Callable[[CommitScene], None], scene: CommitScene, query: Query
) -> None:
    query.start()
    query.start()
    query.committed = 1  # the driver died before Spark's commit log had batch 1
    spoil(scene)
    assert_fails(query, KafkaMetaError, "set decisionsTopic to another topic", WRITTEN_AGAIN)

    query.options["decisionsTopic"] = OTHER_TOPIC
    query.start(2)
    assert found(scene) == query.rows(0, 1, 1, 2)


def test_new_sink_is_exact_with_another_decisions_topic(scene: CommitScene, query: Query) -> None:
    add_partition(scene)
    assert_fails(query, KafkaMetaError)

    query.options["decisionsTopic"] = OTHER_TOPIC
    query.start(2)
    assert found(scene) == query.rows(0, 1)


def test_query_that_no_broker_knew_the_new_topic_of_starts_again(
    scene: CommitScene, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    query.options["decisionsTopic"] = OTHER_TOPIC
    with monkeypatch.context() as patched:
        patched.setattr(ClusterAdmin, "create_topic", lambda *_: None)
        assert_fails(query, UnknownTopicError, "start the query again")

    query.start(2)
    assert found(scene) == query.rows(0, 1)


def test_unreadable_decision_costs_a_repetition_of_the_last_batch_at_most(scene: CommitScene, query: Query) -> None:
    query.start(2)
    query.committed = 1
    foreign = scene.transaction("foreign", TransactionVersion.V2, 60_000)
    record = rows(key=[f'["{ID}", "{STREAM}"]'.encode()], value=[b"?"], partition=[0])
    scene.write_in(foreign, record, topic="kafkameta-decisions")
    foreign.commit(scene.clock() + 60)
    assert_fails(query, KafkaMetaError, "use a new kafka.transactional.id", WRITTEN_AGAIN)

    query.options["kafka.transactional.id"] = OTHER_ID
    query.start(2)
    assert found(scene) == query.rows(0, 1, 1, 2)


# --- timeouts ---------------------------------------------------------------------------------------------------------


def test_timeout_above_the_limit_of_the_brokers_costs_no_row(scene: CommitScene, query: Query) -> None:
    query.start()
    query.options["kafka.transaction.timeout.ms"] = "1000000"
    assert_fails(query, BrokerError, "set kafka.transaction.timeout.ms to at most transaction.max.timeout.ms")

    query.options["kafka.transaction.timeout.ms"] = "900000"
    query.start(2)
    assert found(scene) == query.rows(0, 1, 2)


@pytest.mark.parametrize(("timeout_ms", "rows_of_task"), [("60000", 3), ("20000", 1)])
def test_batch_that_took_too_long_is_written_once_with_a_longer_timeout_or_smaller_tasks(
    timeout_ms: str, rows_of_task: int, scene: CommitScene, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task takes 10 s for a row."""
    monkeypatch.setattr(task_writer, "CHUNK_BYTES", 1)
    query.options["kafka.transaction.timeout.ms"] = "20000"
    query.seconds_of_row = 10.0
    advice = "more tasks), or raise kafka.transaction.timeout.ms"
    assert_fails(query, TransactionTimeoutError, advice, "a micro-batch that was planned keeps its rows")

    query.options["kafka.transaction.timeout.ms"], query.rows_of_task = timeout_ms, rows_of_task
    query.start()
    assert found(scene) == query.rows(0)


# --- lost records -----------------------------------------------------------------------------------------------------


def test_batch_whose_records_are_gone_is_repeated_under_a_new_id(scene: CommitScene, query: Query) -> None:
    """The first task's records are visible, those of the second were aborted and are gone."""
    query.start()
    query.stop_when_decided()
    aborted = scene.cluster.coordinators.transactions[f"{ID}/1/0"].producer
    scene.cluster.coordinators.time_out(f"{ID}/1/0")
    for partition in (T0, T1, T2):
        batches = zip(scene.cluster.logs[partition], scene.batch_headers(partition), strict=True)
        scene.cluster.logs[partition] = [
            batch for batch, header in batches if (header.producer_id, header.producer_epoch) != aborted
        ]
    advice = "With a new kafka.transactional.id it is written again, also the part that is visible"
    assert_fails(query, DataLossError, "records of a decided batch are gone", advice)

    query.options["kafka.transactional.id"] = OTHER_ID
    query.start(2)
    visible_before = Counter(row for row in query.rows(1) if row % 100 < ROWS // 2)
    assert found(scene) == query.rows(0, 1, 2) + visible_before
