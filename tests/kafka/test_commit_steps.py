"""The commit of exactly-once writes on a real cluster: drivers and tasks without Spark, which stop at any step."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from pyspark_kafka_meta.errors import ConnectError, KafkaMetaError
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.model import OpenTransaction, TransactionVersion
from pyspark_kafka_meta.options import SinkOptions
from pyspark_kafka_meta.testing import LocalKafka
from pyspark_kafka_meta.write.exactly_once.batch_committer import BatchCommitter
from pyspark_kafka_meta.write.exactly_once.commit_protocol import WriteDecision, commit
from pyspark_kafka_meta.write.exactly_once.decision import STREAM, BatchId, TransactionPlan, is_written
from pyspark_kafka_meta.write.input_columns import SinkColumns
from pyspark_kafka_meta.write.partition_queue import TaskOutput
from pyspark_kafka_meta.write.task_writer import TaskWriter
from pyspark_kafka_meta.write.transactional_producer import TransactionalProducer
from tests.consumer import consume, consume_committed
from tests.kafka.cluster_tools import create_topic, in_sync, poll_until
from tests.marks import thorough_after
from tests.unit.scene import RecordingPublisher

pytestmark = [pytest.mark.kafka]

COLUMNS = SinkColumns(key=None, value=0, headers=None, topic=None, partition=1, timestamp=2)
PARTITIONS = 3
ROW_AGE_S = 3600
REFUSED = r"(CONCURRENT_TRANSACTIONS|.* did not answer a request of a transaction in time)"
"""By a coordinator whose marker is not written yet, and which may be late itself."""


class Sink:
    """One sink: a new client for each driver and task, as in new processes."""

    def __init__(self, servers: str, topic: str, version: TransactionVersion | None, stack: ExitStack) -> None:
        """
        Args:
            version: None for what the cluster has finalized.
        """
        self.servers, self.topic = servers, topic
        self._version, self._stack = version, stack
        self.events: list[Any] = []  # Event, with the details of its kind

    def options(self, **options: str) -> SinkOptions:
        given = {"kafka.bootstrap.servers": self.servers, "topic": self.topic, "kafka.transactional.id": self.topic}
        return SinkOptions.parse({**given, **options})

    def client(self, **options: str) -> KafkaClient:
        client = KafkaClient(self.options(**options).client, RecordingPublisher(self.events))
        self._stack.callback(client.close)
        return client

    def committer(self, **options: str) -> BatchCommitter:
        client = self.client(**options)
        if self._version is TransactionVersion.V1:
            client.coordinators.transaction_version = lambda deadline: TransactionVersion.V1  # type: ignore[method-assign]
        return BatchCommitter(client, self.options(**options))

    def write(self, plan: TransactionPlan, batch: int, task: int = 0, attempt: int = 0) -> OpenTransaction:
        """An attempt of a task, which writes a row to each partition."""
        writer, producer = self._writer(plan, task, attempt)
        return _opened(producer, writer.write([self._rows(batch, task)]))

    def _writer(self, plan: TransactionPlan, task: int, attempt: int = 0) -> tuple[TaskWriter, TransactionalProducer]:
        client = self.client()
        producer = TransactionalProducer(client, plan.task_id(task, attempt), plan.timeout_ms, plan.version)
        return TaskWriter(client, self.options().producer, COLUMNS, self.topic, transaction=producer), producer

    @staticmethod
    def _rows(batch: int, task: int) -> pa.RecordBatch:
        values = [f"{batch}-{task}-{partition}".encode() for partition in range(PARTITIONS)]
        times = [int((time.time() - ROW_AGE_S) * 1_000_000)] * PARTITIONS
        return pa.record_batch(
            [
                pa.array(values, pa.binary()),
                pa.array(range(PARTITIONS), pa.int32()),
                pa.array(times, pa.timestamp("us")),
            ],
            names=["value", "partition", "timestamp"],
        )

    def write_in_turns(self, plan: TransactionPlan, tasks: int) -> list[OpenTransaction]:
        """Two writes of each task, in turns, each with a row to each partition."""
        writers = [self._writer(plan, task) for task in range(tasks)]
        for _ in range(2):
            written = [writer.write([self._rows(0, task)]) for task, (writer, _) in enumerate(writers)]
        return [_opened(producer, each) for (_, producer), each in zip(writers, written, strict=True)]

    def visible(self) -> list[str]:
        """What a read_committed reader sees, once no transaction holds it back."""
        return sorted((message.value() or b"").decode() for message in consume_committed(self.servers, self.topic))

    def visible_now(self) -> list[str]:
        """As `visible`, beside open transactions."""
        found = consume(self.servers, self.topic, "read_committed")
        return sorted((message.value() or b"").decode() for message in found)

    def open_transactions(self) -> list[str]:
        client = self.client()
        listed = client.coordinators.list_transactions(client.api_deadline())
        return [each for each in listed if each.startswith(f"{self.topic}/")]


def _opened(producer: TransactionalProducer, written: TaskOutput) -> OpenTransaction:
    opened = producer.opened(written)
    assert opened is not None
    return opened


@pytest.fixture(params=thorough_after(1, reversed(TransactionVersion)))
def sink(request: pytest.FixtureRequest, kafka: Any, make_topic: Callable[..., str]) -> Iterator[Sink]:
    with ExitStack() as stack:
        yield Sink(kafka.bootstrap_servers, make_topic(partitions=PARTITIONS), request.param, stack)


def micro_batch(number: int, query: str = "query") -> BatchId:
    return BatchId(STREAM, query, number)


def rows(*batches: int, tasks: int = 1) -> list[str]:
    return sorted(f"{batch}-{task}-{partition}" for batch in batches for task in range(tasks) for partition in range(3))


def decide_alone(committer: BatchCommitter, batch: BatchId, transactions: list[OpenTransaction]) -> Callable[[], None]:
    """A commit whose driver stops once its decision is written. What is returned lets it go on."""
    protocol, runner = commit(batch, transactions, 0), committer.step_runner()
    result: Any = None
    while True:
        step = protocol.send(result)
        result = runner.run(step)
        if isinstance(step, WriteDecision):
            assert result is True
            break

    def go_on() -> None:
        with suppress(StopIteration):
            step = protocol.send(True)
            while True:
                step = protocol.send(runner.run(step))

    return go_on


def test_rows_are_visible_after_the_commit_alone(sink: Sink) -> None:
    committer = sink.committer()
    plan = committer.plan()
    first, second = sink.write(plan, 0), sink.write(plan, 0, task=1)
    assert sink.visible_now() == []
    committer.commit(micro_batch(0), [first, second], 0)
    assert sink.visible() == rows(0, tasks=2)
    assert sink.open_transactions() == []


def test_batches_follow_each_other_under_the_same_ids(sink: Sink) -> None:
    for batch in range(3):
        planner, committer = sink.committer(), sink.committer()
        committer.commit(micro_batch(batch), [sink.write(planner.plan(), batch)], 0)
    assert sink.visible() == rows(0, 1, 2)


def test_a_driver_that_dies_before_its_decision_leaves_nothing(sink: Sink) -> None:
    sink.write(sink.committer().plan(), 0)
    plan = sink.committer().plan()
    assert not is_written(plan.decisions, micro_batch(0))
    assert sink.visible() == []
    assert sink.open_transactions() == []


def test_what_a_dead_driver_has_decided_becomes_visible_once(sink: Sink) -> None:
    committer = sink.committer()
    decide_alone(committer, micro_batch(0), [sink.write(committer.plan(), 0)])
    assert sink.visible_now() == []
    plan = sink.committer().plan()
    assert is_written(plan.decisions, micro_batch(0))
    assert sink.visible() == rows(0)
    sink.committer().commit(micro_batch(0), [sink.write(plan, 0)], 0)  # of a task that was planned before
    assert sink.visible() == rows(0)
    assert sink.open_transactions() == []


@pytest.mark.thorough
def test_a_decision_larger_than_a_message_of_its_topic_is_recovered(sink: Sink, make_topic: Callable[..., str]) -> None:
    decisions = {"decisionsTopic": make_topic(config={"cleanup.policy": "compact"})}
    committer = sink.committer(**decisions)
    written = sink.write(committer.plan(), 0)
    many = written._replace(written=written.written * 20_000)  # 3 MB
    decide_alone(committer, micro_batch(0), [many])
    assert sink.visible_now() == []
    plan = sink.committer(**decisions).plan()
    assert is_written(plan.decisions, micro_batch(0))
    assert sink.visible() == rows(0)
    assert sink.committer(**decisions).plan().decisions[STREAM].is_settled


def test_a_lost_attempt_is_aborted(sink: Sink) -> None:
    committer = sink.committer()
    plan = committer.plan()
    sink.write(plan, 0, attempt=0)
    committer.commit(micro_batch(0), [sink.write(plan, 0, attempt=1)], 0)
    assert sink.open_transactions() == []
    assert sink.visible() == rows(0)


def test_decided_records_whose_transaction_was_aborted_are_copied(sink: Sink) -> None:
    """As after transaction.timeout.ms: here, an attempt of another run uses the id again."""
    committer = sink.committer()
    plan = committer.plan()
    first, second = sink.write(plan, 0), sink.write(plan, 0, task=1)
    decide_alone(committer, micro_batch(0), [first, second])
    client = sink.client()
    client.coordinators.fence([first.transactional_id], plan.timeout_ms, client.api_deadline())
    sink.committer().plan()
    assert sink.visible() == rows(0, tasks=2)
    sink.committer().plan()
    assert sink.visible() == rows(0, tasks=2)


@pytest.mark.thorough
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("version", "error"),
    [
        (TransactionVersion.V1, r"not known yet whether the transaction .* Nothing is lost: start the query again"),
        (TransactionVersion.V2, rf"not done in time .*: {REFUSED}"),
    ],
)
def test_refused_marker_is_no_loss(version: TransactionVersion, error: str, breakable_kafka: LocalKafka) -> None:
    """As long as too few of their replicas are in sync. An attempt of another run has used the id again: under V1, the
    coordinator calls the first attempt fenced at once."""
    topic, (leader, follower, _) = f"refusing-{uuid.uuid4().hex}", breakable_kafka.broker_ids
    create_topic(breakable_kafka, topic, [[leader, follower]] * PARTITIONS, {"min.insync.replicas": "2"})
    with ExitStack() as stack:
        sink = Sink(breakable_kafka.bootstrap_servers, topic, version, stack)
        committer, client = sink.committer(), sink.client()
        plan = committer.plan()
        written = sink.write(plan, 0)
        decide_alone(committer, micro_batch(0), [written])

        def state() -> str:
            (described,) = client.coordinators.describe_transactions([written.transactional_id], client.api_deadline())
            return described.state

        breakable_kafka.kill(follower)
        poll_until(lambda: in_sync(breakable_kafka, topic, 1))
        with pytest.raises(ConnectError, match=rf"not done in time .*: {REFUSED}"):
            client.coordinators.fence([written.transactional_id], plan.timeout_ms, client.clock() + 10)
        assert state() == "PrepareAbort"
        impatient = {"kafka.default.api.timeout.ms": "15000", "kafka.request.timeout.ms": "15000"}
        with pytest.raises(ConnectError, match=error):
            sink.committer(**impatient).plan()
        breakable_kafka.start(follower)
        poll_until(lambda: state() == "CompleteAbort")
        sink.committer().plan()
        assert sink.visible() == rows(0)


def test_decisions_topic_with_several_partitions_is_refused(sink: Sink, make_topic: Callable[..., str]) -> None:
    """Decisions would be read from one of them alone."""
    with pytest.raises(KafkaMetaError, match="has 2 partitions, and decisions need one"):
        sink.committer(decisionsTopic=make_topic(partitions=2)).plan()
    with pytest.raises(KafkaMetaError, match=r"cleanup\.policy=delete, which loses decisions"):
        sink.committer(decisionsTopic=make_topic(partitions=1)).plan()
    small = {"cleanup.policy": "compact", "max.message.bytes": "100000"}
    with pytest.raises(KafkaMetaError, match=r"max\.message\.bytes=100000, which refuses large decisions"):
        sink.committer(decisionsTopic=make_topic(partitions=1, config=small)).plan()


def test_transactions_have_the_longest_timeout_allowed(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_kafka_meta.write.exactly_once.batch_committer.DEFAULT_MAX_TIMEOUT_MS", 1)
    default = sink.committer()
    assert (default.plan().timeout_ms, default.step_runner().timeout_ms) == (900_000, 900_000)
    short = sink.committer(**{"kafka.transaction.timeout.ms": "20000"})
    assert (short.plan().timeout_ms, short.step_runner().timeout_ms) == (20_000, 900_000)


def test_foreign_records_among_the_decisions_do_not_matter_but_a_lost_decision_does(sink: Sink, kafka: Any) -> None:
    decisions = {"decisionsTopic": f"{sink.topic}-decisions"}
    committer = sink.committer(**decisions)
    committer.commit(micro_batch(0), [sink.write(committer.plan(), 0)], 0)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": f"{sink.topic}-foreign"})
    producer.init_transactions(30)

    def write(key: str) -> None:
        producer.begin_transaction()
        producer.produce(decisions["decisionsTopic"], key=key)
        producer.commit_transaction(30)

    write("a key")
    assert is_written(sink.committer(**decisions).plan().decisions, micro_batch(0))
    write(json.dumps([sink.topic, STREAM]))
    unreadable = rf"the last decision of {sink.topic}, before offset \d+ of .* cannot be read"
    with pytest.raises(KafkaMetaError, match=unreadable):
        sink.committer(**decisions).plan()


def test_an_old_driver_that_goes_on_writes_no_decision(sink: Sink) -> None:
    old = sink.committer()
    protocol, runner = commit(micro_batch(0), [sink.write(old.plan(), 0)], 0), old.step_runner()
    step = next(protocol)
    while not isinstance(step, WriteDecision):
        step = protocol.send(runner.run(step))
    new = sink.committer()
    new.commit(micro_batch(0), [sink.write(new.plan(), 0)], 0)
    assert runner.run(step) is False
    assert sink.visible() == rows(0)


def test_copies_leave_out_what_others_have_written_between_the_records(sink: Sink) -> None:
    """A decision names one span of offsets for each partition."""
    committer = sink.committer()
    plan = committer.plan()
    written = sink.write_in_turns(plan, tasks=2)
    decide_alone(committer, micro_batch(0), [written[0]])
    client = sink.client()
    client.coordinators.fence([each.transactional_id for each in written], plan.timeout_ms, client.api_deadline())
    sink.committer().plan()
    assert sink.visible() == sorted(rows(0) * 2)


@pytest.mark.thorough
def test_a_slow_commit_is_no_reason_to_write_again(sink: Sink) -> None:
    """The brokers have aborted the batch by the time of its decision: its records are copied."""
    committer = sink.committer(**{"kafka.transaction.timeout.ms": "6000"})
    written = sink.write(committer.plan(), 0)
    poll_until(lambda: not sink.open_transactions())
    committer.commit(micro_batch(0), [written], int(time.time() * 1000))
    assert sink.visible() == rows(0)
