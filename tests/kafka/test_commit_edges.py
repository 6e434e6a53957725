"""Exactly-once writes at the edges of a real cluster: transaction versions that change under a query, and epochs that
run out."""

from __future__ import annotations

import struct
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack

import pytest
from confluent_kafka import Message, Producer

from pyspark_kafka_meta.kafka.client.producer_state import MAX_EPOCH
from pyspark_kafka_meta.model import OpenTransaction, ProducerIdAndEpoch, TransactionVersion
from pyspark_kafka_meta.testing import LocalKafka
from pyspark_kafka_meta.write.exactly_once.batch_committer import BatchCommitter
from tests.kafka.cluster_tools import create_topic, finalize_transaction_version, poll_until
from tests.kafka.test_commit_steps import Sink, decide_alone, micro_batch, rows

pytestmark = [pytest.mark.kafka, pytest.mark.thorough]

V1, V2 = TransactionVersion.V1, TransactionVersion.V2


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


def test_transaction_version_changes_under_a_query(lone_kafka: LocalKafka, open_sink: Callable[..., Sink]) -> None:
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


LOG = "__transaction_state"
INTERNAL_CLIENT = "__admin_client"
"""Brokers let clients with this id write to internal topics (Kafka `AdminUtils.ADMIN_CLIENT_ID`)."""
PARTITIONS = 3
TIMEOUT_MS = 60_000
EMPTY = 0


def set_producers(cluster: LocalKafka, producers: Mapping[str, ProducerIdAndEpoch]) -> None:
    """Give transactional ids these producers, without a transaction, and restart the only broker, which loads them."""
    writer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "client.id": INTERNAL_CLIENT, "log_level": 0})
    for transactional_id, producer in producers.items():
        partition = abs(_java_hash(transactional_id)) % PARTITIONS
        key, value = _key(transactional_id), _value(producer)
        writer.produce(LOG, key=key, value=value, partition=partition, on_delivery=_delivered)
    assert writer.flush(60) == 0
    (broker_id,) = cluster.broker_ids
    port = cluster.address(broker_id).port
    cluster.stop(broker_id)
    cluster.start(broker_id, port)
    cluster.wait_until_up()


def _key(transactional_id: str) -> bytes:
    """Kafka `TransactionLogKey`, version 0."""
    name = transactional_id.encode()
    return struct.pack(">hh", 0, len(name)) + name


def _value(producer: ProducerIdAndEpoch) -> bytes:
    """Kafka `TransactionLogValue`, version 0: no partitions, and no start."""
    return struct.pack(">hqhibiqq", 0, *producer, TIMEOUT_MS, EMPTY, 0, int(time.time() * 1000), -1)


def _java_hash(text: str) -> int:
    """`String.hashCode` of ASCII text."""
    found = 0
    for byte in text.encode():
        found = (31 * found + byte) & 0xFFFFFFFF
    return found - (1 << 32) if found >> 31 else found


def _delivered(error: object, _: Message) -> None:
    assert error is None, error
