"""Events to a topic of mock brokers: they arrive keyed and in order, and trouble there never holds up a read."""

from __future__ import annotations

import gc
import json
import logging
import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from pyspark_kafka_meta.events import sinks, topic_sink
from pyspark_kafka_meta.events.publisher import new_publisher
from pyspark_kafka_meta.events.topic_sink import TopicSink
from pyspark_kafka_meta.kafka.metadata.refresh_events import Origin, RefreshEvent, Role
from pyspark_kafka_meta.model import Address
from pyspark_kafka_meta.options import PLAINTEXT, ClientOptions, MetricsOptions
from pyspark_kafka_meta.testing import MockCluster
from pyspark_kafka_meta.testing.listener_security import CertificateAuthority
from tests.unit.written_events import made
from tests.wire.scripted_broker import scripted_broker
from tests.wire.secured_broker import parrot

ORIGIN = Origin(role=Role.READER, executor_id="7")
TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC = 29, 3
NOBODY = Address("127.0.0.1", 1)


def addresses(cluster: MockCluster) -> tuple[Address, ...]:
    pairs = [server.rsplit(":", 1) for server in cluster.bootstrap_servers.split(",")]
    return tuple(Address(host, int(port)) for host, port in pairs)


def records(cluster: MockCluster, count: int) -> list[tuple[str, dict[str, Any]]]:
    """Key and value of the first `count` records of topic events."""
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "test"}
    consumer = Consumer(settings)
    try:
        consumer.assign([TopicPartition("events", 0, 0)])
        found = consumer.consume(count, timeout=30)
        return [((message.key() or b"").decode(), json.loads(message.value() or b"")) for message in found]
    finally:
        consumer.close()


def rows_until(cluster: MockCluster, sequence: int) -> list[dict[str, Any]]:
    """The values of all records up to the event of this sequence."""
    count = 1
    while (found := [row for _, row in records(cluster, count)])[-1]["sequence"] < sequence:
        count += 1
    return found


class WaitedFor:
    """A producer that records the timeouts of its flushes."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer
        self.waits: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def flush(self, timeout_s: float) -> int:
        self.waits.append(timeout_s)
        return int(self._producer.flush(timeout_s))


@pytest.fixture
def cluster(mock_cluster: MockCluster) -> MockCluster:
    mock_cluster.create_topic("events", partitions=1)
    return mock_cluster


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undelivered events are given up after half a second."""
    monkeypatch.setitem(topic_sink.SETTINGS, "message.timeout.ms", 500)


def test_event_that_does_not_fit_in_memory_is_counted(cluster: MockCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: RefreshEvent) -> NoReturn:
        raise MemoryError

    sink = TopicSink(addresses(cluster), "events", PLAINTEXT)
    with monkeypatch.context() as full:
        full.setattr(RefreshEvent, "to_json", refuse)
        sink.write([made("c0ffee", 1), made("c0ffee", 2)])
    sink.write([made("c0ffee", 3)])

    assert [(row["sequence"], row["dropped_before"]) for row in rows_until(cluster, 3)] == [(3, 2)]
    sink.close()


def test_events_arrive_in_order_with_their_cache_as_key(cluster: MockCluster) -> None:
    publisher = new_publisher(MetricsOptions(None, "events", addresses(cluster)), ORIGIN)
    for cache_id, sequence in (("a", 1), ("b", 1), ("a", 2)):
        publisher.publish(made(cache_id, sequence))
    publisher.close()
    found = records(cluster, 3)

    assert [(key, row["cache_id"], row["sequence"]) for key, row in found] == [
        ("a", "a", 1),
        ("b", "b", 1),
        ("a", "a", 2),
    ]
    assert found[0][1]["executor_id"] == "7"


def unknown_topic(cluster: MockCluster) -> None:
    cluster.set_topic_error("events", UNKNOWN_TOPIC)


def unauthorised_topic(cluster: MockCluster) -> None:
    cluster.set_topic_error("events", TOPIC_AUTHORIZATION_FAILED)


def cluster_down(cluster: MockCluster) -> None:
    for broker_id in (1, 2, 3):
        cluster.broker_down(broker_id)


def heal(cluster: MockCluster) -> None:
    cluster.set_topic_error("events", 0)
    for broker_id in (1, 2, 3):
        cluster.broker_up(broker_id)


@pytest.mark.parametrize("fault", [unknown_topic, unauthorised_topic, cluster_down])
@pytest.mark.usefixtures("impatient")
def test_trouble_holds_up_nobody_and_the_next_event_that_arrives_tells_the_loss(
    cluster: MockCluster, fault: Callable[[MockCluster], None], wait_for: Callable[..., Any]
) -> None:
    fault(cluster)
    sink = TopicSink(addresses(cluster), "events", PLAINTEXT)
    producer = WaitedFor(sink._connect())
    sink._producer = cast(Producer, producer)
    sink.write([made("a", 1), made("a", 2)])
    sink.write([made("a", 3)])
    assert producer.waits in ([topic_sink.FLUSH_S], []), "a short wait, and none after a failure"
    wait_for(lambda: producer.flush(0.1) == 0)
    heal(cluster)
    sequences = iter(range(4, 1000))

    def arrives() -> bool:
        sink.write([made("a", next(sequences))])
        return not sink._is_failing

    wait_for(arrives)
    last = next(sequences)
    sink.write([made("a", last)])
    sink.close()
    rows = rows_until(cluster, last)
    assert rows[0]["sequence"] > 3
    assert len(rows) + sum(row["dropped_before"] for row in rows) == last


