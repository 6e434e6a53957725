"""Exactly-once writes at the edges of a real cluster: topics that go or refuse copies, limits and transaction versions
that change under a query, epochs that run out."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from pyspark_kafka_meta.errors import BrokerError, UnknownTopicError
from pyspark_kafka_meta.kafka.client.producer_state import MAX_EPOCH
from pyspark_kafka_meta.model import OpenTransaction, ProducerIdAndEpoch, TransactionVersion
from pyspark_kafka_meta.testing import LocalKafka
from pyspark_kafka_meta.write.exactly_once import step_runner
from pyspark_kafka_meta.write.exactly_once.batch_committer import BatchCommitter
from pyspark_kafka_meta.write.exactly_once.commit_protocol import Step, WriteSettled
from pyspark_kafka_meta.write.exactly_once.step_runner import StepRunner
from pyspark_kafka_meta.write.task_writer import TaskWriter
from pyspark_kafka_meta.write.transactional_producer import TransactionalProducer
from tests.conftest import admin_client
from tests.kafka.cluster_tools import create_topic, finalize_transaction_version, no_broker_knows, poll_until
from tests.kafka.test_commit_steps import COLUMNS, ROW_AGE_S, Sink, decide_alone, micro_batch, rows, sink
from tests.kafka.transaction_states import restart, set_producers

__all__ = ["sink"]
pytestmark = [pytest.mark.kafka, pytest.mark.thorough]

V1, V2 = TransactionVersion.V1, TransactionVersion.V2
PROBE = "probe"
OLDEST = "message.timestamp.before.max.ms"


# --- topics -----------------------------------------------------------------------------------------------------------


def test_task_whose_topic_is_deleted_names_its_partition_soon(sink: Sink, kafka: Any) -> None:
    """Under V1 the coordinator refuses the partition, under V2 its leader."""
    plan, client, admin = sink.committer().plan(), sink.client(), admin_client(kafka)
    producer = TransactionalProducer(client, plan.task_id(0, 0), plan.timeout_ms, plan.version)
    options = sink.options(**{"kafka.buffer.memory": "1"}).producer
    deleted_at = 0.0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal deleted_at
        yield Sink._rows(0, 0).slice(0, 2)  # the second row is written with the next
        admin.delete_topics([sink.topic])[sink.topic].result(60)
        poll_until(lambda: no_broker_knows(sink.servers, sink.topic))
        deleted_at = time.monotonic()
        yield Sink._rows(0, 0).slice(2, 1)

    with pytest.raises(UnknownTopicError, match=f"{sink.topic}-1 does not exist any more"):
        TaskWriter(client, options, COLUMNS, sink.topic, producer).write(batches())
    assert time.monotonic() - deleted_at < 60, "the delivery timeout is two minutes"


def decided_and_aborted(sink: Sink, tasks: int = 1) -> list[OpenTransaction]:
    """The transactions of a micro-batch whose driver stopped once it had decided it."""
    committer = sink.committer()
    plan = committer.plan()
    written = [sink.write(plan, 0, task) for task in range(tasks)]
    decide_alone(committer, micro_batch(0), written)
    client = sink.client()
    client.coordinators.fence([each.transactional_id for each in written], plan.timeout_ms, client.api_deadline())
    return written


def test_copies_are_made_in_as_many_transactions_as_they_need(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    decided_and_aborted(sink, tasks=2)
    results, run = list[Any](), StepRunner.run

    def recorded(runner: StepRunner, step: Step) -> Any:
        result = run(runner, step)
        results.extend([result] if isinstance(step, WriteSettled) else [])
        return result

    monkeypatch.setattr(StepRunner, "run", recorded)
    monkeypatch.setattr(step_runner, "COPY_SHARE", 0)  # time for a record batch
    sink.committer().plan()

    assert [len(decision.transactions) for decision in results[:-1]] == [2, 2, 1, 1, 1]
    assert results[-1] is True
    assert sink.visible() == rows(0, tasks=2)


def test_copies_older_than_their_topic_allows_name_the_setting_and_follow_once_it_is_raised(
    sink: Sink, kafka: Any
) -> None:
    decided_and_aborted(sink)
    admin, producer = admin_client(kafka), Producer({"bootstrap.servers": sink.servers})

    def limit(age_ms: int) -> None:
        entry = ConfigEntry(OLDEST, str(age_ms), incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, sink.topic, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(60)

    def is_refused() -> bool:
        errors: list[Any] = []
        for partition in range(3):
            producer.produce(
                sink.topic, PROBE, partition=partition, timestamp=1, on_delivery=lambda *of: errors.append(of[0])
            )
        producer.flush(30)
        return all(errors)

    limit(ROW_AGE_S * 500)  # brokers refuse markers that are older too, and then the transaction never ends
    poll_until(is_refused)
    with pytest.raises(BrokerError) as raised:
        sink.committer().plan()
    assert f"older by now than topic {sink.topic} allows: raise its {OLDEST}" in str(raised.value)
    limit(10**15)

    def is_recovered() -> bool:
        with suppress(BrokerError):
            sink.committer().plan()
            return True
        return False

    poll_until(is_recovered)
    assert [value for value in sink.visible() if value != PROBE] == rows(0)


# --- a cluster that changes under a query -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lone_kafka() -> Iterator[LocalKafka]:
    """A broker that tests restart, and whose features they change."""
    with LocalKafka(1, config={"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}) as cluster:
        yield cluster


@pytest.fixture
def open_sink(lone_kafka: LocalKafka) -> Iterator[Callable[..., Sink]]:
    with ExitStack() as stack:

        def opened(purpose: str, version: TransactionVersion | None = None) -> Sink:
            topic = f"{purpose}-{uuid.uuid4().hex}"
            create_topic(lone_kafka, topic, [lone_kafka.broker_ids] * 3)
            return Sink(lone_kafka.bootstrap_servers, topic, version, stack)

        yield opened


def finalize(cluster: LocalKafka, sink: Sink, version: TransactionVersion) -> None:
    finalize_transaction_version(cluster, version)
    coordinators, clock = sink.client().coordinators, time.monotonic
    poll_until(lambda: coordinators.transaction_version(clock() + 30) is version)


def test_transaction_version_goes_down_and_up_under_a_running_query(
    lone_kafka: LocalKafka, open_sink: Callable[..., Sink]
) -> None:
    """Between the tasks and the commit of a batch, and between its decision and its recovery, also with copies."""
    sink = open_sink("versions")
    planner, committer = sink.committer(), sink.committer()
    batch = 0
    for version in (V1, V2, V1, V2):
        written = sink.write(planner.plan(), batch)
        finalize(lone_kafka, sink, version)
        committer.commit(micro_batch(batch), [written], 0)
        assert sink.visible() == rows(*range(batch + 1))

        plan = planner.plan()
        assert plan.version is version
        for is_aborted in (False, True):
            batch += 1
            written = sink.write(planner.plan(), batch)
            decide_alone(committer, micro_batch(batch), [written])
            if is_aborted:
                client = sink.client()
                client.coordinators.fence([written.transactional_id], plan.timeout_ms, client.api_deadline())
            finalize(lone_kafka, sink, V1 if version is V2 else V2)
            planner.plan()
            assert sink.visible() == rows(*range(batch + 1))
            finalize(lone_kafka, sink, version)
        batch += 1
    assert sink.open_transactions() == []


def test_limit_of_the_timeout_is_lowered_under_a_running_query(
    lone_kafka: LocalKafka, open_sink: Callable[..., Sink]
) -> None:
    sink = open_sink("limits")
    planner, committer = sink.committer(), sink.committer()
    committer.commit(micro_batch(0), [sink.write(planner.plan(), 0)], 0)
    written = sink.write(planner.plan(), 1)
    restart(lone_kafka, transaction_max_timeout_ms="300000")
    committer.commit(micro_batch(1), [written], 0)
    plan = planner.plan()

    assert plan.timeout_ms == 300_000
    committer.commit(micro_batch(2), [sink.write(plan, 2)], 0)
    assert sink.visible() == rows(0, 1, 2)


# --- epochs that run out ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [V1, V2])
def test_batches_go_on_when_the_epochs_of_producer_ids_run_out(
    version: TransactionVersion, lone_kafka: LocalKafka, open_sink: Callable[..., Sink]
) -> None:
    """The sink's own id, and those of its tasks, start at different epochs before the last. In each batch an attempt is
    lost, with its transaction open, and in each other batch a decided transaction times out."""
    sink = open_sink(f"epochs-{version}", version)
    ids = [sink.topic, *(f"{sink.topic}/{task}/{attempt}" for task in range(6) for attempt in range(2))]
    client = sink.client()
    found = client.coordinators.fence(ids, 60_000, client.api_deadline())
    last = {each: ProducerIdAndEpoch(found[each].producer_id, MAX_EPOCH - 12 + at % 12) for at, each in enumerate(ids)}
    set_producers(lone_kafka, last)

    for batch in range(8):
        committer = sink.committer()
        plan = committer.plan()
        for task in range(6):
            sink.write(plan, batch, task, attempt=0)
        written = [sink.write(plan, batch, task, attempt=1) for task in range(6)]
        if batch % 2:
            decide_alone(committer, micro_batch(batch), written)
            abort_all(sink, committer, written)
        else:
            committer.commit(micro_batch(batch), written, 0)
    sink.committer().plan()

    assert sink.visible() == rows(*range(8), tasks=6)
    assert sink.open_transactions() == []
    rotated = sink.client().coordinators.fence(ids, 60_000, time.monotonic() + 30)
    assert all(rotated[each].producer_id != last[each].producer_id for each in ids)


def abort_all(sink: Sink, committer: BatchCommitter, written: list[OpenTransaction]) -> None:
    client = sink.client()
    client.coordinators.fence([each.transactional_id for each in written], 60_000, client.api_deadline())
