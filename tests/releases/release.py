"""Tests for each release of Kafka, by `make kafka-releases`: rows equal to a consumer's, an exact stream through
faults, a recreated topic that is refused, a login, the sink, also in transactions, groups and topics. Imported tests
run unchanged."""

# ruff: noqa: F401

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.errors import AuthenticationError
from pyspark_kafka_meta.kafka.network.connection import Connection, ConnectionSettings
from pyspark_kafka_meta.kafka.protocol.apis import FETCH, LIST_OFFSETS, METADATA, PRODUCE
from pyspark_kafka_meta.options import CODECS
from pyspark_kafka_meta.testing import LocalKafka
from tests.kafka.cluster_tools import all_brokers_know, elect_leader, in_sync, is_readable
from tests.kafka.harness import SteadyProducer, Stream, Worker, running
from tests.kafka.test_admin_requests import (
    admin,
    client,
    group,
    test_configuration_of_a_missing_topic_is_empty,
    test_group_with_members_is_kept,
    test_limit_of_transactions_is_that_of_the_brokers,
    test_offsets_of_a_group_are_a_consumers,
    test_topic_is_created_once_as_described,
    test_topic_that_cannot_be_created_is_an_error_with_the_brokers_words,
)
from tests.kafka.test_commit_steps import PARTITIONS, Sink, decide_alone, micro_batch, rows
from tests.kafka.test_fault_matrix_data_loss import make_again, open_stream, test_r10_a_topic_recreated_between_batches
from tests.kafka.writing_network import Fault
from tests.releases.conftest import QUICK_FAILOVER
from tests.spark.test_conformance import (
    compacted_topic,
    log_append_time_topic,
    plain_topic,
    test_rows_equal_those_of_a_confluent_consumer,
    transactional_topic,
)

HANG_S = 8.0
API_VERSIONS = {
    "2.8.2": (11, 6, 12, 9),
    "3.3.2": (12, 7, 13, 9),
    "3.9.1": (12, 8, 16, 11),
    "4.0.2": (13, 8, 16, 12),
    "4.1.1": (13, 8, 16, 13),
    "4.4.0": (13, 8, 16, 13),
}
"""Metadata, ListOffsets, Fetch and Produce."""


def test_a_stream_is_exact_through_a_kill_an_election_and_a_hang(
    breakable_kafka: LocalKafka,
    topic: str,
    leader_of: Callable[[str, int], int],
    wait_for: Callable[..., Any],
    tmp_path: Path,
) -> None:
    servers, victim = breakable_kafka.bootstrap_servers, leader_of(topic, 0)
    producer = SteadyProducer(servers, topic, 3)
    with running(Stream(servers, [topic], tmp_path), producer, wait_for) as scene:
        breakable_kafka.kill(victim)
        wait_for(lambda: leader_of(topic, 0) not in (-1, victim))
        scene.read_on()
        breakable_kafka.restore()
        wait_for(lambda: in_sync(breakable_kafka, topic, 3))
        elect_leader(breakable_kafka, topic, 0, victim)
        scene.read_on()
        breakable_kafka.pause(victim)
        resumed_at = time.monotonic() + HANG_S
        wait_for(lambda: leader_of(topic, 0) not in (-1, victim))
        scene.read_on()
        wait_for(lambda: time.monotonic() > resumed_at)
        breakable_kafka.resume(victim)
        scene.read_on()
    scene.assert_invariants()


@pytest.mark.parametrize("codec", CODECS)
def test_rows_of_each_codec_are_read_by_a_consumer(open_worker: Callable[..., Worker], codec: str) -> None:
    worker = open_worker(**{"kafka.compression.type": codec})
    worker.attempt(max_rows=6_000).write_all()
    worker.assert_written()


def test_a_task_writes_each_row_once_through_a_kill_and_an_election(
    breakable_kafka: LocalKafka, open_worker: Callable[..., Worker], wait_for: Callable[..., Any]
) -> None:
    worker, victim = open_worker(), breakable_kafka.broker_ids[0]
    with worker.attempt() as attempt:
        attempt.write_on()
        breakable_kafka.kill(victim)
        attempt.write_on()
        breakable_kafka.restore()
        wait_for(lambda: in_sync(breakable_kafka, worker.topic, 3))
        elect_leader(breakable_kafka, worker.topic, 0, victim)
        attempt.write_on()
    worker.assert_written()


def test_a_batch_that_is_refused_keeps_its_place(
    open_worker: Callable[..., Worker], wait_for: Callable[..., Any]
) -> None:
    worker = open_worker()
    worker.network.faults.extend([Fault(ErrorCode.not_enough_replicas, is_appended=False)] * 5)
    with worker.attempt() as attempt:
        attempt.write_on()
        worker.network.faults.extend([Fault(ErrorCode.unknown_producer_id, is_appended=False)] * 5)
        wait_for(lambda: not worker.network.faults)
        attempt.write_on()
    worker.assert_written()


def test_batches_are_visible_once_after_crashes_lost_attempts_and_time_outs(
    kafka: LocalKafka, make_topic: Callable[..., str], wait_for: Callable[..., Any]
) -> None:
    """Brokers before Kafka 3.0 cannot list what a lost attempt left open: the driver knows its id."""
    with ExitStack() as stack:
        sink = Sink(kafka.bootstrap_servers, make_topic(partitions=PARTITIONS), None, stack)
        committer = sink.committer()
        decide_alone(committer, micro_batch(0), [sink.write(committer.plan(), 0)])
        plan = sink.committer().plan()
        assert sink.visible() == rows(0)

        sink.write(plan, 1, attempt=0)
        committer = sink.committer()
        committer.commit(micro_batch(1), [sink.write(plan, 1, attempt=1)], 0)
        assert sink.visible() == rows(0, 1)

        committer = sink.committer(**{"kafka.transaction.timeout.ms": "6000"})
        decide_alone(committer, micro_batch(2), [sink.write(committer.plan(), 2)])
        wait_for(lambda: is_readable(sink.servers, sink.topic))
        sink.committer().plan()
        assert sink.visible() == rows(0, 1, 2)


def test_a_login_by_plain_gets_in_and_a_wrong_password_does_not(
    release: str, wait_for: Callable[..., Any], tmp_path: Path
) -> None:
    users, topic = {"alice": "canary-alice"}, "orders"
    with LocalKafka(
        1, security="SASL_PLAINTEXT", mechanisms=["PLAIN"], users=users, config=QUICK_FAILOVER, version=release
    ) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.admin_servers})
        admin.create_topics([NewTopic(topic, 1)])[topic].result(60)
        wait_for(lambda: all_brokers_know(kafka.admin_servers, topic, 1))
        login = kafka.client_options("alice")
        stream = Stream(kafka.bootstrap_servers, [topic], tmp_path, **login)
        with closing(stream), SteadyProducer(kafka.admin_servers, topic, 1):
            stream.run_until(lambda: len(stream.rows) > 100)
        with pytest.raises(AuthenticationError, match="PLAIN"):
            Stream(kafka.bootstrap_servers, [topic], tmp_path, **{**login, "kafka.sasl.password": "canary-wrong"})


def test_api_versions_are_the_newest_that_both_sides_speak(local_kafka: LocalKafka, release: str) -> None:
    settings = ConnectionSettings("kafkameta-tests", connect_timeout_ms=5000, max_frame_bytes=1 << 20)
    with closing(Connection(local_kafka.address(2), settings, time.monotonic() + 10)) as connection:
        versions = tuple(connection.version(api) for api in (METADATA, LIST_OFFSETS, FETCH, PRODUCE))
    assert API_VERSIONS.get(release, versions) == versions