def test_full_queue_is_counted(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(topic_sink.SETTINGS, "queue.buffering.max.messages", 2)
    sink = TopicSink([NOBODY], "events", PLAINTEXT)
    sink.write([made("a", sequence) for sequence in range(1, 6)])

    [event] = sink._losses.report_in([made("a", 6)])
    assert event.dropped_before == 3
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "refresh event 3 did not reach topic events" in warnings[0]
    sink.close()


def test_closed_sink_leaves_no_producer_behind_that_connects_for_ever(wait_for: Callable[..., Any]) -> None:
    before = producers()
    sink = TopicSink([NOBODY], "events", PLAINTEXT)
    sink.write([made("a", 1)])
    assert producers() == before + 1
    sink.close()
    del sink

    wait_for(lambda: producers() == before)


def producers() -> int:
    """How many of librdkafka's clients run in this process."""
    gc.collect()
    found = 0
    for name in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):  # of a thread that has just ended
            found += name.read_text() == "rdk:main\n"
    return found


def test_store_that_cannot_be_read_costs_events_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trusted = {"kafka.security.protocol": "SSL", "kafka.ssl.truststore.location": str(tmp_path / "gone.pem")}
    client = ClientOptions.parse({"kafka.bootstrap.servers": str(NOBODY), **trusted})
    sink = TopicSink(client.bootstrap_servers, "events", client.security)
    for sequence in (1, 2):
        sink.write([made("c", sequence)])
    sink.close()

    [event] = sink._losses.report_in([made("c", 3)])
    assert event.dropped_before == 2
    [warning] = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.startswith("refresh event 1 did not reach topic events: ")
    assert "kafka.ssl.truststore.location" in warning


def test_login_that_no_producer_can_be_made_with_costs_events_alone_and_is_not_tried_each_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries = []

    def producer(settings: object) -> NoReturn:
        tries.append(settings)
        raise KafkaException(KafkaError(58, "OAuth token not set within 10 seconds timeout"))

    monkeypatch.setattr("confluent_kafka.Producer", producer)
    sink = TopicSink([NOBODY], "events", PLAINTEXT)
    for sequence in (1, 2):
        sink.write([made("c", sequence)])
    monkeypatch.setattr(topic_sink, "CONNECT_BACKOFF_S", 0)
    sink._connect_after = 0
    sink.write([made("c", 3)])

    [event] = sink._losses.report_in([made("c", 4)])
    assert (event.dropped_before, len(tries)) == (3, 2)
    [warning] = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert "token not set" in warning


def test_login_that_is_refused_is_not_tried_again_and_again(
    caplog: pytest.LogCaptureFixture, wait_for: Callable[..., Any]
) -> None:
    before, logins, sequences = producers(), list[int](), count(1)

    def refuse(peer: socket.socket) -> None:
        logins.append(1)
        parrot("canary")(peer)

    with scripted_broker(refuse) as address:
        login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "alice"}
        login |= {"sasl.password": "canary", "bootstrap.servers": str(address)}
        client = ClientOptions.parse({f"kafka.{name}": value for name, value in login.items()})
        sink = TopicSink([address], "events", client.security)

        def gives_up() -> bool:
            sink.write([made("c", next(sequences))])
            return producers() == before

        wait_for(gives_up)
        tried = len(logins)
        sink.write([made("c", next(sequences))])
        assert producers() == before
    assert len(logins) == tried <= 5
    last = next(sequences)
    [event] = sink._losses.report_in([made("c", last)])
    assert event.dropped_before == last - 1
    warnings = [record.message for record in caplog.records if record.name == sinks.logger.name]
    assert warnings == [f"refresh event 1 did not reach topic events: {topic_sink.REFUSED_LOGIN}"]


def test_token_that_does_not_come_is_no_refused_login() -> None:
    oauth = {"kafka.sasl.mechanism": "OAUTHBEARER", "oauthTokenProvider": "json:JSONEncoder"}
    client = ClientOptions.parse(
        {"kafka.bootstrap.servers": str(NOBODY), "kafka.security.protocol": "SASL_PLAINTEXT", **oauth}
    )
    sink = TopicSink([NOBODY], "events", client.security)
    sink._producer = cast(Producer, object())
    sink._on_error(KafkaError(KafkaError._AUTHENTICATION, "Failed to acquire SASL OAUTHBEARER token"))

    assert not sink._is_login_refused


def test_client_that_cannot_be_imported_costs_events_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    sink = TopicSink([NOBODY], "events", PLAINTEXT)
    sink.write([made("c", 1)])

    [event] = sink._losses.report_in([made("c", 2)])
    assert event.dropped_before == 1


def test_key_that_is_not_the_certificates_costs_events_alone(caplog: pytest.LogCaptureFixture) -> None:
    authority = CertificateAuthority()
    first, second = authority.issue("first"), authority.issue("second")
    secured = {
        "kafka.security.protocol": "SSL",
        "kafka.ssl.keystore.key": first.key,
        "kafka.ssl.keystore.certificate.chain": second.certificate,
    }
    client = ClientOptions.parse({"kafka.bootstrap.servers": str(NOBODY), **secured})
    TopicSink(client.bootstrap_servers, "events", client.security).write([made("c", 1)])

    assert "key values mismatch" in caplog.text


def test_child_of_a_fork_does_not_use_its_parents_producer(cluster: MockCluster) -> None:
    publisher = new_publisher(MetricsOptions(None, "events", addresses(cluster)), ORIGIN)
    publisher.publish(made("a", 1))
    publisher.flush()
    child = os.fork()
    if child == 0:
        publisher.publish(made("a", 2))
        publisher.close()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    publisher.publish(made("a", 3))
    publisher.close()

    assert [row["sequence"] for _, row in records(cluster, 2)] == [1, 3]
